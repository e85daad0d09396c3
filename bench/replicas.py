"""Several vLLM replicas behind one sampler: the same tokens, nothing lost when they die, and warm prefix caches.

8 tasks × 8 members × 3 turns over four replicas. The prompt of a task has 256 tokens, and each observation 1,000 of
episode's own, so the members of a group share a prompt, and the turns of an episode much more than that.

scripted_hits_ratio   cached prompt tokens with the sampler's router, divided by those of round robin, with replicas
                      that only remember blocks of 32 tokens, as vLLM does when it schedules a request
hits_ratio            the same, counted by real servers (`vllm:prefix_cache_hits_total`); full size only
tokens_differ         turns at temperature 0 whose tokens are not those of a single replica
turns_lost            turns that were not sampled because replicas were killed (10 times; --ci: once) in their middle
routing_ms            CPU time of choosing a replica, per turn, with 512 turns of 4,096 tokens in flight

With --ci, there are two real replicas, otherwise four, of a tiny model on the CPU.

    python bench/replicas.py [--ci]
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2

from mcprl.config import LearnerConfig, ModelConfig, SamplingConfig
from mcprl.errors import SamplerLostError
from mcprl.placement import Placement
from mcprl.records import Weights
from mcprl.samplers import SampleRequest
from mcprl.samplers.routing import Router
from mcprl.samplers.vllm import VllmSampler, put_whole_weights
from servers.harness import run_bench, say

MODEL = Path(__file__).resolve().parent.parent / ".cache" / "models" / "tiny-qwen3"
TASKS, MEMBERS, TURNS = 8, 8, 3
PROMPT, OBSERVATION, SAMPLED = 256, 1000, 16  # tokens
IN_FLIGHT, LONG = 512, 4096
BLOCK = 32
MID_TURN_S = 0.2
BARS = {
    "scripted_hits_ratio": (">=", 1.8),
    "tokens_differ": ("<=", 0),
    "turns_lost": ("<=", 0),
}
FULL_BARS = {"hits_ratio": (">=", 1.8)}
SPEED_BARS = {"routing_ms": ("<=", 1.0)}

Episode = tuple[int, int]  # task and member
Tokens = dict[Episode, list[tuple[int, ...]]]  # of each turn


class RoundRobin(Router):
    """The router to compare with: every turn goes to the next replica."""

    def __init__(self, *, replicas: int) -> None:
        super().__init__(replicas=replicas, slack=1)
        self._next = 0

    def _choose(self, blocks: list[int], among: Any) -> int:
        self._next += 1
        return sorted(among)[self._next % len(among)]


def draw(*seed: int, length: int) -> tuple[int, ...]:
    """Ids that depend on the seed only."""
    dice = random.Random(repr(seed))
    return tuple(dice.randrange(1000, 9000) for _ in range(length))


async def play(episode: Episode, sample: Any) -> list[tuple[int, ...]]:
    task, member = episode
    ids, turns = draw(task, length=PROMPT), list[tuple[int, ...]]()
    for turn in range(TURNS):
        turns.append(await sample(ids))
        ids += turns[-1] + draw(task, member, turn, length=OBSERVATION)
    return turns


async def play_all(sample: Any) -> Tokens:
    """Play all episodes at once. What ends in a SamplerLostError is missing from the result."""
    episodes = [(task, member) for task in range(TASKS) for member in range(MEMBERS)]
    played = await asyncio.gather(*(play(one, sample) for one in episodes), return_exceptions=True)
    for result in played:
        if isinstance(result, BaseException) and not isinstance(result, SamplerLostError):
            raise result
    return {one: turns for one, turns in zip(episodes, played, strict=True) if not isinstance(turns, BaseException)}


class ScriptedReplicas:
    """Replicas that remember the blocks of all prompts, and answer a turn after a random number of others."""

    def __init__(self, router: Router, replicas: int) -> None:
        self.hits = 0
        self._router, self._replicas = router, range(replicas)
        self._cached: list[set[tuple[int, ...]]] = [set() for _ in self._replicas]
        self._dice = random.Random(0)

    async def sample(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        with self._router.turn(ids, among=self._replicas) as chosen:
            cached, ends = self._cached[chosen], range(BLOCK, len(ids), BLOCK)
            self.hits += BLOCK * next((n for n, end in enumerate(ends) if ids[:end] not in cached), len(ends))
            cached |= {ids[:end] for end in ends}
            for _ in range(self._dice.randrange(20)):
                await asyncio.sleep(0)
        return draw(*ids[-4:], length=SAMPLED)


async def scripted_ratio() -> float:
    hits: list[int] = []
    for router in (Router(replicas=4, slack=MEMBERS), RoundRobin(replicas=4)):
        scripted = ScriptedReplicas(router, 4)
        await play_all(scripted.sample)
        hits.append(scripted.hits)
    say(f"scripted: {hits[0]} cached tokens with affinity, {hits[1]} with round robin")
    return hits[0] / hits[1]


def routing_ms() -> float:
    """The CPU time of a choice, with IN_FLIGHT turns in flight."""
    router = Router(replicas=4, slack=MEMBERS)
    prompts = [draw(n // MEMBERS, length=LONG // 2) + draw(n, length=LONG // 2) for n in range(2 * IN_FLIGHT)]
    with ExitStack() as in_flight:
        for ids in prompts[:IN_FLIGHT]:
            in_flight.enter_context(router.turn(ids, among=range(4)))
        began = time.thread_time()
        for ids in prompts[IN_FLIGHT:]:
            with router.turn(ids, among=range(4)):
                pass
        return (time.thread_time() - began) / IN_FLIGHT * 1e3


class WatchedRouter(Router):
    """The sampler's router, and an event for when the replica `watched` has a turn."""

    watched, arrived = -1, asyncio.Event()

    def _choose(self, blocks: list[int], among: Any) -> int:
        chosen = super()._choose(blocks, among)
        if chosen == self.watched:
            asyncio.get_running_loop().call_later(MID_TURN_S, self.arrived.set)
        return chosen


class Replicas:
    """Real servers, and their tokens at temperature 0."""

    def __init__(self, folder: Path, count: int) -> None:
        self.sampler = VllmSampler(
            ModelConfig(path=str(MODEL), renderer="qwen3", dtype="float32", context_tokens=4096),
            SamplingConfig(),
            LearnerConfig(tuning="full"),  # because only such a server can be told to empty its cache
            max_sequences=TASKS * MEMBERS,
            turn_deadline_s=600.0,
            log=folder / f"vllm-of-{count}.log",
            placement=Placement(replicas=((),) * count),
            group_size=MEMBERS,
        )
        self.router = WatchedRouter(replicas=count, slack=MEMBERS)
        self._use(self.router)

    def _use(self, router: Router) -> None:
        self.sampler._router = router  # pyright: ignore[reportPrivateUsage]

    async def sample(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        request = SampleRequest(prompt_ids=ids, max_tokens=SAMPLED, temperature=0.0, stop=(), stop_token_ids=(), seed=0)
        return (await self.sampler.sample(request)).token_ids

    async def hits(self, router: Router) -> float:
        """The cached tokens of one round of episodes with this router, from empty caches."""
        self._use(router)
        for replica in self.sampler.replicas:
            await put_whole_weights(replica._servers.running, Weights(version=0))  # pyright: ignore[reportPrivateUsage]
        before = await self._counted()
        await play_all(self.sample)
        self._use(self.router)
        return await self._counted() - before

    async def _counted(self) -> float:
        found = 0.0
        for replica in self.sampler.replicas:
            transport = httpx2.AsyncHTTPTransport(uds=str(replica.socket))
            async with httpx2.AsyncClient(base_url="http://vllm", transport=transport, timeout=60) as client:
                lines = (await client.get("/metrics")).text.splitlines()
            name = "vllm:prefix_cache_hits_total{"
            found += sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))
        return found

    async def play_while_dying(self, kills: int) -> tuple[Tokens, int]:
        """Play round after round, and kill a replica in the middle of its turns each time."""
        lost, played = 0, Tokens()
        for number in range(kills):
            replica = self.sampler.replicas[number % len(self.sampler.replicas)]
            await replica.ready()
            round_ = asyncio.create_task(play_all(self.sample))
            self.router.watched, self.router.arrived = number % len(self.sampler.replicas), asyncio.Event()
            await self.router.arrived.wait()
            os.kill(replica.pid, signal.SIGKILL)
            played = await round_
            lost += (TASKS * MEMBERS - len(played)) * TURNS
            say(f"kill {number + 1}: {len(played)} of {TASKS * MEMBERS} episodes were played")
        return played, lost


async def measure(ci: bool, folder: Path) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "scripted_hits_ratio": round(await scripted_ratio(), 2),
        "routing_ms": round(routing_ms(), 3),
    }
    alone = Replicas(folder, 1)
    async with alone.sampler:
        expected = await play_all(alone.sample)
    several = Replicas(folder, 2 if ci else 4)
    async with several.sampler:
        played = await play_all(several.sample)
        if not ci:
            with_affinity = await several.hits(several.router)
            figures["hits_ratio"] = round(with_affinity / await several.hits(RoundRobin(replicas=4)), 2)
        after, lost = await several.play_while_dying(1 if ci else 10)
        figures["restarts"] = several.sampler.restarts
    rounds = (played, after)
    differ = sum(mine != turn for one in rounds for e in one for mine, turn in zip(one[e], expected[e], strict=True))
    return figures | {"tokens_differ": differ, "turns_lost": lost}


if __name__ == "__main__":
    sys.exit(run_bench(__doc__, measure, BARS, at_full_size=FULL_BARS, speed=SPEED_BARS))

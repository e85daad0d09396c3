"""What collecting costs beyond the bare vLLM server, and what vLLM gains over sampling with transformers.

Ours is the whole path of a run: collector, episodes, chat, a toolbox with a real MCP server over HTTP whose tool
answers at once, and the vLLM sampler, with SmolLM2 in float32. Every episode takes exactly three turns: whatever the
model writes is read as usual, and then taken for one call of the tool, until the limit of three turns. So the tokens
are the model's own, and no grammar slows vLLM down.

Bare is an HTTP client that sends the same server the same requests: a turn of an episode when the turn before it is
there, and as many episodes at once. Both sides begin with an empty prefix cache and take turns. `ratio` is the median
over the rounds of our time by the bare time; the first round of each is not counted.

The transformers sampler gets the requests of a few of those episodes, `vllm_gain` being its time by that of vLLM with
all of them in flight. `without_batching` is the same with one request at a time to vLLM, `without_cache` with a prefix
cache that is emptied before each of them as well: how the gain shrinks is what batching and the cache make of it.

    python bench/collect.py [--ci]
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2

from mcprl.chat import Chat, load_chat
from mcprl.chat.parsing import ParsedTurn
from mcprl.config import LearnerConfig, RunConfig, ServerSettings
from mcprl.episodes import Collector, EpisodeRunner
from mcprl.goals import Contains, Goal
from mcprl.records import Task, ToolCall
from mcprl.samplers import Completion, Sampler, SampleRequest
from mcprl.samplers.transformers import TransformersSampler
from mcprl.samplers.vllm import VllmSampler
from mcprl.samplers.vllm_server import BASE_NAME, GENERATE_PATH, generate_body
from mcprl.seeds import derive_seed
from mcprl.tools import Toolbox
from servers.harness import http_spec, run_bench, say

MODEL = Path(__file__).resolve().parent.parent / ".cache" / "models" / "smollm2-135m"
TURNS = 3
AT_ONCE = 16
MAX_TOKENS = 12
GROUP_SIZE = 4
SPEED_BARS = {"ratio": ("<=", 1.10)}
SYMBOLS = ("ACME", "GLOBEX", "INITECH", "UMBRELLA")
PREAMBLE = ({"role": "system", "content": "Use the tools to answer."},)

Chain = Sequence[SampleRequest]  # the turns of an episode


class EveryTurnCalls:
    """A chat that takes every turn for a call, whatever it says. The tokens are left as they are."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chat, name)

    def parse(self, prompt_ids: Sequence[int], sampled_ids: Sequence[int], tools: Sequence[Any]) -> ParsedTurn:
        parsed = self._chat.parse(prompt_ids, sampled_ids, tools)
        # Of its own: the answer to a call that was made before could come from a cache.
        call = ToolCall(name="quote", arguments={"symbol": "ACME", "number": derive_seed(0, *sampled_ids) % 10**6})
        return replace(parsed, calls=(call,))


class Recorder:
    """Passes every turn on, and keeps what was asked for, by its seed."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self.by_seed: dict[int, SampleRequest] = {}

    async def sample(self, request: SampleRequest) -> Completion:
        self.by_seed[request.seed] = request
        return await self._sampler.sample(request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


def make_config(folder: Path) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "collect",
            "seed": 7,
            "model": {"path": str(MODEL), "renderer": "chatml", "dtype": "float32", "context_tokens": 2048},
            "tasks": {"train": str(folder / "tasks.jsonl")},
            "servers": {"file": str(folder / "servers.json")},
            "sampling": {"temperature": 0.7, "max_tokens": MAX_TOKENS},
            "episodes": {"group_size": GROUP_SIZE, "max_concurrent": AT_ONCE},
        }
    )


def make_tasks(count: int) -> list[Task]:
    return [
        Task(
            id=f"quote-{number}",
            prompt=({"role": "user", "content": f"What are prices {number} of {SYMBOLS[number % 4]} by week?"},),
            goal=Goal(answer=Contains(text=str(number))),
            max_turns=TURNS,
        )
        for number in range(count)
    ]


async def collect(collector: Collector, tasks: list[Task], step: int) -> None:
    groups = await collector.collect(tasks, step, lambda _finished: None)
    turns = [len(trajectory.turns) for group in groups for trajectory in group.trajectories]
    assert turns == [TURNS] * len(tasks) * GROUP_SIZE, turns
    assert not any(group.lost for group in groups)


def chains_of(step: int, tasks: list[Task], seed: int, by_seed: Mapping[int, SampleRequest]) -> list[Chain]:
    return [
        [by_seed[derive_seed(seed, "turn", step, task.id, member, turn)] for turn in range(TURNS)]
        for task in tasks
        for member in range(GROUP_SIZE)
    ]


async def in_chains(
    chains: Sequence[Chain], ask: Callable[[SampleRequest], Awaitable[Any]], *, at_once: int = AT_ONCE
) -> None:
    """Each request when the one before it in its chain is answered."""
    rest = iter(chains)

    async def work() -> None:
        for chain in rest:
            for request in chain:
                await ask(request)

    await asyncio.gather(*(work() for _ in range(at_once)))


async def timed(work: Awaitable[None]) -> float:
    started = time.perf_counter()
    await work
    return time.perf_counter() - started


class Bare:
    """The server, asked with nothing in between."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    async def ask(self, request: SampleRequest) -> None:
        answer = await self._client.post(GENERATE_PATH, json=generate_body(request, BASE_NAME))
        answer.raise_for_status().json()

    async def ask_without_cache(self, request: SampleRequest) -> None:
        await self.forget()
        await self.ask(request)

    async def forget(self) -> None:
        answer = await self._client.post("/reset_prefix_cache", json={})
        assert answer.raise_for_status().json()["success"]


async def compare(
    bare: Bare, recorder: Recorder, collector: Collector, tasks: list[Task], *, rounds: int, seed: int
) -> tuple[dict[str, Any], list[Chain]]:
    ours: list[float] = []
    theirs: list[float] = []
    chains: list[Chain] = []
    for step in range(rounds + 1):  # the requests of a step are those of its seed: each round has its own
        await bare.forget()
        ours.append(await timed(collect(collector, tasks, step)))
        chains = chains_of(step, tasks, seed, recorder.by_seed)
        await bare.forget()
        theirs.append(await timed(in_chains(chains, bare.ask)))
        say(f"round {step}: ours {ours[-1]:.2f} s, bare {theirs[-1]:.2f} s, ratio {ours[-1] / theirs[-1]:.3f}")
    ratios = [our / their for our, their in zip(ours[1:], theirs[1:], strict=True)]
    return {
        "ratio": round(statistics.median(ratios), 3),
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "ours_s": round(statistics.median(ours[1:]), 2),
        "bare_s": round(statistics.median(theirs[1:]), 2),
        "episodes": len(chains),
        "at_once": AT_ONCE,
    }, chains


async def against_transformers(bare: Bare, chains: Sequence[Chain], config: RunConfig) -> dict[str, Any]:
    await bare.forget()
    vllm_s = await timed(in_chains(chains, bare.ask))
    await bare.forget()
    one_by_one_s = await timed(in_chains(chains, bare.ask, at_once=1))
    without_cache_s = await timed(in_chains(chains, bare.ask_without_cache, at_once=1))
    async with TransformersSampler(config.model) as sampler:
        transformers_s = await timed(in_chains(chains, sampler.sample))
    say(f"transformers {transformers_s:.2f} s, vLLM {vllm_s:.2f} s, one by one {one_by_one_s:.2f} s")
    return {
        "vllm_gain": round(transformers_s / vllm_s, 2),
        "without_batching": round(transformers_s / one_by_one_s, 2),
        "without_cache": round(transformers_s / without_cache_s, 2),
        "vllm_gain_episodes": len(chains),
    }


async def measure(ci: bool, folder: Path) -> dict[str, Any]:
    config = make_config(folder)
    tasks = make_tasks(4 if ci else 64 // GROUP_SIZE)
    chat: Any = EveryTurnCalls(load_chat(config.model.path, config.model.renderer))
    async with AsyncExitStack() as stack:
        spec = http_spec("echo", "echo.py", settings=ServerSettings())
        toolbox = await stack.enter_async_context(Toolbox([spec], log_dir=folder))
        # For whole weights, because only such a server can be told to empty its prefix cache.
        learner = LearnerConfig(tuning="full")
        sampler = VllmSampler(
            config.model,
            config.sampling,
            learner,
            max_sequences=AT_ONCE,
            turn_deadline_s=config.episodes.deadline_s,
            log=folder / "vllm.log",
        )
        await stack.enter_async_context(sampler)
        say("vLLM runs")
        recorder: Any = Recorder(sampler)
        runner = EpisodeRunner(config, chat=chat, sampler=recorder, leases=toolbox, preamble=PREAMBLE)
        client = await stack.enter_async_context(
            httpx2.AsyncClient(
                base_url="http://vllm",
                timeout=300,
                transport=httpx2.AsyncHTTPTransport(
                    uds=str(sampler.replicas[0].socket), limits=httpx2.Limits(max_connections=None)
                ),
            )
        )
        bare = Bare(client)
        collector = Collector(runner, config.episodes)
        figures, chains = await compare(bare, recorder, collector, tasks, rounds=3 if ci else 5, seed=config.seed)
        return figures | await against_transformers(bare, chains[: 2 if ci else 8], config)


if __name__ == "__main__":
    sys.exit(run_bench(__doc__, measure, {}, speed=SPEED_BARS))

"""What the gateway for agents costs, beside mcprl's own loop on the same episodes.

Every episode takes three turns: two calls of a tool that answers at once, and an answer. The turns are written in
advance. In `ratio` each takes a second, as 50 tokens do on a busy GPU. The agents are all in one other process, whose
own time is not counted in the processor time. Both sides take turns; figures are medians over the rounds.

  ratio            time per turn with the gateway ÷ with our own loop, with 64 episodes in flight; without the
                   processor time of the agents, agent_cpu_ms per turn
  ratio_with_agents
                   the same with it; they compute while the trainer waits, so the cost lies between the two
  own_cpu_ms, gateway_cpu_ms
                   processor time of the trainer's process per turn, when turns are there at once
  open_episodes    episodes that were open at the same time, of one client; each ended with its answer
  open_mb          memory that these took
  processes        programs of the Vercel AI SDK that ran at the same time, each in its first turn, when they had taken
                   16 GiB; each ended with its answer
  process_mb       memory per program, with its part of the trainer's

    python bench/gateway.py [--ci]

First: scripts/setup agents.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from gateways.real import vercel_agent
from mcprl.chat import Chat, load_chat
from mcprl.config import RunConfig
from mcprl.episodes import EpisodeRunner
from mcprl.goals import Contains, Goal
from mcprl.records import FinishReason, Observation, StopReason, Task, ToolCall, Trajectory
from mcprl.samplers import Completion, SampleRequest
from mcprl_agents import runner as agents
from servers.harness import run_bench, say

MODEL = Path(__file__).resolve().parent.parent / ".cache" / "models" / "tiny-qwen3"
CLIENT = Path(__file__).resolve().parent / "gateways" / "client.py"
TURNS, AT_ONCE, OPEN = 3, 64, 1000
FILLED_BYTES, MOST, BATCH = 16 << 30, 1000, 8
TURN_S = 1.0
PARAMETERS = {"type": "object", "properties": {"symbol": {"type": "string"}}, "required": ["symbol"]}
TASK = Task(
    id="quote",
    prompt=({"role": "user", "content": "What is the price of ACME?"},),
    goal=Goal(answer=Contains(text="42")),
    max_turns=TURNS,
)


class InstantTools:
    """One tool that answers at once; it leases itself."""

    name, description, parameters = "quote", "", PARAMETERS

    @property
    def tools(self) -> Sequence[Any]:
        return (self,)

    @asynccontextmanager
    async def lease(self, tool_names: Any, *, probes: Any, lives_s: float) -> AsyncGenerator[Any]:
        yield self

    async def call(self, call: ToolCall, **_: Any) -> Observation:
        return Observation(tool=call.name, server="prices", text="42")

    probe = call


class WrittenTurns:
    """Says two calls and an answer, each after `turn_s`. `most` is how many were in flight at once."""

    def __init__(self, chat: Chat, turn_s: float) -> None:
        call = '<tool_call>\n{"name": "quote", "arguments": {"symbol": "ACME"}}\n</tool_call><|im_end|>'
        said = [chat.tokenizer.encode(text, add_special_tokens=False) for text in (call, call, "It is 42.<|im_end|>")]
        self._said = [tuple(ids) for ids in said]
        self._turn_s, self._end = turn_s, self._said[0][-1]
        self.now = self.most = 0

    async def sample(self, request: SampleRequest) -> Completion:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(self._turn_s)
        self.now -= 1
        # Two messages end in the first prompt, and two more with each turn.
        ids = self._said[(request.prompt_ids.count(self._end) - 2) // 2]
        none = (0.0,) * len(ids)
        return Completion(token_ids=ids, logprobs=none, finish=FinishReason.STOP, weights_versions=(0,) * len(ids))


class _Played:
    """A program whose agent is in the client."""

    exit_code, last_words, answer = 0, "", ""

    def __init__(self, answered: asyncio.Future[str]) -> None:
        self.process, self._answered = self, answered

    async def wait(self) -> int:
        self.answer = await self._answered
        return 0


class Client:
    """The process that plays all agents, in the place of a program per episode."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process, self._numbers = process, itertools.count()
        self._agents = psutil.Process(process.pid)
        self._waiting: dict[int, asyncio.Future[str]] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncGenerator[Client]:
        pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
        process = await asyncio.create_subprocess_exec(sys.executable, str(CLIENT), **pipes)
        client = cls(process)
        reading = asyncio.create_task(client._read())
        started, agents.started = agents.started, client._started
        try:
            yield client
        finally:
            agents.started = started
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()
            await reading

    def cpu_s(self) -> float:
        used = self._agents.cpu_times()
        return used.user + used.system

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            said = json.loads(line)
            self._waiting.pop(said["number"]).set_result(said["answer"])

    @asynccontextmanager
    async def _started(self, _: Any, given: str, *, url: str, token: str, **__: Any) -> AsyncGenerator[_Played]:
        number = next(self._numbers)
        answered = self._waiting[number] = asyncio.get_running_loop().create_future()
        assert self._process.stdin is not None
        line = {"number": number, "url": url, "token": token, "messages": json.loads(given)["messages"]}
        self._process.stdin.write(f"{json.dumps(line)}\n".encode())
        yield _Played(answered)


def make_config(command: Sequence[str] = ("client",)) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "gateway",
            "model": {"path": str(MODEL), "renderer": "chatml", "dtype": "float32", "context_tokens": 2048},
            "tasks": {"train": "/tasks.jsonl"},
            "servers": {"file": "/servers.json"},
            "sampling": {"max_tokens": 64},
            "episodes": {"agent": {"command": list(command)}, "deadline_s": 3600},
        }
    )


async def play(runner: EpisodeRunner, count: int) -> tuple[float, float]:
    """Play episodes, all at once. Returns the time and the processor time per turn, in seconds."""
    began, used = time.perf_counter(), time.process_time()
    made = await asyncio.gather(*(runner.run(TASK, step=0, member=m, attempt=0) for m in range(count)))
    assert all((t.stop, len(t.turns), t.forks) == (StopReason.ANSWERED, TURNS, ()) for t in made)
    turns = count * TURNS
    return (time.perf_counter() - began) / turns, (time.process_time() - used) / turns


class HeldTurns(WrittenTurns):
    """Says nothing before `released` is set."""

    def __init__(self, chat: Chat) -> None:
        super().__init__(chat, 0.0)
        self.released, self.asked = asyncio.Event(), asyncio.Semaphore(0)

    async def sample(self, request: SampleRequest) -> Completion:
        self.asked.release()
        await self.released.wait()
        return await super().sample(request)


async def fill_memory(chat: Chat, folder: Path, most: int) -> tuple[int, float]:
    """Start programs until they have taken FILLED_BYTES, then let them play. Returns their number, and MB of each."""
    config, sampler = make_config(vercel_agent()), HeldTurns(chat)
    before, grown = psutil.virtual_memory().used, 0
    async with agents.open_agents((), folder) as make_runner:
        runner = make_runner(config, chat=chat, sampler=sampler, leases=InstantTools(), preamble=())
        async with asyncio.TaskGroup() as playing:
            episodes: list[asyncio.Task[Trajectory]] = []
            while grown < FILLED_BYTES and len(episodes) < most:
                for _ in range(BATCH):
                    episodes.append(playing.create_task(runner.run(TASK, step=0, member=len(episodes), attempt=0)))
                for _ in range(BATCH):
                    await sampler.asked.acquire()
                grown = psutil.virtual_memory().used - before
            say(f"{len(episodes)} programs run, in {grown / 1e6:.0f} MB")
            sampler.released.set()
    assert all((e.result().stop, len(e.result().turns)) == (StopReason.ANSWERED, TURNS) for e in episodes)
    return len(episodes), grown / 1e6 / len(episodes)


async def measure(ci: bool, folder: Path) -> dict[str, Any]:
    chat, config, rounds = load_chat(str(MODEL), "chatml"), make_config(), 2 if ci else 7
    slow, fast = WrittenTurns(chat, TURN_S), WrittenTurns(chat, 0.0)
    found: dict[str, list[float]] = {}
    async with Client.open() as client, agents.open_agents((), folder) as make_runner:
        makes = {"own": EpisodeRunner, "gateway": make_runner}

        async def one(side: str, sampler: WrittenTurns, count: int) -> tuple[float, float]:
            parts: dict[str, Any] = {"chat": chat, "sampler": sampler, "leases": InstantTools(), "preamble": ()}
            return await play(makes[side](config, **parts), count)

        for number in range(rounds + 1):
            for side in makes:
                before = client.cpu_s()
                wall, _ = await one(side, slow, AT_ONCE)
                own = (client.cpu_s() - before) / (AT_ONCE * TURNS)
                _, cpu = await one(side, fast, AT_ONCE)
                if number:  # the first round of each is not counted
                    found.setdefault(f"{side}_turn_ms", []).append(1000 * wall)
                    if side == "gateway":
                        found.setdefault("agent_cpu_ms", []).append(1000 * own)
                    found.setdefault(f"{side}_cpu_ms", []).append(1000 * cpu)
            say(f"round {number} of {rounds}")
        many, before = WrittenTurns(chat, 5 * TURN_S), psutil.Process().memory_info().rss
        await one("gateway", many, 200 if ci else OPEN)
        grown = psutil.Process().memory_info().rss - before
    processes, process_mb = await fill_memory(chat, folder, BATCH if ci else MOST)
    figures = {name: round(statistics.median(values), 3) for name, values in found.items()}
    own_ms, with_agents_ms = figures["own_turn_ms"], figures["gateway_turn_ms"]
    return {
        "ratio": round((with_agents_ms - figures["agent_cpu_ms"]) / own_ms, 3),
        "ratio_with_agents": round(with_agents_ms / own_ms, 3),
        **figures,
        "open_episodes": many.most,
        "open_mb": round(grown / 1e6),
        "processes": processes,
        "process_mb": round(process_mb, 1),
    }


if __name__ == "__main__":
    sys.exit(
        run_bench(__doc__, measure, {}, at_full_size={"open_episodes": (">=", OPEN)}, speed={"ratio": ("<=", 1.15)})
    )

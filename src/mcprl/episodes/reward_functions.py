"""Reward functions of the user: written in Python, named in a recipe, run in a process of their own.

    rewards:
      functions:
        grounded: {function: rewards.py:grounded, weight: 0.5}

    # rewards.py
    def grounded(episode: mcprl.EpisodeView) -> float:
        "Share of the numbers in the answer that some tool returned."

The process can be killed, so a function that blocks, even while it holds the GIL, misses its deadline and nothing else.
It gets a copy of the episode and returns a number; calls of `episode.probe` are made by the process of the episode.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import pickle
import re
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from mcprl.concurrency import run_all
from mcprl.config import RewardFunctionConfig, RewardsConfig
from mcprl.errors import InfrastructureError, RewardFunctionError, UserCodeError
from mcprl.processes import ChildProcess
from mcprl.records import Observation, StopReason, Task, ToolCall, Turn
from mcprl.secrets import SECRETS, looks_secret
from mcprl.tools import Catalog
from mcprl.tools.keys import load_keys

__all__ = ["EpisodeView", "RewardFunctions", "open_functions"]

Probe = Callable[[ToolCall], Awaitable[Observation]]

_START_S: Final = 120.0  # a file may import torch
_TRACE_S: Final = 1.0
_HEADER_BYTES: Final = 8
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeView:
    """A finished episode, as a reward function sees it.

    EpisodeView(task=Task(id="meet-ana", …), turns=(Turn(…), Turn(…)), answer="It is 23:30.", stop=StopReason.ANSWERED,
                parts={"answer": 1.0, "calls": 0.5, "invalid_call": 0.0, "unanswered": 0.0}, step=3, member=0)

    `answer` is None if the episode ended without one. `parts` are the other parts of the reward.
    """

    task: Task
    turns: tuple[Turn, ...]
    answer: str | None
    stop: StopReason
    parts: Mapping[str, float]
    probing: Probe | None = None

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """All calls of the policy, in order."""
        return tuple(call for turn in self.turns for call in turn.calls)

    @property
    def observations(self) -> tuple[Observation, ...]:
        """The results of `calls`."""
        return tuple(seen for turn in self.turns for seen in turn.observations)

    async def probe(self, tool: str, **arguments: Any) -> Observation:
        """Call a tool on the episode's own servers. The recipe lists it under `probes` of the function."""
        assert self.probing is not None
        return await self.probing(ToolCall(name=tool, arguments=arguments))


@dataclass(slots=True)
class _Call:
    """A call of a function that is under way."""

    result: asyncio.Future[float]
    probe: Probe
    probes: frozenset[str]


class RewardFunctions:
    """Runs the reward functions of a recipe.

    async with RewardFunctions(config.rewards.functions, environment=keys, log=logs / "rewards.log") as functions:
        parts = await functions.grade(view)       # {"grounded": 0.5}

    If a function raises, returns something else than a number from −1 to 1, or misses its deadline, UserCodeError is
    raised, which ends the run; with `on_error: lose_episode` RewardFunctionError, which loses the episode.
    """

    def __init__(
        self, functions: Mapping[str, RewardFunctionConfig], *, environment: Mapping[str, str], log: Path
    ) -> None:
        self._functions = functions
        self._environment = environment
        self._log = log
        self._numbers = itertools.count()
        self._calls: dict[int, _Call] = {}
        self._probing: set[asyncio.Task[None]] = set()
        self._child: ChildProcess | None = None
        self._reader: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._starting = asyncio.Lock()
        self._folder = tempfile.TemporaryDirectory(prefix="mcprl-rewards-")
        self._trace = Path(self._folder.name) / "trace"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._functions)

    async def __aenter__(self) -> Self:
        for name, value in self._environment.items():
            if looks_secret(name):
                SECRETS.add(name, value)
        try:
            await self._start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stop()
        self._folder.cleanup()

    async def grade(self, episode: EpisodeView) -> dict[str, float]:
        """The value of each function for an episode."""
        values = await run_all(self._value(name, episode) for name in self._functions)
        return dict(zip(self._functions, values, strict=True))

    async def _value(self, name: str, episode: EpisodeView) -> float:
        function = self._functions[name]
        async with self._starting:
            if self._child is None:
                await self._start()
        assert episode.probing is not None
        number = next(self._numbers)
        call = _Call(asyncio.get_running_loop().create_future(), episode.probing, frozenset(function.probes))
        self._calls[number] = call
        try:
            self._send(("call", number, name, replace(episode, probing=None)))
            async with asyncio.timeout(function.deadline_s):
                return await call.result
        except TimeoutError:
            place = await self._interrupt()
            what = f"{place}: {function.function} took longer than {function.deadline_s:g} s"
            raise self._fault(function, f"{what} {_of(episode)}", "make it faster, or raise its deadline_s") from None
        except _FunctionFailed as failed:
            raise self._fault(function, f"{failed} {_of(episode)}", "correct the code there") from None
        finally:
            del self._calls[number]

    def _fault(self, function: RewardFunctionConfig, what: str, fix: str) -> UserCodeError | RewardFunctionError:
        return (RewardFunctionError if function.on_error == "lose_episode" else UserCodeError)(what, fix=fix)

    async def _start(self) -> None:
        self._trace.write_bytes(b"")
        command = [sys.executable, "-m", "mcprl.episodes.reward_process", str(self._trace)]
        clean = SECRETS.line_cleaner()
        child = await ChildProcess.start(command, env=self._environment, log=self._log, pipes=True, clean=clean)
        self._child = child
        assert child.stdin is not None
        assert child.stdout is not None
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=2**24)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), child.stdout)
        transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, child.stdin)
        self._writer = asyncio.StreamWriter(transport, protocol, None, loop)
        self._send(("load", {name: function.function for name, function in self._functions.items()}))
        try:
            async with asyncio.timeout(_START_S):
                loaded = json.loads(await reader.readline() or "null")
        except TimeoutError:
            place = await self._interrupt()
            raise UserCodeError(
                f"{place}: importing the reward functions took longer than {_START_S:g} s", fix="make the import faster"
            ) from None
        if loaded is None or "error" in loaded:
            why = f"its process ended, see {child.log}" if loaded is None else loaded["error"]
            await self._stop()
            raise UserCodeError(f"rewards.functions: {why}", fix="correct the code there")
        self._reader = asyncio.create_task(self._read(reader, child))

    def _send(self, message: tuple[Any, ...]) -> None:
        assert self._writer is not None
        data = pickle.dumps(message)
        self._writer.write(len(data).to_bytes(_HEADER_BYTES) + data)

    async def _read(self, reader: asyncio.StreamReader, child: ChildProcess) -> None:
        while line := await reader.readline():
            reply = json.loads(line)
            call = self._calls.get(reply["call"])
            if call is None or call.result.done():
                continue
            if "probe" in reply:
                probing = asyncio.create_task(self._probe(reply, call))
                self._probing.add(probing)
                probing.add_done_callback(self._probing.discard)
            elif "error" in reply:
                call.result.set_exception(_FunctionFailed(reply["error"]))
            else:
                call.result.set_result(reply["value"])
        code = await child.wait()
        for call in self._calls.values():
            if not call.result.done():
                call.result.set_exception(_FunctionFailed(f"the process of the reward functions ended with {code}"))
        self._child = None

    async def _probe(self, reply: Mapping[str, Any], call: _Call) -> None:
        tool, arguments = reply["tool"], reply["arguments"]
        if tool not in call.probes:
            self._send(("probed", reply["probe"], f"{tool!r} is not in `probes` of this function in the recipe"))
            return
        try:
            seen = await call.probe(ToolCall(name=tool, arguments=arguments))
        except InfrastructureError as error:
            if not call.result.done():
                call.result.set_exception(error)
            return
        self._send(("probed", reply["probe"], seen))

    async def _interrupt(self) -> str:
        """Where the function is now, by a stack that the child dumps even if the GIL is held; then kill the child."""
        child = self._child
        assert child is not None
        child.send(signal.SIGUSR1)
        async with asyncio.timeout(_TRACE_S * 10):
            while not self._trace.stat().st_size and not await child.ends_within(_TRACE_S / 10):
                pass
        await self._stop()
        folders = {Path(function.function).parent for function in self._functions.values()}
        frames = _FRAME.finditer(self._trace.read_text(errors="replace"))
        own = (f"{frame['file']}:{frame['line']}" for frame in frames if Path(frame["file"]).parent in folders)
        return next(own, "not in your code")

    async def _stop(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._child is not None:
            child, self._child = self._child, None
            await child.stop(grace_s=0.0)


@asynccontextmanager
async def open_functions(
    rewards: RewardsConfig, catalog: Catalog, *, env_file: Path | None, logs: Path
) -> AsyncGenerator[RewardFunctions | None]:
    """Open the reward functions of a recipe, or None if it has none. Raises if no server lists a tool to probe."""
    functions = rewards.functions
    if not functions:
        yield None
        return
    catalog.require([tool for one in functions.values() for tool in one.probes], wanted_by="rewards.functions")
    async with RewardFunctions(functions, environment=load_keys(env_file), log=logs / "rewards.log") as opened:
        yield opened


class _FunctionFailed(Exception):
    """The process reports that a function raised or returned something else than a number."""


def _of(episode: EpisodeView) -> str:
    return f"(task {episode.task.id}, {len(episode.turns)} turns)"

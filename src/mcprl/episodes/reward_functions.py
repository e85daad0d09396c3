"""Runs the user's reward functions, checks and simulated users: Python code named in a recipe or a task.

    rewards:
      functions:
        grounded: {function: rewards.py:grounded, weight: 0.5}

    # rewards.py
    @mcprl.reward
    def grounded(episode: mcprl.EpisodeView) -> float:
        "Share of the numbers in the answer that some tool returned."

They run in a process that can be killed. So if a function blocks, even while holding the GIL, it only misses its
deadline. A function gets a copy of the episode and returns a number. The main process makes the calls to
`episode.probe`. The code is read once per run. If the process starts again, here or on a worker, it runs the same code.
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
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from mcprl.concurrency import run_all
from mcprl.config import RewardFunctionConfig, RewardsConfig, UserConfig
from mcprl.episodes.rewards import weigh
from mcprl.episodes.user_model import UserModel
from mcprl.errors import InfrastructureError, RewardFunctionError, UserCodeError
from mcprl.functions import Code, EpisodeView, Per, Probe
from mcprl.processes import ChildProcess
from mcprl.records import StopReason, Task, ToolCall, Trajectory
from mcprl.secrets import SECRETS, looks_secret
from mcprl.tools import Catalog
from mcprl.tools.keys import load_keys

_PROCESS: Final = Path(__file__).with_name("reward_process.py")  # as a script, it imports none of our neighbors
_START_S: Final = 120.0  # importing the user's file may import torch
_TRACE_S: Final = 1.0
_HEADER_BYTES: Final = 8
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


@dataclass(slots=True, eq=False)
class _Call:
    """An unfinished call to the function at `place` (file:line), in the process `child`."""

    place: str
    result: asyncio.Future[Any]
    probe: Probe | None
    probes: frozenset[str]
    child: ChildProcess | None


class RewardFunctions:
    """Runs the reward functions of a recipe.

    functions = {"grounded": RewardFunctionConfig(function="/home/ana/rewards.py:grounded", weight=0.5)}
    async with RewardFunctions(functions, environment=keys, log=logs / "rewards.log") as opened:
        values = await opened.grade(view)                 # {"grounded": 0.5, "check": 1.0}; a list if it is per turn
        group = await opened.grade_group(task, trajectories, rewards)    # with the parts of functions per group

    `code` was read earlier, perhaps by another process. It includes the checks of tasks. If a function raises, returns
    anything but numbers from −1 to 1, or misses its deadline, UserCodeError is raised and ends the run. With
    `on_error: lose_episode`, RewardFunctionError is raised instead, and only the episode is lost. `user` is the model
    that plays the users of tasks that give it instructions; the users of other tasks are functions.
    """

    def __init__(
        self,
        functions: Mapping[str, RewardFunctionConfig],
        *,
        environment: Mapping[str, str],
        log: Path,
        code: Code | None = None,
        user: UserModel | None = None,
    ) -> None:
        self._user = user
        self._functions = dict(functions)
        self.code = code or Code.read(function.function for function in functions.values())
        self.digest = self.code.digest if self.code.references else ""
        self._environment = environment
        self._log = log
        self._per: dict[str, Per] = {}
        self._places: dict[str, str] = {}  # file:line
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

    @property
    def of_groups(self) -> tuple[str, ...]:
        """The functions that are called per group."""
        return tuple(name for name in self._functions if self._per[name] == "group")

    async def __aenter__(self) -> Self:
        for name, value in self._environment.items():
            if looks_secret(name):
                SECRETS.add(name, value)
        try:
            if self.code.references:
                await self._start()
            for name in self.of_groups:
                function = self._functions[name]
                if function.probes or function.on_error != "stop":
                    raise UserCodeError(
                        f"rewards.functions.{name} is called once per group, after the episodes released their tools",
                        fix="remove its probes and its on_error, or make it a per-episode function",
                    )
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stop()
        self._folder.cleanup()

    def leave_out_groups(self, rewards: RewardsConfig) -> RewardsConfig:
        """Remove the per-group functions, for episodes outside any group. Return `rewards` without these functions."""
        for name in self.of_groups:
            del self._functions[name]
        return rewards.model_copy(update={"functions": dict(self._functions)})

    async def grade(self, episode: EpisodeView) -> dict[str, float | list[float]]:
        """Return the functions' values for an episode. Per-group functions are left out."""
        calls = {name: (name, own) for name, own in self._functions.items() if self._per[name] != "group"}
        if (check := episode.task.goal.check) is not None:
            own = self._of_task(check.function, f"the check of task {episode.task.id}", check.probes)
            calls["check"] = check.function, own
        bare = replace(episode, probing=None)
        values = await run_all(self._call(name, own, bare, episode.probing) for name, own in calls.values())
        return dict(zip(calls, values, strict=True))

    async def reply(self, episode: EpisodeView) -> str | None:
        """Return what the task's simulated user says after the answer, or None if the user is done."""
        user = episode.task.user
        assert user is not None
        if user.function is not None:
            own = self._of_task(user.function, f"the user of task {episode.task.id}")
            return await self._call(user.function, own, episode, None, says=True)
        assert self._user is not None  # `require_users`
        return await self._user.reply(episode)

    def _of_task(self, function: str, what: str, probes: tuple[str, ...] = ()) -> RewardFunctionConfig:
        if (per := self._per.get(function)) != "episode":
            problem = "was not loaded when the run started" if per is None else f"is a per-{per} function"
            raise UserCodeError(
                f"{function}, {what}, {problem}",
                fix="use a per-episode function, and a task from tasks.train or tasks.validation",
            )
        return RewardFunctionConfig(function=function, weight=0, probes=probes)

    async def grade_group(
        self, task: Task, trajectories: Sequence[Trajectory], rewards: RewardsConfig
    ) -> tuple[Trajectory, ...]:
        """Return a complete group with per-group functions' parts. Each episode's last turn gets the change in reward.

        An episode that never began, or that crashed its server, keeps its reward.
        """
        views = tuple(_view(task, trajectory) for trajectory in trajectories)
        names = self.of_groups
        columns: tuple[list[float], ...] = await run_all(
            self._call(name, self._functions[name], views, None) for name in names
        )
        return tuple(
            _with_parts(trajectory, dict(zip(names, values, strict=True)), rewards)
            for trajectory, values in zip(trajectories, zip(*columns, strict=True), strict=True)
        )

    async def that_differ(self, task: Task, trajectory: Trajectory) -> list[str]:
        """Return the file, line and name of each function that gives an episode different values in two processes.

        Functions with probes are skipped. No function may be running.
        """
        chosen = {name: own for name, own in self._functions.items() if self._per[name] != "group" and not own.probes}
        values: list[tuple[Any, ...]] = []
        for _ in range(2):
            calls = (self._call(name, own, _view(task, trajectory), None) for name, own in chosen.items())
            values.append(await run_all(calls))
            await self._stop()
        places = (f"{self._places[name]} ({name})" for name in chosen)
        return [place for place, one, other in zip(places, *values, strict=True) if one != other]

    async def _call(
        self,
        name: str,
        function: RewardFunctionConfig,
        subject: EpisodeView | tuple[EpisodeView, ...],
        probe: Probe | None,
        *,
        says: bool = False,
    ) -> Any:
        while True:
            async with self._starting:
                if self._child is None:
                    await self._start()
            number, result = next(self._numbers), asyncio.get_running_loop().create_future()
            probes = frozenset(function.probes)
            call = self._calls[number] = _Call(self._places[name], result, probe, probes, self._child)
            try:
                self._send(("call", number, name, subject, says))
                async with asyncio.timeout(function.deadline_s):
                    return await result
            except _ProcessReplacedError:
                continue
            except TimeoutError:
                async with self._starting:
                    if self._child is not call.child:
                        continue  # another function held up their process
                    place = await self._interrupt()
                what = f"{place}: {function.function} took longer than {function.deadline_s:g} s {_of(subject)}"
                raise self._fault(function, what, "make the function faster, or raise its deadline_s") from None
            except _FunctionFailed as failed:
                raise self._fault(function, f"{failed} {_of(subject)}", "correct the code at this line") from None
            finally:
                del self._calls[number]

    def _fault(self, function: RewardFunctionConfig, what: str, fix: str) -> UserCodeError | RewardFunctionError:
        return (RewardFunctionError if function.on_error == "lose_episode" else UserCodeError)(what, fix=fix)

    async def _start(self) -> None:
        self._trace.write_bytes(b"")
        command = [sys.executable, "-P", str(_PROCESS), str(self._trace)]
        clean = SECRETS.line_cleaner()
        # The order of a set, and hash("x"), must not depend on the process.
        environment = {**self._environment, "PYTHONHASHSEED": "0"}
        child = await ChildProcess.start(command, env=environment, log=self._log, pipes=True, clean=clean)
        self._child = child
        assert child.stdin is not None
        assert child.stdout is not None
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=2**24)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), child.stdout)
        transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, child.stdin)
        self._writer = asyncio.StreamWriter(transport, protocol, None, loop)
        references = {name: function.function for name, function in self._functions.items()}
        self._send(("load", self.code, references | {each: each for each in self.code.references}))
        try:
            file = ""
            async with asyncio.timeout(_START_S):
                while "importing" in (loaded := json.loads(await reader.readline() or "{}")):
                    file = loaded["importing"]
        except TimeoutError:
            place = await self._interrupt()
            raise UserCodeError(
                f"{place}: importing your functions took longer than {_START_S:g} s", fix="make the import faster"
            ) from None
        if "per" not in loaded:
            await self._stop()
            ended = f"{file}: the process of your functions ended while importing this file; see {child.log}"
            fault = {"error": ended, "fix": "correct the code that ends the process"} | loaded
            raise UserCodeError(fault["error"], fix=fault["fix"])
        self._per, self._places = loaded["per"], loaded["places"]
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
                ended = f"{call.place}: the process of the reward functions ended with exit code {code}"
                call.result.set_exception(_FunctionFailed(ended))
        self._child = None

    async def _probe(self, reply: Mapping[str, Any], call: _Call) -> None:
        tool, arguments = reply["tool"], reply["arguments"]
        if tool not in call.probes:
            self._send(("probed", reply["probe"], f"{tool!r} is not in `probes` of this function in the recipe"))
            return
        assert call.probe is not None
        try:
            seen = await call.probe(ToolCall(name=tool, arguments=arguments))
        except InfrastructureError as error:
            if not call.result.done():
                call.result.set_exception(error)
            return
        self._send(("probed", reply["probe"], seen))

    async def _interrupt(self) -> str:
        """Kill the process after it has dumped its stack, even if the GIL is held. Return where the function was."""
        child = self._child
        assert child is not None
        child.send(signal.SIGUSR1)
        async with asyncio.timeout(_TRACE_S * 10):
            while not self._trace.stat().st_size and not await child.ends_within(_TRACE_S / 10):
                pass
        await self._stop()
        for call in self._calls.values():
            if not call.result.done():
                call.result.set_exception(_ProcessReplacedError)
        folders = {Path(reference).parent for reference in self.code.references}
        frames = _FRAME.finditer(self._trace.read_text(errors="replace"))
        own = (f"{frame['file']}:{frame['line']}" for frame in frames if Path(frame["file"]).parent in folders)
        return next(own, "outside your code")

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


def code_of(rewards: RewardsConfig, tasks: Sequence[Task]) -> Code:
    """Read the code of the reward functions of a recipe, and of the checks and simulated users of tasks."""
    checks = (task.goal.check.function for task in tasks if task.goal.check is not None)
    users = (task.user.function for task in tasks if task.user is not None and task.user.function is not None)
    return Code.read([*(function.function for function in rewards.functions.values()), *checks, *users])


@asynccontextmanager
async def open_functions(
    rewards: RewardsConfig,
    catalog: Catalog,
    *,
    logs: Path,
    code: Code,
    user: UserConfig | None = None,
    share: float = 1.0,
) -> AsyncGenerator[RewardFunctions | None]:
    """Start the functions of `code_of(rewards, tasks)`, and open the model that plays users. Yields None if there is
    neither. With workers, `share` is the fraction of the user model's limits that this process may use.

    Raises if no server lists a tool that a function probes.
    """
    if not code.references and user is None:
        yield None
        return
    functions = rewards.functions
    catalog.require([tool for one in functions.values() for tool in one.probes], wanted_by="rewards.functions")
    environment, log = load_keys(), logs / "rewards.log"
    async with AsyncExitStack() as stack:
        model = None if user is None else await stack.enter_async_context(UserModel(user, environment, share=share))
        opening = RewardFunctions(functions, environment=environment, log=log, code=code, user=model)
        yield await stack.enter_async_context(opening)


class _FunctionFailed(Exception):
    """The process reported that a function raised or did not return a number."""


class _ProcessReplacedError(Exception):
    """Another function missed its deadline, so the process that both share was ended."""


def _view(task: Task, trajectory: Trajectory) -> EpisodeView:
    turns, answer, stop = trajectory.turns, trajectory.answer, trajectory.stop
    return EpisodeView(task=task, turns=turns, answer=answer, stop=stop, parts=dict(trajectory.reward_parts))


def _with_parts(trajectory: Trajectory, values: Mapping[str, float], rewards: RewardsConfig) -> Trajectory:
    if not trajectory.turns or trajectory.stop is StopReason.CAUSED_FAULT:
        return replace(trajectory, reward_parts={**trajectory.reward_parts, **dict.fromkeys(values, 0.0)})
    *before, last = trajectory.turns
    parts = {**trajectory.reward_parts, **values}
    reward = weigh(parts, rewards)
    last = replace(last, reward=last.reward + reward - trajectory.reward)
    return replace(trajectory, turns=(*before, last), reward=reward, reward_parts=parts)


def _of(subject: EpisodeView | tuple[EpisodeView, ...]) -> str:
    if isinstance(subject, tuple):
        return f"(task {subject[0].task.id}, a group of {len(subject)})"
    return f"(task {subject.task.id}, {len(subject.turns)} turns)"

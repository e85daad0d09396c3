"""A run that is kept going: its processes one after the other, what is done to them, and what they say."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcprl.config import RunConfig
from mcprl.training.shutdown import EXIT_STOPPED
from servers.harness import say
from soaking.faults import ENDING, SAMPLER_KILL, Fault, fill_disk, kill_sampler, kill_tool_server, order
from soaking.left_behind import left_behind

__all__ = ["Course", "Life", "Moment"]

_TRAINER = Path(__file__).resolve().parent / "watched_trainer.py"
_ENVIRONMENT = {"OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
_POLL_S = 0.05
_START_LIMIT_S = 300.0
_MAX_FALSE_STARTS = 3
_KILLS = {"tool server killed": kill_tool_server, SAMPLER_KILL: kill_sampler}
_EXPECTED_STATUS = {"trainer killed": -signal.SIGKILL, "SIGTERM": EXIT_STOPPED, "disk full": 3}


@dataclass(frozen=True, slots=True)
class Moment:
    """What a process said of itself at the end of a step.

    Moment(at=1033.2, step=12, rss_bytes=612000000, descriptors=41)     # at: on the monotonic clock
    """

    at: float
    step: int
    rss_bytes: int
    descriptors: int


@dataclass(slots=True)
class Life:
    """One process of the run. Its first moment is when all was started, before its first step."""

    started: float
    pid: int
    mark: str = ""
    moments: list[Moment] = field(default_factory=list[Moment])
    ended: float = 0.0
    status: int | None = None

    @property
    def start_s(self) -> float:
        """Seconds until all was started, or until it ended before that."""
        return (self.moments[0].at if self.moments else self.ended) - self.started


class Course:
    """Trains for some time in a folder, with faults; time counts from the end of the first step."""

    def __init__(self, folder: Path, config: RunConfig, *, seed: int) -> None:
        self.run = folder / "runs" / config.name
        self.log = folder / f"{config.name}-finished.txt"
        self.lives: list[Life] = []
        self.done: list[tuple[float, str]] = []
        self.wrong_ends: list[str] = []
        self.orphans = 0
        self.began = 0.0
        self.ended = 0.0
        self._folder = folder
        self._config = config
        self._draw = random.Random(seed)
        self._process: asyncio.subprocess.Process | None = None
        self._expected: str | None = None
        self._closing = False
        self._looks: list[asyncio.Task[int]] = []
        self._recipe = folder / f"{config.name}.yaml"
        self._recipe.write_text(config.to_yaml())
        self.log.touch()

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    @property
    def updates(self) -> int:
        """Steps done in the time that counts, each once however often it was made."""
        steps = [moment.step for life in self.lives for moment in life.moments if moment.at <= self.ended]
        return max(steps) - 1

    @property
    def start_s(self) -> float:
        """Of the time that counts, the seconds in which a process was being started."""
        return sum(life.start_s for life in self.lives[1:])

    async def train(self, length_s: float, faults: Sequence[Fault] = ()) -> None:
        keeping = asyncio.create_task(self._keep_going())
        try:
            await self._until(self._is_stepping, keeping)
            self.began = time.monotonic()
            say(f"{self._config.name}: the first step is done; {length_s / 60:.1f} minutes from now")
            # Those that a start follows have a turn of their own, so that the others go on meanwhile.
            ending = [fault for fault in faults if fault.kind in ENDING]
            others = [fault for fault in faults if fault.kind not in ENDING]
            making = {asyncio.create_task(self._make_faults(part, keeping)) for part in (ending, others)}
            await asyncio.wait({*making, keeping}, return_when=asyncio.FIRST_EXCEPTION, timeout=length_s)
            self.ended = time.monotonic()
            for task in (*making, keeping):
                if task.done():
                    task.result()
            for task in making:
                task.cancel()
            await asyncio.gather(*making, return_exceptions=True)
        finally:
            self._closing = True
            if self._process is not None and self._process.returncode is None:
                self._process.send_signal(signal.SIGTERM)
            await keeping
        self.orphans = sum(await asyncio.gather(*self._looks))
        say(f"{self._config.name}: {self.updates} updates, {len(self.lives)} processes")

    async def _make_faults(self, faults: Sequence[Fault], keeping: asyncio.Task[None]) -> None:
        for number, fault in enumerate(faults):
            await asyncio.sleep(max(0.0, self.began + fault.at_s - time.monotonic()))
            # What is being started is let come to its first step: that starts can be killed, crash.py shows.
            await self._until(self._is_stepping, keeping)
            if fault.kind in ENDING:
                await self._end_process(fault.kind)
            else:
                await self._disturb(fault.kind, number)
            self.done.append((time.monotonic() - self.began, fault.kind))

    async def _end_process(self, kind: str) -> None:
        assert self._process is not None
        say(f"{self._config.name}: {kind}")
        self._expected = kind
        process = self._process
        if kind == "disk full":
            fill_disk(process.pid)
        else:
            process.send_signal(signal.SIGKILL if kind == "trainer killed" else signal.SIGTERM)
        await process.wait()

    async def _disturb(self, kind: str, number: int) -> None:
        if kind not in _KILLS:
            order(self._folder, kind, number)
            return
        # Where it is still being started again, or the trainer itself is, a little later.
        while not (self._is_stepping() and _KILLS[kind](self.lives[-1].pid, self._draw)):  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)

    def _is_stepping(self) -> bool:
        return self._process is not None and len(self.lives[-1].moments) > 1

    async def _keep_going(self) -> None:
        """Start the run, and resume it whenever its process has ended, until this is over."""
        while not self._closing:
            begun = (self.run / "config.yaml").exists()
            arguments = ["resume", str(self.run)] if begun else ["train", str(self._recipe)]
            await self._live(arguments)

    async def _live(self, arguments: list[str]) -> None:
        """One process, from its start to its end."""
        reader, writer = os.pipe()
        with (self._folder / f"{self._config.name}-output.txt").open("ab") as output:
            started = time.monotonic()
            # Its own output goes through a pipe, too: a file of it would be limited with the others.
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable, str(_TRAINER), str(writer), *arguments,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, pass_fds=(writer,),
                env={**os.environ, **_ENVIRONMENT},
            )  # fmt: skip
            os.close(writer)
            life = Life(started, process.pid)
            self.lives.append(life)
            assert process.stdout is not None
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read_notes(reader, life))
                said = group.create_task(_copy(process.stdout, output))
                life.status = await process.wait()
                life.ended = time.monotonic()
        self._looks.append(asyncio.create_task(asyncio.to_thread(left_behind, life.mark)))
        expected, self._process, self._expected = self._expected, None, None
        say(f"{self._config.name}: process {life.pid} ended with {life.status} after step {life.moments[-1:]}")
        right = {_EXPECTED_STATUS[expected]} if expected else set[int]()
        if self._closing:
            # The last signal may come before a process that was just started listens to it.
            right |= {EXIT_STOPPED} if life.moments else {EXIT_STOPPED, -signal.SIGTERM}
        if life.status not in right:
            self.wrong_ends.append(f"status {life.status} after {expected}: {said.result()[-1500:]}")
            say(f"WRONG END: {self.wrong_ends[-1]}")
            if not any(life.moments for life in self.lives[-_MAX_FALSE_STARTS:]):
                raise RuntimeError("the run cannot be started")

    async def _read_notes(self, reader: int, life: Life) -> None:
        stream = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        with os.fdopen(reader, "rb") as pipe:
            transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), pipe)
            with self.log.open("ab") as log:
                async for line in stream:
                    if not line.startswith(b"{"):
                        log.write(line)
                        continue
                    noted: dict[str, Any] = json.loads(line)
                    if "mark" in noted:
                        life.mark = noted["mark"]
                    else:
                        life.moments.append(Moment(**noted))
            transport.close()

    async def _until(self, condition: Any, keeping: asyncio.Task[None]) -> None:
        async with asyncio.timeout(_START_LIMIT_S):
            while not condition():
                if keeping.done():
                    keeping.result()
                await asyncio.sleep(_POLL_S)

    def counts(self) -> Counter[str]:
        return Counter(kind for _, kind in self.done)


async def _copy(stream: asyncio.StreamReader, output: Any) -> str:
    """All that a process says, into a file; the end of it is given back."""
    tail = b""
    while data := await stream.read(65536):
        output.write(data)
        output.flush()
        tail = (tail + data)[-4000:]
    return tail.decode(errors="replace")

"""How one tracker is told: a bounded queue, a thread that empties it, a process with the library, and deadlines.

The run only ever puts something into the queue, which takes no time and cannot fail. The thread makes a report of it,
strikes out secrets and writes it into a pipe; where the process does not read, the thread waits and the queue fills.
All that a person is told of it comes from the run's own event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mcprl.monitoring.trackers.reports import Report, RunStarted
from mcprl.processes import ChildProcess
from mcprl.redact import SECRETS

__all__ = ["Delivery", "Outcome"]

_CAPACITY = 512
_START_S = 90.0
_KILL_S = 0.2
_READ_BYTES = 65536
_MOST_SENTENCES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of the telling: all delivered, only part of it, or nothing after a failure; and what was said.

    Outcome(state="delivered", reports=85, dropped=0, said=())
    """

    state: Literal["delivered", "incomplete", "failed"]
    reports: int
    dropped: int
    said: tuple[str, ...]


class Delivery:
    """One tracker, as seen from the run. `tell` hears in one sentence, once, that it does not work.

    `ready` is set once the library has been loaded and has accepted the run.
    """

    def __init__(self, kind: str, tell: Callable[[str], None], *, capacity: int = _CAPACITY) -> None:
        self.kind = kind
        self.ready = asyncio.Event()
        self._tell = tell
        self._queue = queue.Queue[Callable[[], Report] | None](capacity)
        self._child: ChildProcess | None = None
        self._watch: asyncio.Task[None] | None = None
        self._start_timer: asyncio.TimerHandle | None = None
        self._words, self._unread = -1, b""
        self._reports = self._dropped = self._unsendable = 0
        self._said: list[str] = []
        self._failed = self._delivered = False

    async def start(self, started: RunStarted, *, environment: Mapping[str, str], logs: Path) -> None:
        """Start the process and the thread. It is not waited for: importing a library may take seconds."""
        command = [sys.executable, "-P", "-m", "mcprl.monitoring.trackers.process", self.kind]
        log = logs / f"tracker-{self.kind}.log"
        clean = SECRETS.line_cleaner()
        try:
            child = await ChildProcess.start(command, env=environment, log=log, pipes=True, clean=clean)
        except OSError as error:
            self._fail(f"its process cannot be started: {error.strerror}")
            return
        assert child.stdin is not None
        assert child.stdout is not None
        self._child, self._words = child, child.stdout.fileno()
        self.hear(lambda: started)
        # The thread has an end of the pipe of its own: nobody closes it while it writes.
        pipe = os.dup(child.stdin.fileno())
        child.stdin.close()
        threading.Thread(target=self._write, args=(pipe,), name=f"tracker-{self.kind}", daemon=True).start()
        loop = asyncio.get_running_loop()
        os.set_blocking(self._words, False)
        loop.add_reader(self._words, self._read)
        self._watch = asyncio.create_task(self._note_end(child))
        self._start_timer = loop.call_later(_START_S, self._fail, f"it was not ready after {_START_S:g} s")

    def hear(self, make: Callable[[], Report]) -> None:
        """Have the tracker told what `make` gives, in the thread; dropped and counted where it is too slow, or gone."""
        self._reports += 1
        if self._failed:
            self._dropped += 1
            return
        try:
            self._queue.put_nowait(make)
        except queue.Full:
            self._dropped += 1

    def hear_last(self, make: Callable[[], Report] | None) -> None:
        """The same for what must not be missing, at the cost of what came before it. None: there is nothing more."""
        self._reports += make is not None
        if self._queue.full():
            with contextlib.suppress(queue.Empty):  # the thread was faster
                self._queue.get_nowait()
                self._dropped += 1
        self._queue.put_nowait(make)

    async def close(self, flush_s: float) -> Outcome:
        """Let it send what is left, for so long and no longer; then end it by force."""
        if self._child is None:
            return Outcome(state="failed", reports=self._reports, dropped=self._dropped, said=tuple(self._said))
        self.hear_last(None)
        try:
            if not self._failed:
                async with asyncio.timeout(flush_s):
                    await self._child.wait()
        except TimeoutError:
            self._say(f"had not taken everything when its time (tracking.flush_s) was over{_REMEDY[self.kind]}")
        finally:
            await self._end(self._child)
        self._dropped += self._unsendable
        if self._dropped and not self._failed:
            self._say(
                f"missed {self._dropped} of {self._reports} reports: it was too slow, or they are nested too deeply"
            )
        whole = self._delivered and not self._dropped and not self._said
        state = "failed" if self._failed else "delivered" if whole else "incomplete"
        return Outcome(state=state, reports=self._reports, dropped=self._dropped, said=tuple(self._said))

    async def _end(self, child: ChildProcess) -> None:
        self._stop_timer()
        self._read()
        asyncio.get_running_loop().remove_reader(self._words)
        if self._watch is not None:
            self._watch.cancel()
        await child.stop(grace_s=_KILL_S)

    def _stop_timer(self) -> None:
        if self._start_timer is not None:
            self._start_timer.cancel()

    def _write(self, pipe: int) -> None:
        """In the thread: until there is nothing more, or nobody reads."""
        try:
            with os.fdopen(pipe, "wb") as output:
                while (make := self._queue.get()) is not None:
                    output.write(self._pickled(make))
                    output.flush()
        except BrokenPipeError:
            return  # the end of the process is told by who waits for it

    def _pickled(self, make: Callable[[], Report]) -> bytes:
        try:
            return pickle.dumps(make())
        except RecursionError:
            # A policy nests its arguments as deeply as it likes.
            self._unsendable += 1
            return b""

    def _read(self) -> None:
        """What the process says, as far as it has come."""
        while True:
            try:
                data = os.read(self._words, _READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                asyncio.get_running_loop().remove_reader(self._words)
                return
            *lines, self._unread = (self._unread + data).split(b"\n")
            for line in lines:
                self._note(json.loads(line))

    def _note(self, word: Mapping[str, Any]) -> None:
        if word["state"] == "ready":
            self.ready.set()
            self._stop_timer()
        elif word["state"] == "delivered":
            self._delivered = True
        elif word["state"] == "trouble":
            self._say(f"has trouble: {word['text']}{_REMEDY[self.kind]}")
        elif word["state"] == "failed":
            self._fail(word["text"])

    async def _note_end(self, child: ChildProcess) -> None:
        code = await child.wait()
        self._read()
        if not self._delivered and not self._failed:
            self._fail(f"its process ended with {code}, see {child.log}")

    def _fail(self, why: str) -> None:
        self._failed = True
        self._say(f"is told no more: {why}")

    def _say(self, text: str) -> None:
        """Once: what follows from the first trouble is written down, and not said."""
        sentence = SECRETS.redact(f"{_NAMES[self.kind]} {text}")
        if sentence in self._said or len(self._said) == _MOST_SENTENCES:
            return
        self._said.append(sentence)
        if len(self._said) == 1:
            self._tell(f"tracking: {sentence}; the run goes on, and its folder has everything")


_NAMES = {"wandb": "W&B", "weave": "Weave", "tensorboard": "TensorBoard", "opentelemetry": "OpenTelemetry"}
_REMEDY = {
    "wandb": "; `wandb sync` sends the rest from the folder wandb of the run",
    "weave": "",
    "tensorboard": "",
    "opentelemetry": "",
}

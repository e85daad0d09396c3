"""Sends reports to a tracker: a bounded queue, a thread that empties it, a process with the library, and deadlines.

The run only puts a function into the queue, which takes almost no time and cannot fail. The thread calls the function
to make the report, redacts secrets and writes the report to a pipe. If the process does not read, the thread blocks and
the queue fills up.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import pickle
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from mcprl.config import RunConfig, TrackingConfig
from mcprl.errors import MissingExtraError, StorageError
from mcprl.files import write_file
from mcprl.processes import ChildProcess
from mcprl.progress import PackWatcher, Watcher
from mcprl.records import LostEpisode, Trajectory
from mcprl.secrets import SECRETS, environment_without_keys, looks_secret
from mcprl.tools.keys import load_keys, register_secrets
from mcprl.tracking.reports import Report, RunStarted, episode_report, run_ended, run_started, step_report
from mcprl.training.shutdown import SHUTDOWN_S
from mcprl.verdicts import Verdict

FLUSH_S = 60.0
"""Seconds for sending the remaining reports after the run has ended. Only a slow or dead tracker needs all of them."""

_CAPACITY = 512
_START_S = 90.0
_KILL_S = 0.2
_READ_BYTES = 65536
_MAX_SENTENCES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a delivery: everything, a part, or nothing was delivered. `said` has the messages about problems.

    Outcome(state="delivered", reports=85, dropped=0, said=())
    """

    state: Literal["delivered", "incomplete", "failed"]
    reports: int
    dropped: int
    said: tuple[str, ...]


class Delivery:
    """Delivers reports to one tracker. If the tracker does not work, `tell` is called once with a message.

    `ready` is set when the library has been loaded and has accepted the run.
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
        """Start the process and the thread without waiting, because importing a library may take seconds."""
        command = [sys.executable, "-P", "-m", "mcprl.tracking.process", self.kind]
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
        self.put(lambda: started)
        # The thread has its own descriptor of the pipe, so that nobody can close it during a write.
        pipe = os.dup(child.stdin.fileno())
        child.stdin.close()
        threading.Thread(target=self._write, args=(pipe,), name=f"tracker-{self.kind}", daemon=True).start()
        loop = asyncio.get_running_loop()
        os.set_blocking(self._words, False)
        loop.add_reader(self._words, self._read)
        self._watch = asyncio.create_task(self._note_end(child))
        self._start_timer = loop.call_later(_START_S, self._fail, f"it was not ready within {_START_S:g} s")

    def put(self, make: Callable[[], Report]) -> None:
        """Queue `make`, which the thread calls to get the report. If the queue is full, count the report as dropped."""
        self._reports += 1
        if self._failed:
            self._dropped += 1
            return
        try:
            self._queue.put_nowait(make)
        except queue.Full:
            self._dropped += 1

    def put_last(self, make: Callable[[], Report] | None) -> None:
        """Like `put`, but drop an earlier report if the queue is full. A `make` of None ends the queue."""
        self._reports += make is not None
        if self._queue.full():
            with contextlib.suppress(queue.Empty):  # the thread has emptied the queue in the meantime
                self._queue.get_nowait()
                self._dropped += 1
        self._queue.put_nowait(make)

    async def close(self, flush_s: float) -> Outcome:
        """Give the process at most `flush_s` seconds to send the remaining reports, then kill it."""
        if self._child is None:
            return Outcome(state="failed", reports=self._reports, dropped=self._dropped, said=tuple(self._said))
        self.put_last(None)
        try:
            if not self._failed:
                async with asyncio.timeout(flush_s):
                    await self._child.wait()
        except TimeoutError:
            self._say(f"did not accept all reports in time{_REMEDY.get(self.kind, '')}")
        finally:
            await self._end(self._child)
        self._dropped += self._unsendable
        if self._dropped and not self._failed:
            self._say(
                f"missed {self._dropped} of {self._reports} reports: it was too slow, or reports were nested too deeply"
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
        """Write reports to the pipe. Runs in the thread until the queue ends or the process stops reading."""
        try:
            with os.fdopen(pipe, "wb") as output:
                while (make := self._queue.get()) is not None:
                    output.write(self._pickled(make))
                    output.flush()
        except BrokenPipeError:
            return  # `_note_end` reports this

    def _pickled(self, make: Callable[[], Report]) -> bytes:
        try:
            return pickle.dumps(make())
        except RecursionError:
            # The policy may nest its arguments arbitrarily deep.
            self._unsendable += 1
            return b""

    def _read(self) -> None:
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
            self._say(f"reported a problem: {word['text']}{_REMEDY.get(self.kind, '')}")
        elif word["state"] == "failed":
            self._fail(word["text"])

    async def _note_end(self, child: ChildProcess) -> None:
        code = await child.wait()
        self._read()
        if not self._delivered and not self._failed:
            self._fail(f"its process ended with status {code}; see {child.log}")

    def _fail(self, why: str) -> None:
        self._failed = True
        self._say(f"will receive no more reports: {why}")

    def _say(self, text: str) -> None:
        """Record a message. Only the first one is shown."""
        sentence = SECRETS.redact(f"{_NAMES[self.kind]} {text}")
        if sentence in self._said or len(self._said) == _MAX_SENTENCES:
            return
        self._said.append(sentence)
        if len(self._said) == 1:
            self._tell(f"tracking: {sentence}; the run continues and records everything in its folder")


_NAMES = {"wandb": "W&B", "weave": "Weave", "tensorboard": "TensorBoard", "tracker": "your tracker"}
_REMEDY = {"wandb": "; to send the rest, run `wandb sync` on the run's wandb folder"}

# Tracker → the module that it needs, from the extra of the same name.
_MODULES = {"wandb": "wandb", "weave": "weave", "tensorboard": "tensorboard", "tracker": "mcprl"}
# Tracker → prefixes of the environment variables that its library reads itself, including keys.
_VARIABLES = {
    "wandb": ("WANDB_",),
    "weave": ("WANDB_", "WEAVE_", "WF_"),
    "tensorboard": (),
    "tracker": ("",),  # the user's own code sees all variables of the user
}
# Turn off error reports to the vendor, and links in the log.
_QUIET = {"WANDB_ERROR_REPORTING": "false", "WEAVE_PRINT_CALL_LINK": "false"}
# The log shows which data the library gave up on, so keep it on.
_HEARD = {"WEAVE_LOG_LEVEL": "INFO"}
# The fraction of a run's stop deadline that trackers may use.
_SHARE_WHEN_STOPPED = 0.2


class Trackers:
    """Passes the events of a run to its watcher, unchanged, and to each tracker through a `Delivery`.

    async with Trackers(config, console) as trackers, open_run(config, trackers) as run:
        await trackers.start(run.folder.path)
        summary = await train(run)
        trackers.run_ended(summary.as_dict())

    On exit, the outcome of each delivery is written to tracking.json in the run's folder.
    """

    def __init__(self, config: RunConfig, watcher: Watcher, *, is_stopping: Callable[[], bool] = lambda: False) -> None:
        require_trackers(config.tracking)
        self._config = config
        self._watcher = watcher
        self._is_stopping = is_stopping
        self._folder: Path | None = None
        self._ended_at: float | None = None
        self._deliveries: list[Delivery] = []

    async def start(self, folder: Path) -> None:
        """Start the processes of the configured trackers without waiting for them."""
        self._folder = folder
        keys = load_keys()
        started = run_started(self._config, folder)
        for kind in self._config.tracking.named:
            delivery = Delivery(kind, self._watcher.stage)
            environment = tracker_environment(kind, keys)
            await delivery.start(started, environment=environment, logs=folder / "logs")
            self._deliveries.append(delivery)

    def stage(self, text: str) -> None:
        self._watcher.stage(text)

    def episode_finished(self, step: int, outcome: Trajectory | LostEpisode) -> None:
        self._watcher.episode_finished(step, outcome)
        if isinstance(outcome, Trajectory):
            self._put(partial(episode_report, outcome, time.time()))

    def pack_finished(self, done: int, total: int) -> None:
        if isinstance(self._watcher, PackWatcher):
            self._watcher.pack_finished(done, total)

    def step_finished(self, step: int, metrics: Mapping[str, float], verdicts: Sequence[Verdict]) -> None:
        self._watcher.step_finished(step, metrics, verdicts)
        self._put(partial(step_report, step, metrics, verdicts))

    def run_ended(self, summary: Mapping[str, Any]) -> None:
        """Report that the run and its folder are complete. From now on, FLUSH_S is the time left for sending."""
        self._ended_at = time.monotonic()
        for delivery in self._deliveries:
            delivery.put_last(partial(run_ended, summary))

    async def close(self) -> Mapping[str, Outcome]:
        since_end_s = 0.0 if self._ended_at is None else time.monotonic() - self._ended_at
        flush_s = max(0.0, FLUSH_S - since_end_s)
        if self._is_stopping():
            flush_s = min(flush_s, _SHARE_WHEN_STOPPED * SHUTDOWN_S)
        closing, self._deliveries = self._deliveries, []
        outcomes = await asyncio.gather(*(delivery.close(flush_s) for delivery in closing))
        found = {delivery.kind: outcome for delivery, outcome in zip(closing, outcomes, strict=True)}
        if found and self._folder is not None:
            note = {kind: asdict(outcome) for kind, outcome in found.items()}
            try:
                write_file(self._folder / "tracking.json", (json.dumps(note, indent=2) + "\n").encode())
            except StorageError as error:
                self._watcher.stage(f"tracking: tracking.json cannot be written: {error.what}")
        return found

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _put(self, make: Callable[[], Report]) -> None:
        for delivery in self._deliveries:
            delivery.put(make)


def require_trackers(tracking: TrackingConfig) -> None:
    """Raise MissingExtraError if the library of a configured tracker is not installed."""
    for kind in tracking.named:
        if not _is_installed(_MODULES[kind]):
            raise MissingExtraError(
                f"tracking.{kind} is on, but its library is not installed", fix=f"install mcprl[{kind}]"
            )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False  # its parent package is missing


def tracker_environment(kind: str, keys: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a tracker's process: ours without keys, plus the tracker's own keys.

    Registers these keys as secrets. `keys` is the environment plus the key file, from `load_keys`.
    """
    own = {name: value for name, value in keys.items() if name.startswith(_VARIABLES[kind])}
    for name, value in own.items():
        if looks_secret(name):
            SECRETS.add(name, value)
    register_secrets(kind, {"url": own.get("WANDB_BASE_URL")})
    return {**_QUIET, **environment_without_keys(), **own, **_HEARD}

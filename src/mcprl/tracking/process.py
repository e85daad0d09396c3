"""The process of one tracker: reads reports from stdin until it ends, and passes them to the tracker's library.

    python -m mcprl.tracking.process wandb

The reports are pickles from our own process; the first is a `RunStarted`. The process writes its status to stdout as
lines of JSON (see `StatusWriter`). The output of the libraries goes to the log.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import sys
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import BinaryIO, Literal, Protocol

from mcprl.functions import UserCode, load_function
from mcprl.tracking.reports import EpisodeReport, LossHandler, Report, RunEnded, RunStarted, StepReport
from mcprl.tracking.tensorboard import TensorboardTracker
from mcprl.tracking.wandb import WandbTracker
from mcprl.tracking.weave import WeaveTracker


class Tracker(Protocol):
    """Reports a run to one library. It runs in a separate process, so its methods may block.

    An exception ends the process. Its message is shown to the user of the run.
    """

    def episode_finished(self, episode: EpisodeReport) -> None: ...

    def step_finished(self, step: StepReport) -> None:
        """Called after all episodes of the step."""
        ...

    def run_ended(self, end: RunEnded) -> None:
        """Called when the run is complete, but not if it was stopped or failed."""
        ...

    def close(self) -> None:
        """Send all remaining data. Nothing is reported after this."""
        ...


def _own_tracker(started: RunStarted, status: StatusWriter) -> Tracker:
    assert started.tracking.tracker is not None
    own = load_function(started.tracking.tracker, "tracking.tracker")
    with UserCode(started.tracking.tracker):
        return own(started, status)


KINDS: Mapping[str, Callable[[RunStarted, StatusWriter], Tracker]] = {
    "wandb": WandbTracker,
    "weave": WeaveTracker,
    "tensorboard": TensorboardTracker,
    "tracker": _own_tracker,
}

_MAX_CHARS = 300


class StatusWriter:
    """Writes status lines to the run's process, from any thread: {"state": "trouble", "text": "…"}.

    `ready`: the tracker runs. `trouble`: it has a problem but continues. `failed`: it ends. `delivered`: all was sent.
    """

    def __init__(self, output: BinaryIO) -> None:
        self._output = output
        self._lock = threading.Lock()

    def say(self, state: Literal["ready", "trouble", "failed", "delivered"], text: str = "") -> None:
        line = json.dumps({"state": state, "text": text}).encode() + b"\n"
        with self._lock:
            self._output.write(line)
            self._output.flush()

    def listen_to(self, library: str, about: str) -> None:
        """Report every loss of data that a library logs. The library itself continues and raises nothing."""
        logging.getLogger(library).addHandler(LossHandler(lambda text: self.say("trouble", f"{about}: {text}")))

    def crashed(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Report the exception that ends the process. Its traceback goes to the log."""
        sys.__excepthook__(kind, error, trace)
        text = " ".join(str(error).split())
        self.say("failed", text[:_MAX_CHARS] or kind.__name__)


def main(kind: str) -> None:
    # The output of libraries must not mix with our status lines.
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    status = StatusWriter(output)
    sys.excepthook = status.crashed
    reports = sys.stdin.buffer
    started = _next_report(reports)
    if started is None:
        return
    assert isinstance(started, RunStarted)
    tracker = KINDS[kind](started, status)
    status.say("ready")
    while (report := _next_report(reports)) is not None:
        _pass_on(report, tracker)
    tracker.close()
    status.say("delivered")


def _next_report(reports: BinaryIO) -> Report | None:
    try:
        return pickle.load(reports)
    except EOFError:
        return None


def _pass_on(report: Report, tracker: Tracker) -> None:
    if isinstance(report, EpisodeReport):
        tracker.episode_finished(report)
    elif isinstance(report, StepReport):
        tracker.step_finished(report)
    elif not isinstance(report, RunStarted):
        tracker.run_ended(report)


if __name__ == "__main__":
    main(sys.argv[1])

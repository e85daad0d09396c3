"""The process of one tracker: reads reports from its standard input until that ends, and tells its library of them.

    python -m mcprl.monitoring.trackers.process wandb

The reports are pickles of our own process, one after the other, the first of them a `RunStarted`. What it has to say it
writes to its standard output, a line of JSON each: see `Teller`. What the libraries print goes to the log.
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
from typing import BinaryIO, Literal, TypedDict

from mcprl.monitoring.trackers import Tracker
from mcprl.monitoring.trackers.losses import LossHandler
from mcprl.monitoring.trackers.opentelemetry_tracker import OpenTelemetryTracker
from mcprl.monitoring.trackers.reports import EpisodeReport, Report, RunStarted, StepReport
from mcprl.monitoring.trackers.tensorboard_tracker import TensorboardTracker
from mcprl.monitoring.trackers.wandb_tracker import WandbTracker
from mcprl.monitoring.trackers.weave_tracker import WeaveTracker

__all__ = ["KINDS", "Teller", "Word", "main"]

KINDS: Mapping[str, Callable[[RunStarted, Teller], Tracker]] = {
    "wandb": WandbTracker,
    "weave": WeaveTracker,
    "tensorboard": TensorboardTracker,
    "opentelemetry": OpenTelemetryTracker,
}


_MOST_CHARACTERS = 300


class Word(TypedDict):
    """What the process says: that it is ready, has trouble and goes on, has failed and ends, or has sent everything."""

    state: Literal["ready", "trouble", "failed", "delivered"]
    text: str


class Teller:
    """Says words to the process of the run. Threads of the libraries may speak too."""

    def __init__(self, output: BinaryIO) -> None:
        self._output = output
        self._lock = threading.Lock()

    def say(self, state: Literal["ready", "trouble", "failed", "delivered"], text: str = "") -> None:
        line = json.dumps(Word(state=state, text=text)).encode() + b"\n"
        with self._lock:
            self._output.write(line)
            self._output.flush()

    def listen_to(self, library: str, about: str) -> None:
        """Tell what a library logs that it gives up, about something: it goes on after that, and never raises it."""
        logging.getLogger(library).addHandler(LossHandler(lambda text: self.say("trouble", f"{about}: {text}")))

    def crashed(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """The process ends by an exception: say which, and leave the rest to the log."""
        sys.__excepthook__(kind, error, trace)
        text = " ".join(str(error).split())
        self.say("failed", text[:_MOST_CHARACTERS] or kind.__name__)


def main(kind: str) -> None:
    """Serve one run."""
    # Libraries print; what they print must not come between our words.
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    teller = Teller(output)
    sys.excepthook = teller.crashed
    reports = sys.stdin.buffer
    started = _next_report(reports)
    if started is None:
        return
    assert isinstance(started, RunStarted)
    tracker = KINDS[kind](started, teller)
    teller.say("ready")
    while (report := _next_report(reports)) is not None:
        _pass_on(report, tracker)
    tracker.close()
    teller.say("delivered")


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

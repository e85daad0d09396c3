"""Progress on stderr while a command starts something or runs episodes."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from mcprl.cli.printing import printable
from mcprl.verdicts import Verdict

if TYPE_CHECKING:
    from mcprl.records import LostEpisode, Trajectory
    from mcprl.runs.folder import RunFolder

_LINES = 10  # number of progress lines, if there is no terminal for a progress bar


class StageConsole:
    """Shows on stderr what is being started and, if the total is known, how many episodes are done."""

    def __init__(self, episodes: int | None = None, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._started = time.monotonic()
        self._episodes, self._done = episodes, 0
        counted = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            *(counted if episodes else ()),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._bar = self._progress.add_task("starting", total=episodes)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def stage(self, text: str) -> None:
        self._progress.update(self._bar, description=printable(text))
        if not self._console.is_terminal:
            print_timed(self._console, self._started, text)

    def episode_finished(self, step: int, outcome: Trajectory | LostEpisode) -> None:
        from mcprl.records import LostEpisode

        if self._episodes is None:
            return
        if isinstance(outcome, LostEpisode):
            print_timed(self._console, self._started, f"episode lost to infrastructure, will be rerun: {outcome}")
            return
        self._done += 1
        self._progress.update(self._bar, completed=self._done)
        every = max(1, self._episodes // _LINES)
        if not self._console.is_terminal and (self._done % every == 0 or self._done == self._episodes):
            print_timed(self._console, self._started, f"{self._done} of {self._episodes} episodes")

    def step_finished(self, step: int, metrics: Mapping[str, float], verdicts: Sequence[Verdict]) -> None: ...


@contextmanager
def loading_libraries(folder: RunFolder | None = None) -> Generator[None]:
    """Show a message while a command imports its libraries: torch takes seconds, or a minute on a busy machine.

    If a signal arrives during this time, the run in `folder` is recorded as stopped.
    """
    with StageConsole() as console, nullcontext() if folder is None else _stopped_by_signals(folder):
        console.stage("loading libraries")
        yield


@contextmanager
def _stopped_by_signals(folder: RunFolder) -> Generator[None]:
    def stop(number: int, _frame: FrameType | None) -> None:
        # Not an Exception, because libraries that are being imported may catch those.
        raise KeyboardInterrupt(f"stopped by {signal.Signals(number).name} before the first step")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except KeyboardInterrupt as stopped:
        from mcprl.training.shutdown import EXIT_STOPPED

        folder.record_end(stopped)
        folder.close()
        print(printable(f"mcprl: {stopped}"), file=sys.stderr)
        sys.exit(EXIT_STOPPED)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def print_timed(console: Console, started: float, text: str) -> None:
    console.print(f"{time.monotonic() - started:7.1f} s  {printable(text)}", markup=False, soft_wrap=True)

"""How `mcprl train` and `mcprl resume` run: the console, the trackers, and what is printed at the end."""

from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path

from mcprl.cli.console import TrainingConsole, enduring_output, print_summary
from mcprl.cli.printing import printable
from mcprl.config import RunConfig
from mcprl.runs.folder import RunFolder
from mcprl.runs.resuming import ResumePoint
from mcprl.runs.summary import Summary
from mcprl.tracking.delivery import Trackers
from mcprl.training.loop import train
from mcprl.training.run import open_run
from mcprl.training.shutdown import EXIT_STOPPED, RunStopped, Shutdown

__all__ = ["run_to_the_end"]


def run_to_the_end(
    config: RunConfig, *, recipe: Path, folder: RunFolder | None = None, resume_point: ResumePoint | None = None
) -> None:
    """Train, from the start or from where a run stands. Exits with a code of its own where it was asked to stop."""
    with enduring_output():
        _run_to_the_end(config, recipe, folder, resume_point)


def _run_to_the_end(
    config: RunConfig, recipe: Path, folder: RunFolder | None, resume_point: ResumePoint | None
) -> None:
    path = None if folder is None else folder.path

    async def run() -> Summary:
        nonlocal path
        summary: Summary | None = None
        shutdown = Shutdown()
        steps_done = 0 if resume_point is None else resume_point.step
        with TrainingConsole(config, steps_done=steps_done) as console, shutdown.on_signals():
            trackers = Trackers(config, console, is_stopping=lambda: shutdown.requested)
            try:
                # Trackers end last: they send what is left while servers and sampler are being ended.
                async with (
                    trackers,
                    open_run(config, trackers, folder=folder, resume_point=resume_point, shutdown=shutdown) as run,
                ):
                    path = run.folder.path
                    await trackers.start(path)
                    summary = await train(run)
                    trackers.run_ended(summary.as_dict())
            except asyncio.CancelledError:
                # While it was started: nothing was under way that could be saved. While it was closed: all is done.
                if summary is None:
                    raise RunStopped("stopped before a step was begun") from None
        return summary

    try:
        summary = asyncio.run(run())
    except RunStopped as stopped:
        go_on = ["mcprl", "train", str(recipe)] if path is None else ["mcprl", "resume", str(path)]
        print(printable(f"mcprl: {stopped}. Resume with: {shlex.join(go_on)}"), file=sys.stderr)
        sys.exit(EXIT_STOPPED)
    assert path is not None
    print_summary(summary, recipe=recipe, config=config, folder=path)

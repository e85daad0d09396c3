"""Runs `mcprl train` and `mcprl resume`: the console, the trackers, and the output at the end."""

from __future__ import annotations

import asyncio
import shlex
import sys

from mcprl.api import train_in
from mcprl.cli.console import TrainingConsole, enduring_output, print_summary
from mcprl.cli.printing import printable
from mcprl.config import RunConfig
from mcprl.runs.folder import RunFolder, RunStopped
from mcprl.runs.resuming import ResumePoint
from mcprl.runs.summary import Summary
from mcprl.training.shutdown import EXIT_STOPPED, Shutdown


def run_to_the_end(config: RunConfig, folder: RunFolder, resume_point: ResumePoint | None = None) -> None:
    """Train in `folder`, from the start or from a resume point. Exits with EXIT_STOPPED if the user stops the run."""
    with enduring_output():
        try:
            with folder:
                summary = asyncio.run(_run(config, folder, resume_point))
        except RunStopped as stopped:
            command = shlex.join(["mcprl", "resume", str(folder.path)])
            print(printable(f"mcprl: {stopped}. Resume with: {command}"), file=sys.stderr)
            sys.exit(EXIT_STOPPED)
        print_summary(summary, config=config, folder=folder.path)


async def _run(config: RunConfig, folder: RunFolder, resume_point: ResumePoint | None) -> Summary:
    def on_request(cause: str) -> None:
        # Record this now: a second signal, or the end of the time to stop, leaves no time for it.
        folder.record_end(RunStopped(f"stopped by {cause}"))

    shutdown = Shutdown(on_request=on_request)
    steps_done = 0 if resume_point is None else resume_point.step
    with TrainingConsole(config, steps_done=steps_done, log=folder.train_log) as console:
        return await train_in(config, folder, console, shutdown, resume_point)

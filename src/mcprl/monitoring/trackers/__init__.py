"""Trackers: who is told of a run besides its own folder. W&B, Weave, TensorBoard, OpenTelemetry.

    the run ──▶ Trackers ──▶ a queue and a thread for each ──▶ a process for each, with its library

A tracker that is down, slow or broken costs the run nothing but the time to put a record into a queue. So the libraries
live in processes of their own: what they patch, print, or wait for at their exit is no concern of the run, and one that
hangs is ended by force when its time is over. What does not fit into the queue is dropped and counted.

- opening.py      the one face that a run sees, and the check that the libraries are there
- delivery.py     the queue, the thread, the process and the deadlines of one tracker
- process.py      what runs in that process
- reports.py      the records that are sent, without secrets
- losses.py       what a library gives up without raising it
- timing.py       when the turns and calls of an episode happened
- *_tracker.py    one for each library, and its only owner
"""

from __future__ import annotations

from typing import Protocol

from mcprl.monitoring.trackers.reports import EpisodeReport, RunEnded, StepReport

__all__ = ["Tracker"]


class Tracker(Protocol):
    """Tells one library of a run. It is made when the run starts, in a process of its own, and may block there.

    An exception that it lets through ends it, and the message is told to whoever watches the run.
    """

    def episode_finished(self, episode: EpisodeReport) -> None:
        """An episode was played."""
        ...

    def step_finished(self, step: StepReport) -> None:
        """A step is done; its episodes were told before."""
        ...

    def run_ended(self, end: RunEnded) -> None:
        """The run has reached its end. Not called where it was stopped, or failed."""
        ...

    def close(self) -> None:
        """Send what is left. Nothing is told after this."""
        ...

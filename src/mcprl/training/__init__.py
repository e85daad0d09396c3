"""Training: a run put together, its loop, and the folder it leaves behind."""

from mcprl.training.journal import RunFolder, read_trajectories
from mcprl.training.loop import train
from mcprl.training.run import Run, Stage, open_run, open_stage
from mcprl.training.summary import Summary
from mcprl.training.watching import Watcher

__all__ = ["Run", "RunFolder", "Stage", "Summary", "Watcher", "open_run", "open_stage", "read_trajectories", "train"]

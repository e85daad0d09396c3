"""Runs for the pages of the dashboard to show: generated ones, kept for the next time, and one that goes on."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from dashboards.generated_runs import make_run
from dashboards.hostile import hostile_trajectories
from dashboards.side_files import metrics_of
from mcprl.goals import Contains, Goal
from mcprl.records import Batch, Group, Task
from mcprl.runs.folder import RunFolder, Span, StepRecord
from mcprl.verdicts import Severity, Verdict

__all__ = ["kept_run", "record_a_step"]


def kept_run(root: Path, model: Path, episodes: int) -> Path:
    """A generated run of so many episodes. To write it takes a minute: it is kept while its generator is the same."""
    sources = sorted((root / "bench" / "dashboards").glob("*.py"))
    recipe = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    kept = root / ".cache" / "generated-runs"
    run = kept / f"{episodes}-{recipe}" / "generated"
    if not run.exists():
        shutil.rmtree(kept, ignore_errors=True)  # of an older generator, or of a test that was broken off
        unfinished = run.with_name("unfinished")
        make_run(unfinished, model=model, episodes=episodes)
        unfinished.rename(run)
    return run


def record_a_step(folder: RunFolder, step: int, reward: float) -> None:
    """What a run records when a step ends."""
    task = Task(
        id="meet-ana", prompt=({"role": "user", "content": "Where is Ana?"},), goal=Goal(answer=Contains(text="Lima"))
    )
    trajectories = hostile_trajectories(2, step=step)
    played = (
        Group(
            task=Task(id=trajectories[0].task_id, prompt=task.prompt, goal=task.goal), trajectories=tuple(trajectories)
        ),
    )
    mask = tuple(tuple(t.sampled) for t in trajectories)
    advantages = tuple(tuple(0.5 if sampled else 0.0 for sampled in t.sampled) for t in trajectories)
    folder.record_step(
        step,
        StepRecord(
            played=played,
            batch=Batch(step=step, groups=played, learnable=mask, advantages=advantages),
            ratios=tuple(tuple(1.1 if sampled else 0.0 for sampled in t.sampled) for t in trajectories),
            spans=[Span(step=step, activity="collect", start=1763280000.0 + step, end=1763280000.5 + step)],
            metrics={name: value for name, value in metrics_of(step, reward, 0.5, 16).items() if name != "step"},
            verdicts=[Verdict(severity=Severity.WARN, name="dead groups", what="all members are alike", fix="wait")],
        ),
    )

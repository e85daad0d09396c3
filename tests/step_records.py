"""What a step leaves in a run's folder, for tests that care about some of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mcprl.records import Batch, Group
from mcprl.runs.folder import Span, StepRecord
from mcprl.verdicts import Verdict


def step_record(
    groups: Sequence[Group] = (),
    metrics: Mapping[str, float] | None = None,
    verdicts: Sequence[Verdict] = (),
    *,
    spans: Sequence[Span] = (),
) -> StepRecord:
    """A step whose groups were all learnt from: each sampled token with the reward as advantage and a ratio of 1."""
    trajectories = [t for group in groups for t in group.trajectories]
    batch = Batch(
        step=trajectories[0].step if trajectories else 0,
        groups=tuple(groups),
        learnable=tuple(t.sampled for t in trajectories),
        advantages=tuple(tuple(t.reward if sampled else 0.0 for sampled in t.sampled) for t in trajectories),
    )
    ratios = tuple(tuple(float(sampled) for sampled in t.sampled) for t in trajectories)
    return StepRecord(played=groups, batch=batch, ratios=ratios, spans=spans, metrics=metrics or {}, verdicts=verdicts)

"""What a rule sees: the figures of this step, what is remembered of earlier ones, and the settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mcprl.config import RunConfig
from mcprl.episodes.losses import Correlation
from mcprl.verdicts import Severity, Verdict

__all__ = ["WINDOW", "Past", "Rules", "Sight", "by_size", "gentler", "mean", "roll_back"]

WINDOW = 20  # steps: enough for a median that one odd step does not move, few enough to follow a run


@dataclass(slots=True, kw_only=True)
class Past:
    """What is remembered of a run, the current step included. Steps are counted from 1, as the console shows them.

    `windows` has the last known values of some figures, the newest at the end; a step without one adds nothing.

    Past(steps=2, healthy_step=2, best_reward=None, best_reward_step=None, first_entropies=[1.1, 1.0],
         windows={"reward": [0.1, 0.3], "grad_norm": [0.4, 0.6]})
    """

    steps: int = 0
    healthy_step: int | None = None
    best_reward: float | None = None
    best_reward_step: int | None = None
    first_entropies: list[float] = field(default_factory=list[float])
    windows: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    def push(self, name: str, value: float) -> None:
        if not math.isfinite(value):
            return
        window = self.windows.setdefault(name, [])
        window.append(value)
        del window[:-WINDOW]

    def last(self, name: str, count: int) -> list[float]:
        """The last so many known values; fewer where fewer are known."""
        return self.windows.get(name, [])[-count:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """One step as rules see it.

    Sight(config=config, metrics={"kl": 0.02, "entropy": 0.9}, past=Past(steps=3), skipped=None)
    """

    config: RunConfig
    metrics: Mapping[str, float]
    past: Past
    skipped: str | None = None
    lost_with: tuple[Correlation, ...] = ()

    def now(self, name: str) -> float | None:
        """A figure of this step; None where it is missing or no number: not known."""
        value = self.metrics.get(name)
        return value if value is not None and math.isfinite(value) else None

    @property
    def was_skipped(self) -> bool:
        return self.skipped is not None or self.now("update_skipped") == 1.0


Rules = Mapping[str, Callable[[Sight], Verdict | None]]
"""Rules by their names. A rule gives its verdict where it finds its symptom, and None elsewhere."""


def by_size(value: float | None, *, warn: float, bad: float = math.inf) -> Severity | None:
    """How severe it is that a figure is this high."""
    if value is None or value < warn:
        return None
    return Severity.BAD if value >= bad else Severity.WARN


def mean(values: Sequence[float]) -> float:
    # Divided first: a sum of huge numbers would overflow.
    return sum(value / len(values) for value in values)


def gentler(config: RunConfig) -> str:
    """How to make updates smaller, with the numbers."""
    rate = config.learner.learning_rate
    advice = f"lower learner.learning_rate (now {rate:.2g}) to {rate / 2:.2g}"
    if config.algorithm.epochs > 1:
        advice += f", or algorithm.epochs (now {config.algorithm.epochs})"
    return advice


def roll_back(sight: Sight, step: int | None, why: str) -> str:
    """Where to go on from, and with what."""
    if step is None:
        return f"start again, since no step so far was sound, and {gentler(sight.config)}"
    return f"go back to step {step}, {why} (`mcprl resume RUN --from {step}`), and {gentler(sight.config)}"

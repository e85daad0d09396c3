"""The input of a rule (figures of this step, memory of earlier steps, settings), and advice that rules share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from mcprl.config import RunConfig
from mcprl.verdicts import Severity, Verdict

REPORT = "stop the run and report this bug in mcprl, with the recipe"

WINDOW = 20  # in steps: enough that one odd step does not change the median, few enough to follow a run


@dataclass(slots=True, kw_only=True)
class Past:
    """What the rules remember of a run, including the current step. Steps are counted from 1, as in the console.

    `windows` has the last known values of some figures, newest last. A step without a value adds nothing.
    `levels` has the best level so far of some figures, with its number of samples.

    A checkpoint has the weights after its step. Their quality shows in the episodes that they sample, one or more steps
    later. Until then the step is one of `candidates`, each with its number, the number of updates so far, and its
    learning rate. `judged_step` is the newest step whose weights have sampled a whole step. `healthy_step` is the
    newest of those that were healthy, `sound_rate` is the highest learning rate that led to a healthy step, and
    `best_reward_step` is the step with the highest reward.

    Past(steps=3, updates=3, candidates=[[3, 3, 2e-05]], judged_step=2, healthy_step=2, sound_rate=2e-05,
         best_reward=None, best_reward_step=None, first_entropies=[1.1, 1.0],
         windows={"reward": [0.1, 0.3], "grad_norm": [0.4, 0.6]}, levels={"valid_call_rate": [0.96, 240.0]})
    """

    steps: int = 0
    updates: int = 0
    candidates: list[list[float]] = field(default_factory=list[list[float]])
    judged_step: int | None = None
    healthy_step: int | None = None
    sound_rate: float | None = None
    best_reward: float | None = None
    best_reward_step: int | None = None
    first_entropies: list[float] = field(default_factory=list[float])
    windows: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    levels: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    def push(self, name: str, value: float | None) -> None:
        """Add a value to a window. Does nothing if the value is unknown or not finite."""
        if value is None or not math.isfinite(value):
            return
        window = self.windows.setdefault(name, [])
        window.append(value)
        del window[:-WINDOW]

    def last(self, name: str, count: int) -> list[float]:
        """Return the last `count` known values, or all if there are fewer."""
        return self.windows.get(name, [])[-count:]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """One step, as a rule sees it.

    StepView(config=config, metrics={"kl": 0.02, "entropy": 0.9}, past=Past(steps=3), skipped=None)
    """

    config: RunConfig
    metrics: Mapping[str, float]
    past: Past
    skipped: str | None = None
    has_solutions: bool = True

    def now(self, name: str) -> float | None:
        """Return a figure of this step; None if it is missing or not finite."""
        value = self.metrics.get(name)
        return value if value is not None and math.isfinite(value) else None

    @property
    def was_skipped(self) -> bool:
        return self.skipped is not None or self.now("update_skipped") == 1.0


def may_set(config: RunConfig, setting: str, value: object) -> bool:
    """Return True if the value is allowed and not yet set. SkyRL refuses grammars and temperatures, for example."""
    changed: dict[str, Any] = config.model_dump()
    *sections, key = setting.split(".")
    target = changed
    for section in sections:
        target = target[section]
    if target[key] == value:
        return False
    target[key] = value
    try:
        RunConfig.model_validate(changed)
    except ValidationError:
        return False
    return True


def one_of(ways: Sequence[str]) -> str:
    """Join alternatives: one_of(["a", "b", "c"]) is "a, b, or c"."""
    return " or ".join(ways) if len(ways) < 3 else f"{', '.join(ways[:-1])}, or {ways[-1]}"


Rules = Mapping[str, Callable[[StepView], Verdict | None]]
"""Rules by name. A rule returns a verdict if it finds a problem, otherwise None."""


def warn(what: str, fix: str) -> Verdict:
    return Verdict(severity=Severity.WARN, what=what, fix=fix)


def bad(what: str, fix: str) -> Verdict:
    return Verdict(severity=Severity.BAD, what=what, fix=fix)


def by_size(value: float | None, *, warn: float, bad: float = math.inf) -> Severity | None:
    """Return the severity of a figure that should not be high; None if it is low or unknown."""
    if value is None or value < warn:
        return None
    return Severity.BAD if value >= bad else Severity.WARN


def gentler(config: RunConfig) -> str:
    """Suggest how to make updates smaller, with concrete values."""
    rate = config.learner.learning_rate
    advice = f"lower learner.learning_rate (now {rate:.2g}) to {rate / 2:.2g}"
    if config.algorithm.epochs > 1:
        advice += f", or algorithm.epochs (now {config.algorithm.epochs})"
    return advice


def refill(config: RunConfig) -> str:
    """Suggest how to have fewer groups without variance in a batch."""
    rounds = config.algorithm.refill_rounds
    return f"raise algorithm.refill_rounds (now {rounds})" if rounds else "set algorithm.refill_rounds to 2"


def at_cap(config: RunConfig) -> str:
    """Suggest what to change if algorithm.kl.cap prevents updates."""
    kl = config.algorithm.kl
    advice = f"{gentler(config)}, raise algorithm.kl.coefficient (now {kl.coefficient:g})"
    if kl.reference == "base":
        return f"{advice}, or set algorithm.kl.reference to sync"
    return f"{advice}, or raise algorithm.kl.cap (now {kl.cap:g})"


def roll_back(view: StepView, step: int | None, why: str = "the last healthy one") -> str:
    """Suggest a step to resume from, and a lower learning rate: a healthy rate, or else a tenth of the current one."""
    setting, in_force, healthy = view.config.learner.learning_rate, view.now("learning_rate"), view.past.sound_rate
    rate = setting / 10
    if healthy and in_force is not None and healthy < in_force / 2:
        rate = healthy
    if step is None:
        return (
            f"start a new run with learner.learning_rate={rate:.2g} (now {setting:.2g}): no checkpoint is "
            "known to be good"
        )
    return (
        f"go back to step {step}, {why}, with a lower learning rate (now {setting:.2g}): "
        f"`mcprl resume RUN --from {step} --set learner.learning_rate={rate:.2g}`"
    )

"""The input of a rule (figures of this step, memory of earlier steps, settings), and advice that rules share."""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, lgamma
from typing import Any, Final, Literal, cast

from pydantic import ValidationError

from mcprl.config import RunConfig
from mcprl.records import Group, StopReason, ToolCall
from mcprl.verdicts import Severity, Verdict

REPORT = "stop the run and report this bug in mcprl, with the recipe"

WINDOW = 20  # in steps: enough that one odd step does not change the median, few enough to follow a run


@dataclass(slots=True, kw_only=True)
class Past:
    """The memory of a run, including the current step. Steps are counted from 1, as in the console.

    `windows` has the last known values of some figures, newest last. If a step has no value, none is added.
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


Kind = Literal["task", "tool", "argument"]

_ALPHA: Final = 0.001
_MIN_LOST: Final = 3
_STEPS: Final = 20
_WORD: Final = re.compile(r"\w{3,}")
_MAX_TEXT: Final = 20_000  # maximum number of characters of an argument that are searched for words


@dataclass(frozen=True, slots=True, kw_only=True)
class Correlation:
    """A task, tool or argument word whose turns are lost more often than others.

    Correlation(kind="argument", value="fork", lost=12, turns=12, other_lost=1, other_turns=230, p=3e-17)
    """

    kind: Kind
    value: str
    lost: int
    turns: int
    other_lost: int
    other_turns: int
    p: float

    def __str__(self) -> str:
        name = f"an argument that contains {self.value!r}" if self.kind == "argument" else f"{self.kind} {self.value}"
        return f"{name} ({self.lost} of {self.turns} turns lost; without it, {self.other_lost} of {self.other_turns})"


Feature = tuple[Kind, str] | None  # None counts all turns
Counts = Counter[Feature]


class LossLedger:
    """Finds out whether attempts are lost at random, or more often with a certain task, tool or word in the arguments.

    The unit is a turn with calls. A turn is lost if the attempt ended in it. For each task, tool and word, Fisher's
    exact test tests whether turns with it are lost more often than turns without it. With the Bonferroni correction,
    the probability of any false alarm is at most `_ALPHA`, if faults hit turns independently. That does not hold for
    one fault that ends many episodes at once. A resumed run starts with an empty ledger.
    """

    def __init__(self) -> None:
        self._steps: deque[tuple[Counts, Counts]] = deque(maxlen=_STEPS)  # lost turns, all turns

    def add(self, groups: Sequence[Group]) -> None:
        """Add the turns of a step. A turn that caused a fault also counts as lost."""
        lost, turns = Counts(), Counts()
        for task_id, calls, is_lost in _turns_of(groups):
            features: set[Feature] = {None, *_features(task_id, calls)}
            if calls:
                turns.update(features)
                lost.update(features if is_lost else ())
        self._steps.append((lost, turns))

    def correlations(self) -> tuple[Correlation, ...]:
        """Return the task, the tool and the word that correlate most with losses, if any do."""
        lost, turns = Counts(), Counts()
        for step_lost, step_turns in self._steps:
            lost.update(step_lost)
            turns.update(step_turns)
        all_lost, all_turns = lost.pop(None, 0), turns.pop(None, 0)
        if all_lost < _MIN_LOST:
            return ()
        tests = sum(count >= _MIN_LOST for count in turns.values())
        found: dict[Kind, Correlation] = {}
        for feature, count in lost.items():
            if feature is None or count < _MIN_LOST or count * all_turns <= all_lost * turns[feature]:
                continue
            p = fisher_p(count, turns[feature], all_lost, all_turns) * tests
            kind, value = feature
            if p <= _ALPHA and (kind not in found or (p, -len(value)) < (found[kind].p, -len(found[kind].value))):
                found[kind] = Correlation(
                    kind=kind,
                    value=value,
                    lost=count,
                    turns=turns[feature],
                    other_lost=all_lost - count,
                    other_turns=all_turns - turns[feature],
                    p=p,
                )
        return tuple(sorted(found.values(), key=lambda correlation: correlation.p))


def _turns_of(groups: Sequence[Group]) -> Iterator[tuple[str, Sequence[ToolCall], bool]]:
    """Yield, for each turn, its task, its calls, and whether it was lost."""
    for group in groups:
        for played in group.trajectories:
            caused = played.stop is StopReason.CAUSED_FAULT
            for place, turn in enumerate(played.turns, start=1):
                yield played.task_id, turn.calls, caused and place == len(played.turns)
        for episode in group.lost:
            for place, calls in enumerate(episode.turns, start=1):
                yield episode.task_id, calls, place == len(episode.turns)


def fisher_p(lost: int, turns: int, all_lost: int, all_turns: int) -> float:
    """P(X ≥ lost) for hypergeometric X: `turns` drawn from `all_turns`, of which `all_lost` are lost.

    Σ_x C(all_lost, x) · C(all_turns − all_lost, turns − x) / C(all_turns, turns), from x = lost
    """
    kept = all_turns - all_lost
    total = _log_comb(all_turns, turns)
    values = range(max(lost, turns - kept), min(turns, all_lost) + 1)
    return min(1.0, sum(exp(_log_comb(all_lost, x) + _log_comb(kept, turns - x) - total) for x in values))


def _log_comb(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


def _features(task_id: str, calls: Sequence[ToolCall]) -> set[tuple[Kind, str]]:
    features: set[tuple[Kind, str]] = {("task", task_id)}
    for call in calls:
        features.add(("tool", call.name))
        features.update(("argument", word) for text in _texts(call.arguments) for word in _WORD.findall(text))
    return features


def _texts(value: Any) -> Iterator[str]:
    """Yield all strings nested in an argument. Other values are converted to strings."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            waiting.extend(cast("Mapping[str, Any]", value).values())
        elif isinstance(value, list | tuple):
            waiting.extend(cast("Iterable[Any]", value))
        else:
            yield str(value)[:_MAX_TEXT]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """One step, as a rule sees it.

    StepView(config=config, metrics={"kl": 0.02, "entropy": 0.9}, past=Past(steps=3), skipped=None)
    """

    config: RunConfig
    metrics: Mapping[str, float]
    past: Past
    skipped: str | None = None
    lost_with: tuple[Correlation, ...] = ()
    has_solutions: bool = True

    def now(self, name: str) -> float | None:
        """Return a figure of this step; None if it is missing or not finite."""
        value = self.metrics.get(name)
        return value if value is not None and math.isfinite(value) else None

    @property
    def was_skipped(self) -> bool:
        return self.skipped is not None or self.now("update_skipped") == 1.0


def may_set(config: RunConfig, setting: str, value: object) -> bool:
    """Return whether the run could have this setting. For example, SkyRL's engine refuses grammars and temperatures."""
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
    """Suggest what to change if algorithm.kl.cap stops updates."""
    kl = config.algorithm.kl
    advice = f"{gentler(config)}, raise algorithm.kl.coefficient (now {kl.coefficient:g})"
    if kl.reference == "base":
        return f"{advice}, or set algorithm.kl.reference to sync"
    return f"{advice}, or raise algorithm.kl.cap (now {kl.cap:g})"


def roll_back(view: StepView, step: int | None, why: str = "the last healthy one") -> str:
    """Suggest a step to resume from and a learning rate: one that was healthy, or a tenth of the current one."""
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

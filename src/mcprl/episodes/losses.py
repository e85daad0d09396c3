"""Finds out whether attempts are lost at random, or more often with a certain task, tool or word in the arguments.

The unit is a turn with calls. A turn is lost if the attempt ended in it. For each task, tool and word in the arguments,
Fisher's exact test tests whether turns with it are lost more often than turns without it. With the Bonferroni
correction, the probability of any false alarm is at most `_ALPHA`, if faults hit turns independently. That does not
hold for one fault that ends many episodes at once.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, lgamma
from typing import Any, Final, Literal, cast

from mcprl.records import Group, StopReason, ToolCall

__all__ = ["Correlation", "LossLedger", "fisher_p"]

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
    """Counts the turns of recent steps. A resumed run starts with an empty ledger."""

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

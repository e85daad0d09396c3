"""Two evaluations held against each other, task by task: by how much, how certainly, and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from pydantic import TypeAdapter

from mcprl.errors import BadValueError
from mcprl.evaluation.figures import TaskResult
from mcprl.evaluation.results import Evaluation
from mcprl.evaluation.statistics import CONFIDENCE, Estimate, difference_interval, mean_interval, sign_flip_p

__all__ = ["CategoryChange", "Comparison", "TaskChange", "compare", "comparison_json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskChange:
    """A task before and after: TaskChange(id="meet-ana", category="medium", before=0.25, after=1.0)."""

    id: str
    category: str
    before: float
    after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryChange:
    """A category before and after, and the mean difference of its tasks."""

    tasks: int
    before: float
    after: float
    difference: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Before and after on the tasks that both played.

    `p` is that of the paired test of success, exact; `changes` has every task. `left_out` are tasks that one of the
    two did not play, or that read differently in the two, and so tell nothing about the policy. `other_settings` are
    those that differ besides the weights: where there are any, the difference may be theirs.

    Comparison(before_name="smollm2-135m", after_name="smollm2-135m with hello-cpu/adapter", tasks=4, before=0.0,
               after=0.5, difference=Estimate(value=0.5, low=-0.1, high=0.8), p=0.25, won=2, lost=0, …)
    """

    before_name: str
    after_name: str
    tasks: int
    before: float
    after: float
    difference: Estimate
    p: float
    reward_difference: Estimate
    won: int
    lost: int
    categories: Mapping[str, CategoryChange]
    changes: tuple[TaskChange, ...]
    left_out: tuple[str, ...] = ()
    other_settings: Mapping[str, tuple[str, str]]

    @property
    def verdict(self) -> str:
        """The comparison in one sentence."""
        if not self.p <= 1.0 - CONFIDENCE:
            return "No difference that this many tasks can show."
        return (
            "Better: more than chance explains." if self.difference.value > 0 else "Worse: more than chance explains."
        )


# What may differ between two evaluations without a word: the weights are what is compared.
_COMPARED: Final = ("name", "model.path", "learner", "training", "algorithm", "tasks.train", "workers")


def compare(before: Evaluation, after: Evaluation) -> Comparison:
    """Hold `after` against `before`. Raises BadValueError where they have no task in common."""
    olds = {task.id: task for task in before.tasks}
    pairs = [(old, new) for new in after.tasks if (old := olds.get(new.id)) and old.fingerprint == new.fingerprint]
    if not pairs:
        raise BadValueError(
            f"{before.name} and {after.name} have no task in common", fix="compare evaluations of the same tasks"
        )
    paired = {new.id for _, new in pairs}
    names = dict.fromkeys(task.id for task in (*before.tasks, *after.tasks))
    differences = [_share(new) - _share(old) for old, new in pairs]
    changes = [
        TaskChange(id=new.id, category=new.category, before=float(_share(old)), after=float(_share(new)))
        for old, new in pairs
    ]
    return Comparison(
        before_name=before.title,
        after_name=after.title,
        tasks=len(pairs),
        before=_mean([change.before for change in changes]),
        after=_mean([change.after for change in changes]),
        difference=difference_interval([float(d) for d in differences]),
        p=sign_flip_p(differences),
        reward_difference=mean_interval([new.reward - old.reward for old, new in pairs]),
        won=sum(d > 0 for d in differences),
        lost=sum(d < 0 for d in differences),
        categories=_by_category(after, changes),
        changes=tuple(changes),
        left_out=tuple(name for name in names if name not in paired),
        other_settings=_other_settings(before.config, after.config),
    )


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as JSON values."""
    return _COMPARISON.dump_python(comparison, mode="json")


_COMPARISON: Final = TypeAdapter(Comparison)


def _share(task: TaskResult) -> Fraction:
    return Fraction(task.solved, task.episodes)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _by_category(after: Evaluation, changes: Sequence[TaskChange]) -> dict[str, CategoryChange]:
    found: dict[str, CategoryChange] = {}
    for name in after.figures.categories:
        of_category = [change for change in changes if change.category == name]
        if of_category:
            found[name] = CategoryChange(
                tasks=len(of_category),
                before=_mean([change.before for change in of_category]),
                after=_mean([change.after for change in of_category]),
                difference=difference_interval([change.after - change.before for change in of_category]),
            )
    return found


def _other_settings(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    old, new = _leaves(before), _leaves(after)
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return {
        name: (old.get(name, "–"), new.get(name, "–"))
        for name in names
        if not any(f"{name}.".startswith(f"{compared}.") for compared in _COMPARED)
    }


def _leaves(section: Mapping[str, Any], path: str = "") -> dict[str, str]:
    """Every setting by its dotted name."""
    found: dict[str, str] = {}
    for name, value in section.items():
        here = f"{path}.{name}" if path else name
        found |= _leaves(value, here) if isinstance(value, dict) else {here: str(value)}  # pyright: ignore[reportUnknownArgumentType]
    return found

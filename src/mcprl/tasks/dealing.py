"""What every order of tasks can do, and the checks that all of them share.

A deal is a function of the seed, the step and the successes noted before it, and of nothing else. So a run that is
restored from its saved state goes on with exactly the tasks that it would have had.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mcprl.canonical import canonical_json
from mcprl.errors import BadValueError, TaskFileError
from mcprl.records import Task

__all__ = ["Deal", "Dealer", "refuse_other_state", "refuse_too_few", "state_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deal:
    """The tasks of a step, and those that may stand in for some of them.

    Deal(tasks=(a, b), stand_ins=(d, c, e))
    """

    tasks: tuple[Task, ...]
    stand_ins: tuple[Task, ...] = ()


class Dealer(Protocol):
    """Deals tasks step by step."""

    def deal(self, step: int) -> tuple[Task, ...]:
        """The tasks of a step, all different."""
        ...

    def stand_ins(self, step: int) -> tuple[Task, ...]:
        """All tasks that the step was not dealt, in the order in which they take the place of those that teach nothing.

        No task of a step is played twice: its seeds would be the same, and so would its episodes.
        """
        ...

    def note(self, successes: Mapping[str, Sequence[bool]]) -> None:
        """Tell what became of a step: for the id of each task, whether each of its episodes succeeded."""
        ...

    def state(self) -> dict[str, Any]:
        """All that later deals depend on besides the configuration and the tasks, as JSON."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave. Raises TaskFileError where that was another order or had other tasks."""
        ...


def refuse_too_few(tasks: Sequence[Task], per_step: int) -> None:
    """Raise BadValueError where a step cannot have `per_step` different tasks."""
    if per_step > len(tasks):
        raise BadValueError(
            f"training.tasks_per_step is {per_step}, but there are only {len(tasks)} tasks",
            fix=f"set training.tasks_per_step to {len(tasks)} or less, or add tasks",
        )


def state_of(order: str, tasks: Sequence[Task]) -> dict[str, Any]:
    """The part of a state by which a later run knows that it deals the same tasks in the same way."""
    dealt = canonical_json([[task.id, task.difficulty] for task in tasks])
    return {"order": order, "tasks": hashlib.sha256(dealt.encode()).hexdigest()}


def refuse_other_state(state: Mapping[str, Any], order: str, tasks: Sequence[Task]) -> None:
    """Raise TaskFileError where a state was saved with another order, or with other tasks than these."""
    if state.get("order") != order:
        raise TaskFileError(
            f"the saved run deals its tasks in the order {state.get('order')!r}, this one {order!r}",
            fix="set tasks.order as it was, or start a new run",
        )
    if state.get("tasks") != state_of(order, tasks)["tasks"]:
        raise TaskFileError(
            "the tasks are not those of the saved run: their ids, difficulties or order differ",
            fix="give the task file as it was, or start a new run",
        )

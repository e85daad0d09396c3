"""Which tasks come in which step, all alike: a fresh shuffle for each lap over the file, from the seed alone."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from mcprl.config import RunConfig
from mcprl.records import Task
from mcprl.seeds import derive_seed
from mcprl.tasks.curriculum import Curriculum
from mcprl.tasks.dealing import Dealer, refuse_other_state, refuse_too_few, state_of

__all__ = ["TaskOrder", "make_order"]

_NAME = "shuffled"


def make_order(tasks: Sequence[Task], config: RunConfig) -> Dealer:
    """The order that the configuration asks for: `tasks.order`, `training.tasks_per_step` and `seed`."""
    kind = Curriculum if config.tasks.order == "curriculum" else TaskOrder
    return kind(tasks, per_step=config.training.tasks_per_step, seed=config.seed)


class TaskOrder:
    """Deals `per_step` different tasks a step. A lap ends when fewer than that are left; the next shuffles anew.

    Successes change nothing, and the state is only what a restored run is checked against.
    """

    def __init__(self, tasks: Sequence[Task], *, per_step: int, seed: int) -> None:
        refuse_too_few(tasks, per_step)
        self._tasks = tuple(tasks)
        self._per_step = per_step
        self._seed = seed

    def deal(self, step: int) -> tuple[Task, ...]:
        """The tasks of a step, a function of the seed and the step."""
        lap, place = divmod(step, len(self._tasks) // self._per_step)
        order = list(self._tasks)
        random.Random(derive_seed(self._seed, "tasks", lap)).shuffle(order)
        return tuple(order[place * self._per_step : (place + 1) * self._per_step])

    def stand_ins(self, step: int) -> tuple[Task, ...]:
        """All other tasks, shuffled for this step: taken in the lap's order, the next step would play them again."""
        dealt = {task.id for task in self.deal(step)}
        others = [task for task in self._tasks if task.id not in dealt]
        random.Random(derive_seed(self._seed, "stand-ins", step)).shuffle(others)
        return tuple(others)

    def note(self, successes: Mapping[str, Sequence[bool]]) -> None:
        """Nothing is learnt from successes here."""

    def state(self) -> dict[str, Any]:
        """The name of this order and a digest of its tasks."""
        return state_of(_NAME, self._tasks)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Check that the saved run dealt these tasks in this order."""
        refuse_other_state(state, _NAME, self._tasks)

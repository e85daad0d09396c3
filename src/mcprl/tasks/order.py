"""Which tasks come in which step: a fresh shuffle for each lap over the file, from the seed alone.

The order is a function of (seed, step), so a resumed run needs no cursor to go on where it stood.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from mcprl.errors import BadValueError
from mcprl.records import Task
from mcprl.seeds import derive_seed

__all__ = ["TaskOrder"]


class TaskOrder:
    """Deals `per_step` different tasks a step. A lap ends when fewer than that are left; the next shuffles anew."""

    def __init__(self, tasks: Sequence[Task], *, per_step: int, seed: int) -> None:
        if per_step > len(tasks):
            raise BadValueError(
                f"training.tasks_per_step is {per_step}, but there are only {len(tasks)} tasks",
                fix=f"set training.tasks_per_step to {len(tasks)} or less, or add tasks",
            )
        self._tasks = tuple(tasks)
        self._per_step = per_step
        self._seed = seed

    def at(self, step: int) -> tuple[Task, ...]:
        lap, place = divmod(step, len(self._tasks) // self._per_step)
        order = list(self._tasks)
        random.Random(derive_seed(self._seed, "tasks", lap)).shuffle(order)
        return tuple(order[place * self._per_step : (place + 1) * self._per_step])

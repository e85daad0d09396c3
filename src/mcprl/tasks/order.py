"""Decides which tasks each step uses: a new shuffle per pass over the file, or a curriculum by success rate.

The order depends on the seed and, with a curriculum, on the results so far; both are part of a checkpoint.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from mcprl.config import RunConfig
from mcprl.errors import BadValueError, TaskFileError
from mcprl.files import canonical_json
from mcprl.records import Difficulty, Task
from mcprl.seeds import derive_seed

FLOOR = 0.1
MASTERED = 0.6
KEPT = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Deal:
    """The tasks of a step, and the tasks that may replace them (`stand_ins`).

    Deal(tasks=(a, b), stand_ins=(d, c, e))
    """

    tasks: tuple[Task, ...]
    stand_ins: tuple[Task, ...] = ()


class Dealer(Protocol):
    """Chooses the tasks of each step."""

    def deal(self, step: int) -> tuple[Task, ...]:
        """Return the tasks of a step, all different."""
        ...

    def stand_ins(self, step: int) -> tuple[Task, ...]:
        """Return all other tasks, in the order in which they replace tasks whose group has no variance.

        No task runs twice in a step: with the same seeds, its episodes would be the same.
        """
        ...

    def note(self, successes: Mapping[str, Sequence[bool]]) -> None:
        """Record the results of a step: for each task id, whether each of its episodes succeeded."""
        ...

    def state(self) -> dict[str, Any]:
        """Return everything that later deals depend on, as JSON, except the configuration and the tasks."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state. Raises TaskFileError if the state is for another kind of order or for other
        tasks."""
        ...


def make_order(tasks: Sequence[Task], config: RunConfig) -> Dealer:
    """Create the task order set by `tasks.order`, `training.tasks_per_step` and `seed`."""
    kind = Curriculum if config.tasks.order == "curriculum" else TaskOrder
    return kind(tasks, per_step=config.training.tasks_per_step, seed=config.seed)


class TaskOrder:
    """Deals `per_step` different tasks per step. When fewer are left, a new pass with a new shuffle begins."""

    _name = "shuffled"

    def __init__(self, tasks: Sequence[Task], *, per_step: int, seed: int) -> None:
        if per_step > len(tasks):
            raise BadValueError(
                f"training.tasks_per_step is {per_step}, but there are only {len(tasks)} tasks",
                fix=f"set training.tasks_per_step to {len(tasks)} or less, or add tasks",
            )
        self._tasks = tuple(tasks)
        self._per_step = per_step
        self._seed = seed

    def deal(self, step: int) -> tuple[Task, ...]:
        lap, place = divmod(step, len(self._tasks) // self._per_step)
        order = list(self._tasks)
        random.Random(derive_seed(self._seed, "tasks", lap)).shuffle(order)
        return tuple(order[place * self._per_step : (place + 1) * self._per_step])

    def stand_ins(self, step: int) -> tuple[Task, ...]:
        # Shuffle them for this step: in the order of the pass, the next step would use the same tasks again.
        dealt = {task.id for task in self.deal(step)}
        others = [task for task in self._tasks if task.id not in dealt]
        random.Random(derive_seed(self._seed, "stand-ins", step)).shuffle(others)
        return tuple(others)

    def note(self, successes: Mapping[str, Sequence[bool]]) -> None:
        """Does nothing: a shuffled order does not depend on results."""

    def state(self) -> dict[str, Any]:
        dealt = canonical_json([[task.id, task.difficulty] for task in self._tasks])
        return {"order": self._name, "tasks": hashlib.sha256(dealt.encode()).hexdigest()}

    def restore(self, state: Mapping[str, Any]) -> None:
        if state.get("order") != self._name:
            raise TaskFileError(
                f"the saved run uses task order {state.get('order')!r}, but this one uses {self._name!r}",
                fix="set tasks.order to its previous value, or start a new run",
            )
        if state.get("tasks") != self.state()["tasks"]:
            raise TaskFileError(
                "the tasks differ from those of the saved run in their ids, difficulties or order",
                fix="restore the task file, or start a new run",
            )


class Curriculum(TaskOrder):
    """Deals easy tasks first and harder ones as the success rate rises. At each level, prefers the most useful tasks.

    If all episodes of a group succeed, or all fail, there is nothing to learn from it; a group in which half succeed
    is the most useful. Let s_i be the successes in n_i tries of task i. Each time a task is dealt again, older results
    count half as much:

        p_i = (s_i + 1) / (n_i + 2)                            success rate of a task; 1/2 if never tried
        m_d = (Σ p_i) / max(k_d, min(per_step, size of d))     success rate of difficulty d, from its k_d tried tasks
        o_d = o_(d−1) · min(1, m_(d−1) / 0.6)²                 factor of difficulty d; 1 for the lowest
        w_i = 0.1 + o_d · 4 p_i (1 − p_i)                      weight of a task

    A step draws tasks without replacement by weight. The 0.1 keeps every task possible: a mastered task may be
    forgotten, and a task labeled hard may be easy.

    order = Curriculum(tasks, per_step=8, seed=7)
    order.deal(0)                                        # mostly easy tasks: all others have only the 0.1
    order.note({"meet-ana": [True, True, False, True]})  # s = 3, n = 4, p = 2/3, weight 0.1 + 8/9
    """

    _name = "curriculum"

    def __init__(self, tasks: Sequence[Task], *, per_step: int, seed: int) -> None:
        super().__init__(tasks, per_step=per_step, seed=seed)
        self._counts: dict[str, tuple[float, float]] = {}  # task → successes and tries

    def deal(self, step: int) -> tuple[Task, ...]:
        return self._drawn(step)[: self._per_step]

    def stand_ins(self, step: int) -> tuple[Task, ...]:
        return self._drawn(step)[self._per_step :]

    def note(self, successes: Mapping[str, Sequence[bool]]) -> None:
        known = {task.id for task in self._tasks}
        for task_id, outcomes in successes.items():
            if task_id not in known:
                raise ValueError(f"the curriculum has no task {task_id!r}")
            if not outcomes:
                raise ValueError(f"task {task_id!r} was recorded without episodes")
            succeeded, tried = self._counts.get(task_id, (0.0, 0.0))
            self._counts[task_id] = (KEPT * succeeded + sum(outcomes), KEPT * tried + len(outcomes))

    def weights(self) -> tuple[float, ...]:
        """Return the weight of each task in the next deal, in the order of the tasks."""
        openness = self._openness()
        chances = ((openness[task.difficulty], self._chance(task)) for task in self._tasks)
        return tuple(FLOOR + how_open * 4.0 * chance * (1.0 - chance) for how_open, chance in chances)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "counts": {task_id: list(count) for task_id, count in self._counts.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        try:
            saved = cast("Mapping[str, Sequence[float]]", state["counts"])
            self._counts = {task_id: (float(count[0]), float(count[1])) for task_id, count in saved.items()}
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise TaskFileError("the saved state of the curriculum is damaged", fix="start a new run") from error

    def _drawn(self, step: int) -> tuple[Task, ...]:
        """Return all tasks in the order in which this step draws them."""
        draw = random.Random(derive_seed(self._seed, self._name, step))
        # Draw an exponential wait with rate w per task. The shortest wait belongs to a task with probability w / Σw,
        # and so on.
        waits = [draw.expovariate(weight) for weight in self.weights()]
        return tuple(self._tasks[place] for place in sorted(range(len(waits)), key=waits.__getitem__))

    def _chance(self, task: Task) -> float:
        succeeded, tried = self._counts.get(task.id, (0.0, 0.0))
        return (succeeded + 1.0) / (tried + 2.0)

    def _openness(self) -> dict[Difficulty, float]:
        openness: dict[Difficulty, float] = {}
        so_far = 1.0
        for level in Difficulty:
            openness[level] = so_far
            members = [task for task in self._tasks if task.difficulty is level]
            if members:
                tried = [self._chance(task) for task in members if task.id in self._counts]
                mean = sum(tried) / max(len(tried), min(self._per_step, len(members)))
                so_far *= min(1.0, mean / MASTERED) ** 2
        return openness

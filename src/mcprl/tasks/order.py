"""Which tasks come in which step: a fresh shuffle per pass over the file, or a curriculum by success rate.

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

__all__ = ["Curriculum", "Deal", "Dealer", "TaskOrder", "make_order"]


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


FLOOR = 0.1
MASTERED = 0.6
KEPT = 0.5
_TASK_NAME = "curriculum"


class Curriculum:
    """Deals `per_step` different tasks a step, by the weights that the module's text defines.

    order = Curriculum(tasks, per_step=8, seed=7)
    order.deal(0)                                        # mostly easy tasks: all else has only the floor
    order.note({"meet-ana": [True, True, False, True]})  # s = 3, n = 4, p = 2/3, weight 0.1 + 8/9
    """

    def __init__(self, tasks: Sequence[Task], *, per_step: int, seed: int) -> None:
        refuse_too_few(tasks, per_step)
        self._tasks = tuple(tasks)
        self._per_step = per_step
        self._seed = seed
        # Successes and tries of each task that was tried.
        self._counts: dict[str, tuple[float, float]] = {}

    def deal(self, step: int) -> tuple[Task, ...]:
        """The tasks of a step, a function of the seed, the step and what was noted so far."""
        return self._drawn(step)[: self._per_step]

    def stand_ins(self, step: int) -> tuple[Task, ...]:
        """All other tasks, in the order in which the step would have drawn them next."""
        return self._drawn(step)[self._per_step :]

    def note(self, successes: Mapping[str, Sequence[bool]]) -> None:
        """Count what became of a step's episodes, by the ids of their tasks."""
        known = {task.id for task in self._tasks}
        for task_id, outcomes in successes.items():
            if task_id not in known:
                raise ValueError(f"no task of the curriculum has the id {task_id!r}")
            if not outcomes:
                raise ValueError(f"task {task_id!r} was noted without any episode")
            succeeded, tried = self._counts.get(task_id, (0.0, 0.0))
            self._counts[task_id] = (KEPT * succeeded + sum(outcomes), KEPT * tried + len(outcomes))

    def weights(self) -> tuple[float, ...]:
        """The weight of each task in the next deal, in the order of the tasks."""
        openness = self._openness()
        chances = ((openness[task.difficulty], self._chance(task)) for task in self._tasks)
        return tuple(FLOOR + how_open * 4.0 * chance * (1.0 - chance) for how_open, chance in chances)

    def state(self) -> dict[str, Any]:
        """The counts of each task that was tried."""
        counts = {task_id: list(count) for task_id, count in self._counts.items()}
        return {**state_of(_TASK_NAME, self._tasks), "counts": counts}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from saved counts."""
        refuse_other_state(state, _TASK_NAME, self._tasks)
        try:
            saved = cast("Mapping[str, Sequence[float]]", state["counts"])
            self._counts = {task_id: (float(count[0]), float(count[1])) for task_id, count in saved.items()}
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise TaskFileError("the saved state of the curriculum is damaged", fix="start a new run") from error

    def _drawn(self, step: int) -> tuple[Task, ...]:
        """All tasks, drawn without replacement."""
        draw = random.Random(derive_seed(self._seed, _TASK_NAME, step))
        # The first of independent exponential waits with rates w is each task's with probability w / Σw, and so on.
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

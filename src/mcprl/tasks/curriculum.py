"""A curriculum: easy tasks first, harder ones as success comes, and at every level those that teach most.

A group of episodes that all succeed, or all fail, has no variance and teaches nothing; one that half succeeds teaches
most. With successes s_i and tries n_i of task i, older ones counting half as much each time the task is dealt again:

    p_i = (s_i + 1) / (n_i + 2)                    estimated success of a task: 1/2 where it was never tried
    m_d = Σ p_i over tried tasks of level d        estimated success of a level; mastered tasks count in it however
          / max(tried, min(per_step, size of d))   seldom they are dealt, and a few tries are not yet a level's success
    o_d = o_(d−1) · min(1, m_(d−1) / 0.6)²         how far a level is open: the lowest is, o = 1
    w_i = 0.1 + o_d · 4 p_i (1 − p_i)              weight of a task: between 0.1 and 1.1

A step draws `per_step` tasks without replacement, each next one with probability w_i / Σw of those left; where others
have to stand in for some of them, it goes on drawing. The 0.1 is
what keeps every task alive: one that was mastered is seen to be forgotten, one that was hopeless to have become
possible, and one that is only labelled as hard to be easy. A level opens by degrees, so that no bound is a dead end: of
easy tasks of which half can never be solved (m = 1/2), harder ones still come with 0.69 of their weight.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, cast

from mcprl.errors import TaskFileError
from mcprl.records import Difficulty, Task
from mcprl.seeds import derive_seed
from mcprl.tasks.dealing import refuse_other_state, refuse_too_few, state_of

__all__ = ["Curriculum"]

FLOOR = 0.1
MASTERED = 0.6
KEPT = 0.5
_NAME = "curriculum"


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
        return {**state_of(_NAME, self._tasks), "counts": counts}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from saved counts."""
        refuse_other_state(state, _NAME, self._tasks)
        try:
            saved = cast("Mapping[str, Sequence[float]]", state["counts"])
            self._counts = {task_id: (float(count[0]), float(count[1])) for task_id, count in saved.items()}
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise TaskFileError("the saved state of the curriculum is damaged", fix="start a new run") from error

    def _drawn(self, step: int) -> tuple[Task, ...]:
        """All tasks, drawn without replacement."""
        draw = random.Random(derive_seed(self._seed, _NAME, step))
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

"""The order of tasks: fair, and a function of the seed and the step alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcprl.errors import BadValueError
from mcprl.goals import Goal
from mcprl.records import Task
from mcprl.tasks import TaskOrder

seeds = st.integers(0, 2**63)


def tasks(count: int) -> list[Task]:
    return [Task(id=f"t{n}", prompt=({"role": "user", "content": "Hi"},), goal=Goal()) for n in range(count)]


@st.composite
def orders(draw: st.DrawFn) -> tuple[int, int, int]:
    """Number of tasks, tasks a step, seed."""
    count = draw(st.integers(1, 40))
    return count, draw(st.integers(1, count)), draw(seeds)


def ids(order: TaskOrder, step: int) -> list[str]:
    return [task.id for task in order.deal(step)]


@given(orders(), st.integers(0, 10_000))
def test_a_step_deals_the_asked_number_of_different_tasks(order, step):
    count, per_step, seed = order
    dealt = ids(TaskOrder(tasks(count), per_step=per_step, seed=seed), step)
    assert len(dealt) == len(set(dealt)) == per_step


@given(orders(), st.integers(0, 20))
def test_a_lap_deals_no_task_twice(order, lap):
    count, per_step, seed = order
    steps = count // per_step
    dealt = TaskOrder(tasks(count), per_step=per_step, seed=seed)
    lap_ids = [task_id for step in range(lap * steps, (lap + 1) * steps) for task_id in ids(dealt, step)]
    assert len(lap_ids) == len(set(lap_ids)) == steps * per_step


@given(orders(), st.lists(st.integers(0, 500), min_size=1, max_size=5))
def test_the_order_depends_on_seed_and_step_and_not_on_what_was_asked_before(order, steps):
    count, per_step, seed = order
    asked = TaskOrder(tasks(count), per_step=per_step, seed=seed)
    for step in steps:
        asked.deal(step)
    fresh = TaskOrder(tasks(count), per_step=per_step, seed=seed)
    assert ids(asked, steps[0]) == ids(fresh, steps[0])


def test_each_lap_is_shuffled_anew():
    order = TaskOrder(tasks(30), per_step=30, seed=7)
    assert len({tuple(ids(order, lap)) for lap in range(50)}) == 50


@given(seeds, seeds)
def test_another_seed_gives_another_order(one, other):
    dealt = [ids(TaskOrder(tasks(30), per_step=30, seed=seed), 0) for seed in (one, other)]
    assert (dealt[0] == dealt[1]) == (one == other)


def test_over_many_passes_tasks_are_dealt_equally_often_even_if_passes_leave_some_out():
    order = TaskOrder(tasks(5), per_step=3, seed=7)
    counts = dict.fromkeys((task.id for task in tasks(5)), 0)
    for step in range(2000):
        for task_id in ids(order, step):
            counts[task_id] += 1
    # Each is binomial with 2000 draws of 3/5: 1200 ± 22.
    assert all(1090 < count < 1310 for count in counts.values())


@given(st.integers(0, 10), st.integers(1, 10))
def test_more_tasks_a_step_than_there_are_is_refused_with_both_numbers(count, more):
    with pytest.raises(BadValueError, match=rf"tasks_per_step is {count + more}, but there are only {count} tasks"):
        TaskOrder(tasks(count), per_step=count + more, seed=0)


@given(orders(), st.integers(0, 500))
def test_all_other_tasks_are_stand_ins_in_an_order_that_depends_on_seed_and_step_alone(order, step):
    count, per_step, seed = order
    made = TaskOrder(tasks(count), per_step=per_step, seed=seed)
    others = [task.id for task in made.stand_ins(step)]
    assert sorted(ids(made, step) + others) == sorted(task.id for task in tasks(count))
    made.stand_ins(step + 1)
    assert [task.id for task in TaskOrder(tasks(count), per_step=per_step, seed=seed).stand_ins(step)] == others


def test_stand_ins_are_shuffled_for_each_step_and_are_not_simply_the_tasks_of_the_next():
    order = TaskOrder(tasks(30), per_step=3, seed=7)
    first = [tuple(task.id for task in order.stand_ins(step)[:3]) for step in range(9)]
    assert len(set(first)) == 9
    assert all(set(first[step]) != set(ids(order, step + 1)) for step in range(8))

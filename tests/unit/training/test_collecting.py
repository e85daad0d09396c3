"""Steps without dead groups: what is refilled and with what, how often, and that nothing of it is hidden."""
# R1, R12

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcprl.config import AlgorithmConfig, EpisodesConfig
from mcprl.episodes import Collector
from mcprl.errors import GroupIncompleteError, ServerLostError
from mcprl.goals import Goal
from mcprl.records import LostEpisode, StopReason, Task, Trajectory
from mcprl.tasks import Curriculum, Deal, TaskOrder
from mcprl.training.pipeline import collect_step

REFILL = AlgorithmConfig(refill_rounds=2)
ORDERS = (TaskOrder, Curriculum)


async def at_once(_task_id: str) -> None:
    return None


class Runner:
    """Gives one trajectory at a time; the members of a task in `dead` all earn the same."""

    def __init__(self, dead: set[str], play: Callable[[str], Awaitable[None]] = at_once) -> None:
        self._dead = dead
        self._play = play
        self.started: list[str] = []

    async def run(self, task: Task, *, step: int, member: int, attempt: int) -> Trajectory:
        self.started.append(task.id)
        await self._play(task.id)
        reward = 1.0 if task.id in self._dead else float(member)
        return Trajectory(
            task_id=task.id,
            step=step,
            member=member,
            attempt=attempt,
            temperature=1.0,
            token_ids=(1,),
            sampled=(True,),
            forced=(False,),
            fixed=(False,),
            logprobs=(-0.5,),
            turn_index=(0,),
            weights_version=(0,),
            turns=(),
            stop=StopReason.ANSWERED,
            reward=reward,
            reward_parts={"answer": reward},
        )


def tasks(count: int) -> list[Task]:
    return [Task(id=f"t{n}", prompt=({"role": "user", "content": "Hi"},), goal=Goal()) for n in range(count)]


def ids(groups) -> list[str]:
    return [group.task.id for group in groups]


def collect(order, runner: Runner, algorithm: AlgorithmConfig, *, step: int = 3, heard: list | None = None):
    collector = Collector(runner, EpisodesConfig(group_size=2))
    outcomes = heard if heard is not None else []
    deal = Deal(tasks=order.deal(step), stand_ins=order.stand_ins(step))
    return collect_step(deal, collector, step, algorithm, outcomes.append)


@st.composite
def steps(draw: st.DrawFn):
    """An order of tasks, which of its tasks are dead, the rounds, and a step."""
    count = draw(st.integers(1, 12))
    kind, per_step, seed = draw(st.sampled_from(ORDERS)), draw(st.integers(1, count)), draw(st.integers(0, 2**40))
    order = kind(tasks(count), per_step=per_step, seed=seed)
    dead = draw(st.sets(st.sampled_from([task.id for task in tasks(count)])))
    return order, dead, draw(st.integers(1, 4)), draw(st.integers(0, 30))


@given(steps())
def test_a_refilled_step_is_that_of_a_plain_account_of_it(drawn):
    """Against an independent account: live tasks of the deal, then of the stand-ins, as many as rounds allow."""
    order, dead, most_rounds, step = drawn
    algorithm = AlgorithmConfig(refill_rounds=most_rounds)
    runner = Runner(dead)
    got = asyncio.run(collect(order, runner, algorithm, step=step))

    dealt, queue = [t.id for t in order.deal(step)], [t.id for t in order.stand_ins(step)]
    account, rounds = list(dealt), 0
    for _ in range(most_rounds):
        missing = len(dealt) - len([name for name in account if name not in dead])
        if missing and queue:
            account, queue, rounds = account + queue[:missing], queue[missing:], rounds + 1
    live = [name for name in account if name not in dead]

    assert ids(got.all_groups) == account
    assert len(set(account)) == len(account)
    assert sorted(runner.started) == sorted(account * 2)
    assert ids(got.groups) == (live or dealt)
    assert 0 < len(got.groups) <= len(dealt)
    assert sorted(ids(got.groups) + ids(got.dropped)) == sorted(account)
    assert set(ids(got.dropped)) <= dead
    assert rounds <= most_rounds
    refilled = len([name for name in live if name not in dealt])
    assert got.metrics == {
        "groups_dropped": len(got.dropped),
        "groups_refilled": refilled,
        "refill_rounds": rounds,
    }


@given(steps())
def test_the_same_seed_and_step_refill_with_the_same_tasks(drawn):
    order, dead, most_rounds, step = drawn
    algorithm = AlgorithmConfig(refill_rounds=most_rounds)
    played = [ids(asyncio.run(collect(order, Runner(dead), algorithm, step=step)).all_groups) for _ in range(2)]
    assert played[0] == played[1]


@given(steps())
def test_dead_groups_that_are_kept_change_nothing(drawn):
    order, dead, _, step = drawn
    got = asyncio.run(collect(order, Runner(dead), AlgorithmConfig(), step=step))
    assert ids(got.groups) == ids(got.all_groups) == [task.id for task in order.deal(step)]
    assert got.dropped == ()
    assert set(got.metrics.values()) == {0.0}


async def test_where_no_group_lives_the_deal_is_kept_and_the_refills_are_dropped():
    everything = {task.id for task in tasks(9)}
    got = await collect(TaskOrder(tasks(9), per_step=3, seed=1), Runner(everything), REFILL)
    assert ids(got.groups) == ids(got.all_groups)[:3]
    assert ids(got.dropped) == ids(got.all_groups)[3:]
    assert got.metrics == {
        "groups_dropped": 6.0,
        "groups_refilled": 0.0,
        "refill_rounds": 2.0,
    }


@pytest.mark.parametrize("kind", ORDERS)
async def test_a_round_begins_when_the_whole_round_before_is_known_and_plays_its_tasks_at_once(kind):
    order = kind(tasks(8), per_step=2, seed=5)
    dealt = {task.id for task in order.deal(3)}
    gates = {True: asyncio.Event(), False: asyncio.Event()}
    waiting = {True: asyncio.Barrier(5), False: asyncio.Barrier(5)}  # two tasks of two members, and the test

    async def play(task_id: str) -> None:
        await waiting[task_id in dealt].wait()
        await gates[task_id in dealt].wait()

    runner = Runner(dealt, play)
    async with asyncio.timeout(60):
        step = asyncio.create_task(collect(order, runner, REFILL))
        await waiting[True].wait()
        assert set(runner.started) == dealt
        gates[True].set()
        await waiting[False].wait()
        assert len(runner.started) == 8
        gates[False].set()
        got = await step
    assert set(ids(got.dropped)) == dealt
    assert got.metrics["groups_refilled"] == 2.0


async def test_every_attempt_is_heard_of_also_those_of_groups_that_are_dropped():
    heard: list[Trajectory | LostEpisode] = []
    order = TaskOrder(tasks(6), per_step=2, seed=1)
    dead = {task.id for task in order.deal(3)}
    got = await collect(order, Runner(dead), REFILL, heard=heard)
    assert sorted(outcome.task_id for outcome in heard) == sorted(ids(got.all_groups) * 2)


async def lose_all_but(names: set[str], task_id: str) -> None:
    if task_id not in names:
        raise ServerLostError("gone", fix="none")


@pytest.mark.parametrize("algorithm", [AlgorithmConfig(), REFILL])
async def test_a_group_that_cannot_be_completed_is_an_error_and_never_a_smaller_step(algorithm):
    order = TaskOrder(tasks(6), per_step=2, seed=1)
    kept, _ = (task.id for task in order.deal(3))
    with pytest.raises(GroupIncompleteError, match="was lost 5 times, most recently to E-TOOL-011 gone"):
        await collect(order, Runner(set(), partial(lose_all_but, {kept})), algorithm)

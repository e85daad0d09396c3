"""Complete groups: lost episodes are run again and leave no trace; an error that no retry can fix stops the step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from staged_episodes import made_trajectory, make_task

from mcprl.config import EpisodesConfig
from mcprl.episodes import Collector
from mcprl.episodes.collector import MAX_ATTEMPTS
from mcprl.errors import BadValueError, GroupIncompleteError, ServerLostError
from mcprl.records import LostEpisode, Task, Trajectory

Play = Callable[[str, int, int], Awaitable[None]]


class Runner:
    """Runs `play(task, member, attempt)` and then gives a trajectory; keeps who ran, and how many at once."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self.started: list[tuple[str, int, int]] = []
        self.cancelled: list[tuple[str, int, int]] = []
        self.alive = 0
        self.most_alive = 0

    async def run(self, task: Task, *, step: int, member: int, attempt: int) -> Trajectory:
        place = (task.id, member, attempt)
        self.started.append(place)
        self.alive += 1
        self.most_alive = max(self.most_alive, self.alive)
        try:
            await self._play(*place)
        except asyncio.CancelledError:
            self.cancelled.append(place)
            raise
        finally:
            self.alive -= 1
        return made_trajectory(task.id, member, attempt=attempt, step=step, reward=float(member))


class KeptInMemory:
    """A journal without a disk. An episode is kept when it has been waited for `permission`."""

    def __init__(self, *kept: Trajectory) -> None:
        self.kept = list(kept)
        self.permission = asyncio.Event()
        self.permission.set()

    async def add(self, trajectory: Trajectory) -> None:
        await self.permission.wait()
        self.kept.append(trajectory)

    def finished(self, step: int) -> dict[tuple[str, int], Trajectory]:
        return {(t.task_id, t.member): t for t in self.kept if t.step == step}


async def collect(play: Play, *tasks: str, heard: list | None = None, journal: KeptInMemory | None = None, **settings):
    runner = Runner(play)
    collector = Collector(runner, EpisodesConfig(**({"group_size": 3} | settings)), journal)
    outcomes = heard if heard is not None else []
    return runner, await collector.collect([make_task(name) for name in tasks], 4, outcomes.append)


async def at_once(*_place: object) -> None:
    return None


def lose(times: dict[tuple[str, int], int]) -> Play:
    """Lose the first attempts of some members to a dead server."""

    async def play(task: str, member: int, attempt: int) -> None:
        if attempt < times.get((task, member), 0):
            raise ServerLostError(f"server died in attempt {attempt}", fix="none")

    return play


async def test_groups_are_whole_and_in_the_order_of_the_tasks():
    released = asyncio.Event()

    async def first_task_last(task: str, member: int, attempt: int) -> None:
        if task == "b":
            await released.wait()
        elif member == 2:
            released.set()

    heard: list = []
    async with asyncio.timeout(60):
        runner, groups = await collect(first_task_last, "b", "a", heard=heard)
    assert sorted(runner.started) == [(task, member, 0) for task in "ab" for member in range(3)]
    assert [group.task.id for group in groups] == ["b", "a"]
    assert [[t.member for t in group.trajectories] for group in groups] == [[0, 1, 2], [0, 1, 2]]
    assert all(t.step == 4 for group in groups for t in group.trajectories)
    assert {t.task_id for t in heard[:3]} == {"a"}  # heard as they end
    assert len(heard) == 6


async def test_a_lost_episode_is_run_again_and_leaves_no_trace_in_the_group():
    heard: list = []
    runner, [group] = await collect(lose({("a", 1): 2}), "a", heard=heard)
    assert [(t.member, t.attempt) for t in group.trajectories] == [(0, 0), (1, 2), (2, 0)]
    assert group.lost == tuple(
        LostEpisode(task_id="a", member=1, attempt=n, code="E-TOOL-011", reason=f"server died in attempt {n}")
        for n in (0, 1)
    )
    assert [o for o in heard if isinstance(o, LostEpisode)] == list(group.lost)
    assert len(runner.started) == 5


async def test_the_losses_of_one_group_are_not_those_of_another():
    _, [first, second] = await collect(lose({("b", 0): 1}), "a", "b")
    assert (len(first.lost), len(second.lost)) == (0, 1)


async def test_an_episode_lost_too_often_is_an_error_that_names_the_last_cause():
    with pytest.raises(
        GroupIncompleteError, match=r"episode 1 of task a was lost 5 times, most recently to E-TOOL-011 server"
    ):
        await collect(lose({("a", 1): 9}), "a")


async def test_the_last_attempt_allowed_still_counts():
    _, [group] = await collect(lose({("a", 1): MAX_ATTEMPTS - 1}), "a")
    assert group.trajectories[1].attempt == MAX_ATTEMPTS - 1


@pytest.mark.parametrize(
    "error", [BadValueError("the context is too short", fix="raise it"), ZeroDivisionError("ours")]
)
async def test_an_error_that_no_retry_can_fix_is_raised_unchanged(error):
    async def play(task: str, member: int, attempt: int) -> None:
        if member == 1:
            raise error

    heard: list = []
    with pytest.raises(type(error)) as caught:
        await collect(play, "a", heard=heard)
    assert caught.value is error
    assert not any(isinstance(outcome, LostEpisode) for outcome in heard)


async def test_a_failure_ends_all_other_episodes_before_it_is_raised():
    all_running = asyncio.Barrier(6)

    async def play(task: str, member: int, attempt: int) -> None:
        await all_running.wait()
        if (task, member) == ("b", 0):
            raise BadValueError("wrong", fix="mend it")
        await asyncio.Event().wait()

    runner = Runner(play)
    collector = Collector(runner, EpisodesConfig(group_size=3))
    async with asyncio.timeout(60):
        with pytest.raises(BadValueError):
            await collector.collect([make_task("a"), make_task("b")], 0, lambda _: None)
    assert len(runner.cancelled) == 5
    assert runner.alive == 0


async def test_no_more_episodes_are_alive_than_allowed_and_no_fewer():
    pair = asyncio.Barrier(2)

    async def in_pairs(*_place: object) -> None:
        await pair.wait()  # passes only when two are alive, so the limit is reached

    async with asyncio.timeout(60):
        runner, groups = await collect(in_pairs, "a", "b", max_concurrent=2)
    assert runner.most_alive == 2
    assert len(groups) == 2


async def test_the_limit_holds_over_steps_and_a_place_is_given_back_after_a_loss():
    runner = Runner(lose({("a", member): 1 for member in range(3)}))
    collector = Collector(runner, EpisodesConfig(group_size=3, max_concurrent=1))
    async with asyncio.timeout(60):
        for step in (0, 1):
            await collector.collect([make_task("a")], step, lambda _: None)
    assert runner.most_alive == 1
    assert len(runner.started) == 12


async def test_cancelling_a_step_ends_its_episodes():
    running = asyncio.Barrier(4)

    async def play(*_place: object) -> None:
        await running.wait()
        await asyncio.Event().wait()

    runner = Runner(play)
    collecting = asyncio.create_task(
        Collector(runner, EpisodesConfig(group_size=3)).collect([make_task("a")], 0, lambda _: None)
    )
    await asyncio.wait_for(running.wait(), 60)
    collecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await collecting
    assert (runner.alive, len(runner.cancelled)) == (0, 3)


async def test_episodes_that_the_journal_has_are_used_and_not_played_again():
    kept = [made_trajectory("a", 2, step=4, reward=9.0), made_trajectory("b", 0, step=4)]
    journal, heard = KeptInMemory(*kept, made_trajectory("a", 0, step=3)), []
    runner, groups = await collect(at_once, "a", "b", heard=heard, journal=journal)
    assert sorted(runner.started) == [("a", 0, 0), ("a", 1, 0), ("b", 1, 0), ("b", 2, 0)]
    assert [t.reward for t in groups[0].trajectories] == [0.0, 1.0, 9.0]
    assert sorted((t.task_id, t.member) for t in heard) == [(name, member) for name in "ab" for member in range(3)]
    assert len(journal.finished(4)) == 6
    assert len(journal.kept) == 7  # none was kept twice


async def test_an_episode_counts_as_finished_only_once_it_is_kept():
    journal, heard = KeptInMemory(), []
    journal.permission.clear()
    collecting = asyncio.create_task(collect(at_once, "a", heard=heard, journal=journal))
    for _ in range(20):
        await asyncio.sleep(0)
    assert heard == []
    assert not collecting.done()
    journal.permission.set()
    _, groups = await collecting
    assert tuple(journal.kept) == groups[0].trajectories


async def test_draining_starts_nothing_more_and_waits_for_what_is_alive():
    release, started = asyncio.Event(), asyncio.Event()

    async def hold(task: str, member: int, attempt: int) -> None:
        started.set()
        await release.wait()

    runner, journal = Runner(hold), KeptInMemory()
    collector = Collector(runner, EpisodesConfig(group_size=3, max_concurrent=1), journal)
    collecting = asyncio.create_task(collector.collect([make_task("a")], 0, lambda _: None))
    await started.wait()
    draining = asyncio.create_task(collector.drain())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not draining.done()
    release.set()
    async with asyncio.timeout(60):
        await draining
    assert len(journal.kept) == len(runner.started) == 1
    collecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await collecting

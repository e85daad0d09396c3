"""Episodes on a pool of workers: shared out, played again if a worker died, counted once. Ray is replaced by a fake."""

from __future__ import annotations

import asyncio
import pickle
import traceback
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from staged_episodes import made_trajectory, make_task

from mcprl.concurrency import run_all
from mcprl.config import RateSettings, ServerSettings
from mcprl.episodes.ray_actor import EpisodeWorker, WorkerStats
from mcprl.episodes.ray_workers import WorkerHandle, WorkerPool
from mcprl.errors import BadValueError, SamplerLostError, ServerLostError, ServerStartError, WorkerLostError
from mcprl.records import FinishReason
from mcprl.samplers import Completion, SampleRequest
from mcprl.tools.limits import SharedLimits
from mcprl.tools.stats import ServerStats, ToolStats, stats_document

REQUEST = SampleRequest(prompt_ids=(1, 2), max_tokens=8, temperature=1.0, stop=(), stop_token_ids=(0,), seed=3)
COMPLETION = Completion(token_ids=(5,), logprobs=(-0.5,), finish=FinishReason.STOP, weights_versions=(0,))


class RayError(Exception):
    pass


class RayTaskError(RayError):
    pass


class TaskCancelledError(RayError):
    pass


class FakeRay:
    """The functions of Ray that a WorkerHandle calls."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError, TaskCancelledError=TaskCancelledError)

    def cancel(self, ref) -> None:
        ref.call.cancel()

    def kill(self, actor, *, no_restart) -> None:
        assert no_restart
        actor.die()


class FakeRef:
    """The result of a call of an actor, whatever becomes of those who await it."""

    def __init__(self, actor, call) -> None:
        self.actor = actor
        self.call = asyncio.ensure_future(call)

    def __await__(self):
        return self._result().__await__()

    async def _result(self):
        death = asyncio.ensure_future(self.actor.dead.wait())
        try:
            await asyncio.wait({self.call, death}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            death.cancel()
        if self.actor.dead.is_set():
            raise RayError(f"actor {self.actor.number} died")
        if self.call.cancelled():
            raise TaskCancelledError
        if (error := self.call.exception()) is not None:
            raise RayTaskError("".join(traceback.format_exception(error)))
        return copied(self.call.result())


class FakeActor:
    """An EpisodeWorker in this process. `die` fails its calls, and the worker does not notice: it continues to play."""

    def __init__(self, number, play, refusals) -> None:
        self.number = number
        self.play = play
        self.refusals = refusals
        self.playing: list[tuple[str, int, int]] = []
        self.max_playing = 0
        self.dead = asyncio.Event()
        self._worker = EpisodeWorker(self._open_runner)

    def __getattr__(self, method):
        call = getattr(self._worker, method)
        return SimpleNamespace(remote=lambda *args: FakeRef(self, call(*copied(args))))

    @asynccontextmanager
    async def _open_runner(self, driver):
        if self.refusals:
            raise self.refusals.pop(0)
        self.driver = driver
        yield self, lambda: WorkerStats(stats_document({"fmp": ServerStats(calls=1, restarts=2)}, ToolStats()), 2)

    async def run(self, task, *, step, member, attempt):
        self.playing.append((task.id, member, attempt))
        self.max_playing = max(self.max_playing, len(self.playing))
        try:
            await self.play(self, task.id, member, attempt)
        finally:
            self.playing.remove((task.id, member, attempt))
        return made_trajectory(task.id, member, attempt=attempt, step=step, reward=float(self.number))

    def die(self) -> None:
        self.dead.set()


class Stage:
    """A pool over fake actors. `play` is what an episode does; `refusals` are raised by the next starts, in order."""

    def __init__(self, play, *, count=2, most=2, sample=None, limits=None) -> None:
        self.actors: list[FakeActor] = []
        self.refusals: list[Exception] = []
        self.sleeps: list[float] = []
        self.limits = limits or SharedLimits({})
        self.sample = sample or self._sample
        self._play = play
        self.pool = WorkerPool(
            self._start, sampler=self, limits=self.limits, count=count, max_per_worker=most, sleep=self._sleep
        )

    async def _start(self, number) -> WorkerHandle:
        actor = FakeActor(number, self._play, self.refusals)
        handle = WorkerHandle(FakeRay(), number, actor)
        try:
            await handle.open()
        except BaseException:
            handle.kill()
            raise
        self.actors.append(actor)
        return handle

    async def _sleep(self, seconds) -> None:
        self.sleeps.append(seconds)
        await asyncio.sleep(0)

    async def _sample(self, request) -> Completion:
        return COMPLETION

    def run(self, name="a", member=0, attempt=0):
        task = make_task(name)
        return asyncio.ensure_future(self.pool.run(task, step=4, member=member, attempt=attempt))

    @property
    def playing(self) -> list[list[tuple[str, int, int]]]:
        return [actor.playing for actor in self.actors]

    async def until(self, holds) -> None:
        async with asyncio.timeout(60):
            while not holds():  # noqa: ASYNC110 - what is waited for is work of this loop
                await asyncio.sleep(0)


def copied(value):
    """As it arrives in another process."""
    return pickle.loads(pickle.dumps(value))


def rated(calls, per_s):
    return {"fmp": ServerSettings(rate=RateSettings(calls=calls, per_s=per_s))}


async def for_ever(*_) -> None:
    await asyncio.Event().wait()


async def at_once(*_) -> None:
    return None


async def test_each_worker_has_at_most_its_share_and_the_rest_waits():
    released = asyncio.Event()

    async def play(*_) -> None:
        await released.wait()

    stage = Stage(play, count=3, most=2)
    async with stage.pool:
        runs = [stage.run(member=member) for member in range(9)]
        await stage.until(lambda: sum(map(len, stage.playing)) == 6)
        assert [len(playing) for playing in stage.playing] == [2, 2, 2]
        released.set()
        done = await run_all(runs)
    assert [t.member for t in done] == list(range(9))
    assert [actor.max_playing for actor in stage.actors] == [2, 2, 2]
    assert all(actor.dead.is_set() for actor in stage.actors)


async def test_episodes_of_a_dead_worker_are_run_again_elsewhere_and_its_late_answers_count_for_nothing():
    released = asyncio.Event()

    async def play(*_) -> None:
        await released.wait()

    stage = Stage(play, count=2, most=4)
    async with stage.pool:
        runs = [stage.run(member=member, attempt=1) for member in range(4)]
        await stage.until(lambda: [len(playing) for playing in stage.playing] == [2, 2])
        dead = stage.actors[0]
        lost = list(dead.playing)
        dead.die()
        await stage.until(lambda: set(lost) <= {each for playing in stage.playing[1:] for each in playing})
        assert dead.playing == lost  # it has not noticed
        released.set()
        done = await run_all(runs)
        await stage.until(lambda: not dead.playing)
    assert [(t.member, t.attempt) for t in done] == [(member, 1) for member in range(4)]
    assert len(stage.actors) == 3


async def test_an_episode_that_five_workers_died_under_is_lost():
    async def play(actor, *_) -> None:
        actor.die()
        await asyncio.Event().wait()

    stage = Stage(play, count=1)
    async with stage.pool:
        with pytest.raises(WorkerLostError, match="5 workers in a row died while running episode 3 of task a"):
            await stage.run(member=3)
    assert len(stage.actors) >= 5


async def test_a_cancelled_episode_is_cancelled_in_its_worker_and_frees_its_place():
    stage = Stage(for_ever, count=1, most=1)
    async with stage.pool:
        first, second = stage.run(member=0), stage.run(member=1)
        await stage.until(lambda: stage.playing == [[("a", 0, 0)]])
        first.cancel()
        await stage.until(lambda: stage.playing == [[("a", 1, 0)]])
        second.cancel()
        await stage.until(lambda: stage.playing == [[]])
        waiting = stage.run(member=2)
        await stage.until(lambda: stage.playing == [[("a", 2, 0)]])
        never_begun = stage.run(member=3)
        await asyncio.sleep(0)
        never_begun.cancel()
        waiting.cancel()
        await stage.until(lambda: stage.playing == [[]])


async def test_errors_of_an_episode_and_of_the_sampler_keep_their_class_and_their_words():
    async def sample(_request):
        raise SamplerLostError("vLLM went away", fix="start it")

    async def play(actor, _task, member, _attempt) -> None:
        if member == 0:
            raise ServerLostError("server died", fix="none", delivered=False, retry_after_s=2.5)
        if member == 1:
            await actor.driver.sample(REQUEST)
        raise KeyError("a mistake of ours")

    stage = Stage(play, sample=sample)
    async with stage.pool:
        with pytest.raises(ServerLostError, match="server died") as lost:
            await stage.run(member=0)
        assert (lost.value.delivered, lost.value.retry_after_s) == (False, 2.5)
        with pytest.raises(SamplerLostError, match="vLLM went away"):
            await stage.run(member=1)
        with pytest.raises(RuntimeError, match=r"(?s)Traceback.*KeyError: 'a mistake of ours'"):
            await stage.run(member=2)


async def test_turns_are_sampled_by_the_driver_and_cancelled_when_nobody_waits_for_them():
    completions = [COMPLETION]
    sampling, cancelled = asyncio.Event(), asyncio.Event()

    async def sample(_request):
        if completions:
            return completions.pop()
        sampling.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def play(actor, *_) -> None:
        assert await actor.driver.sample(REQUEST) == COMPLETION
        await actor.driver.sample(REQUEST)

    stage = Stage(play, sample=sample)
    async with asyncio.timeout(60), stage.pool:
        run = stage.run()
        await sampling.wait()
        run.cancel()
        await cancelled.wait()


async def test_a_limit_holds_over_all_workers_and_a_dead_worker_gives_its_places_back():
    granted: list[str] = []

    async def play(actor, task, *_) -> None:
        ticket = await actor.driver.take_place("fmp")
        granted.append(task)
        if task == "dies" and granted.count("dies") == 1:
            actor.die()
            await asyncio.Event().wait()
        await actor.driver.free_place("fmp", ticket)

    stage = Stage(play, count=2, most=8, limits=SharedLimits(rated(1, 0.2)))
    started = asyncio.get_running_loop().time()
    async with stage.pool:
        await run_all([stage.run("dies"), stage.run("a")])
    assert sorted(granted) == ["a", "dies", "dies"]
    # Three places one after the other, each free a period after it was given back; unreturned, it were two periods.
    assert asyncio.get_running_loop().time() - started >= 0.4
    assert stage.limits.num_tickets("fmp") == 0


async def test_a_place_that_is_given_to_an_episode_that_was_just_cancelled_is_given_back():
    class CancellingLimits(SharedLimits):
        async def take_place(self, server):
            ticket = await super().take_place(server)
            run.cancel()
            return ticket

    async def play(actor, *_) -> None:
        await actor.driver.take_place("fmp")
        pytest.fail("it was cancelled")

    stage = Stage(play, limits=CancellingLimits(rated(1, 60.0)))
    async with stage.pool:
        run = stage.run()
        await asyncio.wait([run])
        assert run.cancelled()
        await stage.until(lambda: stage.limits.num_tickets("fmp") == 0)


async def test_a_server_that_does_not_start_in_a_worker_stops_the_start_with_its_own_error():
    stage = Stage(at_once, count=3)
    stage.refusals = [ServerStartError("server fmp did not start", fix="fix it")]
    with pytest.raises(ServerStartError, match="server fmp did not start"):
        async with stage.pool:
            pytest.fail("it must not open")
    assert all(actor.dead.is_set() for actor in stage.actors)


async def test_workers_that_cannot_be_kept_alive_are_an_error_with_the_last_cause():
    stage = Stage(for_ever, count=2)
    async with stage.pool:
        run = stage.run()
        await stage.until(lambda: sum(map(len, stage.playing)) == 1)
        stage.refusals = [ServerStartError("no memory left", fix="add some") for _ in range(99)]
        for actor in stage.actors:
            actor.die()
        with pytest.raises(WorkerLostError, match=r"all workers keep failing.*E-TOOL-010 no memory left"):
            await run
        with pytest.raises(WorkerLostError, match="all workers keep failing"):
            await stage.run()
        assert sorted(stage.sleeps) == sorted(2 * [0.5, 1.0, 2.0, 4.0])  # each of the two, after its second failure


async def test_a_pool_that_closes_does_not_wait_until_a_worker_may_be_started_again():
    class Resting(Stage):
        async def _sleep(self, seconds) -> None:
            self.sleeps.append(seconds)
            await for_ever()

    stage = Resting(at_once)
    async with asyncio.timeout(60), stage.pool:
        stage.refusals = [ServerStartError("no memory left", fix="add some")]
        stage.actors[0].die()
        await stage.until(lambda: stage.sleeps)


async def test_a_worker_that_was_given_up_is_started_again_when_an_episode_has_ended_elsewhere():
    stage = Stage(at_once, count=2, most=4)
    async with stage.pool:
        stage.refusals = [ServerStartError("no memory left", fix="add some") for _ in range(5)]
        stage.actors[0].die()
        await stage.until(lambda: not stage.refusals)
        await asyncio.sleep(0)
        assert len(stage.actors) == 2
        await stage.run()
        await stage.until(lambda: len(stage.actors) == 3)


async def test_a_mistake_in_the_configuration_of_a_new_worker_ends_the_run():
    stage = Stage(for_ever, count=2)
    async with stage.pool:
        run = stage.run()
        await stage.until(lambda: sum(map(len, stage.playing)) == 1)
        stage.refusals = [BadValueError("the folder is gone", fix="bring it back")]
        stage.actors[1].die()
        with pytest.raises(BadValueError, match="the folder is gone"):
            await run


async def test_a_bug_while_requests_are_served_fails_the_episodes_instead_of_leaving_them_waiting():
    async def sample(_request):
        return lambda: "no other process can load this"

    async def play(actor, *_) -> None:
        await actor.driver.sample(REQUEST)

    stage = Stage(play, sample=sample)
    async with stage.pool:
        with pytest.raises((AttributeError, pickle.PicklingError), match="pickle"):
            await stage.run()


async def test_stats_of_workers_that_died_still_count():
    stage = Stage(at_once, count=2, most=1)
    async with stage.pool:
        await run_all(stage.run(member=member) for member in range(4))
        stage.actors[0].die()
        await stage.until(lambda: len(stage.actors) == 3)
        await run_all(stage.run(member=member) for member in range(4))
        assert sum(each.restarts for each in stage.pool.stats) == 2 * 3
        assert sum(each.tools["servers"]["fmp"]["calls"] for each in stage.pool.stats) == 3


@given(st.lists(st.integers(0, 40), max_size=4), st.integers(1, 4), st.integers(1, 3))
async def test_whoever_dies_whenever_each_episode_comes_back_once_and_no_worker_exceeds_its_share(deaths, count, most):
    async def play(actor, task, member, _attempt) -> None:
        for _ in range(member):
            await actor.driver.sample(REQUEST)

    stage = Stage(play, count=count, most=most)
    async with asyncio.timeout(60), stage.pool:
        runs = [stage.run(member=member) for member in range(12)]
        for turns in deaths:
            for _ in range(turns):
                await asyncio.sleep(0)
            alive = [actor for actor in stage.actors if not actor.dead.is_set()]
            if alive and not all(run.done() for run in runs):
                alive[turns % len(alive)].die()
        done = await run_all(runs)
    assert [t.member for t in done] == list(range(12))
    assert max(actor.max_playing for actor in stage.actors) <= most

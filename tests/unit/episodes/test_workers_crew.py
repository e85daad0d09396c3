"""Episodes on workers: shared out, run again where a worker died, counted once. The workers are in this process."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from staged_episodes import made_trajectory, make_task

from mcprl.concurrency import run_all
from mcprl.config import RateSettings, ServerSettings
from mcprl.episodes.worker_crew import Crew
from mcprl.episodes.worker_letters import Answer, Figures, pack, unpack
from mcprl.episodes.worker_player import AskedDesk, AskedSampler, Player, PostBox
from mcprl.errors import BadValueError, SamplerLostError, ServerLostError, ServerStartError, WorkerLostError
from mcprl.records import FinishReason
from mcprl.samplers import Completion, SampleRequest
from mcprl.tools.limits import LimitsDesk
from mcprl.tools.stats import ServerStats, ToolStats, stats_document

REQUEST = SampleRequest(prompt_ids=(1, 2), max_tokens=8, temperature=1.0, stop=(), stop_token_ids=(0,), seed=3)
COMPLETION = Completion(token_ids=(5,), logprobs=(-0.5,), finish=FinishReason.STOP, weights_versions=(0,))


class NearLink:
    """A worker in this process. `die` breaks the line, and the worker does not notice: it goes on playing."""

    def __init__(self, number, play) -> None:
        self.number = number
        self.post = PostBox()
        self.sampler, self.desk = AskedSampler(self.post), AskedDesk(self.post)
        self.player = Player(self, self.post, self.figures)
        self.play = play
        self.alive: list[tuple[str, int, int]] = []
        self.most_alive = 0
        self.closed = False
        self._dead = asyncio.Event()

    async def run(self, task, *, step, member, attempt):
        self.alive.append((task.id, member, attempt))
        self.most_alive = max(self.most_alive, len(self.alive))
        try:
            await self.play(self, task.id, member, attempt)
        finally:
            self.alive.remove((task.id, member, attempt))
        return made_trajectory(task.id, member, attempt=attempt, step=step, reward=float(self.number))

    def figures(self) -> Figures:
        return Figures(stats_document({"fmp": ServerStats(calls=1, restarts=2)}, ToolStats()), restarts=2)

    def die(self) -> None:
        self._dead.set()

    async def send(self, letters) -> None:
        self._check()
        self.player.hear(unpack(pack(letters)))

    async def receive(self):
        waiting = {asyncio.ensure_future(self.post.empty()), asyncio.ensure_future(self._dead.wait())}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            self._check()
            [letters] = [each.result() for each in waiting if each.done()]
            return unpack(pack(letters))
        finally:
            for each in waiting:
                each.cancel()

    async def close(self) -> None:
        self.closed = True

    def _check(self) -> None:
        if self._dead.is_set():
            raise WorkerLostError(f"worker {self.number} went away", fix="none")


class Stage:
    """A crew of near workers. `play` is what an episode does; `refusals` are raised by the next starts, in order."""

    def __init__(self, play, *, count=2, most=2, sample=None, settings=None) -> None:
        self.links: list[NearLink] = []
        self.refusals: list[Exception] = []
        self.pauses: list[float] = []
        self.desk = LimitsDesk(settings or {})
        self.sample = sample or self._sample
        self._play = play
        self.crew = Crew(self._hire, sampler=self, desk=self.desk, count=count, most=most, pause=self._pause)

    async def _hire(self, number) -> NearLink:
        if self.refusals:
            raise self.refusals.pop(0)
        link = NearLink(number, self._play)
        self.links.append(link)
        return link

    async def _pause(self, seconds) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)

    async def _sample(self, request) -> Completion:
        return COMPLETION

    def run(self, name="a", member=0, attempt=0):
        task = make_task(name)
        return asyncio.ensure_future(self.crew.run(task, step=4, member=member, attempt=attempt))

    @property
    def playing(self) -> list[list[tuple[str, int, int]]]:
        return [link.alive for link in self.links]

    async def until(self, holds) -> None:
        async with asyncio.timeout(60):
            while not holds():  # noqa: ASYNC110 - what is waited for is work of this loop
                await asyncio.sleep(0)


async def for_ever(*_) -> None:
    await asyncio.Event().wait()


async def at_once(*_) -> None:
    return None


async def test_each_worker_has_at_most_its_share_and_the_rest_waits():
    released = asyncio.Event()

    async def play(*_) -> None:
        await released.wait()

    stage = Stage(play, count=3, most=2)
    async with stage.crew:
        runs = [stage.run(member=member) for member in range(9)]
        await stage.until(lambda: sum(map(len, stage.playing)) == 6)
        assert [len(playing) for playing in stage.playing] == [2, 2, 2]
        released.set()
        done = await run_all(runs)
    assert [t.member for t in done] == list(range(9))
    assert [link.most_alive for link in stage.links] == [2, 2, 2]
    assert all(link.closed for link in stage.links)


async def test_episodes_of_a_dead_worker_are_run_again_elsewhere_and_its_late_answers_count_for_nothing():
    released = asyncio.Event()

    async def play(*_) -> None:
        await released.wait()

    stage = Stage(play, count=2, most=4)
    async with stage.crew:
        runs = [stage.run(member=member, attempt=1) for member in range(4)]
        await stage.until(lambda: [len(playing) for playing in stage.playing] == [2, 2])
        dead = stage.links[0]
        lost = list(dead.alive)
        dead.die()
        await stage.until(lambda: set(lost) <= {each for playing in stage.playing[1:] for each in playing})
        assert dead.alive == lost  # it has not noticed
        assert dead.closed
        released.set()
        done = await run_all(runs)
        await stage.until(lambda: not dead.alive)
    assert [(t.member, t.attempt) for t in done] == [(member, 1) for member in range(4)]
    assert stage.crew.restarts == 1


async def test_an_episode_that_five_workers_died_under_is_lost():
    async def play(link, *_) -> None:
        link.die()
        await asyncio.Event().wait()

    stage = Stage(play, count=1)
    async with stage.crew:
        with pytest.raises(WorkerLostError, match="5 workers in a row died while they played episode 3 of task a"):
            await stage.run(member=3)
        assert len([link for link in stage.links if link.closed]) >= 5 - 1


async def test_a_cancelled_episode_is_cancelled_in_its_worker_and_frees_its_place():
    stage = Stage(for_ever, count=1, most=1)
    async with stage.crew:
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

    async def play(link, _task, member, _attempt) -> None:
        if member == 0:
            raise ServerLostError("server died", fix="none", delivered=False, retry_after_s=2.5)
        if member == 1:
            await link.sampler.sample(REQUEST)
        raise KeyError("a mistake of ours")

    stage = Stage(play, sample=sample)
    async with stage.crew:
        with pytest.raises(ServerLostError, match="server died") as lost:
            await stage.run(member=0)
        assert (lost.value.delivered, lost.value.retry_after_s) == (False, 2.5)
        with pytest.raises(SamplerLostError, match="vLLM went away"):
            await stage.run(member=1)
        with pytest.raises(RuntimeError, match=r"(?s)Traceback.*KeyError: 'a mistake of ours'"):
            await stage.run(member=2)


async def test_turns_are_sampled_by_the_run_and_dropped_when_nobody_waits_for_them():
    asked, cancelled = asyncio.Event(), asyncio.Event()

    async def sample(request):
        if not asked.is_set():
            asked.set()
            return COMPLETION
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def play(link, *_) -> None:
        assert await link.sampler.sample(REQUEST) == COMPLETION
        await link.sampler.sample(REQUEST)

    stage = Stage(play, sample=sample)
    async with stage.crew:
        run = stage.run()
        await asked.wait()
        await stage.until(lambda: any(map(len, stage.playing)))
        await asyncio.sleep(0)
        run.cancel()
        async with asyncio.timeout(60):
            await cancelled.wait()


async def test_a_limit_holds_over_all_workers_and_a_dead_worker_gives_its_places_back():
    granted: list[str] = []

    async def play(link, task, *_) -> None:
        ticket = await link.desk.take_place("fmp")
        granted.append(task)
        if task == "dies" and granted.count("dies") == 1:
            link.die()
            await asyncio.Event().wait()
        await link.desk.free_place("fmp", ticket)

    settings = {"fmp": ServerSettings(rate=RateSettings(calls=1, per_s=0.2))}
    stage = Stage(play, count=2, most=8, settings=settings)
    started = asyncio.get_running_loop().time()
    async with stage.crew:
        await run_all([stage.run("dies"), stage.run("a")])
    assert sorted(granted) == ["a", "dies", "dies"]
    # Three places one after the other, each free a period after it was given back; unreturned, it were two periods.
    assert asyncio.get_running_loop().time() - started >= 0.4
    assert stage.desk.num_tickets("fmp") == 0


async def test_a_place_that_is_given_to_one_who_was_just_cancelled_is_given_back():
    post = PostBox()
    asking = asyncio.ensure_future(AskedDesk(post).take_place("fmp"))
    await asyncio.sleep(0)
    [ask] = await post.empty()
    asking.cancel()
    await asyncio.sleep(0)
    post.hear(Answer(ask.number, 17))
    drop, undo = await post.empty()
    assert drop.number == ask.number
    assert (undo.what.what, undo.what.server, undo.what.value) == ("free_place", "fmp", 17)


async def test_a_server_that_does_not_start_in_a_worker_stops_the_start_with_its_own_error():
    stage = Stage(at_once, count=3)
    stage.refusals = [ServerStartError("server fmp did not start", fix="mend it")]
    with pytest.raises(ServerStartError, match="server fmp did not start"):
        async with stage.crew:
            pytest.fail("it must not open")
    assert all(link.closed for link in stage.links)


async def test_workers_that_cannot_be_kept_alive_are_an_error_with_the_last_cause():
    stage = Stage(for_ever, count=2)
    async with stage.crew:
        run = stage.run()
        await stage.until(lambda: sum(map(len, stage.playing)) == 1)
        stage.refusals = [ServerStartError("no memory left", fix="add some") for _ in range(99)]
        for link in stage.links:
            link.die()
        with pytest.raises(WorkerLostError, match=r"no worker can be kept alive.*E-TOOL-010 no memory left"):
            await run
        with pytest.raises(WorkerLostError, match="no worker can be kept alive"):
            await stage.run()
        assert stage.pauses == sorted(stage.pauses)


async def test_a_seat_that_was_given_up_is_taken_again_when_an_episode_has_ended_elsewhere():
    stage = Stage(at_once, count=2, most=4)
    async with stage.crew:
        stage.refusals = [ServerStartError("no memory left", fix="add some") for _ in range(5)]
        stage.links[0].die()
        await stage.until(lambda: not stage.refusals)
        await asyncio.sleep(0)
        assert len(stage.links) == 2
        await stage.run()
        await stage.until(lambda: len(stage.links) == 3)


async def test_a_mistake_in_the_configuration_of_a_new_worker_ends_the_run():
    stage = Stage(for_ever, count=2)
    async with stage.crew:
        run = stage.run()
        await stage.until(lambda: sum(map(len, stage.playing)) == 1)
        stage.refusals = [BadValueError("the folder is gone", fix="bring it back")]
        stage.links[1].die()
        with pytest.raises(BadValueError, match="the folder is gone"):
            await run


async def test_figures_of_workers_that_died_still_count():
    stage = Stage(at_once, count=2, most=1)
    async with stage.crew:
        await run_all(stage.run(member=member) for member in range(4))
        stage.links[0].die()
        await stage.until(lambda: len(stage.links) == 3)
        await run_all(stage.run(member=member) for member in range(4))
        assert sum(each.restarts for each in stage.crew.figures) == 2 * 3
        assert sum(each.stats["servers"]["fmp"]["calls"] for each in stage.crew.figures) == 3


@given(st.lists(st.integers(0, 40), max_size=4), st.integers(1, 4), st.integers(1, 3))
async def test_whoever_dies_whenever_each_episode_comes_back_once_and_no_worker_exceeds_its_share(deaths, count, most):
    async def play(link, task, member, _attempt) -> None:
        for _ in range(member):
            await link.sampler.sample(REQUEST)

    stage = Stage(play, count=count, most=most)
    async with asyncio.timeout(60), stage.crew:
        runs = [stage.run(member=member) for member in range(12)]
        for turns in deaths:
            for _ in range(turns):
                await asyncio.sleep(0)
            living = [link for link in stage.links if not link.closed]
            if living and not all(run.done() for run in runs):
                living[turns % len(living)].die()
        done = await run_all(runs)
    assert [t.member for t in done] == list(range(12))
    assert max(link.most_alive for link in stage.links) <= most

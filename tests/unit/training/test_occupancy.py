"""How long somebody was busy: the length of the union of all intervals of work, whatever their order."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcprl.episodes.stage import MeteredSampler, Occupancy
from mcprl.records import FinishReason, Weights
from mcprl.samplers import Completion, SampleRequest


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_pieces_of_work_that_overlap_are_counted_once():
    clock = Clock()
    occupancy = Occupancy(clock)
    first, second = occupancy.working(), occupancy.working()
    with ExitStack() as later:
        with first:
            clock.now = 2.0
            later.enter_context(second)
            clock.now = 3.0
        clock.now = 5.0
    clock.now = 9.0
    assert occupancy.take() == 5.0


def test_what_was_taken_is_not_given_again_and_work_that_goes_on_is_given_up_to_now():
    clock = Clock()
    occupancy = Occupancy(clock)
    with occupancy.working():
        clock.now = 4.0
        assert occupancy.take() == 4.0
        assert occupancy.take() == 0.0
        clock.now = 6.0
    clock.now = 7.0
    assert occupancy.take() == 2.0


def test_work_that_fails_ends_too():
    clock = Clock()
    occupancy = Occupancy(clock)

    def fail_after_a_second() -> None:
        with occupancy.working():
            clock.now = 1.0
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_after_a_second()
    clock.now = 5.0
    assert occupancy.take() == 1.0


intervals = st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted)


@given(work=st.lists(intervals, max_size=8), taken_at=st.lists(st.integers(0, 31), max_size=4).map(sorted))
def test_what_is_taken_is_the_length_of_the_union_of_all_work_between(work, taken_at):
    clock = Clock()
    occupancy = Occupancy(clock)
    under_way = [occupancy.working() for _ in work]
    found = []
    for second in range(32):
        clock.now = float(second)
        for (begin, _), piece in zip(work, under_way, strict=True):
            if begin == second:
                piece.__enter__()
        for (_, end), piece in zip(work, under_way, strict=True):
            if end == second:
                piece.__exit__(None, None, None)
        found += [occupancy.take() for taken in taken_at if taken == second]
    busy = [any(begin <= second < end for begin, end in work) for second in range(32)]
    wanted = [sum(busy[since:until]) for since, until in zip([0, *taken_at], taken_at, strict=False)]
    assert found == wanted


class HeldSampler:
    """Answers when the clock says so, and notes what it is asked for."""

    restarts = 2

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.log: list[str] = []

    async def __aenter__(self) -> HeldSampler:
        self.log.append("entered")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.log.append("left")

    async def sample(self, request: SampleRequest) -> Completion:
        self._clock.now += 3.0
        return Completion(token_ids=(1,), logprobs=(-0.5,), finish=FinishReason.STOP, weights_versions=(0,))

    async def publish(self, weights: Weights) -> Weights:
        self._clock.now += 10.0
        return weights


async def test_a_metered_sampler_is_busy_while_it_samples_and_not_while_it_takes_weights():
    clock = Clock()
    inner = HeldSampler(clock)
    async with MeteredSampler(inner) as sampler:
        sampler.occupancy = Occupancy(clock)
        request = SampleRequest(prompt_ids=(1,), max_tokens=1, temperature=1.0, stop=(), stop_token_ids=(), seed=1)
        assert (await sampler.sample(request)).token_ids == (1,)
        assert await sampler.publish(Weights(version=1)) == Weights(version=1)
        assert sampler.occupancy.take() == 3.0
        assert sampler.restarts == 2
    assert inner.log == ["entered", "left"]

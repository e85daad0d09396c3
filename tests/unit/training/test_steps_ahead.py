"""Which steps are collected when: plain coroutines in the place of episodes, events in the place of time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcprl.goals import AnyText, Goal
from mcprl.records import Task
from mcprl.tasks import Deal
from mcprl.training.pipeline import CollectedStep, Pipeline

NOTHING = CollectedStep(groups=(), dropped=(), all_groups=(), refill_rounds=7, refilled=0)


def untimed(collected: CollectedStep) -> CollectedStep:
    return replace(collected, collect_s=0.0, wait_s=0.0)


def deal_of(name: str) -> Deal:
    return Deal(tasks=(Task(id=name, prompt=({"role": "user", "content": "?"},), goal=Goal(answer=AnyText())),))


class World:
    """Collects a step when it is let, and notes in `log` what happens in which order."""

    def __init__(self, *, steps: int, ahead: int, known: dict[int, Deal] | None = None) -> None:
        self.log: list[str] = []
        self.version = 0
        self.collected_with: dict[int, list[int]] = {}
        self.let = {step: asyncio.Event() for step in range(steps)}
        self.failing: dict[int, Exception] = {}
        self.pipeline = Pipeline(self.collect, self.deal, steps=steps, ahead=ahead, known_deals=known or {})

    def deal(self, step: int) -> Deal:
        self.log.append(f"deal {step} at v{self.version}")
        return deal_of(f"dealt-{step}")

    async def collect(self, step: int, deal: Deal) -> CollectedStep:
        self.log.append(f"open {step} with {deal.tasks[0].id}")
        self.collected_with[step] = [self.version]
        try:
            await self.let[step].wait()
        finally:
            self.log.append(f"end {step}")
        if step in self.failing:
            raise self.failing[step]
        self.collected_with[step].append(self.version)
        return NOTHING

    def opened(self) -> set[int]:
        return {int(line.split()[1]) for line in self.log if line.startswith("open")}


async def settle() -> None:
    """Let everything that can go on do so."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_without_steps_ahead_a_step_is_opened_when_it_is_taken_and_no_earlier():
    world = World(steps=2, ahead=0)
    for step in range(2):
        taking = asyncio.create_task(world.pipeline.take(step))
        await settle()
        assert world.opened() == set(range(step + 1))
        assert not taking.done()
        world.let[step].set()
        assert untimed(await taking) == NOTHING
        await settle()
        assert world.opened() == set(range(step + 1))


async def test_the_steps_ahead_are_collected_while_the_one_before_is_learned_from():
    world = World(steps=5, ahead=2)
    taking = asyncio.create_task(world.pipeline.take(0))
    await settle()
    assert world.opened() == {0, 1, 2}
    world.let[0].set()
    await taking
    world.let[1].set()  # during the update
    await settle()
    assert "end 1" in world.log
    assert world.opened() == {0, 1, 2}
    await world.pipeline.take(1)
    await settle()
    assert world.opened() == {0, 1, 2, 3}
    await world.pipeline.close()


async def test_a_step_that_is_collected_before_it_is_taken_is_not_waited_for(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("mcprl.training.pipeline.time", SimpleNamespace(monotonic=lambda: clock.now))
    world = World(steps=2, ahead=1)
    world.let[0].set()
    await world.pipeline.take(0)
    await settle()
    clock.now += 7.0  # during the update
    world.let[1].set()
    await settle()
    before = len(world.log)
    taken = await world.pipeline.take(1)
    assert len(world.log) == before
    assert (taken.collect_s, taken.wait_s) == (7.0, 0.0)


async def test_nothing_is_dealt_or_opened_beyond_the_last_step():
    world = World(steps=3, ahead=5)
    for event in world.let.values():
        event.set()
    for step in range(3):
        await world.pipeline.take(step)
    await settle()
    assert world.opened() == {0, 1, 2}
    assert [line for line in world.log if line.startswith("deal")] == [f"deal {step} at v0" for step in range(3)]
    assert world.pipeline.open_deals == {}


async def test_the_open_deals_are_those_of_steps_opened_and_not_taken():
    world = World(steps=4, ahead=1)
    world.let[0].set()
    await world.pipeline.take(0)
    assert world.pipeline.open_deals == {1: deal_of("dealt-1")}
    await world.pipeline.close()
    assert world.pipeline.open_deals == {1: deal_of("dealt-1")}


async def test_a_known_deal_is_used_and_not_dealt_anew():
    world = World(steps=3, ahead=1, known={1: deal_of("kept")})
    for event in world.let.values():
        event.set()
    await world.pipeline.take(0)
    await world.pipeline.take(1)
    await settle()
    assert [line for line in world.log if line.startswith("open")] == [
        "open 0 with dealt-0",
        "open 1 with kept",
        "open 2 with dealt-2",
    ]
    assert not any(line.startswith("deal 1") for line in world.log)
    await world.pipeline.close()


async def test_an_error_of_a_coming_step_is_raised_when_that_step_is_taken():
    world = World(steps=3, ahead=1)
    world.failing[1] = ZeroDivisionError("of step 1")
    for event in world.let.values():
        event.set()
    await world.pipeline.take(0)
    await settle()
    assert "end 1" in world.log  # it has failed, and step 0 was given all the same
    with pytest.raises(ZeroDivisionError, match="of step 1"):
        await world.pipeline.take(1)
    await world.pipeline.close()


async def test_close_ends_what_is_under_way_and_returns_after_it_has_ended():
    cleaned = []

    async def collect(step: int, deal: Deal) -> CollectedStep:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # giving a lease back takes a while
            cleaned.append(step)
        return NOTHING

    pipeline = Pipeline(collect, lambda step: deal_of(str(step)), steps=4, ahead=2, known_deals={})
    pipeline.open_for(0)
    await settle()
    await pipeline.close()
    assert sorted(cleaned) == [0, 1, 2]
    await pipeline.close()  # a second time there is nothing to do
    assert sorted(cleaned) == [0, 1, 2]


async def test_close_says_nothing_of_a_step_that_failed_and_was_never_taken():
    world = World(steps=2, ahead=1)
    world.failing[1] = ZeroDivisionError()
    for event in world.let.values():
        event.set()
    await world.pipeline.take(0)
    await settle()
    await world.pipeline.close()


async def test_whoever_stops_waiting_for_a_step_does_not_end_it():
    world = World(steps=1, ahead=0)
    taking = asyncio.create_task(world.pipeline.take(0))
    await settle()
    taking.cancel()
    await asyncio.gather(taking, return_exceptions=True)
    assert "end 0" not in world.log
    world.let[0].set()
    assert untimed(await world.pipeline.take(0)) == NOTHING


async def _play(steps: int, ahead: int, finishing: list[int]) -> World:
    """A whole run: before each update, and while one is made, steps may be collected in the order of `finishing`."""
    world = World(steps=steps, ahead=ahead)
    eager = list(finishing)
    for step in range(steps):
        taking = asyncio.create_task(world.pipeline.take(step))
        await settle()
        while not taking.done():
            world.let[eager.pop(0)].set()
            await settle()
        await taking
        # The update: who is quick is collected meanwhile, with the weights of before it.
        if eager and eager[0] % 2:
            world.let[eager.pop(0)].set()
            await settle()
        world.version += 1
        world.log.append(f"publish v{world.version}")
    return world


@given(data=st.data(), steps=st.integers(1, 7), ahead=st.integers(0, 3))
async def test_deals_are_made_at_the_same_place_in_the_order_of_updates_however_fast_anything_is(data, steps, ahead):
    finishing = data.draw(st.permutations(range(steps)))
    world = await _play(steps, ahead, finishing)
    order = [line for line in world.log if line.startswith(("deal", "publish"))]
    wanted = []
    for step in range(steps):
        first = 0 if step == 0 else step + ahead
        wanted += [f"deal {coming} at v{step}" for coming in range(first, min(step + ahead + 1, steps))]
        wanted.append(f"publish v{step + 1}")
    assert order == wanted


@given(data=st.data(), steps=st.integers(1, 7), ahead=st.integers(0, 3))
async def test_no_step_is_learned_from_that_began_more_versions_ago_than_it_may(data, steps, ahead):
    finishing = data.draw(st.permutations(range(steps)))
    world = await _play(steps, ahead, finishing)
    # Step s trains version s. What it was collected with is at most `ahead` older, at its first token and its last.
    ages = {step: [step - version for version in versions] for step, versions in world.collected_with.items()}
    assert sorted(ages) == list(range(steps))
    assert all(0 <= age <= ahead for of_step in ages.values() for age in of_step)
    # And the room is used: each is opened as early as it may be.
    assert all(of_step[0] == min(step, ahead) for step, of_step in ages.items())

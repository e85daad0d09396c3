"""Single flight: who shares what, and what a cancellation or a failure of one means for the others."""
# R15

import asyncio
import gc
import traceback
from typing import Any

import pytest

from mcprl.tools.cache import Flights


class Work:
    """Runs until it is let go; remembers how it went."""

    def __init__(self, error: Exception | None = None) -> None:
        self.started = 0
        self.cancelled = 0
        self.under_way = asyncio.Event()
        self.let_go = asyncio.Event()
        self._error = error

    async def __call__(self) -> str:
        self.started += 1
        self.under_way.set()
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self._error is not None:
            raise self._error
        return "result"


async def join_several(flights: Flights[str, str], work: Work, count: int) -> list[asyncio.Task[tuple[str, bool]]]:
    """Callers of the same key, all of them waiting when this returns."""
    first = asyncio.create_task(flights.join("key", work))
    await work.under_way.wait()
    others = [asyncio.create_task(flights.join("key", work)) for _ in range(count - 1)]
    await turns_of_the_loop()
    return [first, *others]


async def turns_of_the_loop() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def outcomes(callers: list[asyncio.Task[tuple[str, bool]]]) -> list[Any]:
    return await asyncio.gather(*callers, return_exceptions=True)


async def test_callers_of_the_same_key_share_one_piece_of_work():
    flights, work = Flights[str, str](), Work()
    callers = await join_several(flights, work, 3)
    work.let_go.set()
    assert await outcomes(callers) == [("result", False), ("result", True), ("result", True)]
    assert work.started == 1


async def test_callers_of_different_keys_share_nothing():
    flights, work = Flights[str, str](), Work()
    work.let_go.set()
    results = await asyncio.gather(flights.join("a", work), flights.join("b", work))
    assert results == [("result", False), ("result", False)]
    assert work.started == 2


async def test_after_the_end_the_key_is_free():
    flights, work = Flights[str, str](), Work()
    work.let_go.set()
    assert await flights.join("key", work) == ("result", False)
    assert await flights.join("key", work) == ("result", False)
    assert work.started == 2


async def test_a_caller_who_comes_just_after_the_end_does_not_get_the_old_result():
    flights, work, newcomer = Flights[str, str](), Work(), []

    async def ending() -> str:
        # Its first step is scheduled before the end, and so runs before anyone hears of the end.
        newcomer.append(asyncio.create_task(flights.join("key", work)))
        return "old"

    work.let_go.set()
    assert await flights.join("key", ending) == ("old", False)
    assert await newcomer[0] == ("result", False)


async def test_the_first_caller_may_be_cancelled_without_harm_to_the_others():
    flights, work = Flights[str, str](), Work()
    first, *others = await join_several(flights, work, 3)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    work.let_go.set()
    assert await outcomes(others) == [("result", True), ("result", True)]
    assert (work.started, work.cancelled) == (1, 0)


async def test_when_every_caller_is_cancelled_the_work_is_cancelled_and_has_ended():
    flights, work = Flights[str, str](), Work()
    callers = await join_several(flights, work, 3)
    for caller in callers:
        caller.cancel()
    assert [type(outcome) for outcome in await outcomes(callers)] == [asyncio.CancelledError] * 3
    assert (work.started, work.cancelled) == (1, 1)


async def test_a_call_cancelled_at_once_leaves_no_work_behind_and_the_key_free():
    flights, work = Flights[str, str](), Work()
    caller = asyncio.create_task(flights.join("key", work))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert work.started == work.cancelled
    work.let_go.set()
    assert await flights.join("key", work) == ("result", False)


async def test_a_caller_who_comes_while_abandoned_work_is_ending_starts_anew():
    flights, ending, may_end = Flights[str, str](), asyncio.Event(), asyncio.Event()

    async def reluctant() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await may_end.wait()
        return "never"

    abandoned = asyncio.create_task(flights.join("key", reluctant))
    await turns_of_the_loop()
    abandoned.cancel()
    await ending.wait()
    work = Work()
    newcomer = asyncio.create_task(flights.join("key", work))
    await work.under_way.wait()
    assert not abandoned.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await abandoned
    # The end of the old work must not take the new one's key away.
    latecomer = asyncio.create_task(flights.join("key", work))
    await turns_of_the_loop()
    work.let_go.set()
    assert await outcomes([newcomer, latecomer]) == [("result", False), ("result", True)]


async def test_a_failure_reaches_every_waiter_and_shows_each_where_the_work_failed():
    flights, work = Flights[str, str](), Work(error=ValueError("broken"))

    async def frames_seen() -> list[str]:
        with pytest.raises(ValueError, match="broken") as caught:
            await flights.join("key", work)
        return [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]

    callers = [asyncio.create_task(frames_seen()) for _ in range(5)]
    await turns_of_the_loop()
    work.let_go.set()
    assert await asyncio.gather(*callers) == [["frames_seen", "join", "__call__"]] * 5
    assert work.started == 1


async def test_a_failure_that_nobody_waits_for_any_more_is_not_reported_as_forgotten():
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    flights, under_way = Flights[str, str](), asyncio.Event()

    async def fails_when_cancelled() -> str:
        under_way.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("broken on the way out") from None
        return "never"

    caller = asyncio.create_task(flights.join("key", fails_when_cancelled))
    await under_way.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    del caller
    gc.collect()
    await turns_of_the_loop()
    assert reported == []


async def test_work_that_fails_to_start_leaves_the_key_free():
    flights, work = Flights[str, str](), Work()

    def cannot_start() -> asyncio.Future[str]:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await flights.join("key", cannot_start)
    work.let_go.set()
    assert await flights.join("key", work) == ("result", False)

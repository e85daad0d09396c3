"""The rate of calls: never above the limit in any span of time, in order, and respecting a server's plea."""
# R15

import asyncio
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from virtual_clock import run_in_virtual_time

from mcprl.config import RateSettings
from mcprl.tools.limits import RateLimit


async def go_through(limit: RateLimit, takes_s: float = 0.0) -> None:
    async with limit.passage():
        if takes_s:
            await asyncio.sleep(takes_s)


async def pass_at(limit: RateLimit, delay_s: float, name: int, passed: list[tuple[float, int]]) -> None:
    await asyncio.sleep(delay_s)
    await go_through(limit)
    passed.append((asyncio.get_running_loop().time(), name))


async def passages(limit: RateLimit, delays_s: list[float]) -> list[tuple[float, int]]:
    """When each of the callers passed, in the order of passing. Caller i comes after `delays_s[i]`."""
    passed: list[tuple[float, int]] = []
    await asyncio.gather(*(pass_at(limit, delay_s, name, passed) for name, delay_s in enumerate(delays_s)))
    return passed


def test_a_slow_call_keeps_its_place_for_two_periods_and_no_longer():
    async def scenario() -> list[float]:
        limit, passed = RateLimit(RateSettings(calls=1, per_s=1.0)), []
        slow = asyncio.create_task(go_through(limit, takes_s=50.0))
        await asyncio.sleep(0)
        await pass_at(limit, 0.0, 1, passed)
        await pass_at(limit, 0.0, 2, passed)
        slow.cancel()
        return [when for when, _ in passed]

    assert run_in_virtual_time(scenario()) == pytest.approx([2.0, 3.0])


@given(st.integers(1, 5), st.sampled_from([0.1, 1.0, 3.0]), st.lists(st.floats(0, 10), min_size=1, max_size=40))
@example(3, 10.0, [0.0] * 7)  # a burst
def test_no_span_of_one_period_holds_more_calls_than_allowed_and_none_waits_for_nothing(calls, per_s, delays_s):
    passed = run_in_virtual_time(passages(RateLimit(RateSettings(calls=calls, per_s=per_s)), delays_s))
    times = [when for when, _ in passed]
    assert [delays_s[name] for _, name in passed] == pytest.approx(sorted(delays_s), abs=1e-6)
    for earlier, later in zip(times, times[calls:], strict=False):
        assert later - earlier >= per_s - 1e-6
    # The oracle: each passes as soon as it has come, all before it have passed, and the window has room.
    expected: list[float] = []
    for delay_s in sorted(delays_s):
        room_at = expected[-calls] + per_s if len(expected) >= calls else 0.0
        expected.append(max(delay_s, room_at, expected[-1] if expected else 0.0))
    assert times == pytest.approx(expected, abs=1e-6)


def test_one_who_has_passed_and_comes_again_queues_behind_those_who_wait():
    async def scenario() -> list[str]:
        limit, order = RateLimit(RateSettings(calls=2, per_s=10.0)), []

        async def call(name: str) -> None:
            await go_through(limit)
            order.append(name)

        async def call_twice() -> None:
            await call("third")
            # There is room for one more, and the next in the queue has been woken but has not run yet.
            await call("third again")

        await asyncio.gather(call("first"), call("second"), call_twice(), call("fourth"))
        return order

    assert run_in_virtual_time(scenario()) == ["first", "second", "third", "fourth", "third again"]


def test_when_every_waiter_is_cancelled_the_next_caller_is_not_held_up():
    async def scenario() -> float:
        limit = RateLimit(RateSettings(calls=1, per_s=10.0))
        callers = [asyncio.create_task(go_through(limit)) for _ in range(4)]
        await asyncio.sleep(1.0)
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        await asyncio.sleep(9.0)
        await go_through(limit)
        return asyncio.get_running_loop().time()

    assert run_in_virtual_time(scenario()) == pytest.approx(10.0)


@pytest.mark.parametrize("rate", [None, RateSettings(calls=100, per_s=1.0)])
def test_nobody_passes_during_a_pause(rate):
    async def scenario() -> list[float]:
        limit = RateLimit(rate)
        await go_through(limit)
        limit.pause(5.0)
        return [when for when, _ in await passages(limit, [0.0, 1.0, 4.9, 6.0])]

    assert run_in_virtual_time(scenario()) == pytest.approx([5.0, 5.0, 5.0, 6.0])


def test_a_longer_pause_holds_up_those_already_waiting_too():
    async def scenario() -> list[float]:
        limit = RateLimit(RateSettings(calls=1, per_s=2.0))
        limit.pause(5.0)
        callers = asyncio.create_task(passages(limit, [0.0, 0.0]))
        await asyncio.sleep(1.0)
        limit.pause(1.0)
        await asyncio.sleep(1.0)
        limit.pause(8.0)
        return [when for when, _ in await callers]

    assert run_in_virtual_time(scenario()) == pytest.approx([10.0, 12.0])


def test_without_a_limit_nobody_waits():
    assert {when for when, _ in run_in_virtual_time(passages(RateLimit(None), [0.0] * 1000))} == {0.0}


async def test_the_limit_holds_on_the_real_clock():
    limit = RateLimit(RateSettings(calls=4, per_s=0.02))
    started = time.monotonic()
    for _ in range(9):
        await go_through(limit)
    assert time.monotonic() - started >= 0.04

"""The circuit breaker: when it opens, who probes, who waits and for how long."""
# R15

import asyncio

import pytest
from virtual_clock import run_in_virtual_time

from mcprl.errors import (
    BreakerOpenError,
    BudgetExceededError,
    CallDeadlineError,
    ServerBusyError,
    ServerFaultError,
    ServerLostError,
)
from mcprl.tools.calls import FAILURES, REST_S, Breaker

PATIENT = 1000.0


def lost() -> ServerLostError:
    return ServerLostError("it went away", fix="wait")


async def call(
    breaker: Breaker, error: BaseException | None = None, *, patience_s: float = PATIENT, takes_s: float = 0.0
) -> float:
    """A call that ends as told; returns when it was let through."""
    async with breaker.guard(patience_s):
        let_through = asyncio.get_running_loop().time()
        await asyncio.sleep(takes_s)
        if error is not None:
            raise error
    return let_through


async def fail(breaker: Breaker, times: int = 1) -> None:
    for _ in range(times):
        error = lost()
        with pytest.raises(ServerLostError) as caught:
            await call(breaker, error)
        assert caught.value is error


async def opened() -> Breaker:
    assert REST_S == 5.0  # the times below count on it
    breaker = Breaker("fmp")
    await fail(breaker, FAILURES)
    assert (breaker.state, breaker.openings) == ("open", 1)
    return breaker


def test_it_opens_after_exactly_so_many_failures_in_a_row():
    async def scenario() -> None:
        breaker = Breaker("fmp")
        await fail(breaker, FAILURES - 1)
        await call(breaker)
        await fail(breaker, FAILURES - 1)
        assert (breaker.state, breaker.openings) == ("closed", 0)
        await fail(breaker)
        assert (breaker.state, breaker.openings) == ("open", 1)

    run_in_virtual_time(scenario())


@pytest.mark.parametrize(
    "error",
    [
        ServerBusyError("429", fix="wait"),
        CallDeadlineError("a program of the policy may just be slow", fix="wait"),
        BudgetExceededError("spent", fix="raise it"),
        asyncio.CancelledError(),
        KeyError("bug"),
    ],
)
def test_what_says_nothing_about_the_server_is_no_failure_and_no_success(error):
    async def scenario() -> None:
        breaker = Breaker("fmp")
        await fail(breaker, FAILURES - 1)
        for _ in range(5):
            with pytest.raises(type(error)):
                await call(breaker, error)
        assert breaker.state == "closed"
        await fail(breaker)
        assert breaker.state == "open"

    run_in_virtual_time(scenario())


def test_every_other_fault_of_the_server_is_a_failure():
    async def scenario() -> None:
        breaker = Breaker("fmp")
        for _ in range(FAILURES):
            with pytest.raises(ServerFaultError):
                await call(breaker, ServerFaultError("broken", fix="fix it"))
        assert breaker.state == "open"

    run_in_virtual_time(scenario())


def test_calls_wait_while_it_is_open_one_probes_and_its_success_lets_all_go():
    async def scenario() -> None:
        breaker = await opened()
        states: list[str] = []

        async def watch() -> None:
            for _ in range(3):
                await asyncio.sleep(2.4)
                states.append(breaker.state)

        calls = [call(breaker, takes_s=1.0) for _ in range(10)]
        *times, _ = await asyncio.gather(*calls, watch())
        assert sorted(time for time in times if time is not None) == pytest.approx([5.0] + [6.0] * 9)
        assert states == ["open", "open", "closed"]
        assert breaker.openings == 1

    run_in_virtual_time(scenario())


def test_a_failed_probe_opens_it_again_and_the_others_wait_on():
    async def scenario() -> None:
        breaker = await opened()
        probe = asyncio.create_task(call(breaker, lost(), takes_s=1.0))
        await asyncio.sleep(5.5)
        others = [asyncio.create_task(call(breaker)) for _ in range(3)]
        with pytest.raises(ServerLostError):
            await probe
        assert (breaker.state, breaker.openings) == ("open", 2)
        assert await asyncio.gather(*others) == pytest.approx([11.0] * 3)
        # Closed again, it counts from nothing.
        await fail(breaker)
        assert breaker.state == "closed"

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("verdict", ["cancelled", "busy"])
def test_a_probe_without_a_verdict_hands_its_place_to_the_next(verdict):
    async def scenario() -> None:
        breaker = await opened()
        error = ServerBusyError("429", fix="wait") if verdict == "busy" else None
        probe = asyncio.create_task(call(breaker, error, takes_s=2.0))
        await asyncio.sleep(5.5)
        others = [asyncio.create_task(call(breaker, takes_s=1.0)) for _ in range(3)]
        await asyncio.sleep(0.5)
        if verdict == "cancelled":
            probe.cancel()
        await asyncio.gather(probe, return_exceptions=True)
        freed = 6.0 if verdict == "cancelled" else 7.0
        assert sorted(await asyncio.gather(*others)) == pytest.approx([freed, freed + 1, freed + 1])
        assert (breaker.state, breaker.openings) == ("closed", 1)

    run_in_virtual_time(scenario())


def test_a_waiter_who_is_cancelled_takes_nobodys_place():
    async def scenario() -> None:
        breaker = await opened()
        waiter = asyncio.create_task(call(breaker))
        await asyncio.sleep(4.0)
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        assert breaker.state == "open"
        assert await call(breaker) == pytest.approx(5.0)

    run_in_virtual_time(scenario())


def test_a_call_out_of_patience_fails_undelivered_and_says_when_to_come_back():
    async def scenario() -> None:
        breaker = await opened()
        with pytest.raises(BreakerOpenError) as caught:
            await call(breaker, patience_s=2.0)
        assert asyncio.get_running_loop().time() == pytest.approx(2.0)
        assert caught.value.delivered is False
        assert caught.value.retry_after_s == pytest.approx(3.0)
        assert "'fmp' failed 5 calls in a row" in caught.value.what
        assert breaker.state == "open"

    run_in_virtual_time(scenario())


def test_patience_also_ends_while_another_call_probes():
    async def scenario() -> None:
        breaker = await opened()
        probe = asyncio.create_task(call(breaker, takes_s=60.0))
        await asyncio.sleep(6.0)
        with pytest.raises(BreakerOpenError) as caught:
            await call(breaker, patience_s=4.0)
        assert asyncio.get_running_loop().time() == pytest.approx(10.0)
        assert caught.value.retry_after_s == 0.0
        assert breaker.state == "half_open"
        await probe
        assert breaker.state == "closed"

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("error", [None, lost()])
def test_calls_from_before_it_opened_have_no_say_afterwards(error):
    async def scenario() -> None:
        breaker = Breaker("fmp")
        while_open = asyncio.create_task(call(breaker, error, takes_s=1.0))
        while_half_open = asyncio.create_task(call(breaker, error, takes_s=6.0))
        after_it_closed = [asyncio.create_task(call(breaker, lost(), takes_s=9.0)) for _ in range(3)]
        await asyncio.sleep(0.0)
        await fail(breaker, FAILURES)
        probe = asyncio.create_task(call(breaker, takes_s=2.0))
        await asyncio.sleep(2.0)
        assert while_open.done()
        assert (breaker.state, breaker.openings) == ("open", 1)
        await asyncio.sleep(4.5)
        assert while_half_open.done()
        assert (breaker.state, breaker.openings) == ("half_open", 1)
        assert await probe == pytest.approx(5.0)
        await asyncio.gather(while_open, while_half_open, *after_it_closed, return_exceptions=True)
        assert (breaker.state, breaker.openings) == ("closed", 1)

    run_in_virtual_time(scenario())


def test_many_calls_that_fail_together_are_one_failure():
    async def scenario() -> None:
        breaker = Breaker("fmp")
        for wave in range(FAILURES):
            assert breaker.state == "closed", wave
            calls = [call(breaker, lost(), takes_s=1.0) for _ in range(64)]
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(result) for result in results} == {ServerLostError}
        assert (breaker.state, breaker.openings) == ("open", 1)

    run_in_virtual_time(scenario())

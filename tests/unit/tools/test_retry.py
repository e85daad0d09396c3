"""Calls made again: when, after how long, and when never."""
# R15

import asyncio
from itertools import pairwise

import pytest
from virtual_clock import run_in_virtual_time

from mcprl.errors import (
    BreakerOpenError,
    BudgetExceededError,
    CallDeadlineError,
    ServerBusyError,
    ServerLostError,
    ServerStartError,
    ToolServerError,
)
from mcprl.tools.calls import FIRST_WAIT_S, MAX_WAIT_S, call_with_retries, may_repeat


def lost(*, delivered: bool = True, retry_after_s: float | None = None) -> ServerLostError:
    return ServerLostError("it went away", fix="wait", delivered=delivered, retry_after_s=retry_after_s)


class Attempts:
    """Fails with each of `errors` in turn, then succeeds; remembers the numbers it was told and the times."""

    def __init__(self, *errors: BaseException) -> None:
        self._errors = list(errors)
        self.numbers: list[int] = []
        self.times: list[float] = []

    async def __call__(self, number: int) -> str:
        self.numbers.append(number)
        self.times.append(asyncio.get_running_loop().time())
        if self._errors:
            raise self._errors.pop(0)
        return "result"

    @property
    def waits(self) -> list[float]:
        return [after - before for before, after in pairwise(self.times)]

    def run(self, attempts: int = 3, *, repeatable: bool = True) -> str:
        return run_in_virtual_time(call_with_retries(self, attempts, repeatable=lambda _: repeatable))


@pytest.mark.parametrize(
    ("error", "read_only", "idempotent", "repeat"),
    [
        (lost(), False, False, False),
        (lost(), True, False, True),
        (lost(), False, True, True),
        (lost(delivered=False), False, False, True),
        (CallDeadlineError("slow", fix="wait"), False, False, False),
        (CallDeadlineError("slow", fix="wait"), True, False, True),
        (ServerStartError("no", fix="wait"), False, False, True),
        (ServerBusyError("429", fix="wait", delivered=False), False, False, True),
        (BreakerOpenError("open", fix="wait", delivered=False), True, True, False),
    ],
)
def test_a_call_is_repeated_only_where_it_cannot_do_a_thing_twice(error, read_only, idempotent, repeat):
    assert may_repeat(error, read_only=read_only, idempotent=idempotent) is repeat


def test_a_call_that_works_is_made_once_and_without_a_wait():
    attempts = Attempts()
    assert attempts.run() == "result"
    assert (attempts.numbers, attempts.waits) == ([1], [])


@pytest.mark.parametrize(("most", "repeatable", "made"), [(3, True, 3), (1, True, 1), (3, False, 1)])
def test_when_no_attempt_is_left_or_none_is_allowed_the_last_error_is_raised(most, repeatable, made):
    errors = [lost() for _ in range(made)]
    attempts = Attempts(*errors)
    with pytest.raises(ServerLostError) as caught:
        attempts.run(most, repeatable=repeatable)
    assert caught.value is errors[-1]
    assert attempts.numbers == [1, 2, 3][:made]


def test_the_question_is_asked_of_each_error_anew():
    attempts = Attempts(lost(delivered=False), lost(delivered=True))

    def repeatable(error: ToolServerError) -> bool:
        return may_repeat(error, read_only=False, idempotent=False)

    with pytest.raises(ServerLostError):
        run_in_virtual_time(call_with_retries(attempts, 5, repeatable=repeatable))
    assert attempts.numbers == [1, 2]


@pytest.mark.parametrize(
    "error", [BudgetExceededError("spent", fix="raise it"), KeyError("bug"), asyncio.CancelledError()]
)
def test_anything_but_a_fault_of_the_server_passes_through_at_once(error):
    attempts = Attempts(error)
    with pytest.raises(type(error)):
        attempts.run()
    assert attempts.numbers == [1]


def test_the_wait_doubles_up_to_its_limit_with_half_of_it_at_random():
    runs = [Attempts(*(lost() for _ in range(12))) for _ in range(50)]
    for attempts in runs:
        attempts.run(13)
        doubled = [min(FIRST_WAIT_S * 2**n, MAX_WAIT_S) for n in range(12)]
        assert doubled[-2:] == [MAX_WAIT_S] * 2
        for wait, longest in zip(attempts.waits, doubled, strict=True):
            assert longest / 2 <= wait + 1e-6
            assert wait <= longest + 1e-6
    assert len({round(attempts.waits[0], 6) for attempts in runs}) > 10


def test_thousands_of_attempts_do_not_overflow_the_wait():
    attempts = Attempts(*(lost() for _ in range(1999)))
    assert attempts.run(2000) == "result"
    assert attempts.numbers == [*range(1, 2001)]


def test_a_wait_that_the_server_asks_for_takes_the_place_of_ours():
    attempts = Attempts(lost(retry_after_s=7.0), lost(retry_after_s=0.0))
    attempts.run()
    assert attempts.waits == pytest.approx([7.0, 0.0])


def test_a_server_that_asks_for_too_long_a_wait_is_given_up_at_once():
    attempts = Attempts(lost(retry_after_s=MAX_WAIT_S + 0.1))
    with pytest.raises(ServerLostError):
        attempts.run()
    assert attempts.numbers == [1]


def test_a_cancellation_during_the_wait_ends_the_call_and_carries_no_other_error():
    async def scenario() -> None:
        attempts = Attempts(lost(retry_after_s=10.0))
        call = asyncio.ensure_future(call_with_retries(attempts, 3, repeatable=lambda _: True))
        await asyncio.sleep(1.0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await call
        assert caught.value.__context__ is None or isinstance(caught.value.__context__, asyncio.CancelledError)
        assert attempts.numbers == [1]

    run_in_virtual_time(scenario())

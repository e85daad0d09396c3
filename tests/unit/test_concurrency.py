"""run_all: all results, or the first failure alone, and nobody is left running."""

from __future__ import annotations

import asyncio

import pytest

from mcprl.concurrency import run_all


class Worker:
    """Waits until it is told to go on, and notes how it ended."""

    def __init__(self) -> None:
        self.started, self.go = asyncio.Event(), asyncio.Event()
        self.ended: str | None = None

    async def run(self, result: object = None) -> object:
        self.started.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # what is cancelled may need a moment to tidy up
            self.ended = "cancelled"
            raise
        self.ended = "finished"
        if isinstance(result, BaseException):
            raise result
        return result


async def test_results_come_in_the_order_asked_not_in_the_order_finished():
    workers = [Worker() for _ in range(3)]
    together = asyncio.create_task(run_all(w.run(n) for n, w in enumerate(workers)))
    for worker in reversed(workers):
        await worker.started.wait()
        worker.go.set()
        await asyncio.sleep(0)
    assert await together == (0, 1, 2)


async def test_all_run_at_the_same_time():
    barrier = asyncio.Barrier(5)
    async with asyncio.timeout(60):
        assert sorted(await run_all(barrier.wait() for _ in range(5))) == [0, 1, 2, 3, 4]


async def test_nothing_to_run_gives_no_results():
    assert await run_all([]) == ()


async def test_the_first_failure_is_raised_as_it_is_after_the_others_were_cancelled_and_have_ended():
    failing, waiting, other = Worker(), Worker(), Worker()
    failure = LookupError("gone")
    together = asyncio.create_task(run_all([waiting.run(), failing.run(failure), other.run()]))
    for worker in (failing, waiting, other):
        await worker.started.wait()
    failing.go.set()
    with pytest.raises(LookupError) as caught:
        await together
    assert caught.value is failure
    assert (waiting.ended, other.ended) == ("cancelled", "cancelled")


async def test_results_of_those_that_finished_before_a_failure_are_let_go():
    failing, quick = Worker(), Worker()
    quick.go.set()
    together = asyncio.create_task(run_all([quick.run("done"), failing.run(LookupError("gone"))]))
    await quick.started.wait()
    failing.go.set()
    with pytest.raises(LookupError):
        await together
    assert quick.ended == "finished"


async def test_a_second_failure_while_being_cancelled_does_not_replace_the_first():
    waiting = Worker()

    async def fail_when_cancelled() -> None:
        try:
            await waiting.run()
        finally:
            raise OSError("second")

    async def fail() -> None:
        await waiting.started.wait()
        raise LookupError("first")

    with pytest.raises(LookupError, match="first"):
        await run_all([fail_when_cancelled(), fail()])


async def test_one_that_cancels_itself_does_not_hide_the_failure_of_another():
    async def cancel_itself() -> None:
        raise asyncio.CancelledError

    failing = Worker()
    together = asyncio.create_task(run_all([cancel_itself(), failing.run(LookupError("gone"))]))
    await failing.started.wait()
    failing.go.set()
    with pytest.raises(LookupError):
        await together


async def test_cancelling_the_whole_cancels_each_and_waits_for_their_end():
    workers = [Worker() for _ in range(3)]
    together = asyncio.create_task(run_all(w.run() for w in workers))
    for worker in workers:
        await worker.started.wait()
    together.cancel()
    with pytest.raises(asyncio.CancelledError):
        await together
    assert [worker.ended for worker in workers] == ["cancelled"] * 3

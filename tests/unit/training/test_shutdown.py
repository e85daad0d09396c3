"""Stopping a run: who is asked, how long work may go on, and what a second signal does."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from mcprl.runs.folder import RunStopped
from mcprl.training.shutdown import EXIT_STOPPED, Shutdown


async def finished_when(event: asyncio.Event) -> str:
    await event.wait()
    return "done"


async def test_work_that_is_done_before_anybody_asks_gives_its_result():
    event = asyncio.Event()
    event.set()
    assert await Shutdown(60.0).unless_stopped(finished_when(event), share=0.0) == "done"


async def test_an_error_of_the_work_is_raised_as_it_is():
    async def fail() -> None:
        raise LookupError("no such thing")

    with pytest.raises(LookupError, match="no such thing"):
        await Shutdown(60.0).unless_stopped(fail(), share=0.0)


async def test_work_without_a_share_of_the_time_is_given_up_at_once_and_cancelled():
    shutdown, cancelled = Shutdown(1000.0), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    waiting = asyncio.create_task(shutdown.unless_stopped(work(), share=0.0))
    await asyncio.sleep(0)
    shutdown.request()
    with pytest.raises(RunStopped):
        await waiting
    assert cancelled.is_set()


async def test_work_with_a_share_of_the_time_may_still_be_finished():
    shutdown, event = Shutdown(1000.0), asyncio.Event()
    waiting = asyncio.create_task(shutdown.unless_stopped(finished_when(event), share=0.5))
    await asyncio.sleep(0)
    shutdown.request()
    await asyncio.sleep(0)
    assert not waiting.done()
    event.set()
    assert await waiting == "done"


async def test_work_that_takes_longer_than_its_share_is_given_up():
    shutdown = Shutdown(0.2)
    shutdown.request()
    with pytest.raises(RunStopped):
        await shutdown.unless_stopped(finished_when(asyncio.Event()), share=0.5)


async def test_a_request_cancels_what_is_not_orderly_and_leaves_alone_what_is():
    shutdown, entered, go = Shutdown(10.0), asyncio.Event(), asyncio.Event()

    async def orderly() -> str:
        with shutdown.on_signals():
            with shutdown.orderly():
                entered.set()
                await go.wait()
            return "seen to the end" if shutdown.requested else "not asked"

    async def plain() -> None:
        with shutdown.on_signals():
            entered.set()
            await asyncio.Event().wait()

    first = asyncio.create_task(orderly())
    await entered.wait()
    shutdown.request()
    go.set()
    assert await first == "seen to the end"

    shutdown = Shutdown(10.0)
    entered.clear()
    second = asyncio.create_task(plain())
    await entered.wait()
    shutdown.request()
    with pytest.raises(asyncio.CancelledError):
        await second


CHILD = """
import asyncio, signal, sys, time
from mcprl.runs.folder import RunStopped
from mcprl.training.shutdown import Shutdown

async def tell_when_asked(shutdown):
    await shutdown._requested.wait()
    print("asked", flush=True)

async def run():
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored if the tests run under nohup
    shutdown = Shutdown(float(sys.argv[1]))
    shutdown.leaves_work = sys.argv[2] == "leave"
    with shutdown.on_signals(), shutdown.orderly():
        telling = asyncio.create_task(tell_when_asked(shutdown))
        print("ready", flush=True)
        await shutdown.unless_stopped(asyncio.to_thread(time.sleep, 600), share=1.0 if sys.argv[2] == "wait" else 0.0)

try:
    asyncio.run(run())
except RunStopped:
    print("stopped", flush=True)
"""


def start_child(*arguments: str) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert child.stdout.readline() == "ready\n"
    return child


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_where_a_thread_will_not_end_the_process_does_when_the_time_is_over(number):
    with start_child("0.5", "save") as child:
        os.kill(child.pid, number)
        assert child.wait(60) == EXIT_STOPPED


@pytest.mark.process
@pytest.mark.parametrize(
    ("how", "said"),
    [("save", "because stopping took more than 0.5 s"), ("leave", "stopped in the middle of an update, which will be")],
)
def test_the_last_words_say_what_was_not_waited_for(how, said):
    with start_child("0.5", how) as child:
        os.kill(child.pid, signal.SIGTERM)
        assert said in child.stdout.read()


@pytest.mark.process
def test_a_second_signal_ends_the_process_at_once():
    with start_child("600", "wait") as child:
        os.kill(child.pid, signal.SIGTERM)
        assert child.stdout.readline() == "asked\n"  # two at once would come in the order of their numbers
        os.kill(child.pid, signal.SIGINT)
        assert child.wait(60) == 128 + signal.SIGINT  # and not after 600 s


async def test_a_closed_terminal_asks_the_run_to_stop_unless_it_was_started_with_nohup():
    before = signal.getsignal(signal.SIGHUP)
    try:
        for kept in (signal.SIG_DFL, signal.SIG_IGN):
            signal.signal(signal.SIGHUP, kept)
            shutdown = Shutdown(60.0)
            with shutdown.on_signals(), shutdown.orderly():
                handler = signal.getsignal(signal.SIGHUP)
                assert (handler == signal.getsignal(signal.SIGTERM)) == (kept is signal.SIG_DFL)
            assert signal.getsignal(signal.SIGHUP) is kept
    finally:
        signal.signal(signal.SIGHUP, before)

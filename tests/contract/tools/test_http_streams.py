"""Streams of events, sessions, notifications and cancelled calls over HTTP."""

# R15

import asyncio
import json
from contextlib import suppress
from functools import partial

import pytest
from live_servers import eventually, leap
from mcp import MCPError
from mcp_types import RootsListChangedNotification
from upstream_calls import ERAS, call_echo, client_of, does, outcome, outcome_of_misbehaviour
from upstream_server import upstream

from mcprl.tools.transports.messages import Trouble

# Events


@ERAS
async def test_messages_before_the_answer_reach_the_client_and_the_connection_is_used_again(era):
    async def behave(upcall):
        token = upcall.message["params"]["_meta"]["progressToken"]
        note = {"progressToken": token, "progress": 1, "total": 2, "message": "half"}
        await upcall.open_events()
        await upcall.piece(b": a comment\r\n\r\nretry: 5\r\n\r\n")
        await upcall.event({"jsonrpc": "2.0", "method": "notifications/progress", "params": note})
        await upcall.event(upcall.result("done"))
        await upcall.end_events()

    async def on_progress(progress, total, message):
        heard.append((progress, total, message))

    heard = []
    handler, _ = does(behave)
    async with upstream(era, handler) as served, client_of(served.url) as client:
        before = served.num_accepted
        for _ in range(20):
            answer = await client.call_tool("misbehave", progress_callback=on_progress)
            assert answer.content[0].text == "done"
        await eventually(lambda: heard == [(1, 2, "half")] * 20)
        assert served.num_accepted - before <= 4


@ERAS
async def test_calls_answered_by_one_event_share_connections(era):
    async def behave(upcall):
        await upcall.open_events()
        await upcall.event(upcall.result("done"))
        await upcall.end_events()

    handler, _ = does(behave)
    async with upstream(era, handler) as served, client_of(served.url) as client:
        before = served.num_accepted
        for _ in range(20):
            assert (await client.call_tool("misbehave")).content[0].text == "done"
        assert served.num_accepted - before <= 4


async def test_an_event_over_the_limit_is_cut_off_while_it_streams():
    async def behave(upcall):
        before, _ = json.dumps(upcall.result("the beginning TEXT")).split("TEXT")
        await upcall.open_events()
        await upcall.piece(b"data: " + before.encode())
        with suppress(OSError):
            while not upcall.gone.is_set():
                await upcall.piece(b"x" * 10_000)

    told = await outcome_of_misbehaviour(behave)
    assert told.trouble is Trouble.TOO_LARGE
    assert told.text.startswith("the beginning xxx")


async def test_the_limit_counts_each_event_by_itself():
    async def behave(upcall):
        note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x" * 40_000}}
        await upcall.open_events()
        for _ in range(10):
            await upcall.event(note)
        await upcall.event(upcall.result("done"))
        await upcall.end_events()

    handler, _ = does(behave)
    async with upstream("modern", handler) as served, client_of(served.url) as client:
        assert (await client.call_tool("misbehave")).content[0].text == "done"


@pytest.mark.parametrize("ending", ["reset", "end", "close"])
@pytest.mark.parametrize("after_message", [False, True])
async def test_a_stream_that_ends_without_the_answer_fails_its_call_alone(ending, after_message):
    async def behave(upcall):
        await upcall.open_events()
        if after_message:
            await upcall.event(
                {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}}
            )
        match ending:
            case "reset":
                upcall.hang_up()
            case "end":
                await upcall.end_events()
            case _:
                upcall.writer.close()

    told = await outcome_of_misbehaviour(behave)
    assert (told.trouble, told.delivered) == (Trouble.UNREACHABLE, True)


@pytest.mark.parametrize("data", ["{nonsense", "[]", '{"jsonrpc":"2.0"}', '{"jsonrpc":"2.0","id":2,"result":"\udcff"}'])
async def test_an_event_that_is_no_message_is_broken(data):
    async def behave(upcall):
        await upcall.open_events()
        await upcall.piece(b"data: " + data.encode(errors="surrogateescape") + b"\n\n")
        await upcall.gone.wait()

    told = await outcome_of_misbehaviour(behave)
    assert (told.trouble, told.delivered) == (Trouble.BROKEN, True)


@ERAS
@pytest.mark.parametrize("reset", [False, True])
async def test_a_broken_stream_with_event_ids_is_resumed_where_it_broke(era, reset):
    async def handler(upcall):
        if upcall.method == "GET" and "last-event-id" in upcall.headers:
            resumed.append(upcall.headers["last-event-id"])
            await upcall.open_events()
            if len(resumed) == 1:
                await upcall.event("", event_id="e2")
            else:
                await upcall.event(calls[0].result("at last"), event_id="e3")
            await upcall.end_events()
            return True
        if upcall.rpc_method == "tools/call" and upcall.tool == "misbehave":
            calls.append(upcall)
            await upcall.open_events()
            await upcall.piece(b"id: e1\nretry: 10\ndata:\n\n")
            if reset:
                await asyncio.sleep(0.05)  # or the reset may overtake the event
                upcall.hang_up()
            else:
                await upcall.end_events()
            return True
        return False

    calls, resumed = [], []
    async with upstream(era, handler) as served, client_of(served.url) as client:
        assert (await client.call_tool("misbehave")).content[0].text == "at last"
        assert resumed == ["e1", "e2"]


@pytest.mark.parametrize("refusal", ["reset", "status"])
async def test_a_stream_that_cannot_be_resumed_is_unusable_but_the_session_lives(refusal):
    async def handler(upcall):
        if upcall.method == "GET" and "last-event-id" in upcall.headers:
            if refusal == "reset":
                upcall.hang_up()
            else:
                await upcall.respond(500)
            return True
        if upcall.rpc_method == "tools/call" and upcall.tool == "misbehave":
            await upcall.open_events()
            await upcall.piece(b"id: e1\nretry: 10\ndata:\n\n")
            await upcall.end_events()
            return True
        return False

    async with upstream("legacy", handler) as served, client_of(served.url) as client:
        told = await outcome(client.call_tool("misbehave"))
        assert told.trouble is (Trouble.UNREACHABLE if refusal == "reset" else Trouble.BROKEN)
        assert told.delivered
        await call_echo(client)


async def test_a_call_cancelled_between_resumptions_is_not_resumed_again():
    async def handler(upcall):
        if upcall.method == "GET" and "last-event-id" in upcall.headers:
            num_resumed.append(1)
            await upcall.open_events()
            await upcall.end_events()
            return True
        if upcall.rpc_method == "tools/call" and upcall.tool == "misbehave":
            await upcall.open_events()
            await upcall.piece(b"id: e1\nretry: 20\ndata:\n\n")
            await upcall.end_events()
            return True
        return False

    num_resumed = []
    async with upstream("legacy", handler) as served, client_of(served.url) as client:
        call = asyncio.create_task(client.call_tool("misbehave"))
        await eventually(lambda: len(num_resumed) > 2)
        call.cancel()
        await asyncio.wait({call})
        await eventually(lambda: any(seen.rpc_method == "notifications/cancelled" for seen in served.seen))
        stopped_at = len(num_resumed)
        await asyncio.sleep(0.3)  # fifteen times the pause between two resumptions
        assert len(num_resumed) <= stopped_at + 1


# Sessions and what else the SDK sends


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b""),
        (404, b"<html>"),
        (404, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Session not found"}}'),
        (
            400,
            b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: No valid session ID"}}',
        ),
    ],
)
async def test_a_forgotten_session_is_told_once_and_the_call_was_not_made(status, body):
    async def behave(upcall):
        await upcall.respond(status, body, content_type="application/json")

    lost = []
    handler, _ = does(behave)
    async with (
        upstream("legacy", handler) as served,
        client_of(served.url, on_session_lost=partial(lost.append, 1)) as client,
    ):
        told = await outcome(client.call_tool("misbehave"))
        assert await outcome(client.call_tool("misbehave")) == told
        await eventually(lambda: lost != [])
    assert (told.trouble, told.delivered) == (Trouble.UNREACHABLE, False)
    assert lost == [1]


@pytest.mark.parametrize("one_hangs", [False, True])
async def test_the_calls_in_flight_are_answered_before_the_session_is_given_up(one_hangs, monkeypatch):
    for name in ("_LAST_ANSWERS_S", "_HAND_OVER_S"):
        monkeypatch.setattr(f"mcprl.tools.transports.http.{name}", 600.0)

    async def behave(upcall):
        arrived.append(1)
        if upcall.arguments.get("hang"):
            await upcall.gone.wait()
        else:
            await eventually(lambda: len(arrived) == 5 + one_hangs)
            await upcall.respond(404)

    arrived, answered_before = [], []
    handler, _ = does(behave)
    async with upstream("legacy", handler) as served:
        done = asyncio.Event()

        def on_session_lost():
            answered_before.append(sum(call.done() for call in calls))
            done.set()

        async with client_of(served.url, on_session_lost=on_session_lost) as client:
            hanging = [asyncio.create_task(client.call_tool("misbehave", {"hang": True}))] if one_hangs else []
            calls = [asyncio.create_task(outcome(client.call_tool("misbehave"))) for _ in range(5)]
            assert {told.delivered for told in await asyncio.gather(*calls)} == {False}
            assert not done.is_set()
            while not done.is_set():  # the time for answers, where one hangs, and then that for their callers
                leap(600.0)
                await asyncio.sleep(0.01)
            assert answered_before == [5]
            for call in hanging:
                assert not call.done()
                call.cancel()


async def test_without_a_session_404_is_no_lost_session():
    async def behave(upcall):
        await upcall.respond(404, b"<html>")

    lost = []
    told = await outcome_of_misbehaviour(behave, "modern", on_session_lost=lambda: lost.append(1))
    assert (told.trouble, lost) == (Trouble.BROKEN, [])


@pytest.mark.parametrize("behaviour", ["reset", "500", "silence"])
async def test_a_notification_that_fails_or_is_never_answered_holds_up_nothing(behaviour, monkeypatch):
    monkeypatch.setattr("mcprl.tools.transports.http._NOTIFY_S", 300.0)  # it is not given up, and still in nobody's way

    async def handler(upcall):
        if upcall.method == "POST" and upcall.rpc_method == "notifications/roots/list_changed":
            got.append(1)
            if behaviour == "reset":
                upcall.hang_up()
            elif behaviour == "500":
                await upcall.respond(500)
            else:
                await upcall.gone.wait()
            return True
        return False

    got = []
    async with upstream("legacy", handler) as served, client_of(served.url) as client:
        await client.session.send_notification(RootsListChangedNotification())
        await eventually(lambda: got == [1])
        await call_echo(client)


async def test_answers_that_come_while_the_session_is_ended_do_no_harm():
    async def handler(upcall):
        if upcall.method == "DELETE":
            answers.set()
            await asyncio.sleep(0.2)  # time for the answers to arrive before this one
        elif upcall.rpc_method == "tools/call" and upcall.tool == "misbehave":
            arrived.append(1)
            await answers.wait()
            await upcall.respond_json(upcall.result("too late"))
            return True
        return False

    answers, arrived = asyncio.Event(), []
    async with upstream("legacy", handler) as served:
        async with client_of(served.url) as client:
            calls = [asyncio.create_task(client.call_tool("misbehave")) for _ in range(5)]
            await eventually(lambda: len(arrived) == 5)
        failures = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(failure) for failure in failures} == {MCPError}
        assert "DELETE" in {seen.method for seen in served.seen}


@pytest.mark.parametrize("behaviour", ["reset", "silence"])
async def test_a_server_that_does_not_let_go_of_its_session_does_not_keep_us(behaviour):
    async def handler(upcall):
        if upcall.method == "DELETE":
            deletes.append(1)
            if behaviour == "reset":
                upcall.hang_up()
            else:
                await upcall.gone.wait()
            return True
        return False

    deletes = []
    async with upstream("legacy", handler) as served, asyncio.timeout(60), client_of(served.url) as client:
        await client.call_tool("echo", {"text": "on"})
    assert deletes == [1]


@pytest.mark.parametrize("behaviour", ["reset", "garbage", "large", "404"])
async def test_a_listening_stream_that_fails_does_no_harm(behaviour):
    async def handler(upcall):
        if upcall.method != "GET":
            return False
        gets.append(1)
        match behaviour:
            case "reset":
                upcall.hang_up()
            case "404":
                await upcall.respond(404)
            case "garbage":
                await upcall.open_events()
                await upcall.event("{nonsense")
                await upcall.gone.wait()
            case _:
                await upcall.open_events()
                with suppress(OSError):
                    while not upcall.gone.is_set():
                        await upcall.piece(b"x" * 50_000)
        return True

    gets = []
    async with upstream("legacy", handler) as served, client_of(served.url) as client:
        await eventually(lambda: gets != [])
        for number in range(5):
            assert (await client.call_tool("echo", {"text": str(number)})).content[0].text == str(number)

"""Over HTTP, whatever happens to one request happens to that request only, and it is told what."""

# R15

import asyncio
import gzip
import json
import logging
from email.utils import formatdate

import pytest
from mcp import MCPError
from upstream_calls import ERAS, LIMIT, call_echo, client_of, does, outcome, outcome_of_misbehaviour
from upstream_server import upstream

from mcprl.config import ServerSettings
from mcprl.processes import free_port
from mcprl.tools.transports.messages import TransportOutcome, Trouble, outcome_of

# Connections


@ERAS
async def test_a_connection_reset_before_the_answer_leaves_open_whether_the_call_was_made(era):
    async def behave(upcall):
        upcall.hang_up()

    told = await outcome_of_misbehaviour(behave, era)
    assert (told.trouble, told.delivered) == (Trouble.UNREACHABLE, True)


async def test_a_connection_closed_without_a_word_leaves_open_whether_the_call_was_made():
    async def behave(upcall):
        upcall.writer.close()

    told = await outcome_of_misbehaviour(behave)
    assert (told.trouble, told.delivered) == (Trouble.UNREACHABLE, True)
    assert "RemoteProtocolError" in told.detail


async def test_a_body_that_breaks_off_fails_its_call_alone():
    async def behave(upcall):
        body = json.dumps(upcall.result("x")).encode()
        await upcall.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9999\r\n\r\n" + body)
        upcall.writer.close()

    told = await outcome_of_misbehaviour(behave)
    assert (told.trouble, told.delivered) == (Trouble.UNREACHABLE, True)


@pytest.mark.parametrize("noise", [b"\x00\xff\x16\x03garbage\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n"])
async def test_bytes_that_are_no_http_fail_their_call_alone(noise):
    async def behave(upcall):
        await upcall.send(noise)
        upcall.writer.close()

    told = await outcome_of_misbehaviour(behave)
    assert (told.trouble, told.delivered) == (Trouble.UNREACHABLE, True)


@ERAS
async def test_a_server_that_is_gone_provably_got_nothing_and_is_reached_again_when_it_is_back(era):
    async def behave(upcall):
        raise AssertionError("unreachable")

    handler, _ = does(behave)
    async with upstream(era, handler) as served, client_of(served.url) as client:
        assert (await client.call_tool("echo", {"text": "1"})).content[0].text == "1"
        await served.stop()
        told = await outcome(client.call_tool("echo", {"text": "2"}))
        assert (told.trouble, told.delivered) == (Trouble.UNREACHABLE, False)
        await served.start(served.port)
        assert (await client.call_tool("echo", {"text": "3"})).content[0].text == "3"


async def test_a_handshake_with_nobody_tells_that_nobody_was_reached():
    url = f"http://127.0.0.1:{free_port()}/mcp"
    with pytest.raises(ExceptionGroup) as caught:
        async with client_of(url):
            pass
    error = caught.value
    while isinstance(error, ExceptionGroup):
        (error,) = error.exceptions
    told = outcome_of(error)
    assert told is not None
    assert (told.trouble, told.delivered) == (Trouble.UNREACHABLE, False)


async def test_a_proxy_of_the_environment_is_for_servers_elsewhere(monkeypatch):
    async def usual(upcall):
        return False

    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    async with upstream("modern", usual) as served:
        # Chosen now: before, the upstream might have been given the same port.
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
        async with client_of(served.url, settings=ServerSettings(start=("server",))) as client:
            await call_echo(client)
        with pytest.raises(ExceptionGroup):
            async with client_of(served.url):
                pass
        assert {seen.rpc_method for seen in served.seen} == {"server/discover", "tools/list", "tools/call"}


# Statuses


@ERAS
@pytest.mark.parametrize(
    "body", [b"slow down", b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"slow"}}']
)
async def test_429_is_a_wait_and_no_call_was_made(era, body):
    async def behave(upcall):
        await upcall.respond(429, body, retry_after="7", content_type="application/json")

    told = await outcome_of_misbehaviour(behave, era)
    assert told == TransportOutcome(trouble=Trouble.BUSY, detail="HTTP 429", delivered=False, retry_after_s=7.0)


async def test_a_wait_until_a_date_is_counted_on_the_clock_of_the_server():
    async def behave(upcall):
        then, now = formatdate(1_000_090, usegmt=True), formatdate(1_000_000, usegmt=True)
        await upcall.respond(429, retry_after=then, date=now)

    told = await outcome_of_misbehaviour(behave)
    assert told.retry_after_s == 90.0


async def test_503_with_a_wait_is_busy_but_no_proof():
    async def behave(upcall):
        await upcall.respond(503, b"<html>", retry_after="2.5")

    told = await outcome_of_misbehaviour(behave)
    assert told == TransportOutcome(trouble=Trouble.BUSY, detail="HTTP 503", delivered=True, retry_after_s=2.5)


async def test_a_request_that_is_refused_for_its_size_did_nothing():
    async def behave(upcall):
        await upcall.respond(413, b"too large")

    told = await outcome_of_misbehaviour(behave)
    assert told == TransportOutcome(trouble=Trouble.REFUSED_FOR_SIZE, detail="HTTP 413", delivered=False)


@pytest.mark.parametrize("status", [500, 502, 503, 504, 400, 404, 409, 418, 304, 202, 204])
async def test_any_other_status_is_broken_and_shows_the_beginning_of_the_body(status):
    async def behave(upcall):
        await upcall.respond(status, b"" if status in {204, 304} else b"all  is \x1b[31mlost\n" + b"z" * 5000)

    told = await outcome_of_misbehaviour(behave)
    assert (told.trouble, told.delivered) == (Trouble.BROKEN, True)
    assert told.detail.startswith(f"HTTP {status}")
    assert len(told.detail) < 400
    if status not in {204, 304}:
        assert "all is \ufffd[31mlost zzz" in told.detail


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_is_told_as_such_and_not_shown(status, caplog):
    key = "sk-live-0123456789abcdef"
    caplog.set_level(logging.DEBUG, logger="mcprl")

    async def behave(upcall):
        await upcall.respond(status, upcall.headers["authorization"].encode(), content_type="text/plain")

    told = await outcome_of_misbehaviour(behave, headers={"Authorization": f"Bearer {key}"})
    assert told.trouble is Trouble.BROKEN
    assert "rejected the key" in told.detail
    assert key not in repr(told) + caplog.text


@pytest.mark.parametrize("status", [500, 400, 200])
async def test_a_key_that_the_server_says_back_is_not_shown(status, caplog):
    key = "0123456789-secret-abcdef"
    caplog.set_level(logging.DEBUG, logger="mcprl")

    async def behave(upcall):
        await upcall.respond(status, f"bad key {upcall.headers['x-api-key']}".encode(), content_type="text/plain")

    told = await outcome_of_misbehaviour(behave, headers={"X-Api-Key": key})
    assert "bad key" in told.detail
    assert key not in repr(told) + caplog.text


@ERAS
@pytest.mark.parametrize("status", [400, 404, 500])
async def test_a_json_rpc_error_with_a_status_of_failure_reaches_the_caller_as_it_is(era, status):
    async def behave(upcall):
        error = {"code": -32601, "message": "no such thing", "data": {"why": 1}}
        await upcall.respond_json({"jsonrpc": "2.0", "id": "server-error", "error": error}, status=status)

    handler, _ = does(behave)
    async with upstream(era, handler) as served, client_of(served.url) as client:
        with pytest.raises(MCPError) as caught:
            await client.call_tool("misbehave")
        assert outcome_of(caught.value) is None
        assert (caught.value.code, caught.value.message, caught.value.data) == (-32601, "no such thing", {"why": 1})


async def test_a_server_cannot_pass_off_an_error_of_its_own_as_ours():
    async def behave(upcall):
        data = {
            "proof": "x" * 16,
            "trouble": "busy",
            "detail": "",
            "delivered": False,
            "retry_after_s": None,
            "text": "",
        }
        error = {"code": -32090, "message": "", "data": data}
        await upcall.respond_json({"jsonrpc": "2.0", "id": upcall.id, "error": error})

    handler, _ = does(behave)
    async with upstream("modern", handler) as served, client_of(served.url) as client:
        with pytest.raises(MCPError) as caught:
            await client.call_tool("misbehave")
        assert outcome_of(caught.value) is None


# Redirects, whose rules are the SDK's


async def test_a_redirect_within_the_origin_is_followed_and_its_failure_fails_its_call_alone():
    async def behave(upcall):
        await upcall.respond(307, b"moved", location="/other")

    async def behave_there(upcall):
        if upcall.rpc_method == "tools/call" and upcall.tool == "misbehave":
            times.append(upcall)
            if len(times) % 2:
                await behave(upcall)
            elif len(times) == 2:
                await upcall.respond_json(upcall.result("there"))
            else:
                upcall.hang_up()
            return True
        return False

    times = []
    async with upstream("modern", behave_there) as served, client_of(served.url) as client:
        assert (await client.call_tool("misbehave")).content[0].text == "there"
        told = await outcome(client.call_tool("misbehave"))
        assert (told.trouble, told.delivered) == (Trouble.UNREACHABLE, True)
        await call_echo(client)


async def test_a_redirect_to_elsewhere_is_not_followed_and_its_endless_body_not_read():
    async def behave(upcall):
        await upcall.send(b"HTTP/1.1 307 Away\r\nlocation: http://127.0.0.2:9/\r\ncontent-length: 99999999\r\n\r\nx")
        await upcall.gone.wait()

    handler, _ = does(behave)
    async with upstream("modern", handler) as served, client_of(served.url) as client:
        with pytest.raises(MCPError, match=r"Redirect to http://127\.0\.0\.2:9/ not followed"):
            await asyncio.wait_for(client.call_tool("misbehave"), 60)
        await call_echo(client)


# Bodies


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"<html>down</html>", "text/html"),
        (b"<html>down</html>", "application/json"),
        (b'{"jsonrpc":"2.0","id":2,"resu', "application/json"),
        (b'{"jsonrpc":"2.0","id":2,"result":{"x":"\xff"}}', "application/json"),
        (b'{"hello":1}', "application/json"),
        (b"[]", "application/json"),
        (b"", "application/json"),
        (b'{"jsonrpc":"2.0","id":99999,"result":{}}', "application/json"),
        (b'{"jsonrpc":"2.0","method":"notifications/progress"}', "application/json"),
        (b"<html>down</html>", ""),
    ],
)
async def test_a_body_that_is_no_answer_is_broken(body, kind):
    async def behave(upcall):
        await upcall.respond(200, body, content_type=kind)

    told = await outcome_of_misbehaviour(behave)
    assert (told.trouble, told.delivered) == (Trouble.BROKEN, True)


@pytest.mark.parametrize("as_event", [False, True])
async def test_an_answer_nested_too_deep_to_be_read_is_too_large_and_shows_its_text(as_event):
    async def behave(upcall):
        raw = json.dumps(upcall.result("fine")).replace('"isError": false', '"structuredContent": ' + "[" * 20_000)
        if as_event:
            await upcall.open_events()
            await upcall.event(raw)
        else:
            await upcall.respond(200, raw.encode(), content_type="application/json")

    told = await outcome_of_misbehaviour(behave)
    assert (told.trouble, told.text) == (Trouble.TOO_LARGE, "fine")


@pytest.mark.parametrize(
    ("status", "kind"), [(200, "Application/JSON; charset=utf-8"), (202, "application/json"), (200, "text/json")]
)
@pytest.mark.parametrize("chunked", [False, True])
async def test_an_answer_is_one_however_it_is_wrapped(status, kind, chunked):
    async def behave(upcall):
        body = json.dumps(upcall.result("fine")).encode()
        if chunked:
            head = f"HTTP/1.1 {status} S\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n"
            await upcall.send(head.encode())
            await upcall.piece(body)
            await upcall.end_events()
        else:
            await upcall.respond(status, body, content_type=kind)

    handler, _ = does(behave)
    async with upstream("modern", handler) as served, client_of(served.url) as client:
        assert (await client.call_tool("misbehave")).content[0].text == "fine"


async def test_an_error_without_an_id_reaches_the_call_that_it_answers():
    async def behave(upcall):
        await upcall.respond_json({"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "no id"}})

    handler, _ = does(behave)
    async with upstream("modern", handler) as served, client_of(served.url) as client:
        with pytest.raises(MCPError, match="no id"):
            await asyncio.wait_for(client.call_tool("misbehave"), 60)


async def test_a_compressed_answer_is_read_and_a_broken_one_fails_alone():
    async def behave(upcall):
        body = gzip.compress(json.dumps(upcall.result("small")).encode())
        if not upcall.arguments:
            body = body[:10] + b"\xff" * 20
        await upcall.respond(200, body, content_type="application/json", content_encoding="gzip")

    handler, _ = does(behave)
    async with upstream("modern", handler) as served, client_of(served.url) as client:
        assert (await client.call_tool("misbehave", {"good": True})).content[0].text == "small"
    told = await outcome_of_misbehaviour(behave)
    assert told.trouble is Trouble.BROKEN


async def test_a_compressed_answer_counts_with_the_size_that_it_unfolds_to():
    async def behave(upcall):
        body = gzip.compress(json.dumps(upcall.result("the beginning" + "x" * 50_000_000)).encode())
        await upcall.respond(200, body, content_type="application/json", content_encoding="gzip")

    told = await outcome_of_misbehaviour(behave)
    assert told.trouble is Trouble.TOO_LARGE
    assert told.text.startswith("the beginningxxx")


async def test_an_answer_at_the_limit_passes_and_one_byte_more_does_not():
    async def behave(upcall):
        rest = LIMIT + upcall.arguments["over"] - len(json.dumps(upcall.result("")))
        await upcall.respond_json(upcall.result("x" * rest))

    handler, _ = does(behave)
    async with upstream("modern", handler) as served, client_of(served.url) as client:
        answer = await client.call_tool("misbehave", {"over": 0})
        assert set(answer.content[0].text) == {"x"}
        told = await outcome(client.call_tool("misbehave", {"over": 1}))
        assert told.trouble is Trouble.TOO_LARGE
        assert told.text == "x" * (ServerSettings().max_result_bytes + 4096)

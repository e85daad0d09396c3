"""What the bytes of an HTTP response say about the request."""

# R15

import json
import time
from email.utils import formatdate

import httpx2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mcp_types import (
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from mcprl.protocol import retry_after_s
from mcprl.secrets import SECRETS
from mcprl.tools.transports.exchanges import (
    AnswerLimits,
    answers,
    broken,
    cancelled_id_of,
    connection_outcome,
    read_message,
    refuses_session,
    request_id_of,
    status_outcome,
    too_large,
)
from mcprl.tools.transports.messages import TransportOutcome, Trouble

LIMITS = AnswerLimits(max_bytes=1000, text_characters=50)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
IDS = st.integers(0, 2**53) | TEXT
JSON = st.recursive(st.none() | st.booleans() | st.integers() | TEXT, lambda inner: st.lists(inner, max_size=3))


def as_the_sdk_writes_it(message):
    fields = message.model_dump(by_alias=True, mode="json", exclude_unset=True)
    return httpx2.Request("POST", "http://host", json=fields).read()


@given(id_=IDS, method=TEXT, params=st.none() | st.dictionaries(TEXT, JSON, max_size=3))
def test_the_id_of_a_request_is_found_in_what_the_sdk_sends(id_, method, params):
    given_params = {} if params is None else {"params": params}
    body = as_the_sdk_writes_it(JSONRPCRequest(jsonrpc="2.0", id=id_, method=method, **given_params))
    assert request_id_of(body) == id_
    assert type(request_id_of(body)) is type(id_)


@given(id_=IDS, method=TEXT, params=st.dictionaries(TEXT, JSON, max_size=3))
def test_a_notification_or_a_response_has_no_request_id(id_, method, params):
    assert request_id_of(as_the_sdk_writes_it(JSONRPCNotification(jsonrpc="2.0", method=method, params=params))) is None
    assert request_id_of(as_the_sdk_writes_it(JSONRPCResponse(jsonrpc="2.0", id=id_, result=params))) is None
    error = ErrorData(code=1, message="method")
    assert request_id_of(as_the_sdk_writes_it(JSONRPCError(jsonrpc="2.0", id=id_, error=error))) is None


@given(id_=IDS)
def test_a_cancelling_names_its_request_and_other_notifications_none(id_):
    def body(method):
        return as_the_sdk_writes_it(JSONRPCNotification(jsonrpc="2.0", method=method, params={"requestId": id_}))

    assert cancelled_id_of(body("notifications/cancelled")) == id_
    assert cancelled_id_of(body("notifications/progress")) is None


@given(raw=st.binary(max_size=200) | JSON.map(json.dumps).map(str.encode))
@example(raw=b'{"jsonrpc":"2.0","id":1,"result":{}}')
@example(raw=b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":""}}')
@example(raw=b'{"jsonrpc":"2.0","id":1,"result":{"a":"\xff"}}')
@example(raw=b"[" * 100_000)
def test_a_message_is_one_exactly_where_the_sdk_reads_one(raw):
    found = read_message(raw, LIMITS)
    try:
        expected = jsonrpc_message_adapter.validate_json(raw, by_name=False)
    except ValidationError:
        assert isinstance(found, TransportOutcome)
        assert found.delivered
    else:
        assert found == expected


def test_nesting_beyond_what_can_be_read_is_too_large():
    found = read_message(b'{"jsonrpc":"2.0","id":1,"result":{"a":' + b"[" * 100_000, LIMITS)
    assert isinstance(found, TransportOutcome)
    assert found.trouble is Trouble.TOO_LARGE


@pytest.mark.parametrize(
    ("message", "is_answer"),
    [
        (JSONRPCResponse(jsonrpc="2.0", id=7, result={}), True),
        (JSONRPCResponse(jsonrpc="2.0", id="7", result={}), True),
        (JSONRPCResponse(jsonrpc="2.0", id=8, result={}), False),
        (JSONRPCError(jsonrpc="2.0", id=7, error=ErrorData(code=1, message="")), True),
        (JSONRPCError(jsonrpc="2.0", id=None, error=ErrorData(code=1, message="")), True),
        (JSONRPCError(jsonrpc="2.0", id=8, error=ErrorData(code=1, message="")), False),
        (JSONRPCRequest(jsonrpc="2.0", id=7, method="ping"), False),
        (JSONRPCNotification(jsonrpc="2.0", method="x"), False),
        (None, False),
    ],
)
def test_an_answer_is_a_response_or_an_error_to_this_request(message, is_answer):
    assert answers(message, 7) is is_answer


@pytest.mark.parametrize(
    ("error", "delivered"),
    [
        (httpx2.ConnectError("refused"), False),
        (httpx2.ConnectTimeout(""), False),
        (httpx2.PoolTimeout(""), False),
        (httpx2.ProxyError("no"), False),
        (httpx2.UnsupportedProtocol("ftp"), False),
        (httpx2.ReadError(""), True),
        (httpx2.ReadTimeout(""), True),
        (httpx2.WriteError(""), True),
        (httpx2.WriteTimeout(""), True),
        (httpx2.CloseError(""), True),
        (httpx2.RemoteProtocolError("closed"), True),
        (httpx2.LocalProtocolError("bad header"), True),
    ],
)
def test_only_a_connection_that_never_was_proves_that_nothing_was_delivered(error, delivered):
    told = connection_outcome(error)
    assert (told.trouble, told.delivered) == (Trouble.UNREACHABLE, delivered)
    assert told.detail.startswith(type(error).__name__)


def test_a_body_that_cannot_be_unpacked_is_broken_and_not_unreachable():
    assert connection_outcome(httpx2.DecodingError("bad gzip")).trouble is Trouble.BROKEN


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 0.5 "}, 0.5),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after-ms": "x", "retry-after": "2"}, 2.0),
        ({"x-ratelimit-reset-after": "3.25"}, 3.25),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT", "date": "Wed, 21 Oct 2026 07:27:00 GMT"}, 60.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT", "date": "Wed, 21 Oct 2026 07:29:00 GMT"}, 0.0),
        ({"retry-after": "Wed, 99 Oct 2026 07:28:00 GMT"}, None),
    ],
)
def test_the_wait_that_a_server_asks_for(headers, expected):
    assert retry_after_s(httpx2.Headers(headers)) == (None if expected is None else pytest.approx(expected))


def test_a_date_without_the_servers_clock_is_seen_from_ours(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1_000_000.0)
    assert retry_after_s({"retry-after": formatdate(1_000_100, usegmt=True)}) == 100.0


@given(value=st.text(max_size=40), date=st.text(max_size=40))
@example(value="Mon, 1 Jan 99999 00:00:00 GMT", date="")
@example(value="1e400", date="0")
def test_no_header_makes_the_wait_fail(value, date):
    waits = retry_after_s({"retry-after": value, "date": date})
    assert waits is None or 0 <= waits < float("inf")


@given(
    status=st.integers(200, 599) | st.sampled_from([413, 429, 503]),
    body=st.binary(max_size=100),
    wait=st.sampled_from([None, "4"]),
)
def test_a_status_is_never_proof_but_for_413_and_429(status, body, wait):
    told = status_outcome(status, {} if wait is None else {"retry-after": wait}, body)
    assert told.delivered is (status not in {413, 429})
    troubles = {413: Trouble.REFUSED_FOR_SIZE, 429: Trouble.BUSY, 503: Trouble.BUSY if wait else Trouble.BROKEN}
    assert told.trouble is troubles.get(status, Trouble.BROKEN)
    assert f"HTTP {status}" in told.detail
    assert told.detail.isprintable()


def test_a_failure_that_says_when_to_come_back_keeps_that():
    assert status_outcome(502, {"retry-after": "4"}, b"").retry_after_s == 4.0


@given(position=st.integers(0, 9000))
def test_no_part_of_a_secret_is_shown_wherever_it_stands(position):
    key = "Zq7-3141592653589793-key"
    SECRETS.add("HTTP_ANSWERS_KEY", key)
    body = b"a" * position + key.encode() + b"b" * 500
    told = broken("HTTP 500", body)
    assert "3141" not in told.detail
    assert len(told.detail) < 330


@pytest.mark.parametrize(
    ("status", "message", "refuses"),
    [
        (404, None, True),
        (
            404,
            JSONRPCError(jsonrpc="2.0", id="server-error", error=ErrorData(code=-32600, message="Session not found")),
            True,
        ),
        (404, JSONRPCError(jsonrpc="2.0", id=1, error=ErrorData(code=-32601, message="Method not found")), False),
        (400, JSONRPCError(jsonrpc="2.0", id=None, error=ErrorData(code=-32000, message="No valid session ID")), True),
        (
            400,
            JSONRPCError(jsonrpc="2.0", id=1, error=ErrorData(code=-32000, message="No such session in the file")),
            False,
        ),
        (400, JSONRPCError(jsonrpc="2.0", id=None, error=ErrorData(code=-32700, message="Parse error")), False),
        (400, None, False),
        (500, None, False),
    ],
)
def test_a_session_is_lost_where_the_server_says_so(status, message, refuses):
    assert refuses_session(status, message) is refuses


def test_of_an_answer_that_is_too_large_the_beginning_is_kept():
    raw = b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"' + b"x" * 2000
    told = too_large(raw, LIMITS)
    assert (told.trouble, told.text, told.delivered) == (Trouble.TOO_LARGE, "x" * 50, True)
    assert "1000 bytes" in told.detail

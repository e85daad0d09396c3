"""The HTTP client of the live sources: each failure is reported as what it is, in time, and without the key."""
# R15

import asyncio
import logging
import socket

import pytest
from local_upstream import BUSY, MOVED_TO, LocalUpstream, Status, Trouble
from mcp import MCPError
from mcp_types import INTERNAL_ERROR

from mcprl.errors import BadValueError, MissingKeyError
from mcprl.protocol import RETRY_AFTER_S
from mcprl.secrets import SECRETS
from mcprl_market.upstream import UNSAID_WAIT_S, Upstream, UpstreamRefusal, base_url, path_segment, required_key

KEY = "q7Rk2Vx9Tz4Lm8Wn3Bc6Yd1Hs5"
PATIENT_S = 60.0  # long enough for whatever is answered, on a machine that is busy with other things
NEVER_ANSWERED = {Trouble.SILENT, Trouble.DRIPPING}
TOLD = {
    Trouble.KEY_REFUSED: "rejected the key",
    Trouble.FORBIDDEN: "rejected the key",
    Trouble.BUSY: "received too many calls",
    Trouble.BUSY_UNTIL: "received too many calls",
    Trouble.BUSY_UNSAID: "received too many calls",
    Trouble.BROKEN: "failed (HTTP 500",
    Trouble.DOWN: "failed (HTTP 503",
    Trouble.MOVED: "redirected the request (HTTP 302",
    Trouble.SILENT: f"did not answer within {PATIENT_S:g} s",
    Trouble.DRIPPING: f"did not answer within {PATIENT_S:g} s",
    Trouble.RESET: "could not be reached",
    Trouble.TRUNCATED: "could not be reached",
    Trouble.MALFORMED: "did not respond with JSON",
    Trouble.NOT_A_NUMBER: "did not respond with JSON",
    Trouble.HUGE: "more than 8388608 bytes",
}


@pytest.fixture(scope="module")
def served():
    routes = {
        "GET /thing": {"name": "é", "n": 1},
        "POST /thing": lambda request: {"got": request.body},
        "GET /deep": lambda _: [],
        "GET /odd/a?b/c": "found",
    }
    with LocalUpstream(routes) as upstream:
        yield upstream


@pytest.fixture
async def upstream(served, monkeypatch):
    """The client."""
    monkeypatch.setenv("TESTED_API_KEY", f" {KEY}\n")
    client = Upstream(
        "tested",
        f"{served.url}/",
        headers={"x-from": "test"},
        params={"apikey": required_key("tested", "TESTED_API_KEY")},
        deadline_s=PATIENT_S,
    )
    yield client
    await client.close()


async def test_what_goes_with_every_request_goes_with_it_and_answers_are_decoded(served, upstream):
    assert await upstream.get("/thing", {"limit": 3, "q": "a&b=c d"}) == {"name": "é", "n": 1}
    assert await upstream.post("/thing", {"text": "ü"}) == {"got": {"text": "ü"}}
    got, posted = served.requests[-2:]
    assert got.params == {"limit": "3", "q": "a&b=c d", "apikey": KEY}
    assert posted.params == {"apikey": KEY}
    assert got.headers["x-from"] == posted.headers["x-from"] == "test"


async def test_a_segment_of_a_path_stays_one_segment(upstream):
    assert await upstream.get(f"/odd/{path_segment('a?b/c')}") == "found"


@pytest.mark.parametrize("trouble", TOLD, ids=lambda trouble: trouble.name)
async def test_each_trouble_is_told_as_what_it_is_without_the_key(served, upstream, trouble):
    asked = upstream.get("/thing")
    with served.failing(trouble), pytest.raises(MCPError) as caught:
        await (served.unanswered(asked) if trouble in NEVER_ANSWERED else asked)
    assert caught.value.code == INTERNAL_ERROR
    assert caught.value.message.startswith("tested: the upstream ")
    assert TOLD[trouble] in caught.value.message
    assert KEY not in caught.value.message
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    if trouble in BUSY:
        assert caught.value.data == {RETRY_AFTER_S: BUSY[trouble]}
    else:
        assert caught.value.data is None
    assert (await upstream.get("/thing"))["n"] == 1


@pytest.mark.parametrize(
    ("method", "status", "data"),
    [
        ("GET", 503, {RETRY_AFTER_S: 12.0}),
        ("POST", 503, None),  # it may have been done before the failure
        ("GET", 429, {RETRY_AFTER_S: 12.0}),
        ("POST", 429, {RETRY_AFTER_S: 12.0}),  # it was turned away, and so not done
    ],
)
async def test_a_second_call_is_asked_for_only_where_the_first_did_nothing(served, upstream, method, status, data):
    served.routes[f"{method} /down"] = Status(status, {}, {"retry-after": "12"})
    with pytest.raises(MCPError, match=f"HTTP {status}") as caught:
        await (upstream.get("/down") if method == "GET" else upstream.post("/down", {"text": "hello"}))
    assert caught.value.data == data


@pytest.mark.parametrize(
    "header", ["soon", "-5", "inf", "Wed, 21 Oct 2015 07:28:00 GMT", "Wed, 99 Oct 9999 07:28:00 GMT"]
)
async def test_an_odd_retry_after_is_never_a_negative_or_endless_wait(served, upstream, header):
    served.routes["GET /busy"] = Status(429, {}, {"retry-after": header})
    with pytest.raises(MCPError) as caught:
        await upstream.get("/busy")
    assert caught.value.data[RETRY_AFTER_S] in {0.0, UNSAID_WAIT_S}


@pytest.mark.parametrize("status", [400, 404, 422])
async def test_a_refusal_is_left_to_the_server_to_explain(served, upstream, status):
    served.routes["GET /refused"] = lambda request: Status(status, {"detail": f"no: {request.target}"})
    with pytest.raises(UpstreamRefusal) as caught:
        await upstream.get("/refused")
    assert caught.value.status == status
    assert "no: /refused?apikey=[redacted" in caught.value.text
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("status", [402, 405, 418, 204, 202])
async def test_any_other_status_is_infrastructure(served, upstream, status):
    served.routes["GET /other"] = Status(status, {})
    with pytest.raises(MCPError, match=f"HTTP {status}"):
        await upstream.get("/other")


async def test_a_redirect_is_not_followed(served, upstream):
    served.requests.clear()
    with served.failing(Trouble.MOVED), pytest.raises(MCPError):
        await upstream.get("/thing")
    assert MOVED_TO not in [request.path for request in served.requests]


async def test_json_that_is_nested_too_deeply_is_infrastructure(served, upstream):
    deep = []
    for _ in range(900):
        deep = [deep]
    served.routes["GET /deep"] = deep
    assert isinstance(await upstream.get("/deep"), list)
    served.raw_body = b"[" * 1_000_000
    with served.failing(Trouble.RAW), pytest.raises(MCPError, match="did not respond with JSON"):
        await upstream.get("/deep")


async def test_nobody_listening_is_infrastructure():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    client = Upstream("gone", f"http://127.0.0.1:{port}", params={"apikey": KEY}, deadline_s=PATIENT_S)
    with pytest.raises(MCPError, match="could not be reached") as caught:
        await client.get("/thing")
    assert KEY not in caught.value.message
    await client.close()


async def test_many_requests_share_the_client_and_a_silent_one_holds_up_none(served, upstream):
    with served.failing(Trouble.SILENT):
        before = len(served.requests)
        silent = asyncio.create_task(upstream.get("/thing"))
        async with asyncio.timeout(PATIENT_S):
            while len(served.requests) == before:  # noqa: ASYNC110 - the upstream has a loop of its own
                await asyncio.sleep(0.005)
    answers = await asyncio.gather(*(upstream.get("/thing") for _ in range(64)))
    assert [answer["n"] for answer in answers] == [1] * 64
    assert not silent.done()
    silent.cancel()
    with pytest.raises(asyncio.CancelledError):
        await silent


async def test_a_cancelled_request_is_cancelled_and_not_called_slow(served, upstream):
    with served.failing(Trouble.SILENT):
        asking = asyncio.create_task(upstream.get("/thing"))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_a_client_is_made_when_needed_closed_with_the_server_and_made_again(upstream):
    assert upstream._client is None
    async with upstream.lifespan(None):
        await upstream.get("/thing")
        first = upstream._client
    assert first.is_closed
    assert upstream._client is None
    await upstream.get("/thing")
    assert not upstream._client.is_closed


async def test_the_key_is_in_no_log_however_much_is_logged(upstream, caplog):
    SECRETS.install_in_logging()
    with caplog.at_level(logging.DEBUG):
        await upstream.get("/thing")
    assert "/thing" in caplog.text
    assert KEY not in caplog.text


@pytest.mark.parametrize("value", [None, "", "  "])
def test_a_missing_key_is_named_with_the_way_to_do_without(monkeypatch, value):
    monkeypatch.delenv("ABSENT_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("ABSENT_KEY", value)
    with pytest.raises(MissingKeyError, match=r"'fmp' needs ABSENT_KEY.*mcprl serve fmp --world"):
        required_key("fmp", "ABSENT_KEY")


def test_an_address_can_be_overridden_by_another_address_only(monkeypatch):
    monkeypatch.delenv("TESTED_BASE_URL", raising=False)
    assert base_url("TESTED_BASE_URL", "https://a.test") == "https://a.test"
    monkeypatch.setenv("TESTED_BASE_URL", "http://127.0.0.1:1")
    assert base_url("TESTED_BASE_URL", "https://a.test") == "http://127.0.0.1:1"
    monkeypatch.setenv("TESTED_BASE_URL", "a.test/api")
    with pytest.raises(BadValueError, match="TESTED_BASE_URL"):
        base_url("TESTED_BASE_URL", "https://a.test")

"""The servers of market data as real processes before local upstreams: what they ask, say, and call whose fault."""
# R14, R15

import json
import sys
from pathlib import Path

import pytest
import pytest_asyncio
from local_upstream import BUSY, LocalUpstream, Status, Trouble
from market_upstreams import FMP, POLYGON, Live, Said
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from served_specs import served_spec

from mcprl.errors import CallDeadlineError, Fault, ServerBusyError, ServerFaultError, ServerStartError
from mcprl.records import ToolCall
from mcprl.tools import Toolbox

FAULTS = [
    Trouble.KEY_REFUSED, Trouble.FORBIDDEN, Trouble.BROKEN, Trouble.DOWN, Trouble.MOVED, Trouble.RESET,
    Trouble.TRUNCATED, Trouble.MALFORMED, Trouble.NOT_A_NUMBER, Trouble.WRONG_TYPE, Trouble.HOLLOW, Trouble.DISGUISED,
    Trouble.HUGE,
]  # fmt: skip
SERVERS = [FMP, POLYGON]
pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module", params=SERVERS, ids=lambda live: live.name)
def live(request) -> Live:
    return request.param


@pytest.fixture(scope="module")
def upstream(live: Live):
    with live.upstream() as served:
        yield served


@pytest.fixture(scope="module")
def logs(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["stdio", "http"])
async def lease(request, live: Live, upstream: LocalUpstream, logs: Path):
    """One process for all tests of a server and a transport; none of them may harm it."""
    spec = served_spec(live.name, request.param, env=live.environment(upstream))
    async with Toolbox([spec], log_dir=logs) as toolbox, toolbox.lease(None) as lease:
        yield lease
        assert toolbox.restarts == 0


async def call(lease, said: Said):
    return await lease.call(ToolCall(name=said.tool, arguments=said.arguments))


async def test_each_tool_says_what_its_upstream_does_and_asks_it_only_that(live, upstream, lease):
    for said in live.calls:
        upstream.requests.clear()
        seen = await call(lease, said)
        assert (seen.text, seen.fault) == (said.text, None), said
        assert sorted(request.path for request in upstream.requests) == sorted([said.path, *said.also])
        for request in upstream.requests:
            assert request.params == {**said.params, live.key_parameter: live.key}


async def test_every_tool_of_the_server_is_among_the_calls(live, lease):
    assert {said.tool for said in live.calls} == {tool.name for tool in lease.tools}


async def test_a_callers_mistake_is_an_observation_that_says_what_to_do(live, lease):
    for tool, arguments, told in live.refused:
        seen = await lease.call(ToolCall(name=tool, arguments=arguments))
        assert seen.fault is Fault.POLICY, (tool, arguments)
        assert told in seen.text
        assert live.key not in seen.text


@pytest.mark.parametrize("trouble", FAULTS, ids=lambda trouble: trouble.name)
async def test_no_fault_of_the_upstream_is_the_policys_whatever_the_tool(live, upstream, lease, logs, trouble):
    # One tool for what costs time; all of them for what each must recognise by itself.
    calls = live.calls if trouble in {Trouble.HOLLOW, Trouble.DISGUISED, Trouble.WRONG_TYPE} else live.calls[:1]
    for said in calls:
        with upstream.failing(trouble), pytest.raises(ServerFaultError) as caught:
            await call(lease, said)
        assert caught.value.retry_after_s is None
        assert live.key not in str(caught.value)
        assert (await call(lease, said)).text == said.text
    assert live.key not in "".join(path.read_text() for path in logs.rglob("*") if path.is_file())


@pytest.mark.parametrize("trouble", BUSY, ids=lambda trouble: trouble.name)
async def test_an_upstream_that_asks_to_wait_is_waited_for_as_long_as_it_asks(live, upstream, lease, trouble):
    with upstream.failing(trouble), pytest.raises(ServerBusyError) as caught:
        await call(lease, live.calls[0])
    assert caught.value.retry_after_s == BUSY[trouble]
    assert live.key not in str(caught.value)


@pytest.mark.parametrize("trouble", [Trouble.SILENT, Trouble.DRIPPING], ids=lambda trouble: trouble.name)
async def test_a_silent_upstream_costs_one_call_its_deadline(live, upstream, lease, trouble):
    with upstream.failing(trouble), pytest.raises(CallDeadlineError):
        await upstream.unanswered(call(lease, live.calls[0]))
    assert (await call(lease, live.calls[0])).fault is None


async def test_a_redirect_is_not_followed(live, upstream, lease):
    upstream.requests.clear()
    with upstream.failing(Trouble.MOVED), pytest.raises(ServerFaultError, match="redirected"):
        await call(lease, live.calls[0])
    assert [request.path for request in upstream.requests] == [live.calls[0].path]


@pytest.mark.parametrize("name", ["fmp", "polygon"])
async def test_the_key_never_leaves_the_server_whoever_the_client_is(name, tmp_path):
    """A bare client knows no secrets: what it sees and what the server logs is what the server itself lets out."""
    live = {"fmp": FMP, "polygon": POLYGON}[name]
    first, seen = live.calls[0], []
    with live.upstream() as upstream, (tmp_path / "stderr").open("w+") as log:
        command = StdioServerParameters(
            command=sys.executable, args=["-m", "mcprl", "serve", name], env=live.environment(upstream)
        )
        async with Client(stdio_client(command, errlog=log)) as client:
            for trouble in [*FAULTS, *BUSY]:
                with upstream.failing(trouble), pytest.raises(MCPError) as caught:
                    await client.call_tool(first.tool, first.arguments)
                seen.append(json.dumps([caught.value.message, caught.value.data]))
            for status in (400, 422):
                upstream.routes[f"GET {first.path}"] = lambda request, status=status: Status(status, request.target)
                refused = await client.call_tool(first.tool, first.arguments)
                assert refused.is_error
                seen.append(refused.model_dump_json())
                assert "The request was refused" in seen[-1]
    assert "[redacted" in "".join(seen)  # the upstream did quote the request
    assert live.key not in "".join(seen) + (tmp_path / "stderr").read_text()


@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize("name", ["fmp", "polygon"])
async def test_without_a_key_the_server_does_not_start_and_says_which_one_it_needs(name, transport, tmp_path):
    spec = served_spec(name, transport, env={f"{name.upper()}_API_KEY": ""})
    with pytest.raises(ServerStartError, match=rf"(?s){name.upper()}_API_KEY.*--world"):
        async with Toolbox([spec], log_dir=tmp_path):
            pass


@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize("name", ["fmp", "polygon"])
async def test_an_offline_world_needs_neither_key_nor_upstream(name, transport, tmp_path):
    spec = served_spec(name, transport, "--world", "7", env={})
    tool, arguments = {
        "fmp": ("fmp_get_market_gainers", {"limit": 1}),
        "polygon": ("polygon_get_market_status", {}),
    }[name]
    async with Toolbox([spec], log_dir=tmp_path) as toolbox, toolbox.lease(None) as lease:
        assert toolbox.definitions[name][0] == "1+market-7"
        assert (await lease.call(ToolCall(name=tool, arguments=arguments))).fault is None

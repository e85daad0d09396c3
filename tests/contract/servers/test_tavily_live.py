"""The search server as a real process before a local Tavily: what it asks and tells, and whose fault a fault is."""
# R14

import json
import sys

import pytest
from local_upstream import BUSY, LocalUpstream, Status, Trouble
from mcp import Client, MCPError
from mcp.client.stdio import StdioServerParameters
from mcp.client.stdio import stdio_client as stdio_transport
from served_specs import served_spec

from mcprl.errors import CallDeadlineError, Fault, ServerBusyError, ServerFaultError, ServerStartError
from mcprl.records import ToolCall
from mcprl.tools import Toolbox

pytestmark = pytest.mark.process

KEY = "tvly-dev-Zk3LmQ9xW2bT7yRcV5nPs8"
PAGES = [
    {"title": "Fed funds rate", "url": "https://fed.test/rate", "content": "It is 4.25%.", "score": 0.84948516},
    {"title": "History of rates", "url": "https://rates.test/", "content": "Since 1954 …", "score": 0.7040996},
    {"title": "A third", "url": "https://third.test/", "content": "", "score": 0.1},
]
FAULTS = [
    Trouble.KEY_REFUSED, Trouble.FORBIDDEN, Trouble.BROKEN, Trouble.DOWN, Trouble.MOVED, Trouble.RESET,
    Trouble.TRUNCATED, Trouble.MALFORMED, Trouble.NOT_A_NUMBER, Trouble.WRONG_TYPE, Trouble.HOLLOW, Trouble.HUGE,
]  # fmt: skip
QUERY = {"query": "fed rate"}


def search(request):
    """Tavily's answer. It gives one page more than asked for, to see that the limit holds all the same."""
    pages = PAGES[: request.body["max_results"] + 1]
    answer = "The rate is 4.25%." if request.body.get("include_answer") else None
    return {"query": request.body["query"], "answer": answer, "images": [], "results": pages, "response_time": 0.4}


@pytest.fixture
def upstream():
    with LocalUpstream({"POST /search": search}) as served:
        yield served


@pytest.fixture
def environment(upstream):
    return {"TAVILY_API_KEY": KEY, "TAVILY_BASE_URL": upstream.url}


def tavily(environment, tmp_path, transport, **settings):
    return Toolbox([served_spec("tavily", transport, env=environment, **settings)], log_dir=tmp_path)


async def call(lease, tool="tavily_search", **arguments):
    return await lease.call(ToolCall(name=tool, arguments={**QUERY, **arguments}))


def logs_in(folder):
    return "".join(path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_search_and_a_question_are_answered_as_tavily_does(upstream, environment, tmp_path, transport):
    async with tavily(environment, tmp_path, transport) as toolbox, toolbox.lease(None) as lease:
        assert toolbox.definitions["tavily"][0] == "1"
        found = await call(lease, max_results=2, search_depth="advanced")
        assert found.fault is None
        assert found.text == (
            "**Fed funds rate**\nURL: https://fed.test/rate\nContent: It is 4.25%.\nRelevance Score: 0.8495\n---\n\n"
            "**History of rates**\nURL: https://rates.test/\nContent: Since 1954 …\nRelevance Score: 0.7041\n---"
        )
        answered = await call(lease, "tavily_qna_search")
        assert answered.text == "**Answer:** The rate is 4.25%."
    searched, asked = upstream.requests
    assert searched.body == {"query": "fed rate", "max_results": 2, "search_depth": "advanced"}
    assert asked.body["include_answer"] is True
    for request in (searched, asked):
        assert request.headers["authorization"] == f"Bearer {KEY}"
        assert KEY not in request.target


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_no_fault_of_the_upstream_is_the_policys_and_after_each_the_next_call_works(
    upstream, environment, tmp_path, transport
):
    errors = []
    async with tavily(environment, tmp_path, transport) as toolbox, toolbox.lease(None) as lease:
        for trouble in FAULTS:
            with upstream.failing(trouble), pytest.raises(ServerFaultError) as caught:
                await call(lease)
            assert caught.value.retry_after_s is None, trouble
            errors.append(str(caught.value))
            assert (await call(lease)).fault is None, trouble
        for trouble, wait_s in BUSY.items():
            with upstream.failing(trouble), pytest.raises(ServerBusyError) as caught:
                await call(lease)
            assert caught.value.retry_after_s == wait_s, trouble
            errors.append(str(caught.value))
        assert (await call(lease)).fault is None
        assert toolbox.restarts == 0
    assert KEY not in " ".join(errors) + logs_in(tmp_path)


async def test_limits_of_the_plan_a_wrong_address_and_odd_shapes_are_infrastructure(upstream, environment, tmp_path):
    async with tavily(environment, tmp_path, "stdio") as toolbox, toolbox.lease(None) as lease:
        for answer, why in [
            (Status(432, {"detail": {"error": "This request exceeds your plan's set usage limit."}}), "usage limit"),
            (Status(433, {"detail": {"error": "This request exceeds the pay-as-you-go limit."}}), "pay-as-you-go"),
            (Status(404, {"detail": "Not Found"}), "no search at its address"),
            ({"error": "Internal failure"}, "search.results should be a list"),
            ({"results": [{"title": "x", "url": 7}]}, r"search.results\[0\].url should be a string"),
        ]:
            upstream.routes["POST /search"] = answer
            with pytest.raises(ServerFaultError, match=why):
                await call(lease)
            upstream.routes["POST /search"] = search
            assert (await call(lease)).fault is None


@pytest.mark.parametrize(("transport", "trouble"), [("stdio", Trouble.SILENT), ("http", Trouble.DRIPPING)])
async def test_an_upstream_that_keeps_silent_costs_one_call_its_deadline(
    upstream, environment, tmp_path, transport, trouble
):
    async with tavily(environment, tmp_path, transport) as toolbox, toolbox.lease(None) as lease:
        with upstream.failing(trouble), pytest.raises(CallDeadlineError):
            await upstream.unanswered(call(lease))
        assert (await call(lease)).fault is None


async def test_what_tavily_refuses_is_the_policys_to_read(upstream, environment, tmp_path):
    upstream.routes["POST /search"] = Status(400, {"detail": {"error": "Query is not allowed."}})
    async with tavily(environment, tmp_path, "stdio") as toolbox, toolbox.lease(None) as lease:
        refused = await call(lease)
        empty = await call(lease, query="  ")
        absurd = await call(lease, max_results=99)
    assert refused.fault is empty.fault is absurd.fault is Fault.POLICY
    assert "Query is not allowed." in refused.text
    assert len(upstream.requests) == 1


async def test_the_key_never_leaves_the_server_whoever_the_client_is(upstream, environment, tmp_path):
    """A bare client knows no secrets: what it sees and what the server logs is what the server itself lets out."""
    command = StdioServerParameters(command=sys.executable, args=["-m", "mcprl", "serve", "tavily"], env=environment)
    seen = []
    with (tmp_path / "stderr").open("w+") as log:
        async with Client(stdio_transport(command, errlog=log)) as client:
            for trouble in [*FAULTS, *BUSY]:
                with upstream.failing(trouble), pytest.raises(MCPError) as caught:
                    await client.call_tool("tavily_search", QUERY)
                seen.append(json.dumps([caught.value.message, caught.value.data]))
            upstream.routes["POST /search"] = lambda request: Status(400, {"detail": dict(request.headers)})
            seen.append((await client.call_tool("tavily_search", QUERY)).model_dump_json())
            assert "Bearer" in seen[-1]  # the upstream did quote the header
    seen.append((tmp_path / "stderr").read_text())
    assert len(seen) == len(FAULTS) + len(BUSY) + 2
    assert KEY not in "".join(seen)


async def test_without_a_key_the_server_says_which_one_it_needs(tmp_path):
    with pytest.raises(ServerStartError, match=r"(?s)TAVILY_API_KEY.*--world"):
        async with tavily({"TAVILY_API_KEY": ""}, tmp_path, "stdio"):
            pass


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_an_offline_world_needs_neither_key_nor_upstream(upstream, tmp_path, transport):
    spec = served_spec("tavily", transport, "--world", "7", env={"TAVILY_BASE_URL": upstream.url})
    async with Toolbox([spec], log_dir=tmp_path) as toolbox, toolbox.lease(None) as lease:
        assert toolbox.definitions["tavily"][0] == "1+market-7"
        found = await call(lease, query="technology stocks earnings")
        assert "Relevance Score: " in found.text
    assert upstream.requests == []

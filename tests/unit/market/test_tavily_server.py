"""The search server of an offline world: its tools, texts and refusals."""
# R14

import pytest
from mcp import Client

from mcprl.errors import BadValueError, MissingKeyError
from mcprl_market.tavily import MAX_QUERY_CHARS, make_server
from mcprl_market.world import open_market

SEED = 7
MARKET = open_market(SEED)
COMPANY = MARKET.companies[0]


def tavily():
    # In memory, and entered inside each test: the SDK wants a client left by the task that entered it.
    return Client(make_server(world=SEED))


async def test_tools_have_the_contracts_names_and_arguments_and_are_safe_to_repeat():
    async with tavily() as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert client.server_info.version == f"1+market-{SEED}"
    assert {name: list(tool.input_schema["properties"]) for name, tool in tools.items()} == {
        "tavily_search": ["query", "max_results", "search_depth"],
        "tavily_qna_search": ["query"],
    }
    properties = tools["tavily_search"].input_schema["properties"]
    assert (properties["max_results"]["default"], properties["search_depth"]["default"]) == (5, "basic")
    assert properties["search_depth"]["enum"] == ["basic", "advanced"]
    for tool in tools.values():
        assert tool.input_schema["required"] == ["query"]
        assert tool.annotations.read_only_hint
        assert tool.annotations.idempotent_hint
        assert len(tool.description) < 90


@pytest.mark.parametrize("depth", ["basic", "advanced"])
async def test_a_search_gives_title_url_content_and_score_of_each_page(depth):
    async with tavily() as client:
        arguments = {"query": COMPANY.name, "max_results": 2, "search_depth": depth}
        result = await client.call_tool("tavily_search", arguments)
    documents = MARKET.documents(COMPANY.name, 2)
    assert 1 <= len(documents) <= 2
    assert result.structured_content == {
        "query": COMPANY.name,
        "results": [{"title": d.title, "url": d.url, "content": d.content, "score": d.score} for d in documents],
    }
    assert result.content[0].text == "\n\n".join(
        f"**{d.title}**\nURL: {d.url}\nContent: {d.content}\nRelevance Score: {d.score:.4f}\n---" for d in documents
    )


async def test_without_a_number_at_most_five_pages_are_given():
    async with tavily() as client:
        result = await client.call_tool("tavily_search", {"query": f"{COMPANY.name} shares news earnings"})
    assert 1 <= len(result.structured_content["results"]) <= 5


async def test_a_search_that_finds_nothing_says_so_and_is_not_an_error():
    async with tavily() as client:
        result = await client.call_tool("tavily_search", {"query": "zzqqxxv"})
    assert not result.is_error
    assert result.content[0].text == "No results for 'zzqqxxv'. Try other words."
    assert result.structured_content["results"] == []


async def test_a_question_is_answered_from_the_facts_of_the_world():
    question = f"Who is the CEO of {COMPANY.name}?"
    async with tavily() as client:
        result = await client.call_tool("tavily_qna_search", {"query": question})
    assert COMPANY.ceo in result.structured_content["answer"]
    assert result.content[0].text == f"**Answer:** {result.structured_content['answer']}"


async def test_a_question_without_an_answer_points_to_the_search():
    async with tavily() as client:
        result = await client.call_tool("tavily_qna_search", {"query": "zzqqxxv"})
    assert not result.is_error
    assert result.structured_content["answer"] == ""
    assert result.content[0].text == "No direct answer to 'zzqqxxv' was found. Try tavily_search."


@pytest.mark.parametrize("tool", ["tavily_search", "tavily_qna_search"])
@pytest.mark.parametrize(
    ("query", "why"), [("", "is empty"), (" \n ", "is empty"), ("x" * (MAX_QUERY_CHARS + 1), "at most 400 are allowed")]
)
async def test_a_query_that_tavily_would_not_take_is_refused(tool, query, why):
    async with tavily() as client:
        result = await client.call_tool(tool, {"query": query})
    assert result.is_error
    assert why in result.content[0].text


@pytest.mark.parametrize("wrong", [{"max_results": 0}, {"max_results": 21}, {"search_depth": "deep"}])
async def test_arguments_out_of_bounds_are_the_callers_mistake(wrong):
    async with tavily() as client:
        assert (await client.call_tool("tavily_search", {"query": "x", **wrong})).is_error


def test_a_live_server_without_its_key_does_not_start(monkeypatch):
    monkeypatch.delenv("TAVILY_API_KEY", raising=False)
    with pytest.raises(MissingKeyError, match="TAVILY_API_KEY"):
        make_server(world=None)


def test_an_address_that_is_none_is_refused(monkeypatch):
    monkeypatch.setenv("TAVILY_API_KEY", "tvly-0123456789abcdef")
    monkeypatch.setenv("TAVILY_BASE_URL", "api.tavily.com")
    with pytest.raises(BadValueError, match="TAVILY_BASE_URL"):
        make_server(world=None)

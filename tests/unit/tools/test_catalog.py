"""The catalog: order, selection, names that clash or are missing."""

import pytest

from mcprl.errors import BadToolSchemaError, DuplicateToolError, EmptyCatalogError, UnknownToolError
from mcprl.tools import Catalog, Tool
from mcprl.tools.catalog import compile_checks


def tool(name, server="fmp", parameters=None):
    return Tool(name=name, description="", parameters=parameters or {"type": "object"}, server=server)


@pytest.fixture
def catalog():
    return Catalog([tool("tavily_search"), tool("quote"), tool("convert", server="time")], {})


def test_tools_keep_their_order(catalog):
    assert catalog.names == ("tavily_search", "quote", "convert")
    assert [item.name for item in catalog] == list(catalog.names)
    assert len(catalog) == 3
    assert "quote" in catalog
    assert "price" not in catalog
    assert catalog["convert"].server == "time"


def test_a_selection_keeps_the_order_asked_for_and_names_each_tool_once(catalog):
    assert [item.name for item in catalog.select(["convert", "quote", "convert"])] == ["convert", "quote"]
    assert [item.name for item in catalog.select(None)] == list(catalog.names)
    assert catalog.select([]) == ()


def test_a_required_tool_that_is_missing_is_named_with_who_needs_it_and_the_closest(catalog):
    with pytest.raises(UnknownToolError) as caught:
        catalog.require(["quote", "tavily_filter"], wanted_by="task d03")
    assert str(caught.value) == (
        "E-TOOL-003 no server offers the tool 'tavily_filter', which task d03 needs (did you mean 'tavily_search'?). "
        "Fix: correct the task, or add a server that offers it."
    )


def test_nothing_is_suggested_where_nothing_is_close(catalog):
    assert catalog.closest("zzzzzz") is None
    with pytest.raises(UnknownToolError, match=r"which task d03 needs\. Fix"):
        catalog.require(["zzzzzz"], wanted_by="task d03")


def test_one_name_on_two_servers_is_refused_naming_both():
    with pytest.raises(DuplicateToolError, match="servers 'fmp' and 'time' both offer a tool named 'quote'"):
        Catalog([tool("quote"), tool("quote", server="time")], {})


def test_a_catalog_without_tools_is_refused():
    with pytest.raises(EmptyCatalogError):
        Catalog([], {})


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"type": "objekt"}, "is not valid"),
        ({"type": "object", "properties": {"a": {"pattern": "("}}}, "is not a 'regex'"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/gone"}}}, "refers to '#/\\$defs/gone'"),
        ({"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/x"}}}, "refers to 'http://127.0.0.1:9/x'"),
        ({"$ref": "#"}, "its references lead back to themselves"),
    ],
)
def test_a_tool_with_an_invalid_schema_is_refused_naming_server_and_tool(parameters, why):
    with pytest.raises(BadToolSchemaError, match=f"E-TOOL-005 server 'fmp' .* tool 'quote' .*{why}"):
        compile_checks("fmp", [tool("quote", parameters=parameters)])

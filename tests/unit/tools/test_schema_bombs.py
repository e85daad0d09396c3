"""A server cannot stop a run with the schemas of its tools: each ends in an answer or a named error, in little time."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import random
import threading
import time
from contextlib import suppress
from functools import partial

import pytest
from mcp.server.lowlevel import Server
from mcp_types import CallToolResult, ListToolsResult, TextContent
from mcp_types import Tool as ListedTool
from schema_bombs import ANSWERED, PATTERN, REFUSED, TEXT, arguments, doubled

from mcprl.bounds import OverLimitError
from mcprl.config import ServerSettings
from mcprl.errors import BadToolSchemaError, ServerFaultError, ServerStartError, ToolLimitError
from mcprl.grammar.schemas import rewrite
from mcprl.records import ToolCall
from mcprl.schemas import BadSchemaError, SchemaCheck
from mcprl.tools import ServerSpec, Tool, Toolbox
from mcprl.tools.arguments import ArgumentCheck
from mcprl.tools.catalog import compile_checks
from processor_time import least_s

MAX_S = 4.0  # twice what it may take: no bar of the gate decides over a busy machine
MAX_DELAY_S = 2.0


def offered(schema, name="bomb"):
    return Tool(name=name, description="", parameters=schema, server="foreign")


def within_limit(work):
    """What the work raises or returns, which must take little time of this thread."""
    outcome = []

    def look():
        try:
            outcome.append(work())
        except Exception as error:  # noqa: BLE001 - the test looks at it
            outcome.append(error)

    assert least_s(look, looks=1) < MAX_S or least_s(look, looks=1) < MAX_S
    return outcome[0]


@pytest.mark.parametrize("name", ANSWERED)
def test_arguments_are_refused_in_time(name):
    schema, value = ANSWERED[name]
    problem = within_limit(lambda: ArgumentCheck("bomb", "foreign", schema).problem(value))
    assert isinstance(problem, str)
    assert problem.startswith("Bad arguments for bomb: ")


@pytest.mark.parametrize("name", REFUSED)
def test_a_schema_beyond_a_limit_is_refused_by_name(name):
    schema, limit = REFUSED[name]
    error = within_limit(lambda: compile_checks("foreign", [offered(schema)]))
    assert isinstance(error, ToolLimitError)
    assert str(error).startswith(
        "E-LIMIT-001 server 'foreign' describes the arguments of tool 'bomb' with a schema that"
    )
    assert limit in str(error)
    assert "servers.settings.foreign.deny" in error.fix


@pytest.mark.parametrize("name", [*ANSWERED, *REFUSED])
def test_what_a_grammar_holds_is_known_in_time(name):
    schema = (ANSWERED | REFUSED)[name][0]
    outcome = within_limit(lambda: rewrite(schema)[1])
    assert isinstance(outcome, tuple | OverLimitError)


def test_choices_inside_choices_end_with_a_named_limit():
    choice = {"type": "string"}
    for _ in range(5):
        choice = {"anyOf": [arguments(x=choice, **{f"y{i}": {}}) for i in range(6)]}
    assert isinstance(within_limit(lambda: rewrite(arguments(a=choice))), OverLimitError)


def test_a_pattern_that_cannot_be_linear_is_left_to_the_server_and_named(caplog):
    schema = arguments(email={"type": "string", "pattern": r"^(?!\.)\S+@\S+$"}, city={"type": "string"})
    check = ArgumentCheck("mail", "foreign", schema)
    assert check.unenforced == (r"the pattern '^(?!\\.)\\S+@\\S+$'",)
    assert check.problem({"email": "nonsense"}) is None
    assert (
        check.problem({"email": "a@b", "city": 1})
        == "Bad arguments for mail: argument 'city' must be string, not integer."
    )
    # What depends on whether it matches is not held against a call either.
    for keyword, value in (("not", schema["properties"]["email"]), ("oneOf", [schema["properties"]["email"], {}])):
        assert ArgumentCheck("mail", "foreign", arguments(email={keyword: value})).problem({"email": "x"}) is None


def test_patterns_mean_what_json_schema_says():
    check = ArgumentCheck("t", "s", arguments(a={"pattern": r"^\p{Lu}\w*$"}, b={"pattern": "^[[]x$"}))
    assert check.unenforced == ()
    assert check.problem({"a": "Ána", "b": "[x"}) is None
    assert check.problem({"a": "Aná"}) is not None  # \w is ASCII
    assert check.problem({"b": "[x\n"}) is not None  # $ is the end and nothing else


# ---- while a server starts


def spec(*tools, **settings):
    async def list_tools(context, params):
        return ListToolsResult(tools=list(tools))

    async def call_tool(context, params):
        return CallToolResult(content=[TextContent(type="text", text="x")], structured_content={"a": TEXT})

    def make():
        return Server("foreign", on_list_tools=list_tools, on_call_tool=call_tool)

    return ServerSpec(name="foreign", make=make, settings=ServerSettings(**settings))


def listed(name, schema, **fields):
    return ListedTool(name=name, input_schema=schema, **fields)


class Heartbeat:
    """How long the event loop was kept from anything else, at most."""

    async def __aenter__(self):
        self.longest_s = 0.0
        self._task = asyncio.create_task(self._beat())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_):
        await asyncio.sleep(0.02)
        self._task.cancel()

    async def _beat(self):
        while True:
            # Processor time of this thread: what other processes do meanwhile is not the event loop's fault.
            before = time.thread_time()
            await asyncio.sleep(0.01)
            self.longest_s = max(self.longest_s, time.thread_time() - before)


@pytest.mark.parametrize("name", REFUSED)
async def test_the_event_loop_goes_on_while_a_bomb_is_refused(name, tmp_path):
    schema, limit = REFUSED[name]
    async with Heartbeat() as heart:
        with pytest.raises(ToolLimitError, match=limit):
            async with Toolbox([spec(listed("bomb", schema), listed("fine", {"type": "object"}))], log_dir=tmp_path):
                pass
    assert heart.longest_s < MAX_DELAY_S


@pytest.mark.parametrize("name", REFUSED)
async def test_the_fix_works_a_denied_bomb_is_no_trouble(name, tmp_path):
    tools = listed("bomb", REFUSED[name][0]), listed("fine", {"type": "object"})
    async with Toolbox([spec(*tools, deny=["bomb"])], log_dir=tmp_path) as toolbox:
        assert toolbox.catalog.names == ("fine",)


async def test_a_list_that_is_too_long_is_refused(tmp_path):
    tools = [listed(f"tool_{i}", arguments(a={"const": "x" * 400_000})) for i in range(30)]
    with pytest.raises(ToolLimitError, match=r"the tool list of server .* is longer than 8388608 bytes"):
        async with Toolbox([spec(*tools)], log_dir=tmp_path):
            pass


async def test_compiling_that_takes_longer_than_a_start_may_is_a_failed_start(tmp_path, monkeypatch):
    begun, released = threading.Event(), threading.Event()

    def slow(server, tools):
        begun.set()
        released.wait(60)
        return compile_checks(server, tools)

    monkeypatch.setattr("mcprl.tools.toolbox.compile_checks", slow)
    monkeypatch.setattr("mcprl.tools.connection.START_S", 0.5)
    with pytest.raises(ServerStartError, match=r"the tool schemas of server .foreign. were not compiled within 0\.5 s"):
        async with Toolbox([spec(listed("fine", {"type": "object"}))], log_dir=tmp_path):
            pass
    released.set()
    assert begun.is_set()


async def test_results_are_held_to_output_schemas_in_time(tmp_path, caplog):
    promised = {
        "slow": {"type": "object", "properties": {"a": {"type": "string", "pattern": PATTERN}}},
        "bomb": doubled(22),
        "kept": {"type": "object", "required": ["a"]},
    }
    tools = [listed(name, {"type": "object"}, output_schema=schema) for name, schema in promised.items()]
    async with Toolbox([spec(*tools)], log_dir=tmp_path) as toolbox, toolbox.lease(None) as lease, Heartbeat() as heart:
        assert (await lease.call(ToolCall(name="kept", arguments={}))).text == "x"
        with pytest.raises(ServerFaultError, match="does not match"):
            await lease.call(ToolCall(name="slow", arguments={}))
        with caplog.at_level(logging.WARNING):
            assert (await lease.call(ToolCall(name="bomb", arguments={}))).text == "x"
    assert "results of tool 'bomb' are not checked: its output schema has more than" in caplog.text
    assert heart.longest_s < MAX_DELAY_S


async def test_an_unenforced_pattern_is_logged_with_server_and_tool(tmp_path, caplog):
    tool = listed("mail", arguments(to={"type": "string", "pattern": "^(?!x)"}))
    with caplog.at_level(logging.WARNING):
        async with Toolbox([spec(tool)], log_dir=tmp_path):
            pass
    assert "server 'foreign': the pattern '^(?!x)' of tool 'mail' is not enforced by mcprl" in caplog.text


# ---- mutated schemas

SEEDS = [
    *(schema for schema, _ in ANSWERED.values() if len(json.dumps(schema)) < 2000),
    doubled(3),
    arguments(a={"oneOf": [{"const": 1}, {"$ref": "#/properties/b"}]}, b={"if": {"type": "string"}, "then": {}}),
    {
        "type": "object",
        "dependentSchemas": {"a": {"$ref": "#"}},
        "unevaluatedProperties": False,
        "default": {"type": 5},
    },
]
WORDS = ("$ref", "allOf", "anyOf", "not", "pattern", "enum", "type", "items", "properties", "$defs", "required", "if")
VALUES = (
    "#",
    "#/default",
    "#/$defs/d0",
    PATTERN,
    "(",
    "a{99999999999}",
    "\ud800",
    1e300,
    -1,
    None,
    True,
    [],
    {},
    ["object"],
)


def mutated(schema, choices):
    """The schema with a few parts swapped, repeated, renamed or replaced."""
    schema = copy.deepcopy(schema)
    for _ in range(choices.randint(1, 4)):
        places = []
        pending = [schema]
        while pending:
            part = pending.pop()
            keys = part.keys() if isinstance(part, dict) else range(len(part))
            places += [(part, key) for key in keys]
            pending += [part[key] for key in keys if isinstance(part[key], dict | list)]
        if not places:
            schema["allOf"] = [{"$ref": "#"}]
            continue
        part, key = choices.choice(places)
        other, inner = choices.choice(places)
        kind = choices.randrange(4)
        if kind == 0:
            part[key] = choices.choice(VALUES)
        elif kind == 1:
            part[key] = copy.deepcopy(other[inner])
        elif kind == 2 and isinstance(part, dict):
            part[choices.choice(WORDS)] = copy.deepcopy(part[key])
        elif isinstance(part, dict):
            part[key] = {"allOf": [copy.deepcopy(part[key])] * 3}
    return schema


def use_mutated(seed):
    choices = random.Random(seed)
    schema = mutated(choices.choice(SEEDS), choices)
    try:
        check = ArgumentCheck("bomb", "foreign", schema)
    except (ToolLimitError, BadToolSchemaError):
        return
    for value in ({}, {"a": TEXT}, {"a": 1, "b": {"a": {}}}, {"next": {"next": {}}}):
        check.problem(value)
    with suppress(OverLimitError):
        rewrite(schema)


def test_a_mutated_schema_is_used_or_refused_by_name():
    for seed in range(300):
        assert within_limit(partial(use_mutated, seed)) is None, seed


@pytest.mark.parametrize("inner", [{"$ref": "#/$defs/a"}, {"anyOf": [{"$ref": "#/$defs/a"}]}])
def test_a_schema_that_refers_to_itself_without_end_is_refused(inner):
    """Python's own limit, met inside a library written in Rust, would be a panic that no handler catches."""
    with pytest.raises(BadSchemaError, match="its references lead back to themselves"):
        SchemaCheck({"$defs": {"a": inner}, "$ref": "#/$defs/a"}).error({"x": 1})

"""BFCL's simulators over MCP: gold calls through the real server, one an episode, end where direct execution ends."""

import asyncio
import json
import sys
from dataclasses import replace

import pytest
from mcp import Client

from mcprl.config import ServerSettings
from mcprl.episodes.loop import lease_for
from mcprl.errors import BadValueError
from mcprl.records import StopReason, ToolCall
from mcprl.tools import ServerSpec, Toolbox

pytest.importorskip("bfcl_eval", reason="needs the wheel: pip install --no-deps bfcl-eval==2026.3.23 mpmath")

from mcprl_suites.bfcl.server import BEGIN, STATE, make_server
from mcprl_suites.bfcl.simulators import Simulators, all_tools
from mcprl_suites.bfcl.suite import gold_calls, judge_turns, make_suite, play_calls, server_settings
from mcprl_suites.bfcl.wheel import entry_of

SUITE = make_suite()
TASKS = SUITE.tasks()
OVER_STDIO = TASKS[::100]
"""Two of each category. `bench/bfcl.py --gold` plays 40 of them, or all."""


def in_memory(tmp_path):
    settings = server_settings()
    return Toolbox([ServerSpec(name="bfcl", make=make_server, settings=settings)], log_dir=tmp_path)


def over_stdio(tmp_path):
    arguments = ("-m", "mcprl", "serve", "bfcl")
    spec = ServerSpec(name="bfcl", command=sys.executable, args=arguments, settings=server_settings())
    return Toolbox([spec], log_dir=tmp_path)


def direct_texts(entry):
    simulators = Simulators(entry)
    return [simulators.call(call.name, call.arguments).text for calls in gold_calls(entry) for call in calls]


def seen_texts(turns):
    return [seen.text for turn in turns for seen in turn.observations]


async def assert_gold_solves(toolbox, tasks, *, at_once):
    places = asyncio.Semaphore(at_once)

    async def one(task):
        entry = entry_of(task.id)
        async with places:
            played = await play_calls(task, toolbox, gold_calls(entry))
        judged = judge_turns(entry, StopReason.ANSWERED, played.turns)
        # The world behind the server is the one that the answers leave behind, and no text was changed on its way.
        same_texts = seen_texts(played.turns) == direct_texts(entry)
        return task.id, judged.success, played.parts["state"] == 1.0, same_texts

    played = await asyncio.gather(*map(one, tasks))
    assert [found for found in played if not all(found[1:])] == []


@pytest.mark.process
async def test_gold_calls_solve_tasks_of_all_categories_over_stdio_one_server_an_episode(tmp_path):
    assert {SUITE.category(task) for task in OVER_STDIO} == {"base", "miss_func", "miss_param", "long_context"}
    async with over_stdio(tmp_path) as toolbox:
        await assert_gold_solves(toolbox, OVER_STDIO, at_once=2)


@pytest.mark.slow
async def test_gold_calls_solve_all_800_tasks_through_one_server_that_keeps_episodes_apart(tmp_path):
    settings = server_settings().model_copy(update={"isolation": "shared"})
    spec = ServerSpec(name="bfcl", make=make_server, settings=settings)
    async with Toolbox([spec], log_dir=tmp_path) as toolbox:
        await assert_gold_solves(toolbox, TASKS, at_once=16)
    assert len(TASKS) == 800


async def test_without_a_call_no_task_is_solved(tmp_path):
    async with in_memory(tmp_path) as toolbox:
        for task in TASKS[::160]:
            played = await play_calls(task, toolbox, [()] * (1 + len(task.follow_ups)))
            judged = judge_turns(entry_of(task.id), StopReason.ANSWERED, played.turns)
            assert not judged.success
            assert judged.failure == "no call although one is needed"


async def test_a_world_is_put_in_place_once_and_by_its_id():
    async with Client(make_server()) as client:

        async def call(tool, **arguments):
            result = await client.call_tool(tool, arguments)
            return result.content[0].text, result.is_error

        assert await call("ls") == (f"No task has been started: call {BEGIN} first.", True)
        text, is_error = await call(BEGIN, task_id="multi_turn_base_9999")
        assert "no multi-turn task" in text
        assert is_error
        assert await call(BEGIN, task_id="multi_turn_base_0") == ("multi_turn_base_0", False)
        assert (await call(BEGIN, task_id="multi_turn_base_1"))[1]
        assert await call("cd", folder="document") == ('{"current_working_directory": "document"}', False)
        assert (await call("cd", folder="nowhere"))[1]
        assert await call("mean", numbers=[1, 2]) == ("This task has no tool 'mean'.", True)
        digest, state = (await call(STATE))[0].split("\n", 1)
        assert len(digest) == 64
        assert set(json.loads(state)) == {"TwitterAPI", "GorillaFileSystem"}


async def test_only_documented_methods_are_tools():
    async with Client(make_server()) as client:
        listed = {tool.name for tool in (await client.list_tools()).tools}
        assert listed == {*all_tools(), BEGIN, STATE}
        assert not any(name.startswith("_") for name in listed)
        await client.call_tool(BEGIN, {"task_id": "multi_turn_base_0"})
        for name in ("_load_scenario", "__init__", "eval", "root"):
            assert (await client.call_tool(name, {})).is_error


@pytest.mark.parametrize("isolation", ["per_episode", "shared"])
async def test_episodes_do_not_share_a_world(tmp_path, isolation):
    settings = ServerSettings(isolation=isolation)
    spec = ServerSpec(name="bfcl", make=make_server, settings=settings)
    task = TASKS[0]
    async with Toolbox([spec], log_dir=tmp_path) as toolbox, lease_for(task, toolbox, lives_s=60) as one:
        await one.call(ToolCall(name="cd", arguments={"folder": "document"}))
        async with lease_for(task, toolbox, lives_s=60) as other:
            listed = await other.call(ToolCall(name="pwd", arguments={}))
            assert listed.text == '{"current_working_directory": "/workspace"}'
        listed = await one.call(ToolCall(name="pwd", arguments={}))
        assert listed.text == '{"current_working_directory": "/workspace/document"}'


async def test_a_task_whose_world_is_unknown_is_reported(tmp_path):
    lost = replace(TASKS[0], setup=(ToolCall(name=BEGIN, arguments={"task_id": "multi_turn_base_200"}),))
    async with in_memory(tmp_path) as toolbox:
        with pytest.raises(BadValueError, match=r"the setup of task .* failed"):
            async with lease_for(lost, toolbox, lives_s=60):
                pass

"""A toolbox of real servers: its catalog, its leases, and whose fault a failed call is."""
# R14, R15

import asyncio
import copy
import json
import subprocess
import sys
from dataclasses import replace

import pytest
import pytest_asyncio
from live_servers import is_alive, script_spec

from mcprl.errors import (
    DuplicateToolError,
    EmptyCatalogError,
    Fault,
    ServerFaultError,
    ServerLostError,
    ServerStartError,
    UnknownToolError,
)
from mcprl.records import ToolCall
from mcprl.tools import Toolbox, load_server_specs

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="module")]


def call(name, /, **arguments):
    return ToolCall(name=name, arguments=arguments)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lease(tmp_path_factory):
    """One process for all tests that only call it; none of them may harm it."""
    specs = [script_spec("faulty_server.py")]
    async with Toolbox(specs, log_dir=tmp_path_factory.mktemp("logs")) as toolbox, toolbox.lease(None) as lease:
        yield lease
        assert toolbox.restarts == 0


async def test_tools_of_several_servers_make_one_catalog_and_answer_in_one_lease(time_spec, directory_spec, tmp_path):
    async with Toolbox([time_spec, directory_spec], log_dir=tmp_path) as toolbox:
        assert toolbox.catalog.names == ("get_current_time", "convert_time", "find_person", "list_people")
        async with toolbox.lease(["find_person", "convert_time"]) as lease:
            assert [tool.name for tool in lease.tools] == ["find_person", "convert_time"]
            found = await lease.call(call("find_person", name="Ana"))
            assert (found.text, found.fault, found.server) == ("Ana: Lima, America/Lima", None, "directory")
            assert found.latency_s > 0
            when = {"source_timezone": "America/Lima", "time": "09:30", "target_timezone": "Asia/Tokyo"}
            converted = await lease.call(call("convert_time", **when))
            assert (converted.fault, converted.server) == (None, "time")
            assert json.loads(converted.text)["target"]["datetime"].endswith("T23:30:00+09:00")
        pids = [*toolbox.pids("time"), *toolbox.pids("directory")]
        assert toolbox.restarts == 0
    assert [is_alive(pid) for pid in pids] == [False, False]


async def test_the_standard_file_is_all_it_takes(stdio_spec, tmp_path):
    path = tmp_path / "servers.json"
    entry = {"command": stdio_spec.command, "args": list(stdio_spec.args)}
    path.write_text(json.dumps({"mcpServers": {"faulty": entry}}))
    async with (
        Toolbox(load_server_specs(path, {}), log_dir=tmp_path / "logs") as toolbox,
        toolbox.lease(["echo"]) as lease,
    ):
        assert (await lease.call(call("echo", text="x"))).text == "x"


async def test_an_unknown_tool_is_the_policys_fault_and_gets_a_suggestion(lease):
    observation = await lease.call(call("ecko", text="x"))
    assert (observation.fault, observation.server) == (Fault.POLICY, None)
    assert observation.text == "There is no tool 'ecko'. Did you mean 'echo'?"


async def test_a_tool_outside_the_lease_is_unknown(stdio_spec, tmp_path):
    async with Toolbox([stdio_spec], log_dir=tmp_path) as toolbox, toolbox.lease(["echo"]) as lease:
        observation = await lease.call(call("crash"))
        assert observation.fault is Fault.POLICY
        assert observation.text == "There is no tool 'crash'. The tools are: echo."


async def test_an_unparsable_call_is_answered_with_its_problem(lease):
    observation = await lease.call(ToolCall(name="echo", arguments={}, problem="The call is not JSON."))
    assert (observation.text, observation.fault) == ("The call is not JSON.", Fault.POLICY)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"nights": 2}, "missing argument 'city' (string)"),
        ({"city": "Lima", "nights": "two"}, "argument 'nights' must be integer, not string"),
        ({"city": "Lima", "nights": 0}, "argument 'nights' is 0, which violates minimum 1"),
        ({"city": "Lima", "nights": 1, "room": "attic"}, "argument 'room' must be one of 'single', 'double'"),
        ({"city": "Lima", "nights": 1, "guests": ["Ana", 3]}, "argument 'guests.1' must be string, not integer"),
        ({"city": "\ud800", "nights": 1}, "argument 'city' contains text that is not valid Unicode"),
        ({"city": "Lima", "nights": float("nan")}, "argument 'nights' contains nan, which is not a JSON number"),
    ],
)
async def test_bad_arguments_are_explained_to_the_policy_in_one_line(lease, arguments, problem):
    before = copy.deepcopy(arguments)
    observation = await lease.call(ToolCall(name="book", arguments=arguments))
    assert observation.fault is Fault.POLICY
    assert observation.text.startswith(f"Bad arguments for book: {problem}")
    assert "\n" not in observation.text
    assert repr(arguments) == repr(before)


async def test_a_tools_own_failure_is_the_policys_to_read(lease):
    observation = await lease.call(call("fail"))
    assert observation.fault is Fault.POLICY
    assert "the disk is full" in observation.text


async def test_invalid_parameters_at_the_protocol_level_are_the_policys_fault(lease):
    observation = await lease.call(call("protocol_error", code=-32602, message="no such city"))
    assert (observation.text, observation.fault) == ("no such city", Fault.POLICY)


@pytest.mark.parametrize("code", [-32603, -32000, 7])
async def test_any_other_protocol_error_is_the_servers_fault(lease, code):
    with pytest.raises(ServerFaultError, match=f"'protocol_error' with error {code}: it broke"):
        await lease.call(call("protocol_error", code=code, message="it broke"))


async def test_a_result_that_breaks_its_output_schema_is_the_servers_fault(tmp_path):
    spec = script_spec("careless_server.py", name="careless")
    async with Toolbox([spec], log_dir=tmp_path) as toolbox, toolbox.lease(None) as lease:
        assert (await lease.call(call("right"))).text == "here it is"
        for tool in ("wrong_type", "missing"):
            with pytest.raises(ServerFaultError, match=f"E-TOOL-013 .* '{tool}' with a malformed result"):
                await lease.call(call(tool))


async def test_a_lost_server_is_raised_and_counted(stdio_spec, tmp_path):
    async with Toolbox([stdio_spec], log_dir=tmp_path) as toolbox, toolbox.lease(None) as lease:
        with pytest.raises(ServerLostError):
            await lease.call(call("crash"))
        assert (await lease.call(call("echo", text="back"))).text == "back"
        assert toolbox.restarts == 1


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        ("picture", "[image omitted]"),
        ("structured", '{"city":"Bogotá","rank":[1,2]}'),
        ("two_texts", "one\ntwo\n[image omitted]"),
    ],
)
async def test_every_kind_of_content_becomes_text(lease, tool, text):
    observation = await lease.call(call(tool))
    assert (observation.text, observation.fault) == (text, None)


async def test_a_lease_of_a_tool_that_no_server_lists_is_refused(stdio_spec, tmp_path):
    async with Toolbox([stdio_spec], log_dir=tmp_path) as toolbox:
        with pytest.raises(UnknownToolError, match=r"E-TOOL-003 no server offers the tool 'ecko'.*did you mean 'echo'"):
            async with toolbox.lease(["ecko"]):
                pass


async def test_two_servers_with_one_tool_name_are_refused_and_ended(stdio_spec, tmp_path):
    twin = replace(stdio_spec, name="twin")
    toolbox = Toolbox([stdio_spec, twin], log_dir=tmp_path)
    tasks_before = asyncio.all_tasks()
    with pytest.raises(DuplicateToolError, match="servers 'faulty' and 'twin' both offer a tool named 'echo'"):
        await toolbox.__aenter__()
    assert [toolbox.pids(name) for name in ("faulty", "twin")] == [(), ()]
    assert asyncio.all_tasks() == tasks_before


async def test_one_server_that_does_not_start_ends_the_others(stdio_spec, tmp_path):
    bad = replace(script_spec("faulty_server.py", "--no-such-option"), name="bad")
    toolbox = Toolbox([stdio_spec, bad], log_dir=tmp_path)
    tasks_before = asyncio.all_tasks()
    with pytest.raises(ServerStartError, match=r"(?s)server 'bad' did not start.*no-such-option"):
        await toolbox.__aenter__()
    assert asyncio.all_tasks() == tasks_before


async def test_no_servers_are_an_empty_catalog(tmp_path):
    with pytest.raises(EmptyCatalogError, match="E-TOOL-004"):
        await Toolbox([], log_dir=tmp_path).__aenter__()


async def test_servers_do_not_outlive_a_loop_that_is_interrupted(stdio_spec, tmp_path):
    # An interrupted `asyncio.run` cancels every task at once, the owners of the connections among them.
    script = f"""
import asyncio, os, signal
from pathlib import Path
from mcprl.tools import ServerSpec, Toolbox
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits that it is ignored
specs = [ServerSpec(name="a", command={stdio_spec.command!r}, args={stdio_spec.args!r})]
async def main():
    async with Toolbox(specs, log_dir=Path({str(tmp_path)!r})) as toolbox:
        print(toolbox.pids("a")[0], flush=True)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
asyncio.run(main())
"""
    command = [sys.executable, "-c", script]
    run = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=900)
    assert "KeyboardInterrupt" in run.stderr
    assert not is_alive(int(run.stdout))

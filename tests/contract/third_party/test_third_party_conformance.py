"""Every third-party server through the same few questions: its tools, its answers, its errors, many calls at once."""
# R14, R15, R17, R21

import asyncio
from dataclasses import replace

import pytest
from third_party_servers import FILESYSTEM, NUM_READS, SQLITE

from mcprl.config import ServerSettings
from mcprl.errors import Fault
from mcprl.tools import Toolbox

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="module")]


async def test_its_tools_are_listed_with_schemas_that_find_what_is_missing(server, toolbox):
    assert toolbox.catalog.names == server.tools
    for tool in toolbox.catalog:
        assert tool.description
        problem = toolbox.catalog.check(tool.name).problem({})
        assert (problem is not None) == bool(tool.parameters.get("required"))


async def test_a_series_of_calls_is_answered_and_does_what_it_says(server, folder, toolbox):
    async with toolbox.lease(None) as lease:
        for expected in server.series(folder):
            observation = await lease.call(expected.call)
            assert expected.text in observation.text
            assert (observation.fault, observation.server, observation.attempts) == (None, server.name, 1)
    assert server.evidence(folder)


async def test_bad_arguments_are_explained_to_the_policy(server, toolbox):
    expected = server.bad_arguments
    async with toolbox.lease(None) as lease:
        observation = await lease.call(expected.call)
    assert observation.fault is Fault.POLICY
    assert observation.text.startswith(f"Bad arguments for {expected.call.name}: {expected.text}")


async def test_what_a_tool_refuses_is_the_policys_to_read(server, folder, toolbox):
    async with toolbox.lease(None) as lease:
        for expected in server.refused(folder):
            observation = await lease.call(expected.call)
            assert observation.fault is Fault.POLICY
            assert expected.text in observation.text


async def test_calls_in_flight_together_each_get_their_own_answer(server, folder, toolbox):
    expected = [server.read(folder, number) for number in range(NUM_READS)]
    async with toolbox.lease(None) as lease:
        observations = await asyncio.gather(*(lease.call(each.call) for each in expected))
    assert [observation.fault for observation in observations] == [None] * NUM_READS
    for number, observation in enumerate(observations):
        assert [n for n, each in enumerate(expected) if each.text in observation.text] == [number]
    assert toolbox.restarts == 0


@pytest.mark.parametrize("disguising", [SQLITE, FILESYSTEM], ids=lambda server: server.name)
async def test_some_servers_call_an_error_a_success_which_only_a_rule_undoes(disguising, third_party_program, tmp_path):
    """What the rules in these servers' settings are for. Where this fails, a server was mended: drop its rule."""
    program = third_party_program(disguising.name)
    spec = replace(disguising.spec(program, tmp_path), settings=ServerSettings())
    refused = disguising.refused(tmp_path)[-1]
    async with Toolbox([spec], log_dir=tmp_path / "logs") as toolbox, toolbox.lease(None) as lease:
        observation = await lease.call(refused.call)
    assert refused.text in observation.text
    assert observation.fault is None

"""A policy's code cannot pass its failure off as the sandbox's, and cannot disturb another episode on its server."""
# R14, R15

from __future__ import annotations

import asyncio
import os
import shutil
import sys

import pytest
from sandbox_attacks import BLAMES, NEIGHBOR_ATTACKS

from mcprl.config import ServerSettings
from mcprl.errors import Fault, InfrastructureError
from mcprl.records import Observation, ToolCall
from mcprl.tools import ServerSpec, Toolbox, ToolLease
from mcprl_market.python.launch import Isolation, likely_isolation

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing: run scripts/setup"),
]

ISOLATIONS = (
    [Isolation.OWN_USER, pytest.param(Isolation.USER_NAMESPACE, marks=pytest.mark.full)]
    if likely_isolation() is Isolation.OWN_USER
    else [Isolation.USER_NAMESPACE]
)
# `mcprl serve python` with an isolation of our choice, and limits that end programs sooner.
SERVER = """
import sys
from mcprl.servers import run
from mcprl_market.python import launch, server
from mcprl_market.python.launch import Isolation
from mcprl_market.python.programs import Limits
launch.likely_isolation = lambda: Isolation(sys.argv[1])
server.Limits = lambda: Limits(cpu_s=1, deadline_s=4.0, memory_bytes=512 * 1024 * 1024)
run(server.make_server(world=None), transport="stdio", port=0)
"""
AT_ONCE = 4
ATTACKERS = 3  # one less than run at once
PRICES = [1, 2, 3]
LOOK = "import json, os\n[sum(context['prices']), json.loads('[1]'), sorted(context), os.listdir('/tmp')]"
SEEN = 'Result: [6, [1], ["prices"], []]'
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")


def served(isolation: Isolation) -> ServerSpec:
    settings = ServerSettings(attempts=1, call_deadline_s=60.0)
    return ServerSpec(
        name="python", command=sys.executable, args=("-c", SERVER, isolation.value), env={}, settings=settings
    )


async def run_code(lease: ToolLease, code: str) -> Observation:
    return await lease.call(ToolCall(name="execute_python", arguments={"code": code}))


async def in_an_episode(toolbox: Toolbox, code: str) -> Observation | str:
    """What came of the code in an episode of its own; as text, why the episode was lost."""
    try:
        async with toolbox.lease(None) as lease:
            return await run_code(lease, code)
    except InfrastructureError as error:
        return f"lost: {error}"


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_code_that_fails_is_never_taken_for_a_failure_of_the_sandbox(isolation, tmp_path):
    left = iter(BLAMES.items())
    wrong: dict[str, object] = {}

    async with Toolbox([served(isolation)], log_dir=tmp_path) as toolbox:

        async def work() -> None:
            for name, code in left:
                seen = await in_an_episode(toolbox, code)
                if isinstance(seen, str) or seen.fault is not Fault.POLICY:
                    wrong[name] = seen

        await asyncio.gather(*[work() for _ in range(AT_ONCE)])
    assert wrong == {}


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_an_attack_on_a_neighbor_changes_none_of_its_answers(isolation, tmp_path):
    wrong: dict[str, object] = {}
    async with Toolbox([served(isolation)], log_dir=tmp_path) as toolbox:
        for name, code in NEIGHBOR_ATTACKS.items():
            before = [os.stat(device) for device in DEVICES]
            try:
                answers = await answers_beside(toolbox, code)
            except InfrastructureError as error:
                answers = {f"lost: {error}"}
            if answers != {SEEN, str(PRICES)}:
                wrong[name] = answers
            if [os.stat(device) for device in DEVICES] != before:
                wrong[name] = "it changed a device"
    assert wrong == {}


async def answers_beside(toolbox: Toolbox, attack: str) -> set[str]:
    """What a neighbor is answered, all told, while attackers run in other episodes and right after."""
    async with toolbox.lease(None) as neighbor:
        await neighbor.call(
            ToolCall(name="store_execution_result", arguments={"context_key": "prices", "data": PRICES})
        )
        attackers = asyncio.gather(*[in_an_episode(toolbox, attack) for _ in range(ATTACKERS)])
        answers: set[str] = set()
        is_over = False
        while not is_over:
            is_over = attackers.done()
            answers.add((await run_code(neighbor, LOOK)).text)
        answers.update(seen for seen in await attackers if isinstance(seen, str))
        stored = await neighbor.call(ToolCall(name="get_execution_context", arguments={"context_key": "prices"}))
        return answers | {stored.text}

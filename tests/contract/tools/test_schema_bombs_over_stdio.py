"""Servers whose lists of tools are bombs: `tools list` names them, and nothing else waits for them."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import pytest

from mcprl.errors import ToolLimitError
from mcprl.tools import ServerSpec, Toolbox
from mcprl.tools.specs import ServerSettings
from processor_time import uncollected

pytestmark = pytest.mark.process

SERVER = Path(__file__).with_name("bomb_server.py")
MAX_S = 8.0  # twice what it may take: no bar of the gate decides over a busy machine
MAX_DELAY_S = 4.0  # the SDK parses a list of 20,000 tools on the event loop, which takes it one to two seconds
BOMBS = {
    "references": (("1", "22"), "of tool 'tool_0' with a schema that has more than 10000 schemas in a single position"),
    "tools": (("20000", "0"), "server 'bomb' offers 20000 tools, but at most 1000 are allowed"),
}


def bomb_spec(args, **settings):
    command = ("-S", str(SERVER), *args)
    return ServerSpec(name="bomb", command=sys.executable, args=command, settings=ServerSettings(**settings))


async def longest_block_s(work):
    """How much processor time the event loop spent at most without a look at anything else, and what work raised."""
    longest_s = 0.0

    async def beat():
        nonlocal longest_s
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.01)
            longest_s = max(longest_s, time.thread_time() - before)

    beating = asyncio.create_task(beat())
    try:
        await work
    except ToolLimitError as error:
        return longest_s, error
    finally:
        beating.cancel()
    raise AssertionError("no limit was named")


async def opened(spec, folder):
    async with Toolbox([spec], log_dir=folder):
        pass


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("name", BOMBS)
async def test_a_bomb_is_refused_by_name_and_the_event_loop_goes_on(name, tmp_path):
    args, what = BOMBS[name]
    with uncollected():
        started = time.process_time()
        longest_s, error = await longest_block_s(opened(bomb_spec(args), tmp_path))
        taken_s = time.process_time() - started
    assert what in str(error)
    assert longest_s < MAX_DELAY_S
    assert taken_s < MAX_S


async def test_of_twenty_thousand_tools_those_that_are_needed_can_be_had(tmp_path):
    async with Toolbox([bomb_spec(("20000", "0"), allow=["tool_7"])], log_dir=tmp_path) as toolbox:
        assert toolbox.catalog.names == ("tool_7",)


async def test_tools_list_names_the_bomb(tmp_path):
    args, what = BOMBS["references"]
    entry = {"command": sys.executable, "args": ["-S", str(SERVER), *args]}
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": {"bomb": entry}}))
    (tmp_path / "tasks.jsonl").write_text("")
    (tmp_path / "recipe.yaml").write_text(
        "name: bomb\nmodel: {path: ./model}\nservers: {file: servers.json}\ntasks: {train: tasks.jsonl}\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mcprl", "tools", "list", "recipe.yaml"),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await asyncio.wait_for(process.communicate(), 120)
    text = " ".join(said.decode().split())
    assert process.returncode == 2, text
    assert "E-LIMIT-001" in text
    assert what in text

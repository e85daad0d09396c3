"""Our stdio transport under the SDK's client, against real processes that behave well, badly and not at all."""

# R15

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from live_servers import HERE, is_alive
from mcp import Client, MCPError
from mcp.client.session import IncomingMessage
from mcp_types import CONNECTION_CLOSED, CallToolResult, TextContent, ToolListChangedNotification

from mcprl.config import ServerSettings
from mcprl.tools import ServerSpec
from mcprl.tools.session import find_program, port_answers, start_child
from mcprl.tools.transports.messages import TransportOutcome, Trouble, outcome_of
from mcprl.tools.transports.stdio import stdio_transport

pytestmark = pytest.mark.process

LIMIT = 1_000_000
DEADLINE_S = 60.0


class Talk:
    """A client, and what the transport said about its server."""

    client: Client

    def __init__(self) -> None:
        self.num_messages = 0
        self.ended = asyncio.Event()
        self.tools_changed = asyncio.Event()

    def on_message(self) -> None:
        self.num_messages += 1

    async def handle(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self.tools_changed.set()

    async def text(self, tool: str, **arguments: object) -> str:
        async with asyncio.timeout(DEADLINE_S):
            return text_of(await self.client.call_tool(tool, dict(arguments)))

    async def outcome(self, tool: str, **arguments: object) -> TransportOutcome:
        """What the transport answers in the server's place."""
        with pytest.raises(MCPError) as caught:
            await self.text(tool, **arguments)
        outcome = outcome_of(caught.value)
        assert outcome is not None, caught.value
        return outcome


def text_of(result: CallToolResult) -> str:
    return "".join(part.text for part in result.content if isinstance(part, TextContent))


def script(name: str) -> ServerSpec:
    return ServerSpec(name=name, command=sys.executable, args=(str(HERE / f"{name}_server.py"),))


@asynccontextmanager
async def talk_to(spec: ServerSpec, folder: Path) -> AsyncGenerator[Talk]:
    talk = Talk()
    child = await start_child(spec, port=None, log=folder / f"{spec.name}.log")
    try:
        transport = stdio_transport(child, max_message_bytes=LIMIT, on_end=talk.ended.set, on_message=talk.on_message)
        async with Client(transport, cache=None, message_handler=talk.handle) as talk.client:
            await talk.client.list_tools()  # the SDK would ask after the first call otherwise
            yield talk
    finally:
        await child.stop()
        assert not is_alive(child.pid)


@asynccontextmanager
async def own_task(spec: ServerSpec, folder: Path) -> AsyncGenerator[Talk]:
    """The same in a task of its own, because a fixture begins and ends in different ones, which the SDK refuses."""
    opened: asyncio.Future[Talk] = asyncio.get_running_loop().create_future()
    done = asyncio.Event()

    async def own() -> None:
        async with talk_to(spec, folder) as talk:
            opened.set_result(talk)
            await done.wait()

    owner = asyncio.create_task(own())
    await asyncio.wait({owner, opened}, return_when=asyncio.FIRST_COMPLETED)
    if not opened.done():
        await owner  # raises why
    yield opened.result()
    done.set()
    await owner


@pytest.fixture
async def flooding(tmp_path, monkeypatch):
    # Of the 10 s that the rest of a line may take, a busy machine may take as much itself.
    monkeypatch.setattr("mcprl.tools.transports.stdio._MAX_FLOOD_S", 300.0)
    async with own_task(script("flooding"), tmp_path) as talk:
        yield talk


@pytest.fixture
async def faulty(tmp_path):
    async with own_task(script("faulty"), tmp_path) as talk:
        yield talk


async def test_calls_are_answered_one_by_one_and_many_at_once(faulty):
    assert await faulty.text("echo", text="é\n\u2028") == "é\n\u2028"
    texts = [str(number) * 100 for number in range(64)]
    assert await asyncio.gather(*(faulty.text("echo", text=text) for text in texts)) == texts
    assert faulty.num_messages >= 65


async def test_large_arguments_and_results_cross_without_a_deadlock(faulty):
    texts = [letter * 400_000 for letter in "abcdefgh"]
    assert await asyncio.gather(*(faulty.text("echo", text=text) for text in texts)) == texts


@pytest.mark.parametrize("id_last", [False, True])
async def test_a_result_beyond_the_limit_is_answered_with_its_beginning_and_the_session_lives_on(flooding, id_last):
    outcome = await flooding.outcome("huge", megabytes=20, id_last=id_last)
    assert outcome.trouble is Trouble.TOO_LARGE
    assert outcome.text.startswith("flood flood flood")
    assert await flooding.text("echo", text="on") == "on"
    assert not flooding.ended.is_set()


@pytest.mark.parametrize("id_last", [False, True])
async def test_with_other_calls_in_flight_the_right_one_is_answered(flooding, id_last):
    held = [asyncio.create_task(flooding.client.call_tool("hold", {})) for _ in range(3)]
    await flooding.text("echo", text="the calls before are in flight")
    outcome = await flooding.outcome("huge", megabytes=20, id_last=id_last)
    assert outcome.trouble is Trouble.TOO_LARGE
    assert not any(task.done() for task in held)
    for task in held:
        task.cancel()
    await asyncio.gather(*held, return_exceptions=True)


async def test_a_line_without_end_is_answered_at_once_and_then_ends_the_session(flooding, monkeypatch):
    monkeypatch.setattr("mcprl.tools.transports.stdio._MAX_FLOOD_BYTES", 50_000_000)
    outcome = await flooding.outcome("endless")
    assert outcome.trouble is Trouble.TOO_LARGE
    async with asyncio.timeout(DEADLINE_S):
        await flooding.ended.wait()
    with pytest.raises(MCPError) as caught:
        await flooding.text("echo", text="nobody hears")
    assert caught.value.code == CONNECTION_CLOSED


async def test_text_that_is_no_unicode_is_shown_with_replacements(flooding):
    assert await flooding.text("bad_utf8") == "caf� �� � end"
    assert await flooding.text("half_surrogate") == "half � pair"


async def test_a_result_nested_too_deeply_is_answered_with_its_beginning(flooding):
    outcome = await flooding.outcome("deep", depth=100_000)
    assert outcome.trouble is Trouble.TOO_LARGE
    assert '{"a":{"a":' in outcome.text
    assert await flooding.text("echo", text="on") == "on"


async def test_an_answer_that_is_no_json_rpc_breaks_its_call_alone(flooding):
    outcome = await flooding.outcome("no_object")
    assert outcome.trouble is Trouble.BROKEN
    assert "just text" in outcome.detail
    assert await flooding.text("echo", text="on") == "on"


async def test_chatter_on_the_output_is_dropped_and_notifications_arrive(flooding):
    assert await flooding.text("chatter") == "still here"
    async with asyncio.timeout(DEADLINE_S):
        await flooding.tools_changed.wait()


@pytest.mark.parametrize("tool", ["close_output", "close_input"])
async def test_calls_in_flight_end_at_once_when_the_server_closes_a_stream(flooding, tool):
    calls = [asyncio.create_task(flooding.text("hold")) for _ in range(3)]
    with pytest.raises(MCPError) as caught:
        await flooding.text(tool)
    assert caught.value.code == CONNECTION_CLOSED
    assert flooding.ended.is_set()
    for result in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(result, MCPError)
        assert result.code == CONNECTION_CLOSED


async def test_calls_in_flight_end_at_once_when_the_server_is_killed(faulty):
    pid = int(await faulty.text("who"))
    calls = [asyncio.create_task(faulty.text("hang")) for _ in range(3)]
    await faulty.text("wait_for_hanging", count=3)
    os.kill(pid, 9)
    for result in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(result, MCPError)
        assert result.code == CONNECTION_CLOSED
    assert faulty.ended.is_set()


async def test_a_server_that_does_not_read_delays_only_those_who_call_it_and_only_until_their_deadlines(flooding):
    await flooding.text("deaf")
    calls = [asyncio.wait_for(flooding.client.call_tool("echo", {"text": "x" * 100_000}), 0.5) for _ in range(20)]
    async with asyncio.timeout(DEADLINE_S):
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(result) for result in results} == {TimeoutError}
    assert not flooding.ended.is_set()


async def test_the_end_of_our_own_session_is_no_loss(tmp_path):
    async with talk_to(script("faulty"), tmp_path) as talk:
        await talk.text("echo", text="x")
    assert not talk.ended.is_set()


async def test_a_server_of_the_sdk_ends_by_itself_when_its_input_ends(tmp_path):
    child = await start_child(script("faulty"), port=None, log=tmp_path / "log")
    async with Client(stdio_transport(child, max_message_bytes=LIMIT, on_end=lambda: None)) as client:
        await client.call_tool("echo", {"text": "x"})
    assert child.stdin is not None
    child.stdin.close()
    async with asyncio.timeout(DEADLINE_S):
        assert await child.wait() == 0
    await child.stop()


async def test_a_server_blocked_in_a_tool_is_ended_all_the_same(tmp_path):
    async with talk_to(script("flooding"), tmp_path) as talk:
        blocked = asyncio.create_task(talk.text("close_input"))
        async with asyncio.timeout(DEADLINE_S):
            await talk.ended.wait()
        with contextlib.suppress(MCPError):
            await blocked


async def test_a_third_party_server_answers(time_spec, tmp_path):
    async with talk_to(time_spec, tmp_path) as talk:
        assert "UTC" in await talk.text("get_current_time", timezone="UTC")


# How the process is started.

SAFE = {"HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "MCPRL_OWNER", "MCPRL_CHILD", "LC_CTYPE"}
SHOW_VARIABLES = "import os, sys; print(*sorted(os.environ), file=sys.stderr); print(os.getcwd(), file=sys.stderr)"


@pytest.mark.parametrize("kind", ["command", "start"])
async def test_a_server_gets_the_safe_variables_and_its_own_and_no_other(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("OPENAI_API_KEY", "leak")
    monkeypatch.setenv("PYTHONPATH", "leak")
    words = (sys.executable, "-c", SHOW_VARIABLES)
    if kind == "command":
        spec = ServerSpec(name="s", command=words[0], args=words[1:], env={"OWN": "1"}, cwd=str(tmp_path))
    else:
        spec = ServerSpec(name="s", url="http://127.0.0.1:1/", env={"OWN": "1"}, settings=ServerSettings(start=words))
    child = await start_child(spec, port=None, log=tmp_path / "log")
    assert await child.wait() == 0
    variables, folder = child.log_tail().splitlines()
    assert {"OWN", "PATH", "MCPRL_OWNER"} <= set(variables.split()) <= SAFE | {"OWN"}
    assert folder == (str(tmp_path) if kind == "command" else os.getcwd())
    await child.stop()


async def test_the_port_is_written_into_the_start_command(tmp_path):
    start = (sys.executable, "-c", "import sys; print(sys.argv[1])", "--port={port}")
    spec = ServerSpec(name="s", url="http://127.0.0.1:{port}/", settings=ServerSettings(start=start))
    child = await start_child(spec, port=4711, log=tmp_path / "log")
    await child.wait()
    assert child.log_tail() == "--port=4711"
    await child.stop()


def test_a_program_is_looked_up_in_the_servers_own_path_and_folder(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "tool"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert find_program(ServerSpec(name="s", command="tool")) is None
    assert find_program(ServerSpec(name="s", command="tool", env={"PATH": str(program.parent)})) == str(program)
    assert find_program(ServerSpec(name="s", command="./tool", cwd="bin")) == str(program)
    assert find_program(ServerSpec(name="s", command="python")) is not None, "beside the running Python"


async def test_a_missing_program_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="command 'nowhere' not found"):
        await start_child(ServerSpec(name="s", command="nowhere"), port=None, log=tmp_path / "log")


async def test_whether_a_port_answers():
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    assert await port_answers(url)
    server.close()
    await server.wait_closed()
    assert not await port_answers(url)

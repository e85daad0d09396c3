"""What a connection promises about a live server, on stdio and over HTTP alike."""
# R15

import asyncio
import os
import signal
import sys
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from live_servers import PATIENT, eventually, is_alive, script_spec

from mcprl.config import ServerSettings
from mcprl.errors import CallDeadlineError, ServerFaultError, ServerLostError, ServerStartError
from mcprl.processes import ChildProcess, free_port
from mcprl.tools import ServerConnection, ServerSpec

pytestmark = pytest.mark.process

DEAF = "import time; time.sleep(600)"
SHARED = pytest.mark.asyncio(loop_scope="module")
DEADLINE_S = 60.0  # only what hangs takes so long, or a machine that does


async def text(connection, tool, arguments=None, deadline_s=DEADLINE_S):
    return (await connection.call(tool, arguments or {}, deadline_s)).text


async def hang_calls(connection, count, deadline_s=600.0):
    calls = [asyncio.create_task(connection.call("hang", {}, deadline_s)) for _ in range(count)]
    await connection.call("wait_for_hanging", {"count": count}, DEADLINE_S)
    return calls


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def unharmed(faulty_spec, tmp_path_factory):
    """One process for all tests of a transport that leave it as it was."""
    log = tmp_path_factory.mktemp("unharmed") / "faulty.log"
    async with ServerConnection(faulty_spec, log=log) as connection:
        pid = connection.pid
        yield connection
        assert (connection.pid, connection.restarts) == (pid, 0)


@SHARED
async def test_an_open_connection_knows_the_tools_and_calls_them(unharmed):
    assert {"echo", "hang", "book"} <= {tool.name for tool in unharmed.pins.definitions}
    assert await text(unharmed, "echo", {"text": "hé"}) == "hé"


@SHARED
async def test_the_pid_is_that_of_the_server(unharmed):
    assert await text(unharmed, "who") == str(unharmed.pid)


@SHARED
async def test_many_calls_in_flight_each_get_their_own_answer(unharmed):
    answers = await asyncio.gather(*(text(unharmed, "echo", {"text": str(number)}) for number in range(48)))
    assert answers == [str(number) for number in range(48)]


@SHARED
async def test_more_calls_may_hang_than_a_pool_of_sockets_usually_holds(unharmed):
    calls = await hang_calls(unharmed, 120)
    assert await text(unharmed, "echo", {"text": "still here"}) == "still here"
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await unharmed.call("wait_for_hanging", {"count": 0}, DEADLINE_S)


@SHARED
async def test_a_call_past_its_deadline_fails_alone_and_is_cancelled_on_the_server(unharmed):
    pid = unharmed.pid
    with pytest.raises(CallDeadlineError, match=r"E-TOOL-012 server 'faulty' .* 'hang' within 0.2 s"):
        await unharmed.call("hang", {}, 0.2)
    await unharmed.call("wait_for_hanging", {"count": 0}, DEADLINE_S)
    assert await text(unharmed, "echo", {"text": "alive"}) == "alive"
    assert (unharmed.pid, unharmed.restarts) == (pid, 0)


@SHARED
async def test_a_cancelled_call_leaves_the_session_usable(unharmed):
    (call,) = await hang_calls(unharmed, 1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await unharmed.call("wait_for_hanging", {"count": 0}, DEADLINE_S)
    assert unharmed.restarts == 0


async def test_a_crash_during_a_call_loses_every_call_in_flight(faulty):
    calls = await hang_calls(faulty, 3)
    with pytest.raises(ServerLostError, match="E-TOOL-011 server 'faulty' went away during a call to 'crash'"):
        await faulty.call("crash", {}, DEADLINE_S)
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [ServerLostError] * 3


@pytest.fixture
def noticed(monkeypatch):
    """The end of a server's process is waited for, however late a busy machine tells of it."""
    monkeypatch.setattr("mcprl.tools.connection._END_GRACE_S", DEADLINE_S)


@pytest.mark.usefixtures("noticed")
async def test_the_next_call_after_a_crash_restarts_the_server(faulty):
    first = faulty.pid
    for count in (1, 2):
        with pytest.raises(ServerLostError):
            await faulty.call("crash", {}, DEADLINE_S)
        assert await text(faulty, "echo", {"text": "back"}) == "back"
        assert faulty.restarts == count
    assert faulty.pid != first
    assert not is_alive(first)


@pytest.mark.usefixtures("noticed")
async def test_calls_that_find_the_server_dead_share_one_restart(faulty):
    with pytest.raises(ServerLostError):
        await faulty.call("crash", {}, DEADLINE_S)
    answers = await asyncio.gather(*(text(faulty, "echo", {"text": "x"}) for _ in range(8)))
    assert (answers, faulty.restarts) == (["x"] * 8, 1)


@pytest.mark.usefixtures("noticed")
async def test_a_server_killed_during_a_call_is_lost_and_restarted(faulty):
    (call,) = await hang_calls(faulty, 1)
    os.kill(faulty.pid, signal.SIGKILL)
    with pytest.raises(ServerLostError):
        await call
    assert await text(faulty, "echo", {"text": "back"}) == "back"
    assert faulty.restarts == 1


async def test_a_server_killed_while_idle_is_restarted_without_any_call_being_lost(faulty):
    os.kill(faulty.pid, signal.SIGKILL)
    await eventually(lambda: faulty.pid is None)
    assert await text(faulty, "echo", {"text": "back"}) == "back"
    assert faulty.restarts == 1


@SHARED
async def test_a_live_server_that_answers_with_the_code_of_a_closed_connection_is_not_lost(unharmed):
    (hanging,) = await hang_calls(unharmed, 1)
    with pytest.raises(ServerFaultError, match="my own trouble"):
        await unharmed.call("protocol_error", {"code": -32000, "message": "my own trouble"}, DEADLINE_S)
    assert not hanging.done()
    hanging.cancel()
    await unharmed.call("wait_for_hanging", {"count": 0}, DEADLINE_S)
    assert await text(unharmed, "echo", {"text": "alive"}) == "alive"
    assert unharmed.restarts == 0


@SHARED
async def test_a_result_of_a_megabyte_arrives_whole(unharmed):
    assert await text(unharmed, "big", {"size": 1_000_000}) == "x" * 1_000_000


async def test_closing_ends_the_process_the_owner_task_and_the_calls_in_flight(faulty_spec, tmp_path):
    tasks_before = asyncio.all_tasks()
    async with ServerConnection(faulty_spec, log=tmp_path / "server.log") as connection:
        pid = connection.pid
        (call,) = await hang_calls(connection, 1)
    with pytest.raises(ServerLostError, match="closed"):
        await call
    with pytest.raises(ServerLostError, match="closed"):
        await connection.call("echo", {"text": "x"}, 5.0)
    assert not is_alive(pid)
    assert asyncio.all_tasks() == tasks_before


async def test_cancelling_an_opening_leaves_no_process_and_no_task(faulty_spec, tmp_path):
    tasks_before = asyncio.all_tasks()
    connection = ServerConnection(replace(faulty_spec, name="slow"), log=tmp_path / "server.log")
    opening = asyncio.create_task(connection.__aenter__())
    # Wait until the server's process exists, which its log or pid file shows.
    await eventually(lambda: any(tmp_path.iterdir()))
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert asyncio.all_tasks() == tasks_before


async def test_a_restart_that_fails_says_so_and_a_later_one_may_work(tmp_path):
    script = tmp_path / "server.py"
    good = f"import runpy; runpy.run_path({script_spec('faulty_server.py').args[0]!r}, run_name='__main__')"
    script.write_text(good)
    spec = ServerSpec(name="moody", command=sys.executable, args=(str(script),), settings=ServerSettings(**PATIENT))
    async with ServerConnection(spec, log=tmp_path / "logs" / "server.log") as connection:
        script.write_text("raise SystemExit('out of order')")
        with pytest.raises(ServerLostError):
            await connection.call("crash", {}, DEADLINE_S)
        with pytest.raises(ServerStartError, match="out of order"):
            await connection.call("echo", {"text": "x"}, DEADLINE_S)
        script.write_text(good)
        assert await text(connection, "echo", {"text": "x"}) == "x"
        assert connection.restarts == 1


async def test_a_missing_program_is_named(tmp_path):
    spec = ServerSpec(name="gone", command="no-such-program-here")
    message = r"E-TOOL-010 server 'gone' .* command 'no-such-program-here' not found\. Fix: install the command"
    with pytest.raises(ServerStartError, match=message):
        await ServerConnection(spec, log=tmp_path / "server.log").__aenter__()


async def test_a_missing_start_program_is_named(tmp_path):
    settings = ServerSettings(start=("no-such-program-here", "{port}"))
    spec = ServerSpec(name="gone", url="http://127.0.0.1:{port}/mcp", settings=settings)
    with pytest.raises(ServerStartError, match="command 'no-such-program-here' not found"):
        await ServerConnection(spec, log=tmp_path / "server.log").__aenter__()


@pytest.mark.parametrize("over_http", [False, True])
async def test_a_server_that_exits_at_once_shows_the_end_of_its_log(tmp_path, over_http):
    words = (sys.executable, "-c", "raise SystemExit('the key is missing')", "{port}" if over_http else "")
    if over_http:
        spec = ServerSpec(name="brief", url="http://127.0.0.1:{port}/mcp", settings=ServerSettings(start=words))
    else:
        spec = ServerSpec(name="brief", command=words[0], args=words[1:])
    with pytest.raises(ServerStartError, match=r"(?s)server 'brief' did not start.*the key is missing"):
        await ServerConnection(spec, log=tmp_path / "server.log").__aenter__()


@pytest.fixture
def started(monkeypatch):
    """Every process that is started."""
    children: list[ChildProcess] = []
    start = ChildProcess.start

    async def noted(argv: list[str], **options: Any) -> ChildProcess:
        children.append(await start(argv, **options))
        return children[-1]

    monkeypatch.setattr(ChildProcess, "start", noted)
    return children


async def assert_it_is_given_up_and_ended(spec, tmp_path, started, monkeypatch):
    monkeypatch.setattr("mcprl.tools.connection.START_S", 3.0)
    with pytest.raises(ServerStartError, match="server 'deaf' did not start: it was not ready within 3 s"):
        await ServerConnection(spec, log=tmp_path / "logs" / "server.log").__aenter__()
    [child] = started
    assert child.exit_code is not None
    assert not is_alive(child.pid)


async def test_a_server_whose_port_never_answers_is_given_up_and_ended(tmp_path, started, monkeypatch):
    settings = ServerSettings(start=(sys.executable, "-c", DEAF, "{port}"))
    spec = ServerSpec(name="deaf", url="http://127.0.0.1:{port}/mcp", settings=settings)
    await assert_it_is_given_up_and_ended(spec, tmp_path, started, monkeypatch)


async def test_a_stdio_server_that_never_shakes_hands_is_given_up_and_ended(tmp_path, started, monkeypatch):
    spec = ServerSpec(name="deaf", command=sys.executable, args=("-c", DEAF))
    await assert_it_is_given_up_and_ended(spec, tmp_path, started, monkeypatch)


async def test_a_url_where_nothing_listens_is_a_start_error(tmp_path):
    spec = ServerSpec(name="absent", url=f"http://127.0.0.1:{free_port()}/mcp")
    with pytest.raises(ServerStartError, match="server 'absent' did not start: ConnectError"):
        await ServerConnection(spec, log=tmp_path / "server.log").__aenter__()


async def test_a_fixed_port_that_someone_else_holds_is_not_mistaken_for_the_server(http_spec, tmp_path):
    async with asyncio.timeout(60), await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as stranger:
        port = stranger.sockets[0].getsockname()[1]
        settings = ServerSettings(start=(sys.executable, "-c", "pass"))
        spec = replace(http_spec, url=f"http://127.0.0.1:{port}/mcp", settings=settings)
        with pytest.raises(ServerStartError, match="another process already answers"):
            await ServerConnection(spec, log=tmp_path / "server.log").__aenter__()


async def test_a_server_started_by_someone_else_is_found_again_after_it_came_back(http_spec, tmp_path):
    port = str(free_port())
    words = tuple(word.replace("{port}", port) for word in http_spec.settings.start)
    fixed = replace(http_spec, url=f"http://127.0.0.1:{port}/mcp", settings=ServerSettings(start=words, **PATIENT))
    guest = ServerConnection(ServerSpec(name="guest", url=fixed.url), log=tmp_path / "server.log")
    async with ServerConnection(fixed, log=tmp_path / "server.log") as owned, guest:
        assert guest.pid is None
        first = owned.pid
        assert await text(guest, "echo", {"text": "x"}) == "x"
        with pytest.raises(ServerLostError):
            await guest.call("crash", {}, DEADLINE_S)
        with pytest.raises(ServerLostError, match="server 'guest' went away") as lost:
            await guest.call("echo", {"text": "x"}, DEADLINE_S)
        # A connection that the dying process had still accepted breaks while it is read, and tells nothing.
        assert not lost.value.delivered or "(ReadError)" in lost.value.what
        await eventually(lambda: owned.pid != first)
        assert await text(owned, "echo", {"text": "x"}) == "x"
        assert await text(guest, "echo", {"text": "x"}) == "x"
        assert owned.restarts == 1


async def test_a_tool_list_is_followed_to_its_last_page(tmp_path):
    async with ServerConnection(script_spec("paged_server.py"), log=tmp_path / "server.log") as connection:
        assert [tool.name for tool in connection.pins.definitions] == ["tool_0", "tool_1"]


async def test_a_tool_list_without_end_is_refused(tmp_path):
    with pytest.raises(ServerStartError, match="more than 100 pages"):
        await ServerConnection(script_spec("paged_server.py", "--endless"), log=tmp_path / "server.log").__aenter__()


async def test_a_third_party_server_works_in_its_own_environment(time_spec, tmp_path):
    async with ServerConnection(time_spec, log=tmp_path / "server.log") as connection:
        assert {tool.name for tool in connection.pins.definitions} == {"get_current_time", "convert_time"}
        arguments = {"source_timezone": "America/Lima", "time": "09:30", "target_timezone": "Asia/Tokyo"}
        assert "T23:30:00+09:00" in await text(connection, "convert_time", arguments)

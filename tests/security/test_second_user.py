"""Every socket that a run opens, tried by another user id and with the requests that a web page can send.

The processes are real: the dashboard, an MCP server over HTTP, the processes of a learner, Ray with its workers.
SkyRL's server takes long to start, so it is tried where another test has one: e2e/test_skyrl_server.py.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from second_user import Listeners, as_stranger, listeners, web_requests

from mcprl.config import ServerSettings
from mcprl.processes import free_port
from mcprl.protocol import TOKEN_HEADER
from mcprl.records import ToolCall
from mcprl.tools import ServerSpec, Toolbox
from mcprl_agents.gateway import Gateway
from mcprl_agents.runner import started
from mcprl_agents.session import Session

for name in ("learning", "checks/doctor"):
    sys.path.append(str(Path(__file__).resolve().parents[1] / "unit" / name))

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
]

LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
KEPT_OUT = ("PermissionError", "FileNotFoundError")
BENCH = Path(__file__).resolve().parents[2] / "bench"
WORKERS = """
import asyncio, pathlib, sys
sys.path.append(sys.argv[1])
from working.playing import make_config, open_workers
async def main(folder):
    async with open_workers(make_config(folder, workers=1, at_once=1, tool_s=0.0), folder / "logs"):
        import ray
        print(ray.get_runtime_context().gcs_address, flush=True)
        await asyncio.to_thread(sys.stdin.read)
asyncio.run(main(pathlib.Path(sys.argv[2])))
"""
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
}


def only(found: Any) -> Any:
    [one] = found
    return one


def test_the_dashboard_shows_nothing_to_another_user_or_page(tmp_path):
    (tmp_path / "outputs").mkdir()
    program = "import sys, pathlib; from mcprl_dashboard.app import serve; serve(pathlib.Path(sys.argv[1]))"
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "outputs")], stdout=-1, text=True) as process:
        try:
            assert process.stdout is not None
            link = next(word for word in process.stdout.readline().split() if word.startswith("http://"))
            found = _once_it_listens(process)
            address = only(found.tcp)
            assert link.startswith(f"http://127.0.0.1:{address[1]}/?token=")
            asked = [one for path in ("/", "/api/runs", "/api/events") for one in web_requests(address, path)]
            tried = as_stranger(http=asked, files=[f"/proc/{process.pid}/environ"])
        finally:
            process.terminate()
    assert found.unix == frozenset()
    assert set(tried["http"]) <= {401, 403, 405}
    assert only(tried["files"]).startswith(KEPT_OUT)


async def test_an_mcp_server_that_a_run_starts_over_http_answers_nobody_else(tmp_path):
    start = (sys.executable, "-m", "mcprl", "serve", "directory", "--http", "--port", "{port}")
    spec = ServerSpec(
        name="directory",
        url="http://127.0.0.1:{port}/mcp",
        settings=ServerSettings(start=start, call_deadline_s=60),
    )
    async with Toolbox([spec], log_dir=tmp_path) as toolbox:
        pid = only(pid for pid in _children() if "serve" in _words(pid))
        address = only(listeners([pid]).tcp)
        tried = as_stranger(
            http=[one for path in ("/mcp", "/") for one in web_requests(address, path, json.dumps(HELLO))],
            files=[f"/proc/{pid}/environ"],
        )
        tool = next(iter(toolbox.catalog))
        async with toolbox.lease([tool.name]) as lease:
            await lease.call(ToolCall(name=tool.name, arguments={}))
        words = _words(pid)
    assert address[0] in LOOPBACK
    assert set(tried["http"]) == {401}
    assert only(tried["files"]).startswith(KEPT_OUT)
    assert not any(len(word) == 64 for word in words), "the token is on the command line"


async def test_the_gateway_for_agents_answers_nobody_else(tmp_path):
    session, program = cast("Session", None), ("sh", "-c", "sleep 1000; : the agent")
    async with Gateway().open() as gateway:
        with gateway.serve(session) as token:
            url, log = f"{gateway.address}/{token}", tmp_path / "agent.log"
            async with started(program, "{}", url=url, token=token, log=log, on_error=print) as agent:
                pid = agent.process.pid
                own = psutil.Process(pid).environ()
                files = [own[name] for name in ("MCPRL_TASK", "MCPRL_MCP_SERVERS", "MCPRL_MCP_STDIO_SERVERS")]
                host, port = gateway.address.removeprefix("http://").split(":")
                paths = ("/", "/x/mcp", "/x/v1/chat/completions")
                asked = [one for path in paths for one in web_requests((host, int(port)), path)]
                tried = await asyncio.to_thread(as_stranger, http=asked, files=[f"/proc/{pid}/environ", *files])
                words = _words(pid)
    assert own["OPENAI_API_KEY"] == token
    assert set(tried["http"]) == {403, 404}
    assert all(one.startswith(KEPT_OUT) for one in tried["files"])
    assert not any(token in word for word in words)


@pytest.mark.parametrize("token", ["a-token-of-ones-own", None])
async def test_a_server_that_was_started_by_hand_asks_for_a_token_or_is_named_by_the_doctor(tmp_path, token):
    from patients import well_patient

    port = free_port()
    command = [sys.executable, "-m", "mcprl", "serve", "directory", "--http", "--port", str(port)]
    environment = {**os.environ, **({} if token is None else {"MCPRL_SERVER_TOKEN": token})}
    patient = well_patient(tmp_path, tmp_path / "no-model")
    headers = {} if token is None else {TOKEN_HEADER: token}
    patient.servers = {"directory": {"url": f"http://127.0.0.1:{port}/mcp", "headers": headers}}
    patient.write()
    with subprocess.Popen(command, env=environment) as process:  # noqa: ASYNC220 - it starts at once
        try:
            address = only(_once_it_listens(process).tcp)
            tried = as_stranger(http=[web_requests(address, "/mcp", json.dumps(HELLO))[1]])
            found = await patient.examined(only={"recipe", "keys", "servers"})
        finally:
            process.terminate()
    assert tried["http"] == [401 if token else 200]
    warned = [finding.measured for finding in found if "answers without a key" in finding.measured]
    named = f"127.0.0.1:{port} answers without a key, so every user of this machine can call its tools"
    assert warned == ([] if token else [named])
    assert any("lists" in finding.measured for finding in found), found


@pytest.mark.full
async def test_the_processes_of_a_learner_listen_on_loopback_only_and_strangers_do_not_disturb_them(tmp_path):
    from small_models import save_small_model, small_config, small_groups

    from mcprl.learning.distributed import DistributedLearner

    model = save_small_model(tmp_path, "qwen3", vocabulary=67)
    config = small_config(model, processes=2, sharding="fsdp2")
    trajectories = [t for group in small_groups(vocabulary=67) for t in group.trajectories]
    async with DistributedLearner(config, folder=tmp_path / "weights", grammars=None) as learner:
        before = await learner.score(trajectories)
        found = listeners([os.getpid()])
        ports = [address for address in found.tcp if address[0] in LOOPBACK]
        # Gloo's protocol opens with eight bytes that say which connection this is to be.
        noise = ["", "00", "ff" * 64, *(number.to_bytes(8, "little").hex() + "00" * 56 for number in range(8))]
        tried = as_stranger(
            unix=sorted(found.unix),
            bytes=[[*address, text] for address in ports for text in noise],
            files=[str(path) for socket in found.unix for path in (socket, Path(socket).with_name("rendezvous"))],
        )
        after = await learner.score(trajectories)
    assert found.tcp == frozenset(ports), "something listens on more than loopback"
    assert found.unix
    assert all(outcome.startswith(KEPT_OUT) for outcome in tried["unix"] + tried["files"])
    assert "answered" not in tried["bytes"]
    assert after == before


@pytest.mark.full
def test_ray_listens_on_loopback_only_and_runs_nothing_without_its_token(tmp_path):
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is missing: pip install 'mcprl[ray]'")
    # In a process of its own: Ray reads its settings when it is loaded, which another test may have done here.
    with subprocess.Popen([sys.executable, "-c", WORKERS, str(BENCH), str(tmp_path)], stdin=-1, stdout=-1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        gcs = process.stdout.readline().decode().strip()
        assert gcs, "it did not start"
        found = listeners([process.pid])
        pids = [process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True))]
        tried = as_stranger(ray=[gcs], unix=sorted(found.unix), files=[f"/proc/{pid}/environ" for pid in pids])
        process.stdin.close()
    assert {address for address, _ in found.tcp} <= LOOPBACK
    assert gcs.startswith("127.0.0.1:")
    assert only(tried["ray"]).startswith("AuthenticationError")
    assert len(found.unix) >= 2  # the raylet's and the object store's
    assert all(outcome.startswith(KEPT_OUT) for outcome in tried["unix"] + tried["files"])


def _once_it_listens(process: subprocess.Popen[Any]) -> Listeners:
    while not (found := listeners([process.pid])).tcp:
        assert process.poll() is None
    return found


def _children() -> list[int]:
    return [process.pid for process in psutil.Process().children(recursive=True)]


def _words(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")

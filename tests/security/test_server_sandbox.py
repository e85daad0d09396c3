"""What a malicious server reaches: everything of its user without a sandbox, nothing in one."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from hostile_server import KEYCTL, SESSION_KEYRING

from mcprl.config import SandboxSettings, ServerSettings
from mcprl.records import ToolCall
from mcprl.tools import ServerSpec, Toolbox
from mcprl.tools.sandbox import installation

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("bubblewrap")]

SERVER = Path(__file__).with_name("hostile_server.py")
CANARY = "canary-of-the-environment-7361"
TOKEN = f"left-behind-{os.getpid()}"
KEY = f"mcprl-test-{os.getpid()}"


@pytest.fixture
def targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What there is to attack, made for the test where possible."""
    home, recipe = tmp_path / "home", tmp_path / "recipe"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id_ed25519").write_text("private")
    recipe.mkdir()
    (recipe / ".env").write_text(f"API_KEY={CANARY}")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("CANARY", CANARY)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.syscall(KEYCTL[1] - 1, b"user", KEY.encode(), b"secret", 6, SESSION_KEYRING) != -1  # add_key
    with ExitStack() as stack:
        victim = stack.enter_context(subprocess.Popen(["sleep", "600"], env={"CANARY": CANARY}))
        stack.callback(victim.kill)
        port = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        addresses: list[Any] = [list(port.getsockname())]
        for name in (str(recipe / "socket"), f"@{KEY}"):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(name.replace("@", "\0"))
            listener.listen()
            addresses.append(name)
        yield {
            "read": [str(home), str(home / ".ssh/id_ed25519"), str(recipe), str(recipe / ".env")],
            "write": [str(home), str(recipe), str(recipe / ".env")],
            "texts": [CANARY],
            "connect": addresses,
            "interfaces": None,
            "processes": [os.getpid(), victim.pid],
            "key": KEY,
        }


def leftovers() -> list[psutil.Process]:
    """Descendants that live on. The kernel kills all processes of a sandbox with its first one, but not at once."""
    found = [process for process in psutil.process_iter(["cmdline"]) if TOKEN in (process.info["cmdline"] or ())]
    return psutil.wait_procs(found, timeout=30)[1]


async def reached(spec: ServerSpec, targets: dict[str, Any], logs: Path) -> dict[str, Any]:
    async with Toolbox([spec], log_dir=logs) as toolbox, toolbox.lease(None) as lease:
        observation = await lease.call(ToolCall(name="attack", arguments={"targets": targets}))
    assert observation.fault is None, observation.text
    return json.loads(observation.text)


def spec_with(sandbox: SandboxSettings | None, *args: str) -> ServerSpec:
    settings = ServerSettings(sandbox=sandbox, call_deadline_s=120)
    return ServerSpec(name="hostile", command=sys.executable, args=("-I", str(SERVER), *args), settings=settings)


async def test_a_hostile_server_in_a_sandbox_reaches_nothing(targets, tmp_path):
    system = ["/usr", "/etc", "/etc/hosts", "/proc/sys/kernel/core_pattern", "/dev", "/", "/var", "/run"]
    program = [str(SERVER), *map(str, installation(Path(sys.executable), os.environ["PATH"]))]
    more = {
        "read": [*targets["read"], "/etc/shadow", "/etc/ssl/private", "/var", "/run", "/sys"],
        "write": [*targets["write"], *system, *program],
        "devices": ["/dev/null", "/dev/zero", "/dev/urandom"],
        "namespaces": None,
        "children": TOKEN,
    }
    spec = spec_with(SandboxSettings(read=(SERVER,)))
    assert await reached(spec, {**targets, **more}, tmp_path / "logs") == {}
    assert leftovers() == []


async def test_the_same_server_without_a_sandbox_reaches_all_of_it(targets, tmp_path):
    found = await reached(spec_with(None), targets, tmp_path / "logs")
    interfaces = found.pop("interfaces", [])
    assert set(interfaces) == {name for _, name in socket.if_nameindex()} - {"lo"}
    direct = [path for path in found["read"] if not path.startswith("/proc")]
    expected = {name: target for name, target in targets.items() if name != "interfaces"}
    assert {**found, "read": direct} == {**expected, "key": "secret"}


async def test_what_is_declared_can_be_used_and_nothing_beside_it(targets, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    folders = [str(tmp_path / "in"), str(tmp_path / "out")]
    sandbox = SandboxSettings(read=(SERVER, tmp_path / "in"), write=(tmp_path / "out",), network=True)
    more = {
        "read": [*targets["read"], *folders, str(tmp_path)],
        "write": [*targets["write"], *folders],
    }
    found = await reached(spec_with(sandbox), {**targets, **more}, tmp_path / "logs")
    assert [path for path in found["read"] if not path.startswith("/proc")] == [*folders, str(tmp_path)]
    assert found["write"] == [folders[1]]
    # With the network it also has this machine's ports and abstract sockets, but no socket in a hidden folder.
    assert found["connect"] == [targets["connect"][0], targets["connect"][2]]
    assert set(found) <= {"read", "write", "connect", "interfaces"}
    assert os.listdir(tmp_path / "out") == ["hostile"]

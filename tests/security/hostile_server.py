"""An MCP server that tries everything that a stolen or malicious one would. Run it as a script.

It has one tool, `attack`, whose arguments name what to attack. The answer is a JSON object of the attacks that reached
something, each with what it reached. It uses the standard library only and speaks JSON-RPC by hand.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

KEYCTL = {"x86_64": (250, 249), "aarch64": (219, 218)}[os.uname().machine]  # keyctl, request_key
CLONE_NEWUSER = 0x10000000
SESSION_KEYRING = -3
KEYCTL_READ = 11


def read_files(paths: list[str]) -> list[str]:
    """Files that can be read, and folders that can be listed, directly and through the folders of processes."""
    roots = ["", *(f"/proc/{pid}/root" for pid in ("1", "self", str(os.getppid())))]
    return [root + path for root in roots for path in paths if read(root + path)]


def read(path: str) -> object:
    try:
        return os.listdir(path) or "empty" if os.path.isdir(path) else Path(path).read_bytes() or "empty"
    except OSError:
        return None


def write_files(paths: list[str]) -> list[str]:
    """Folders in which a file can be made, and files that can be opened for writing."""
    written: list[str] = []
    for path in filter(os.path.exists, paths):
        name = os.path.join(path, "hostile") if os.path.isdir(path) else path
        try:
            with open(name, "ab"):
                written.append(path)
        except OSError:
            continue
    return written


def change_devices(paths: list[str]) -> list[str]:
    """Devices whose mode can be changed, here to what it is."""
    changed: list[str] = []
    for path in paths:
        try:
            os.chmod(path, os.stat(path).st_mode & 0o7777)
            changed.append(path)
        except OSError:
            continue
    return changed


def find_texts(texts: list[str]) -> list[str]:
    """Which of these texts are in the environment or the command of a process."""
    seen = "\n".join(f"{name}={value}" for name, value in os.environ.items()).encode()
    for file in (*Path("/proc").glob("[0-9]*/environ"), *Path("/proc").glob("[0-9]*/cmdline")):
        try:
            seen += file.read_bytes()
        except OSError:
            continue
    return [text for text in texts if text.encode() in seen]


def connect(addresses: list[Any]) -> list[Any]:
    """Addresses that accept a connection: [host, port], a path, or @ and an abstract name."""
    reached: list[Any] = []
    for address in addresses:
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        with socket.socket(family) as client:
            client.settimeout(5)
            try:
                client.connect(address.replace("@", "\0") if isinstance(address, str) else tuple(address))
                reached.append(address)
            except OSError:
                continue
    return reached


def interfaces(_: object) -> list[str]:
    """Ways out of the machine."""
    return [name for _, name in socket.if_nameindex() if name != "lo"]


def signal_processes(pids: list[int]) -> list[int]:
    """Processes that exist for us, by a signal that does nothing."""
    reached: list[int] = []
    for pid in pids:
        try:
            os.kill(pid, 0)
            reached.append(pid)
        except (ProcessLookupError, PermissionError):
            continue
    return reached


def read_key(name: str) -> str | None:
    """A key in the keyring that processes inherit."""
    libc = ctypes.CDLL(None, use_errno=True)
    key = libc.syscall(KEYCTL[1], b"user", name.encode(), None, SESSION_KEYRING)
    buffer = ctypes.create_string_buffer(64)
    length = libc.syscall(KEYCTL[0], KEYCTL_READ, key, buffer, len(buffer)) if key != -1 else -1
    return buffer.raw[:length].decode() if length > 0 else None


def make_namespaces(_: object) -> str | None:
    """Capabilities in a new user namespace, in a child because they would stay."""
    code = f"import ctypes, sys; sys.exit(-ctypes.CDLL(None).unshare({CLONE_NEWUSER}))"
    return "user namespace" if subprocess.run([sys.executable, "-I", "-c", code]).returncode == 0 else None


def leave_children(token: str) -> list[str]:
    """Descendants that leave the group and the session and drop their environment. The caller looks for the token."""
    command = [sys.executable, "-I", "-c", "import time; time.sleep(600)", token]
    for _ in range(2):
        subprocess.Popen(command, env={}, start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return []


ATTACKS: dict[str, Callable[[Any], object]] = {
    "read": read_files,
    "write": write_files,
    "devices": change_devices,
    "texts": find_texts,
    "connect": connect,
    "interfaces": interfaces,
    "processes": signal_processes,
    "key": read_key,
    "namespaces": make_namespaces,
    "children": leave_children,
}
SCHEMA = {"type": "object", "properties": {"targets": {"type": "object"}}, "required": ["targets"]}
TOOLS = [{"name": "attack", "description": "Attack", "inputSchema": SCHEMA}]


def result_of(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    match request:
        case {"method": "tools/call", "params": {"arguments": {"targets": targets}}}:
            reached = {name: found for name, target in targets.items() if (found := ATTACKS[name](target))}
            yield {"content": [{"type": "text", "text": json.dumps(reached)}]}
        case {"method": "tools/list"}:
            yield {"tools": TOOLS}
        case {"method": "initialize", "params": {"protocolVersion": version}}:
            server = {"name": "hostile", "version": "1"}
            yield {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}
        case _:
            return


if __name__ == "__main__":
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" in asked:
            error = {"error": {"code": -32601, "message": "no such method"}}
            answer = next(({"result": result} for result in result_of(asked)), error)
            print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)

"""Which sockets processes listen on, and what another user of this machine can do with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

__all__ = ["Listeners", "as_stranger", "listeners", "web_requests"]

_STRANGER = Path(__file__).parent / "stranger.py"
_ACCEPTS = 0x10000  # in the flags of /proc/net/unix: it listens
_DEADLINE_S = 300


@dataclass(frozen=True)
class Listeners:
    """Sockets that accept connections: (address, port) of TCP, and the paths of Unix sockets.

    An abstract Unix socket has a path that begins with @: no folder keeps anyone from it.
    """

    tcp: frozenset[tuple[str, int]]
    unix: frozenset[str]


def listeners(pids: Iterable[int]) -> Listeners:
    """What these processes and their descendants listen on."""
    processes = {process for pid in pids for process in _family(pid)}
    tcp: set[tuple[str, int]] = set()
    inodes: set[str] = set()
    for process in processes:
        tcp |= {tuple(one.laddr) for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
        inodes |= _socket_inodes(process.pid)
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    unix = {row[7] for row in rows if len(row) > 7 and row[6] in inodes and int(row[3], 16) & _ACCEPTS}
    return Listeners(frozenset(tcp), frozenset(unix))


def as_stranger(**asked: Sequence[Any]) -> dict[str, list[Any]]:
    """What came of attempts by user id 65534; see stranger.py. Needs root."""
    done = subprocess.run(
        [sys.executable, str(_STRANGER)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        cwd="/",
        # Without what this process knows: its tokens above all.
        env={"PATH": os.defpath, "RAY_AUTH_MODE": "disabled"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def web_requests(address: tuple[str, int], path: str, body: str = "{}") -> list[list[Any]]:
    """What another user sends to a port, and what a web page can have a browser send there: GET, and POST of a type
    that needs no permission, with a Host and an Origin of its own."""
    host, port = address
    json_type, text_type = {"content-type": "application/json"}, {"content-type": "text/plain"}
    page = {"host": "evil.example", "origin": "http://evil.example"}
    rebound = {"host": f"evil.example:{port}"}
    accept = {"accept": "application/json, text/event-stream"}
    return [
        [host, port, "GET", path, accept, ""],
        [host, port, "POST", path, json_type | accept, body],
        [host, port, "POST", path, text_type | accept, body],
        [host, port, "POST", path, text_type | page, body],
        [host, port, "GET", path, rebound, ""],
        [host, port, "DELETE", path, accept, ""],
    ]


def _family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def _socket_inodes(pid: int) -> set[str]:
    found: set[str] = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except FileNotFoundError:  # closed meanwhile
            continue
        if target.startswith("socket:["):
            found.add(target.removeprefix("socket:[").removesuffix("]"))
    return found

"""Another user of this machine: drops root for user id 65534, tries what its input says, prints what came of it.

    {"http": [["127.0.0.1", 8000, "POST", "/mcp", {"content-type": "text/plain"}, "{}"]], "unix": ["/tmp/x/socket"],
     "files": ["/proc/4711/environ"], "bytes": [["127.0.0.1", 4711, "00ff"]], "ray": ["127.0.0.1:6379"]}

It prints for each kind a list: a status of HTTP, the name of an exception, or what it could do. Its Python may be in a
folder that this user cannot enter, so everything is imported before.
"""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401 - looked up by name when a host is
import http.client
import json
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

STRANGER_ID = 65534
_ANSWER_S = 60.0


def _http(host: str, port: int, method: str, path: str, headers: dict[str, str], body: str) -> int:
    with contextlib.closing(http.client.HTTPConnection(host, port, timeout=_ANSWER_S)) as connection:
        connection.putrequest(method, path, skip_host="host" in headers)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            connection.putheader(name, value)
        connection.endheaders(body.encode())
        return connection.getresponse().status


def _unix(path: str) -> str:
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(_ANSWER_S)
        line.connect(path)
    return "connected"


def _file(path: str) -> str:
    with open(path, "rb") as file:
        return f"read {len(file.read())} bytes"


def _bytes(host: str, port: int, text: str) -> str:
    """Send bytes, and stay for a moment to see whether they are answered."""
    with socket.create_connection((host, port), timeout=_ANSWER_S) as line:
        line.sendall(bytes.fromhex(text))
        line.settimeout(1.0)
        try:
            answer = line.recv(1)
        except TimeoutError:
            return "no answer"
    return "answered" if answer else "closed"


def _put_into_ray(address: str) -> str:
    client = _gcs_client()(address=address)
    client.internal_kv_put(b"stranger", b"was here", True, None, _ANSWER_S)
    return "wrote"


def _gcs_client() -> Any:
    from ray._raylet import GcsClient

    return GcsClient


def _outcome(attempt: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return attempt(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever keeps this user out is what the test looks at
        return f"{type(error).__name__}: {error}"[:300]


def main() -> None:
    asked = json.load(sys.stdin)
    if asked.get("ray"):
        _gcs_client()
    os.setgroups([])
    os.setgid(STRANGER_ID)
    os.setuid(STRANGER_ID)
    tried = {
        "http": [_outcome(_http, *one) for one in asked.get("http", ())],
        "unix": [_outcome(_unix, one) for one in asked.get("unix", ())],
        "files": [_outcome(_file, one) for one in asked.get("files", ())],
        "bytes": [_outcome(_bytes, *one) for one in asked.get("bytes", ())],
        "ray": [_outcome(_put_into_ray, one) for one in asked.get("ray", ())],
    }
    json.dump(tried, sys.stdout)


if __name__ == "__main__":
    main()

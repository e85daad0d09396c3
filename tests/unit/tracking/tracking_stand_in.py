"""A server on loopback that stands in for what trackers talk to, and its faults: W&B, Weave, an OTLP collector.

It speaks the shapes that the libraries need to believe in it and keeps what it is sent. It is not one of them: what it
is sent is taken as it comes, and no query is understood beyond its name.
"""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

__all__ = ["FAULTS", "Fault", "Request", "StandIn", "stand_in"]

Fault = Literal["hang", "500", "429", "cut", "slow"]
FAULTS: tuple[Fault, ...] = ("hang", "500", "429", "cut", "slow")
_SLOW_S = 5.0
_DIGEST = "a" * 43
_PROJECT = {"id": "UHJvamVjdA==", "name": "p", "entityName": "e", "entity": {"id": "RW50aXR5", "name": "e"}}
_VIEWER = {"id": "VXNlcg==", "entity": "e", "username": "u", "email": "", "admin": False, "flags": "{}"}


@dataclass(frozen=True, slots=True)
class Request:
    """What came: Request("POST", "/v1/traces", {"authorization": "…"}, b"…")."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class StandIn:
    """The server. `asked` is set by its first request, `ended` lets requests that hang go.

    A request whose path or body has what `forbidden` looks for is answered with 403.
    """

    def __init__(self, fault: Fault | None = None) -> None:
        self.fault = fault
        self.forbidden: re.Pattern[str] | None = None
        self.requests: list[Request] = []
        self.asked = threading.Event()
        self.ended = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def bodies(self, pattern: str) -> list[Request]:
        """Requests to paths that the pattern is found in."""
        return [request for request in list(self.requests) if re.search(pattern, request.path)]

    def forbids(self, request: Request) -> bool:
        text = f"{request.path} {request.body.decode(errors='replace')}"
        return self.forbidden is not None and self.forbidden.search(text) is not None

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._serve()

            do_POST = do_PUT = do_GET

            def log_message(self, format: str, *args: object) -> None: ...

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.command, self.path, headers, body)
                owner.requests.append(request)
                owner.asked.set()
                status = int(owner.fault) if owner.fault in ("500", "429") else 403 if owner.forbids(request) else 200
                self._answer(owner.fault, status, answer_to(request, owner.url))

            def _answer(self, fault: Fault | None, status: int, answer: Any) -> None:
                if fault == "hang":
                    owner.ended.wait()
                elif fault == "slow":
                    owner.ended.wait(_SLOW_S)
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.close_connection = self.close_connection or fault in ("hang", "cut")
                promised = len(data)
                if fault == "cut":
                    # In the middle: who reads only as much as it needs would not notice that the end is missing.
                    data, promised = data[: len(data) // 2], promised + 100
                try:
                    self.send_response(status)
                    self.send_header("content-type", "application/json")
                    self.send_header("content-length", str(promised))
                    self.end_headers()
                    self.wfile.write(data)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True  # whoever asked did not wait

        return Handler


def answer_to(request: Request, url: str) -> Any:
    """What the services would say, as far as the libraries look at it."""
    if request.path.endswith("/v1/traces"):
        return b""
    if request.path.endswith("/graphql"):
        return {"data": _graphql(request.json, url)}
    if request.path.endswith("/server_info"):
        return {"min_required_weave_python_version": "0.0.1", "trace_server_version": "9.9.9"}
    if request.path.endswith("/file_stream"):
        return {"exitcode": None, "limits": {}}
    return {"digest": _DIGEST, "object_id": "o", "id": "i", "trace_id": "t", "project_name": "p", "res": []}


def _graphql(query: dict[str, Any], url: str) -> dict[str, Any]:
    text = query["query"]
    if "__type(" in text or "__schema" in text:
        return {"__type": None, "QueryType": {"fields": []}, "MutationType": {"fields": []}, "ServerInfoType": None}
    if "upsertBucket" in text:
        name = query["variables"].get("name") or "r"
        bucket = {
            "id": "UnVu",
            "name": name,
            "displayName": name,
            "description": "",
            "config": "{}",
            "project": _PROJECT,
        }
        return {"upsertBucket": {"bucket": {**bucket, "sweepName": None, "historyLineCount": 0}, "inserted": True}}
    if "upsertModel" in text:
        return {"upsertModel": {"model": _PROJECT, "project": _PROJECT, "inserted": True}}
    if "createRunFiles" in text:
        names = query["variables"].get("files", [])
        files = [{"name": name, "uploadUrl": f"{url}/storage/{name}"} for name in names]
        return {"createRunFiles": {"runID": "UnVu", "uploadHeaders": [], "files": files}}
    if "createArtifact(" in text:
        # It has such a one already: then its files are not sent again.
        artefact = {"id": "QXJ0", "state": "COMMITTED", "artifactSequence": {"id": "U2Vx", "latestArtifact": None}}
        return {"createArtifact": {"artifact": artefact}}
    return {
        "viewer": _VIEWER,
        "entity": {**_PROJECT["entity"], "isTeam": False, "organization": None},
        "model": None,
        "project": {**_PROJECT, "run": None, "bucket": None, "artifact": None},
        "serverInfo": {"features": [], "cliVersionInfo": {"max_cli_version": "99"}, "latestLocalVersionInfo": None},
    }


@contextmanager
def stand_in(fault: Fault | None = None) -> Iterator[StandIn]:
    """One that runs meanwhile."""
    server = StandIn(fault)
    try:
        yield server
    finally:
        server.close()

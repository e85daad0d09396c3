"""The HTTP server on loopback that agents connect to. It serves the model, and the tools as an MCP server.

Each episode has its own URL, which contains a secret token. Requests without this token, with another episode's key,
from a web page or for another host are refused.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, TextContent, Tool
from starlette.datastructures import Headers
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from mcprl_agents.answers import events, whole
from mcprl_agents.requests import RefusedError, read_chat, read_responses
from mcprl_agents.session import Session

_LOOPBACK = "127.0.0.1"
_CLOSING_S = 1
_IDLE_S = 86_400  # a connection that we closed while it was idle would break the request that is just being sent


class _QuietServer(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Handle no signals here, because the run handles them."""
        yield


class Gateway:
    """Serves all episodes of a process. `address` is http://127.0.0.1:PORT."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        server = Server[Any]("mcprl", on_list_tools=self._list_tools, on_call_tool=self._call_tool)
        # Clients may open a session per call, so the episode is in the URL and never in the session.
        self._mcp = StreamableHTTPSessionManager(server, stateless=True, json_response=True)
        self._host = ""

    @property
    def address(self) -> str:
        return f"http://{self._host}"

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Gateway]:
        with socket.create_server((_LOOPBACK, 0), backlog=2048) as listening:
            self._host = f"{_LOOPBACK}:{listening.getsockname()[1]}"
            quiet: dict[str, Any] = {"log_level": "warning", "access_log": False, "lifespan": "off", "ws": "none"}
            server = _QuietServer(
                uvicorn.Config(self, timeout_graceful_shutdown=_CLOSING_S, timeout_keep_alive=_IDLE_S, **quiet)
            )
            serving = asyncio.create_task(self._serve(server, listening))
            try:
                yield self
            finally:
                server.should_exit = True
                await serving

    async def _serve(self, server: uvicorn.Server, listening: socket.socket) -> None:
        async with self._mcp.run():  # in a task of its own: it would wrap errors of the run in a group
            await server.serve(sockets=[listening])

    @contextmanager
    def serve(self, session: Session) -> Generator[str]:
        """Serve an episode, and yield its token: the first part of its URL paths, and the API key of its model."""
        token = secrets.token_urlsafe(32)
        self._sessions[token] = session
        try:
            yield token
        finally:
            del self._sessions[token]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _, token, *path = str(scope["path"]).split("/")
        headers, session = Headers(scope=scope), self._sessions.get(token)
        if "origin" in headers or headers.get("host") != self._host:
            await _refusal("requests from web pages are refused", 403, "forbidden")(scope, receive, send)
        elif session is None:
            await _refusal("this episode does not exist, or has ended", 404, "not_found")(scope, receive, send)
        elif path[:1] == ["mcp"]:
            await self._mcp.handle_request(scope, receive, send)
        elif not secrets.compare_digest(headers.get("authorization", "").encode(), f"Bearer {token}".encode()):
            await _refusal("the API key does not belong to this episode", 401, "invalid_api_key")(scope, receive, send)
        elif path == ["v1", "models"]:
            await JSONResponse({"object": "list", "data": []})(scope, receive, send)
        elif path in (["v1", "chat", "completions"], ["v1", "responses"]) and scope["method"] == "POST":
            await _answer(session, path[-1] == "responses", scope, receive, send)
        else:
            await _refusal(f"{scope['method']} /{'/'.join(path)} is not served", 404, "not_found")(scope, receive, send)

    async def _list_tools(self, context: Any, params: Any) -> ListToolsResult:
        specs = self._session_of(context).environment.tool_specs
        tools = [Tool(name=s["name"], description=s["description"], input_schema=s["parameters"]) for s in specs]
        return ListToolsResult(tools=tools)

    async def _call_tool(self, context: Any, params: CallToolRequestParams) -> CallToolResult:
        seen = await self._session_of(context).call(params.name, dict(params.arguments or {}))
        return CallToolResult(content=[TextContent(type="text", text=seen.text)], is_error=seen.fault is not None)

    def _session_of(self, context: Any) -> Session:
        return self._sessions[str(context.request.scope["path"]).split("/")[1]]


async def _answer(session: Session, is_responses: bool, scope: Scope, receive: Receive, send: Send) -> None:
    """Respond to a request for a turn. If the agent disconnects first, keep the turn for a repeated request."""
    body = await HttpRequest(scope, receive).body()
    try:
        fields: Any = json.loads(body)
        request = read_responses(fields, session.items, session.conversations) if is_responses else read_chat(fields)
        key = f"{request.api} {body.decode('utf-8', 'replace')}"
        turn, gone = session.ask(request, key), asyncio.create_task(_hung_up(receive))
        try:
            await asyncio.wait({turn, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
        if gone.done():
            session.keep(key, turn)
            return
        if turn.cancelled() or not isinstance(turn.exception(), RefusedError | None):
            raise RefusedError("the episode has ended", code="episode_ended")
        given = turn.result()
    except ValueError:
        await _refusal("the request body is not JSON", 400, "invalid_request_error")(scope, receive, send)
    except RefusedError as error:
        await _refusal(str(error), error.status, error.code)(scope, receive, send)
    else:
        session.deliver(given)
        if request.stream:
            response = Response("".join(events(request, given.answer)), media_type="text/event-stream")
        else:
            response = JSONResponse(whole(request, given.answer))
        await response(scope, receive, send)


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _refusal(message: str, status: int, code: str) -> JSONResponse:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    # SDKs repeat some errors unless told not to.
    return JSONResponse({"error": error}, status, headers={"x-should-retry": "false"})

"""The dashboard's server and its routes. Threads read the files and query the index."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import socket
import sys
import time
import webbrowser
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlencode, urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mcprl.errors import BadValueError, McprlError
from mcprl.processes import private_folder
from mcprl_dashboard.answers import Answer, Refusal
from mcprl_dashboard.episode_details import TokenNoteFiles, course_of_task, episode_details, episode_tokens
from mcprl_dashboard.open_run import OpenRun, RunList
from mcprl_dashboard.questions import EpisodeKey, Filter, OfStep, OfTask, Page
from mcprl_dashboard.watching import Broadcast, Event, ListLook, RunLook, event_stream, read_tool_figures

_STATIC = Path(__file__).parent / "static"
_ASSET_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
_FOREVER = "public, max-age=31536000, immutable"  # the name of a built file changes with its content


def index_page(_: Request) -> Response:
    """Return the only page. Its script reads the URL."""
    if not (_STATIC / "index.html").is_file():
        return PlainTextResponse(
            "The pages of the dashboard are not built.\nFix: run scripts/setup dashboard, then reload this page.\n",
            status_code=503,
        )
    return FileResponse(_STATIC / "index.html", media_type="text/html; charset=utf-8")


def asset(request: Request) -> Response:
    """Return a file that the page loads."""
    name = request.path_params["name"]
    path = _STATIC / "assets" / name
    if not _ASSET_NAME.fullmatch(name) or not path.is_file():
        raise Refusal(404, "no-file", "this file does not exist", "reload the page")
    return FileResponse(path, headers={"cache-control": _FOREVER})


_OWN_NAMES = ("127.0.0.1", "localhost")
_CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class Guard:
    """Rejects requests from other sites, and adds the security headers to every response, including errors."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = _refusal(scope)
        app = self._with_token(scope) if refusal is None else refusal.answer()
        await app(scope, receive, send_guarded)

    def _with_token(self, scope: Scope) -> ASGIApp:
        """Return the application for a request with the token. If the token is in the query, redirect to the same URL
        without it, so that the token is not in the browser's history."""
        request = Request(scope)
        cookie = f"mcprl-{scope['server'][1]}"  # a browser sends cookies to all ports of a host
        if self._is_token(request.query_params.get("token")):
            rest = urlencode([(key, value) for key, value in request.query_params.multi_items() if key != "token"])
            answer = RedirectResponse(request.url.replace(scheme="", netloc="", query=rest), status_code=303)
            answer.set_cookie(cookie, self._token, httponly=True, samesite="lax")
            return answer
        if self._is_token(request.cookies.get(cookie)):
            return self._app
        fix = "open the whole link that `mcprl dashboard` printed, including its token"
        return Refusal(401, "no-token", "the request does not contain this dashboard's token", fix).answer()

    def _is_token(self, given: str | None) -> bool:
        return given is not None and secrets.compare_digest(given.encode(), self._token.encode())


def _refusal(scope: Scope) -> Refusal | None:
    headers = Headers(scope=scope)
    server: tuple[str, int] | None = scope.get("server")
    own = {f"{name}:{server[1]}" for name in _OWN_NAMES} if server is not None else set[str]()
    if headers.get("host", "").lower() not in own:
        return Refusal(403, "foreign-host", "the request is for another host", "open the address that mcprl printed")
    origin = headers.get("origin")
    if origin is not None and not _is_own(origin, own):
        return Refusal(403, "foreign-origin", "the request comes from another website", "open the dashboard directly")
    if scope["method"] not in ("GET", "HEAD"):
        return Refusal(405, "read-only", "the dashboard is read-only", "use GET")
    return None


def _is_own(origin: str, own: set[str]) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme == "http" and parts.netloc.lower() in own


_COMPRESSED_FROM_BYTES = 4096
_COMPRESSION = 3
_PAGES = (
    "/",
    "/compare",
    "/runs/{run}",
    "/runs/{run}/episodes",
    "/runs/{run}/episodes/{step}/{task:path}/{member}",
    "/runs/{run}/tasks/{task:path}",
)

_Show = Callable[[OpenRun, Request], dict[str, Any]]


def make_app(runs: RunList, closing: asyncio.Event, *, token: str) -> ASGIApp:
    """Create the application, which requires this token. Event streams end when `closing` is set."""
    shown: dict[str, _Show] = {
        "": _details,
        "/metrics": _metrics,
        "/health": lambda run, _: {"verdicts": run.health.entries()},
        "/timeline": lambda run, _: {"spans": run.timeline.entries()},
        "/tools": lambda run, _: {"servers": read_tool_figures(run.path, run.setting("servers", "settings"))},
        "/ratios": _ratios,
        "/facets": _facets,
        "/episodes": _episodes,
        "/episode": lambda run, request: episode_details(run, EpisodeKey.of(request.query_params)),
        "/tokens": lambda run, request: episode_tokens(run, EpisodeKey.of(request.query_params)),
        "/task": lambda run, request: course_of_task(run, OfTask.of(request.query_params).task),
    }
    events = _Events(runs, closing)
    routes = [
        Route("/api/runs", _answering(lambda _: {"runs": runs.cards()})),
        Route("/api/events", events.of_list),
        Route("/api/runs/{run}/events", events.of_run),
        *(
            Route(f"/api/runs/{{run}}{path}", _answering(lambda request, show=show: show(_run(runs, request), request)))
            for path, show in shown.items()
        ),
        Route("/assets/{name:path}", asset),
        *(Route(path, index_page) for path in _PAGES),
    ]

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        yield
        await asyncio.to_thread(runs.close)

    app = Starlette(
        routes=routes,
        middleware=[Middleware(GZipMiddleware, minimum_size=_COMPRESSED_FROM_BYTES, compresslevel=_COMPRESSION)],
        exception_handlers={Refusal: _refuse, McprlError: _report, 404: _unknown_address},
        lifespan=lifespan,
    )
    return Guard(app, token)  # outermost, so that its own errors have the headers too


class _Events:
    """The event streams: one broadcast for the list of runs, and one for each run that has listeners."""

    def __init__(self, runs: RunList, closing: asyncio.Event) -> None:
        self._runs, self._closing = runs, closing
        self._of_list = Broadcast(lambda: ListLook(runs))
        self._of_runs: dict[str, Broadcast] = {}

    async def of_list(self, _: Request) -> Response:
        return self._stream(self._of_list, None)

    async def of_run(self, request: Request) -> Response:
        run = await asyncio.to_thread(_run, self._runs, request)
        broadcast = self._of_runs.setdefault(run.id, Broadcast(lambda: RunLook(run)))
        return self._stream(broadcast, run)

    def _stream(self, broadcast: Broadcast, run: OpenRun | None) -> Response:
        async def body() -> AsyncGenerator[bytes]:
            async with broadcast.listening() as queue:
                # Sent after listening began, so that nothing is lost between this response and the first event.
                hello = Event(name="hello", data=await asyncio.to_thread(_standing, run)) if run is not None else None
                async for chunk in event_stream(hello, queue, self._closing):
                    yield chunk

        return StreamingResponse(body(), media_type="text/event-stream")


def _standing(run: OpenRun) -> dict[str, Any]:
    status = run.status()
    return {"step": status.steps_done, "state": status.state.value, "why": status.why or None}


def _answering(show: Callable[[Request], dict[str, Any]]) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        return Answer(show(request))

    return answer


def _run(runs: RunList, request: Request) -> OpenRun:
    return runs.get(request.path_params["run"])


def _details(run: OpenRun, _: Request) -> dict[str, Any]:
    run.prepare()
    return run.details()


def _metrics(run: OpenRun, request: Request) -> dict[str, Any]:
    since = OfStep.of(request.query_params).since
    return {"steps": [entry for entry in run.metrics.entries() if since is None or entry["step"] > since]}


def _ratios(run: OpenRun, request: Request) -> dict[str, Any]:
    bounds = run.bounds()
    return TokenNoteFiles(run.path).histogram(
        OfStep.of(request.query_params).step, clip_low=bounds["clip_low"] or 0.0, clip_high=bounds["clip_high"] or 0.0
    )


def _facets(run: OpenRun, _: Request) -> dict[str, Any]:
    started = time.perf_counter()
    run.index.refresh()
    return run.index.facets() | {"problems": run.index.problems, "took_ms": _since_ms(started)}


def _episodes(run: OpenRun, request: Request) -> dict[str, Any]:
    started = time.perf_counter()
    wanted, page = Filter.of(request.query_params), Page.of(request.query_params)
    run.index.refresh()
    found = run.index.find(wanted, page)
    answer = {"total": found.total, "rows": found.rows, "pending": found.pending}
    return answer | {"problems": run.index.problems, "took_ms": _since_ms(started)}


def _since_ms(started: float) -> float:
    return round(1000 * (time.perf_counter() - started), 1)


def _refuse(_: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, Refusal)
    return refusal.answer()


def _report(_: Request, error: Exception) -> Response:
    assert isinstance(error, McprlError)
    return Refusal(404, error.code, error.what, error.fix).answer()


def _unknown_address(_: Request, _error: Exception) -> Response:
    return Refusal(404, "no-page", "this page does not exist", "start at the list of runs").answer()


_LOOPBACK = "127.0.0.1"
_CLOSING_S = 2


def serve(folder: Path, *, port: int = 0, open_browser: bool = True) -> None:
    """Show the runs of a folder, or a single run, at a link that is printed. Port 0 means any free port.

    The link contains a token that changes at each start. Requests without it are rejected.
    """
    runs, token = RunList(folder), secrets.token_urlsafe()
    with ExitStack() as stack:
        listening = stack.enter_context(_listen(port))
        address = f"http://{_LOOPBACK}:{listening.getsockname()[1]}/?token={token}"
        print(f"mcprl dashboard: {folder} at {address}  (press Ctrl-C to stop)", flush=True)
        has_display = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
        if open_browser and (has_display or sys.platform in ("darwin", "win32")):
            # Other users can read the command line of the browser, but not this file.
            page = stack.enter_context(private_folder()) / "dashboard.html"
            page.write_text(f'<meta http-equiv="refresh" content="0; url={address}">\n')
            webbrowser.open(page.as_uri())
        asyncio.run(_serve(runs, listening, token))


async def _serve(runs: RunList, listening: socket.socket, token: str) -> None:
    closing = asyncio.Event()
    config = uvicorn.Config(
        make_app(runs, closing, token=token),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_CLOSING_S,
    )
    await _Server(config, closing).serve(sockets=[listening])


class _Server(uvicorn.Server):
    """A uvicorn server that ends the event streams first when it stops, because uvicorn would wait for them forever."""

    def __init__(self, config: uvicorn.Config, closing: asyncio.Event) -> None:
        super().__init__(config)
        self._closing = closing
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self._closing.set)
        super().handle_exit(sig, frame)


def _listen(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((_LOOPBACK, port))
    except (OSError, OverflowError) as error:
        listening.close()
        what = f"port {port} of {_LOOPBACK} cannot be used: {error}"
        raise BadValueError(what, fix="choose another --port, or omit it to use a free one") from error
    return listening

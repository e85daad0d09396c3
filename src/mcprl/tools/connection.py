"""One connection to one tool server: a task that owns it, calls from any other task, and a restart after a death.

The SDK ties a session to the task that opened it, and one transport error cancels that task. So each connection has
an owner task of its own, which opens a session, waits for its end, cleans up, and opens the next when a call asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self, TextIO, cast
from urllib.parse import quote

import httpx2
from mcp import Client, MCPError
from mcp.client import InputRequiredRoundsExceededError
from mcp_types import CONNECTION_CLOSED, CallToolResult
from mcp_types import Tool as ListedTool
from pydantic import ValidationError

from mcprl.errors import CallDeadlineError, ServerFaultError, ServerLostError, ServerStartError
from mcprl.processes import ChildProcess, free_port
from mcprl.tools.specs import PORT, ServerSpec
from mcprl.tools.transports import (
    find_program,
    http_transport,
    port_answers,
    start_child,
    stdio_transport,
    watched,
)

__all__ = ["ServerConnection"]

_logger = logging.getLogger(__name__)

_MAX_LIST_PAGES = 100
_PORT_POLL_S = 0.05
_END_GRACE_S = 0.25
_LOG_TAIL_LINES = 20

# What the SDK, the sockets and the spawn raise when a server fails. A group is always the SDK's own tasks failing.
_FAILURES = (MCPError, OSError, RuntimeError, ValidationError, httpx2.HTTPError, ExceptionGroup)


class _Session:
    """One life of the server, from handshake to end."""

    client: Client

    def __init__(self, url: str | None, child: ChildProcess | None) -> None:
        self.url = url
        self.child = child
        self.pid = child.pid if child is not None else None
        self.over = asyncio.Event()
        self.why = ""

    def end(self, why: str) -> None:
        """Note that the session is over. The first reason stands."""
        if not self.over.is_set():
            self.why = why
            self.over.set()

    async def has_ended(self) -> bool:
        """Whether 'connection closed' is true: its code is one that live servers use for errors of their own, too."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.over.wait(), _END_GRACE_S)
        # Over HTTP a broken response leaves the SDK's session standing, whether or not the server is still there.
        if self.url is not None and not self.over.is_set() and not await port_answers(self.url):
            self.end("its port no longer answers")
        return self.over.is_set()

    async def until_over(self) -> None:
        if self.child is None:
            await self.over.wait()
            return
        exited = asyncio.ensure_future(self.child.wait())
        over = asyncio.ensure_future(self.over.wait())
        try:
            await asyncio.wait({exited, over}, return_when=asyncio.FIRST_COMPLETED)
            if exited.done():
                self.end(f"its process ended with exit code {self.child.exit_code}")
        finally:
            exited.cancel()
            over.cancel()


class ServerConnection:
    """A tool server that is started when opened, restarted by the next call after it died, and gone when closed."""

    def __init__(self, spec: ServerSpec, *, log_dir: Path) -> None:
        self.spec = spec
        self.restarts = 0
        self.tools: tuple[ListedTool, ...] = ()
        """What the server listed when it last started."""
        file_name = quote(spec.name, safe="")
        self.log = log_dir / f"{file_name}.log"
        self._pid_file = log_dir / f"{file_name}.pid"
        self._log_offset = 0
        self._has_run = False
        self._owner: asyncio.Task[None] | None = None
        self._attempt: asyncio.Future[_Session] | None = None
        self._wanted = asyncio.Event()
        self._closing = False

    @property
    def pid(self) -> int | None:
        """Process id of the running server; None where it does not run or where someone else started it."""
        session = self._current()
        return session.pid if session is not None else None

    async def open(self) -> None:
        """Start the server and list its tools. Raises ServerStartError."""
        if self._owner is not None:
            raise RuntimeError(f"the connection to server {self.spec.name!r} was opened before")
        self._owner = asyncio.create_task(self._own(), name=f"server {self.spec.name}")
        await self._live_session()

    async def call(self, tool: str, arguments: Mapping[str, Any], deadline_s: float) -> CallToolResult:
        """Call a tool, starting the server again first if it has died since the last call.

        Raises ServerLostError where the server dies under the call, CallDeadlineError where it takes too long (the
        session lives on), ServerStartError where it cannot be started again, ServerFaultError where its result is
        malformed. MCPError is a protocol error that a live server answered with.
        """
        session = await self._live_session()
        try:
            # Not the SDK's own time-out, which starts only once the request is written and again for each round.
            async with asyncio.timeout(deadline_s):
                return await session.client.call_tool(tool, dict(arguments))
        except TimeoutError as error:
            raise CallDeadlineError(
                f"server {self.spec.name!r} did not finish a call of {tool!r} within {deadline_s:g} s",
                fix=f"raise call_deadline_s of the server, or see its log {self.log}",
            ) from error
        except MCPError as error:
            if error.code == CONNECTION_CLOSED and await session.has_ended():
                raise self._lost(f"went away during a call of {tool!r} ({session.why})") from error
            raise
        except (RuntimeError, ValidationError, InputRequiredRoundsExceededError) as error:
            # The SDK raises RuntimeError both for a result that breaks its schema and for a client already closed.
            if session.over.is_set():
                raise self._lost(f"went away during a call of {tool!r} ({session.why})") from error
            raise ServerFaultError(
                f"server {self.spec.name!r} answered a call of {tool!r} with a malformed result: {_one_line(error)}",
                fix="mend the server, or leave the tool out of the tasks",
            ) from error

    async def close(self) -> None:
        """End the session, the server's process and the owner task. Calls in flight raise ServerLostError."""
        if self._owner is None:
            return
        self._closing = True
        self._wanted.set()
        session = self._current()
        if session is not None:
            session.end("the connection was closed")
        elif self._attempt is not None and not self._attempt.done():
            self._owner.cancel()
        await _finished(self._owner)
        if not self._owner.cancelled():
            self._owner.result()

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _current(self) -> _Session | None:
        if self._attempt is None or not self._attempt.done() or self._attempt.exception() is not None:
            return None
        session = self._attempt.result()
        return None if session.over.is_set() else session

    async def _live_session(self) -> _Session:
        """The running session, or the next one: all calls that find the server dead wait for the same restart."""
        if self._owner is None or self._closing:
            raise self._lost("was called while its connection was closed")
        if self._attempt is None or (self._attempt.done() and self._current() is None):
            self._attempt = asyncio.get_running_loop().create_future()
            self._wanted.set()
        attempt = self._attempt
        await asyncio.wait({attempt, self._owner}, return_when=asyncio.FIRST_COMPLETED)
        if attempt.done():
            return attempt.result()
        if not self._owner.cancelled():
            self._owner.result()  # a defect in the owner surfaces here instead of leaving calls to wait
        raise self._lost("was called while its connection was closing")

    async def _own(self) -> None:
        while True:
            await self._wanted.wait()
            if self._closing:
                return
            self._wanted.clear()
            assert self._attempt is not None
            await self._live_once(self._attempt)

    async def _live_once(self, attempt: asyncio.Future[_Session]) -> None:
        """Start the server, publish the session, and stay until it is over."""
        self._log_offset = _size(self.log)
        session: _Session | None = None
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self.spec.start_deadline_s):
                    session = await self._start(stack)
                self.restarts += self._has_run
                self._has_run = True
                attempt.set_result(session)
                try:
                    await session.until_over()
                finally:
                    session.end("its transport failed")
        except ServerStartError as error:
            self._fail(attempt, error)
        except _FAILURES as error:
            if session is None:
                self._fail(attempt, self._start_error(error))
            else:
                _logger.warning("server %r: its session ended with %s", self.spec.name, _one_line(error))
        finally:
            self._pid_file.unlink(missing_ok=True)

    async def _start(self, stack: AsyncExitStack) -> _Session:
        session = await self._open_url(stack) if self.spec.url is not None else _Session(None, None)
        if session.url is not None:
            transport = http_transport(session.url, self.spec)
        else:
            self._check_program()
            transport = stdio_transport(
                self.spec, pid_file=self._pid_file, error_log=stack.enter_context(_append_to(self.log))
            )
        transport = watched(transport, lambda: session.end("its stream ended"))
        # No response cache: a restarted server is asked again what it offers.
        session.client = await stack.enter_async_context(Client(transport, cache=None))
        self.tools = await self._list_tools(session.client)
        if session.url is None:
            session.pid = int(self._pid_file.read_text())
        return session

    async def _open_url(self, stack: AsyncExitStack) -> _Session:
        assert self.spec.url is not None
        if not self.spec.start:
            return _Session(self.spec.url, None)
        port = free_port() if PORT in self.spec.url else None
        url = self.spec.url if port is None else self.spec.url.replace(PORT, str(port))
        if await port_answers(url):
            raise ServerStartError(
                f"server {self.spec.name!r} was not started: something else already answers at {url}",
                fix=f"end that process, or write {PORT} for the port in the url and in start",
            )
        child = await start_child(self.spec, port=port, log=self.log)
        stack.push_async_callback(child.stop)
        while not await port_answers(url):
            if child.exit_code is not None:
                raise self._start_error(f"it ended with exit code {child.exit_code} before {url} answered")
            await asyncio.sleep(_PORT_POLL_S)
        return _Session(url, child)

    def _check_program(self) -> None:
        if find_program(self.spec) is None:
            raise ServerStartError(
                f"server {self.spec.name!r} did not start: there is no program {self.spec.command!r}",
                fix="install it, or correct 'command' in the mcpServers file",
            )
        self.log.parent.mkdir(parents=True, exist_ok=True)

    async def _list_tools(self, client: Client) -> tuple[ListedTool, ...]:
        tools: list[ListedTool] = []
        cursor: str | None = None
        for _ in range(_MAX_LIST_PAGES):
            page = await client.list_tools(cursor=cursor)
            tools.extend(page.tools)
            cursor = page.next_cursor
            if cursor is None:
                return tuple(tools)
        raise ServerStartError(
            f"server {self.spec.name!r} lists its tools on more than {_MAX_LIST_PAGES} pages",
            fix="mend the server: its last page must carry no nextCursor",
        )

    def _fail(self, attempt: asyncio.Future[_Session], error: ServerStartError) -> None:
        attempt.set_exception(error)
        attempt.exception()  # marks it as seen: the call that asked may have been cancelled meanwhile

    def _start_error(self, cause: Exception | str) -> ServerStartError:
        if isinstance(cause, TimeoutError):
            what = f"it was not ready within {self.spec.start_deadline_s:g} s"
        else:
            what = cause if isinstance(cause, str) else _one_line(cause)
        tail = _log_tail(self.log, self._log_offset)
        error = ServerStartError(
            f"server {self.spec.name!r} did not start: {what}" + (f"; its log ends:\n{tail}\n" if tail else ""),
            fix=f"mend what its log {self.log} shows, or run its command by hand",
        )
        error.__cause__ = cause if isinstance(cause, Exception) else None
        return error

    def _lost(self, what: str) -> ServerLostError:
        return ServerLostError(f"server {self.spec.name!r} {what}", fix=f"see its log {self.log}")


async def _finished(task: asyncio.Task[None]) -> None:
    """Wait for a task to end even if we are cancelled meanwhile: it is cleaning up, and its waits are bounded."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


def _append_to(log: Path) -> TextIO:
    return log.open("a", encoding="utf-8")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _log_tail(path: Path, offset: int) -> str:
    """The last lines that this attempt wrote."""
    if not path.exists():
        return ""
    with path.open("rb") as log:
        log.seek(offset)
        lines = log.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-_LOG_TAIL_LINES:])


def _one_line(error: Exception) -> str:
    """An error for a sentence: of a group, the first cause."""
    while isinstance(error, ExceptionGroup):
        error = cast("ExceptionGroup[Exception]", error).exceptions[0]
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__

"""One connection to one tool server. It restarts the server if the server dies.

The SDK ties a session to the task that opened it. So each connection has an owner task: it opens a session, waits until
the session ends, cleans up, and opens the next one. It restarts the server at once after a first crash, and with
exponential backoff if crashes or failed starts follow each other closely. Other tasks make the calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, cast

import httpx2
from mcp import MCPError
from mcp.client import InputRequiredRoundsExceededError
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_PARAMS,
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from pydantic import ValidationError

from mcprl.errors import (
    CallDeadlineError,
    ConfigurationError,
    ServerBusyError,
    ServerFaultError,
    ServerLostError,
    ServerStartError,
    ToolLimitError,
    ToolsChangedError,
    ToolServerError,
)
from mcprl.protocol import RETRY_AFTER_S
from mcprl.secrets import SECRETS
from mcprl.tools.pins import PinnedTools
from mcprl.tools.session import Session, list_tools, open_session
from mcprl.tools.specs import ServerSpec
from mcprl.tools.transports.messages import TransportOutcome, Trouble, outcome_of


@dataclass(frozen=True, slots=True)
class Answer:
    """A call's result: Answer("Ana: Lima, America/Lima"), Answer("Nobody called 'Bo' works here.", is_error=True)."""

    text: str
    is_error: bool = False
    truncated: bool = False


class CallableServer(Protocol):
    """A server as the pipeline uses it: one connection, or a pool of several."""

    async def call(self, tool: str, arguments: Mapping[str, Any], deadline_s: float) -> Answer: ...


def answer_of(result: CallToolResult) -> Answer:
    """Return a result's text, or else its structured content as JSON. Images and other parts are only named."""
    texts: list[str] = []
    omitted: list[str] = []
    for part in result.content:
        match part:
            case TextContent():
                texts.append(part.text)
            case EmbeddedResource(resource=TextResourceContents() as resource):
                texts.append(resource.text)
            case ImageContent():
                omitted.append("[image omitted]")
            case AudioContent():
                omitted.append("[audio omitted]")
            case ResourceLink():
                omitted.append(f"[resource {part.uri} omitted]")
            case EmbeddedResource():
                omitted.append(f"[resource {part.resource.uri} omitted]")
    if not texts and result.structured_content is not None:
        texts.append(json.dumps(result.structured_content, ensure_ascii=False, separators=(",", ":")))
    return Answer("\n".join([*texts, *omitted]), is_error=bool(result.is_error))


_LOG_TAIL_LINES = 20
_MAX_DETAIL_CHARS = 500


def log_size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def log_tail(path: Path, offset: int) -> str:
    """Return the last lines written to the log after `offset`."""
    lines = path.read_bytes()[offset:].decode(errors="replace").splitlines() if path.exists() else []
    return "\n".join(lines[-_LOG_TAIL_LINES:])


def one_line(error: Exception) -> str:
    """Format an error as one short line without secrets. For an exception group, use the first error."""
    while isinstance(error, ExceptionGroup):
        error = cast("ExceptionGroup[Exception]", error).exceptions[0]
    text = shortened(" ".join(SECRETS.redact(str(error)).split()))
    if isinstance(error, MCPError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def shortened(text: str) -> str:
    return text if len(text) <= _MAX_DETAIL_CHARS else f"{text[: _MAX_DETAIL_CHARS - 1]}…"


def asked_wait_s(error: MCPError) -> float | None:
    """Return the wait in seconds that the error's data asks for, or None."""
    data: Any = error.data
    asked: Any = cast("dict[str, Any]", data).get(RETRY_AFTER_S) if isinstance(data, dict) else None
    if isinstance(asked, bool) or not isinstance(asked, int | float) or not math.isfinite(asked):
        return None
    return max(0.0, float(asked))


_logger = logging.getLogger(__name__)

START_S = 120.0
"""Deadline for starting a server and listing its tools. A server that exits is noticed immediately."""

_END_GRACE_S = 0.25
_SHORT_LIFE_S = 10.0
_FIRST_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 10.0
_SILENT_DEADLINES = 3

# The exceptions that the SDK, sockets and process starts raise if a server fails. The SDK's tasks raise groups.
_FAILURES = (MCPError, OSError, RuntimeError, ValidationError, httpx2.HTTPError, ExceptionGroup)


class ServerConnection:
    """A tool server that is started when opened, restarted if it dies, and stopped when closed.

    With `one_life`, the server is never restarted, because a new process would not have the episode's state.
    """

    def __init__(self, spec: ServerSpec, *, log: Path, pins: PinnedTools | None = None, one_life: bool = False) -> None:
        self.spec = spec
        self.log = log
        self.pins = pins or PinnedTools(spec.name)
        self.restarts = 0
        self.in_flight = 0
        self.version = ""
        self._one_life = one_life
        self._log_offset = 0
        self._lives = 0
        self._short_lives = 0
        self._silent_deadlines = 0
        self._owner: asyncio.Task[None] | None = None
        self._attempt: asyncio.Future[Session] | None = None
        self._wanted = asyncio.Event()
        self._closing = asyncio.Event()
        self._refused: ToolsChangedError | ToolLimitError | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the running server. None if it is not running, or if mcprl did not start it."""
        session = self._current()
        return session.child.pid if session is not None and session.child is not None else None

    @property
    def is_up(self) -> bool:
        """Whether the server is running."""
        return self._current() is not None

    async def open(self) -> None:
        """Start the server and list its tools. Raises ServerStartError or ToolsChangedError."""
        if self._owner is not None:
            raise RuntimeError(f"the connection to server {self.spec.name!r} is already open")
        self._owner = asyncio.create_task(self._own(), name=f"server {self.spec.name}")
        await self.live_session()

    async def call(
        self, tool: str, arguments: Mapping[str, Any], deadline_s: float, *, meta: Mapping[str, Any] | None = None
    ) -> Answer:
        """Call a tool. If the server has just died, wait for its restart first. `meta` is sent with the request.

        Raises ServerLostError if the server dies during the call, CallDeadlineError if it takes too long (the session
        stays open), ServerStartError if it cannot be restarted, ServerBusyError if it asks to be called later, and
        ServerFaultError if it answers with a protocol error or a malformed result.
        """
        self.in_flight += 1
        try:
            session = await self.live_session()
            return await self._call(session, tool, arguments, deadline_s, meta)
        finally:
            self.in_flight -= 1

    async def close(self) -> None:
        """End the session, the server's process and the owner task. Calls in progress raise ServerLostError."""
        if self._owner is None:
            return
        self._closing.set()
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

    async def _call(
        self,
        session: Session,
        tool: str,
        arguments: Mapping[str, Any],
        deadline_s: float,
        meta: Mapping[str, Any] | None,
    ) -> Answer:
        started = asyncio.get_running_loop().time()
        # In its own task: on cancellation, the SDK first notifies the server, and the caller should not wait for that.
        calling = asyncio.create_task(session.client.call_tool(tool, dict(arguments), meta=cast("Any", meta)))
        session.calls.add(calling)
        calling.add_done_callback(session.forget)
        try:
            # Not the SDK's timeout: it starts only after the request is written, and restarts with each round trip.
            done, _ = await asyncio.wait((calling,), timeout=deadline_s)
        finally:
            calling.cancel()
        if not done:
            self._count_deadline(session, started)
            raise CallDeadlineError(
                f"server {self.spec.name!r} did not finish a call to {tool!r} within {deadline_s:g} s",
                fix=f"raise servers.settings.{self.spec.name}.call_deadline_s, or look for the cause in {self.log}",
            )
        try:
            result = calling.result()
        except MCPError as error:
            return await self._answer_to_error(session, tool, error)
        except (RuntimeError, ValidationError, InputRequiredRoundsExceededError) as error:
            # The SDK raises RuntimeError both for a result that violates its schema and for a closed client.
            if session.over.is_set():
                raise self._lost(f"went away during a call to {tool!r} ({session.why})") from None
            raise self._fault(f"answered a call to {tool!r} with a malformed result: {one_line(error)}") from None
        self._silent_deadlines = 0
        return answer_of(result)

    def _current(self) -> Session | None:
        if self._attempt is None or not self._attempt.done() or self._attempt.exception() is not None:
            return None
        session = self._attempt.result()
        return None if session.over.is_set() else session

    async def live_session(self) -> Session:
        """Return the running session, or wait for the next. All calls that find the server dead share one restart."""
        session = self._current()
        if session is not None:
            return session
        if self._refused is not None:
            raise self._refused
        if self._owner is None or self._closing.is_set():
            raise self._lost("was called while its connection was closed", delivered=False)
        if self._one_life and self._lives:
            raise self.state_lost()
        attempt = self._demand()
        await asyncio.wait({attempt, self._owner}, return_when=asyncio.FIRST_COMPLETED)
        if attempt.done():
            return attempt.result()
        if not self._owner.cancelled():
            self._owner.result()  # a bug in the owner task is raised here; otherwise calls would wait forever
        raise self._lost("was called while its connection was closing", delivered=False)

    def _demand(self) -> asyncio.Future[Session]:
        """Return the future of the current start, or ask the owner task for a new start."""
        if self._attempt is None or self._attempt.done():
            self._attempt = asyncio.get_running_loop().create_future()
            self._wanted.set()
        return self._attempt

    async def _own(self) -> None:
        while True:
            await self._wanted.wait()
            await self._back_off()
            if self._closing.is_set():
                return
            self._wanted.clear()
            assert self._attempt is not None
            await self._live_once(self._attempt)

    async def _back_off(self) -> None:
        """Wait before restarting a server that keeps dying soon after its start."""
        if self._short_lives > 1:
            wait_s = min(_FIRST_BACKOFF_S * 2 ** (self._short_lives - 2), _MAX_BACKOFF_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), wait_s)

    async def _live_once(self, attempt: asyncio.Future[Session]) -> None:
        """Start the server, publish the session, and wait until the session ends."""
        self._log_offset = log_size(self.log)
        session: Session | None = None
        born = asyncio.get_running_loop().time()
        try:
            async with AsyncExitStack() as stack:
                try:
                    async with asyncio.timeout(START_S):
                        session = await self._start(stack)
                    attempt.set_result(session)
                    await self._stay(session)
                finally:
                    if session is not None:
                        session.end("its transport failed")
                        lived_s = asyncio.get_running_loop().time() - born
                        self._short_lives = self._short_lives + 1 if lived_s < _SHORT_LIFE_S else 1
                        if not self._one_life and self._refused is None and not self._closing.is_set():
                            self._demand()
        except (ServerStartError, ConfigurationError) as error:
            self._fail(attempt, error)
        except _FAILURES as error:
            # The SDK's task groups wrap our own errors too.
            if session is None:
                self._fail(attempt, self._refused or self._start_error(error))
            else:
                _logger.warning("server %r: its session ended with %s", self.spec.name, one_line(error))

    async def _start(self, stack: AsyncExitStack) -> Session:
        session = await open_session(stack, self.spec, self.log)
        self.version = session.version
        await self._list_tools(session)
        self.restarts += self._lives > 0
        self._lives += 1
        self._silent_deadlines = 0
        return session

    async def _stay(self, session: Session) -> None:
        """Wait until the session ends. Compare the list of tools again whenever the server reports a change."""
        over = asyncio.ensure_future(session.until_over())
        watching = asyncio.ensure_future(session.watch_tools())
        try:
            while not over.done():
                changed = asyncio.ensure_future(session.tools_changed.wait())
                await asyncio.wait({over, changed}, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                if session.tools_changed.is_set() and not session.over.is_set():
                    session.tools_changed.clear()
                    await self._list_tools(session)
        finally:
            for task in (over, watching):
                task.cancel()
            await asyncio.gather(over, watching, return_exceptions=True)

    async def _list_tools(self, session: Session) -> None:
        try:
            session.definitions = await list_tools(self.spec.name, session.client)
            # In a thread, because the list may be large.
            await asyncio.to_thread(self.pins.check, session.definitions)
        except (ToolsChangedError, ToolLimitError) as error:
            self._refused = error
            session.end("its tools were rejected")
            raise

    def _count_deadline(self, session: Session, started: float) -> None:
        """Count a missed deadline. End the session if the server sent nothing during several such calls in a row."""
        if self.spec.make is not None or session.heard_at >= started:
            # A server inside this process sends no messages, and if it is stuck, so is this process.
            self._silent_deadlines = 0
            return
        self._silent_deadlines += 1
        if self._silent_deadlines >= _SILENT_DEADLINES:
            session.end(f"it sent nothing while {self._silent_deadlines} calls missed their deadline")

    async def _answer_to_error(self, session: Session, tool: str, error: MCPError) -> Answer:
        """Convert a JSON-RPC error, depending on its cause: the transport, the policy's arguments, or the server.

        Errors are raised `from None`, because a traceback would print the server's text, including secrets.
        """
        outcome = outcome_of(error)
        if outcome is not None:
            if outcome.trouble is Trouble.UNREACHABLE and session.child is not None:
                await _soon_over(session)  # so that the next call waits for the restart
            return self._answer_of_transport(tool, outcome)
        if error.code == CONNECTION_CLOSED:
            # Some servers use this code for their own errors.
            await _soon_over(session)
            if session.over.is_set():
                raise self._lost(f"went away during a call to {tool!r} ({session.why})") from None
        if error.code == INVALID_PARAMS:
            return Answer(error.message, is_error=True)
        if (wait_s := asked_wait_s(error)) is not None:
            raise self._busy(one_line(error), delivered=False, retry_after_s=wait_s) from None
        raise self._fault(f"answered a call to {tool!r} with error {error.code}: {one_line(error)}") from None

    def _answer_of_transport(self, tool: str, outcome: TransportOutcome) -> Answer:
        detail = shortened(SECRETS.redact(outcome.detail))
        match outcome.trouble:
            case Trouble.TOO_LARGE:
                return Answer(outcome.text, truncated=True)
            case Trouble.REFUSED_FOR_SIZE:
                return Answer(
                    f"The arguments of {tool} are longer than its server accepts. Shorten them.", is_error=True
                )
            case Trouble.BUSY:
                raise self._busy(detail, delivered=outcome.delivered, retry_after_s=outcome.retry_after_s) from None
            case Trouble.UNREACHABLE:
                raise self._lost(
                    f"went away during a call to {tool!r} ({detail})", delivered=outcome.delivered
                ) from None
            case Trouble.BROKEN:
                raise self._fault(f"failed a call to {tool!r}: {detail}", outcome) from None

    def _fail(self, attempt: asyncio.Future[Session], error: ServerStartError | ConfigurationError) -> None:
        self._short_lives += 1
        if not attempt.done():
            attempt.set_exception(error)
            attempt.exception()  # marks the exception as retrieved: the caller may have been cancelled

    def _start_error(self, cause: Exception) -> ServerStartError:
        what = f"it was not ready within {START_S:g} s" if isinstance(cause, TimeoutError) else one_line(cause)
        tail = log_tail(self.log, self._log_offset)
        sandbox = ""
        if self.spec.settings.sandbox is not None:
            sandbox = (
                f"; if the sandbox lacks what the server needs, add it to servers.settings.{self.spec.name}.sandbox"
            )
        return ServerStartError(
            f"server {self.spec.name!r} did not start: {what}" + (f"; the end of its log:\n{tail}\n" if tail else ""),
            fix=f"look for the cause in its log {self.log}, or run its command by hand" + sandbox,
        )

    def state_lost(self) -> ServerLostError:
        """Return the error for an episode whose server died: the new process does not have the episode's state."""
        return self._lost("died earlier in this episode, and lost the episode's state", delivered=False)

    def _busy(self, detail: str, *, delivered: bool, retry_after_s: float | None) -> ServerBusyError:
        return ServerBusyError(
            f"server {self.spec.name!r} asked mcprl to repeat the call later ({detail})",
            fix=f"set servers.settings.{self.spec.name}.rate to what the server allows",
            delivered=delivered,
            retry_after_s=retry_after_s,
        )

    def _lost(self, what: str, *, delivered: bool = True) -> ServerLostError:
        return ServerLostError(
            f"server {self.spec.name!r} {what}", fix=f"look for the cause in its log {self.log}", delivered=delivered
        )

    def _fault(self, what: str, outcome: TransportOutcome | None = None) -> ToolServerError:
        return ServerFaultError(
            f"server {self.spec.name!r} {what}",
            fix=f"look for the cause in its log {self.log}, not in the call, which matches the tool's schema",
            delivered=outcome is None or outcome.delivered,
            retry_after_s=None if outcome is None else outcome.retry_after_s,
        )


async def _finished(task: asyncio.Task[None]) -> None:
    """Wait for a task to end, even if the caller is cancelled. The task cleans up within a bounded time."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def _soon_over(session: Session) -> None:
    """Wait briefly for mcprl to notice that the server's process has ended."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(session.over.wait(), _END_GRACE_S)

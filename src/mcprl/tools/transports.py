"""How bytes reach a tool server: its process, its port, and the SDK's transports with their endings made visible."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO
from urllib.parse import urlsplit

import httpx2
from mcp.client import Transport
from mcp.client.stdio import StdioServerParameters, get_default_environment, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from mcprl.processes import ChildProcess, search_path
from mcprl.tools.specs import PORT, ServerSpec

__all__ = ["find_program", "http_transport", "port_answers", "start_child", "stdio_transport", "watched"]

_CONNECT_S = 30.0
_KNOCK_S = 2.0
_MAX_EVENT_BYTES = 64 * 1024 * 1024

# The SDK does not tell the pid of a server it spawns. The shell writes its own, then becomes the server.
_TELL_PID = 'echo "$$" >"$0" && exec "$@"'


def find_program(spec: ServerSpec) -> str | None:
    """Where the program of a stdio server is, or None."""
    assert spec.command is not None
    # A command with a slash is relative to the server's own folder, as it is for the shell.
    command = str(Path(spec.cwd or ".") / spec.command) if "/" in spec.command else spec.command
    return shutil.which(command, path=_environment(spec.env)["PATH"])


def stdio_transport(spec: ServerSpec, *, pid_file: Path, error_log: TextIO) -> Transport:
    """The SDK's stdio transport. When the server has answered once, `pid_file` holds its process id."""
    assert spec.command is not None
    parameters = StdioServerParameters(
        command="/bin/sh",
        args=["-c", _TELL_PID, str(pid_file.absolute()), spec.command, *spec.args],
        env=_environment(spec.env),
        cwd=spec.cwd,
        # One bad byte in a result must not end the session and every other call in it.
        encoding_error_handler="replace",
    )
    return stdio_client(parameters, errlog=error_log)


@asynccontextmanager
async def http_transport(url: str, spec: ServerSpec) -> AsyncGenerator[Any, None]:
    """The SDK's streamable HTTP transport, with no limit of its own on the time or the number of calls in flight.

    Both would surface as transport errors, which end the session: deadlines are the caller's.
    """
    client = httpx2.AsyncClient(
        headers=dict(spec.headers),
        timeout=httpx2.Timeout(_CONNECT_S, read=None, pool=None),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=64),
        # A server we started is on this machine: a proxy from the environment could not reach it.
        trust_env=not spec.start,
    )
    async with (
        client,
        streamable_http_client(url, http_client=client, max_sse_event_size=_MAX_EVENT_BYTES) as streams,
    ):
        yield streams


@asynccontextmanager
async def watched(transport: Transport, on_end: Callable[[], None]) -> AsyncGenerator[Any, None]:
    """A transport that calls `on_end` when the server's messages end, before any waiting call hears of it."""
    async with transport as (read_stream, write_stream):
        yield _WatchedStream(read_stream, on_end), write_stream


class _WatchedStream:
    """The reading half of a transport. The SDK iterates over it; the rest is passed on."""

    def __init__(self, inner: Any, on_end: Callable[[], None]) -> None:
        self._inner = inner
        self._on_end = on_end

    @property
    def last_context(self) -> Any:
        """Context variables of the sender, where the transport carries them."""
        return getattr(self._inner, "last_context", None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self._inner.__anext__()
        except StopAsyncIteration:
            self._on_end()
            raise

    async def receive(self) -> SessionMessage | Exception:
        return await self._inner.receive()

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


async def start_child(spec: ServerSpec, *, port: int | None, log: Path) -> ChildProcess:
    """Start the command of a server reached by URL. Raises OSError where it cannot be executed."""
    argv = [word if port is None else word.replace(PORT, str(port)) for word in spec.start]
    environment = get_default_environment() | _environment(spec.env)
    program = shutil.which(argv[0], path=environment["PATH"])
    if program is None:
        # Looked up here because the operating system would search our own PATH, not the child's.
        raise FileNotFoundError(f"there is no program {argv[0]!r} on the PATH")
    return await ChildProcess.start([program, *argv[1:]], env=environment, log=log)


async def port_answers(url: str) -> bool:
    """Whether something accepts connections where the URL points."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(_KNOCK_S):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except OSError:
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    return {"PATH": search_path(), **extra}

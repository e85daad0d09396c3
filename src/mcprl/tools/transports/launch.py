"""How the process of a tool server is started: its program, its environment, its log, its port."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from pathlib import Path
from urllib.parse import urlsplit

from mcp.client.stdio import get_default_environment

from mcprl.processes import ChildProcess, search_path
from mcprl.redact import SECRETS
from mcprl.tools.specs import PORT, ServerSpec

__all__ = ["find_program", "port_answers", "start_child"]

_KNOCK_S = 2.0


def find_program(spec: ServerSpec) -> str | None:
    """Where the program is that a server's `command`, or the first word of its `start`, names; None where nowhere."""
    program = spec.command if spec.command is not None else spec.settings.start[0]
    if "/" in program:
        # Relative to the server's own folder, as it is for the shell; absolute, because the child changes there first.
        program = os.path.abspath(Path(spec.cwd or ".") / program)
    # Looked up here because the operating system would search our own PATH, not the child's.
    return shutil.which(program, path=_environment(spec)["PATH"])


async def start_child(spec: ServerSpec, *, port: int | None, log: Path) -> ChildProcess:
    """Start the process of a server, with pipes where it speaks over its standard streams.

    `port` is written in the place of `{port}` in a start command. Raises OSError where it cannot be executed.
    """
    program = find_program(spec)
    if program is None:
        raise FileNotFoundError(f"there is no program {spec.command or spec.settings.start[0]!r} on the PATH")
    arguments = spec.args if spec.command is not None else spec.settings.start[1:]
    return await ChildProcess.start(
        [program, *(word if port is None else word.replace(PORT, str(port)) for word in arguments)],
        env=_environment(spec),
        log=log,
        cwd=spec.cwd,
        pipes=spec.command is not None,
        clean=SECRETS.line_cleaner(),
    )


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


def _environment(spec: ServerSpec) -> dict[str, str]:
    """What the SDK counts as safe to inherit (HOME, PATH, USER and the like), and the server's own variables."""
    return {**get_default_environment(), "PATH": search_path(), **spec.env}

"""Serves the dashboard on this machine, until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
import webbrowser
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import uvicorn

from mcprl.errors import BadValueError
from mcprl.processes import private_folder
from mcprl_dashboard.app import make_app
from mcprl_dashboard.open_run import RunList

_LOOPBACK = "127.0.0.1"
_CLOSING_S = 2


def serve(folder: Path, *, port: int = 0, open_browser: bool = True) -> None:
    """Show the runs of a folder, or a single run, at a link that is printed. Port 0 means any free port.

    The link has a token that is new at each start. Requests without it are rejected.
    """
    runs, token = RunList(folder), secrets.token_urlsafe()
    with ExitStack() as stack:
        listening = stack.enter_context(_listen(port))
        address = f"http://{_LOOPBACK}:{listening.getsockname()[1]}/?token={token}"
        print(f"mcprl dashboard: {folder} at {address}  (press Ctrl-C to stop)", flush=True)
        if open_browser and _has_display():
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
        raise BadValueError(
            f"port {port} of {_LOOPBACK} cannot be used: {error}",
            fix="choose another --port, or omit it to use a free one",
        ) from error
    return listening


def _has_display() -> bool:
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))

"""Specs of the servers that the tests start, and what they ask the operating system about them."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mcprl.config import ServerSettings
from mcprl.tools import ServerSpec

HERE = Path(__file__).parent
PATIENT = {"call_deadline_s": 60.0}
"""Settings for servers that answer, however busy the machine."""


def script_spec(script: str, *args: str, name: str = "faulty", **settings: Any) -> ServerSpec:
    """A script of this folder as a stdio server."""
    arguments = (str(HERE / script), *args)
    return ServerSpec(name=name, command=sys.executable, args=arguments, settings=ServerSettings(**PATIENT | settings))


def leap(seconds: float) -> None:
    """Move the clock of the event loop on: what waits for no longer than that has waited long enough."""
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for something that no event announces, such as the end of a process."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the operating system sends no asyncio event
            await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

"""Specs of the servers that the tests start, and what they ask the operating system about them."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import psutil

from mcprl.tools import ServerSpec

HERE = Path(__file__).parent


def script_spec(script: str, *args: str, name: str = "faulty") -> ServerSpec:
    """A script of this folder as a stdio server."""
    return ServerSpec(name=name, command=sys.executable, args=(str(HERE / script), *args))


async def eventually(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Wait for something that no event announces, such as the end of a process."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - the operating system sends no asyncio event
            await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def processes_with(word: str) -> list[int]:
    """The processes with the word in their command lines, which are there before the program does anything."""
    return [
        process.pid for process in psutil.process_iter(["cmdline"]) if word in " ".join(process.info["cmdline"] or ())
    ]

"""An answer over HTTP that is far too large is cut off without a pause and without its memory."""

# R15

import asyncio
import os
import socket
import sys
import time
from pathlib import Path

import pytest
from live_servers import HERE, eventually
from upstream_calls import client_of, outcome

from mcprl.processes import ChildProcess, free_port
from mcprl.tools.transports.messages import Trouble
from processor_time import uncollected

pytestmark = pytest.mark.process


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def _watch_loop(stop):
    """The longest time that the event loop worked without turning to others, and the most memory seen."""
    longest_s, most = 0.0, 0
    while not stop.is_set():
        started = time.thread_time()  # not the clock on the wall: other processes may hold us up
        await asyncio.sleep(0.001)
        longest_s = max(longest_s, time.thread_time() - started)
        most = max(most, _rss_bytes())
    return longest_s, most


@pytest.mark.parametrize("tool", ["big_json", "big_event"])
async def test_64_megabytes_neither_stop_the_event_loop_nor_fill_the_memory(tool, tmp_path):
    port = free_port()
    argv = [sys.executable, str(HERE / "upstream_server.py"), str(port), str(64 * 2**20)]
    child = await ChildProcess.start(argv, env=dict(os.environ), log=tmp_path / "upstream.log")
    try:
        await eventually(lambda: _answers(port))
        async with client_of(f"http://127.0.0.1:{port}/mcp", limit=8 * 2**20) as client:
            before = _rss_bytes()
            stop = asyncio.Event()
            with uncollected():
                watch = asyncio.create_task(_watch_loop(stop))
                told = await outcome(client.call_tool(tool))
                stop.set()
                longest_s, most = await watch
            assert told.trouble is Trouble.TOO_LARGE
            assert told.text.startswith("the beginning xxx")
            assert most - before < 64 * 2**20
            assert longest_s < 1.0
    finally:
        await child.stop()


def _answers(port):
    with socket.socket() as knock:
        return knock.connect_ex(("127.0.0.1", port)) == 0

"""The dashboard as a process: its events while a run continues, and its end."""
# R29

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
from shown_runs import TASKS, make_episode, record

from mcprl.errors import BadValueError
from mcprl.runs.folder import RunStopped
from mcprl.runs.journal import EpisodeJournal
from mcprl.tools.stats import ServerStats, ToolStats, stats_document, write_stats
from mcprl_dashboard.app import serve

COMMAND = "import typer; from mcprl_dashboard.commands import command; typer.run(command)"


class Listener:
    """Reads the events of a stream one by one."""

    def __init__(self, client: httpx.Client, path: str) -> None:
        self._stream = client.stream("GET", path)
        self._lines = self._stream.__enter__().iter_lines()

    def hear(self, name: str) -> dict:
        """The next event of a name; others are passed over."""
        for line in self._lines:
            if line == f"event: {name}":
                return json.loads(next(self._lines).removeprefix("data: "))
        pytest.fail(f"the stream ended without {name}")

    def hear_at_last(self, name: str, data: dict) -> None:
        """Wait for an event; others of its name may come before it, of what was seen half done."""
        while self.hear(name) != data:
            pass

    def rest(self) -> list[str]:
        return list(self._lines)


@pytest.fixture
def process(folder) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", COMMAND, str(folder.path.parent), "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process
        if process.poll() is None:
            process.kill()


@pytest.fixture
def http(process) -> Iterator[httpx.Client]:
    address = next(word for word in process.stdout.readline().split() if word.startswith("http://127.0.0.1:"))
    link = httpx.URL(address)
    with httpx.Client(base_url=link.copy_with(query=None), timeout=60, trust_env=False) as http:
        assert http.get(link).status_code == 303  # sets the cookie
        yield http


@pytest.mark.process
def test_a_listener_hears_all_that_happens_to_a_run_and_ctrl_c_ends_it_all(http, process, folder):
    runs, run = Listener(http, "/api/events"), Listener(http, "/api/runs/shown/events")
    assert run.hear("hello") == {"step": 2, "state": "running", "why": None}

    asyncio.run(_journal(folder, make_episode(step=2)))
    run.hear_at_last("episodes", {"live": {"step": 2, "finished": 1, "of": 4}})

    write_stats(folder.path, stats_document({"directory": ServerStats()}, ToolStats()))
    assert run.hear("tools")["servers"][0]["server"] == "directory"

    record(folder, 2)
    assert [step["step"] for step in run.hear("metrics")["steps"]] == [2]
    while runs.hear("runs")["runs"][0]["step"] != 3:
        pass

    with (folder.path / "health.jsonl").open("ab") as file:
        file.write(b'{"step": 3, "severity": "ok", "what": "w", "fix"')  # torn: no line yet
        file.flush()
        record(folder, 3, [make_episode(step=3, task_id=TASKS[0], member=m) for m in range(2)])
    assert [step["step"] for step in run.hear("metrics")["steps"]] == [3]

    folder.cut_to(1)
    assert run.hear("reset") == {}
    folder.record_end(RunStopped("stopped by SIGTERM"))
    folder.close()
    run.hear_at_last("state", {"state": "stopped", "why": "stopped by SIGTERM", "step": 1})

    process.send_signal(signal.SIGINT)
    assert not any(line.startswith("event") for line in run.rest())
    assert process.wait(20) == 0
    assert process.stderr.read() == ""


def test_a_port_that_is_taken_is_refused_by_name(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BadValueError, match=f"port {port} of 127"):
            serve(folder.path, port=port, open_browser=False)


async def _journal(folder, episode) -> None:
    async with EpisodeJournal(folder.journal) as journal:
        await journal.add(episode)

"""The dashboard ends while its pages load: questions that are being answered end first, and in time."""
# R29

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import duckdb
import pytest
from shown_runs import client_of, get, make_episode

from mcprl.runs.trajectories import write_trajectories
from mcprl_dashboard.answers import Refusal
from mcprl_dashboard.episode_index import EpisodeIndex
from mcprl_dashboard.open_run import OpenRun, RunList
from mcprl_dashboard.questions import EpisodeKey, Filter, Page

WAIT_S = 60.0  # for what comes at once, on a machine that may be very busy
LONGEST = 10**12
ASKED = {
    "find": lambda index: index.find(Filter(), Page()),
    "facets": lambda index: index.facets(),
    "of_task": lambda index: index.of_task("t"),
    "stored": lambda index: index.stored(EpisodeKey(step=0, task_id="t", member=0)),
    "refresh": lambda index: index.refresh(),
}


class SlowQuery:
    """A function `meanwhile` in the databases that are opened: `began` when a query calls it, `ends` lets it go on."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.ends = threading.Event()
        self.holds = False
        self.connections: list[duckdb.DuckDBPyConnection] = []
        self._connect = duckdb.connect

    def connect(self, *arguments: Any, **named: Any) -> duckdb.DuckDBPyConnection:
        connection = self._connect(*arguments, **named)
        connection.create_function("meanwhile", self._meanwhile, ["BIGINT"], "BOOLEAN")
        self.connections.append(connection)
        return connection

    def _meanwhile(self, _: int) -> bool:
        self.began.set()
        if self.holds:
            self.ends.wait()
        elif self.ends.is_set():
            raise RuntimeError("the test is over")
        return True


class Endless(Filter):
    """Lets every episode through, after very many calls of `meanwhile`; with `rows` of 1 after one."""

    rows: int = LONGEST

    def condition(self) -> tuple[str, dict[str, Any]]:
        return "(SELECT bool_and(meanwhile(range)) FROM range($rows))", {"rows": self.rows}


@pytest.fixture
def slow(monkeypatch) -> Iterator[SlowQuery]:
    slow = SlowQuery()
    monkeypatch.setattr(duckdb, "connect", slow.connect)
    yield slow
    slow.ends.set()  # so that no thread outlives a test that fails


@pytest.fixture
def index(slow, tmp_path) -> EpisodeIndex:
    (tmp_path / "trajectories").mkdir()
    write_trajectories(tmp_path / "trajectories" / "step-00000.parquet", [make_episode(task_id="t")])
    index = EpisodeIndex(tmp_path)
    index.refresh()
    index.wait()
    return index


def in_thread(work: Callable[[], object]) -> Future[object]:
    """What it gave or raised, in a thread that keeps no process from ending."""
    future: Future[object] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except (Refusal, duckdb.Error) as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def test_closing_ends_a_question_that_is_being_answered(index, slow):
    asked = in_thread(lambda: index.find(Endless(), Page()))
    assert slow.began.wait(WAIT_S)
    in_thread(lambda: index.close(WAIT_S)).result(WAIT_S)
    with pytest.raises(Refusal, match="no longer available"):
        asked.result(WAIT_S)
    with pytest.raises(duckdb.ConnectionException):
        slow.connections[0].execute("SELECT 1")


@pytest.mark.parametrize("question", ASKED)
def test_a_closed_index_answers_no_question(index, tmp_path, question):
    index.close()
    write_trajectories(tmp_path / "trajectories" / "step-00001.parquet", [make_episode(step=1)])
    index._fresh_until = 0.0
    with pytest.raises(Refusal) as raised:
        ASKED[question](index)
    assert (raised.value.status, raised.value.code) == (503, "closed")
    assert index.problems == []  # its files are none
    index.close()


def test_closing_waits_no_longer_than_it_may_and_the_last_to_leave_closes(index, slow):
    slow.holds = True
    asked = in_thread(lambda: index.find(Endless(rows=1), Page()))
    assert slow.began.wait(WAIT_S)
    in_thread(lambda: index.close(0.1)).result(WAIT_S)
    assert not asked.done()
    slow.ends.set()
    with pytest.raises(Refusal, match="no longer available"):
        asked.result(WAIT_S)
    with pytest.raises(duckdb.ConnectionException):
        slow.connections[0].execute("SELECT 1")


def test_a_page_that_loads_when_the_dashboard_ends_gets_an_error(folder, slow, monkeypatch):
    runs: list[RunList] = []
    client = client_of(folder.path.parent, runs)
    assert get(client, "/api/runs/shown/episodes")["total"] == 8
    monkeypatch.setattr(Filter, "of", lambda _: Endless())
    answers = in_thread(lambda: client.get("/api/runs/shown/episodes"))
    assert slow.began.wait(WAIT_S)
    in_thread(runs[0].close).result(WAIT_S)
    answer = answers.result(WAIT_S)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "closed")


def test_what_was_to_be_prepared_is_not_opened_after_the_end(folder, slow):
    run = OpenRun(folder.path)
    run.close()
    run._prepare()
    with pytest.raises(Refusal, match="no longer available"):
        _ = run.index
    assert slow.connections == []

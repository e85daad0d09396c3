"""`mcprl.train`, `mcprl.resume` and `mcprl.evaluate` in a script and in a notebook: events, Ctrl-C, resume."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

import mcprl
from mcprl.api import _run
from mcprl.config import RunConfig

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from crashing.evidence import differences, evidence
from crashing.small_runs import small_run
from crashing.speaking import calling_tools

SETTINGS = ("training.steps=2", "tasks.order=shuffled")


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """As in a terminal: a job in the background ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Heard:
    """Notes the steps, and does something after the first of them."""

    def __init__(self, after_the_first=lambda: None) -> None:
        self.steps: list[mcprl.Step] = []
        self._act = after_the_first

    async def __call__(self, steps: AsyncIterator[mcprl.Step]) -> None:
        async for step in steps:
            self.steps.append(step)
            if step.index == 0:
                self._act()

    @property
    def indices(self) -> list[int]:
        return [step.index for step in self.steps]


def fail() -> None:
    raise LookupError("no such column")


@pytest.mark.process
@pytest.mark.timeout(600)
def test_a_run_from_python_is_watched_stopped_resumed_and_evaluated(tmp_path):
    recipe = small_run(tmp_path, "refill")
    heard = Heard()
    with calling_tools():
        summary = mcprl.train(recipe, settings=SETTINGS, watch=heard)
        assert heard.indices == [0, 1]
        assert heard.steps[0].metrics["episodes"] == 8
        assert heard.steps[0].verdict in ("ok", "warn", "bad")
        # An exception in `watch`, and Ctrl-C, stop a run after it has saved its state.
        with pytest.raises(LookupError, match="no such column"):
            mcprl.train(recipe, settings=SETTINGS, watch=Heard(fail))
        failed = summary.folder.with_name("refill-2")
        with pytest.raises(mcprl.RunStopped, match=r"stopped by SIGINT .* Resume with mcprl\.resume\('.*refill-3'\)"):
            mcprl.train(recipe, settings=SETTINGS, watch=Heard(lambda: signal.raise_signal(signal.SIGINT)))
        stopped = summary.folder.with_name("refill-3")
        for folder in (failed, stopped):
            rest = Heard()
            resumed = mcprl.resume(folder, watch=rest)
            assert rest.indices in ([1], [])  # the second step may have been finished before the run stopped
            assert resumed.as_dict()["updates"] == 2
            assert differences(evidence(folder), evidence(summary.folder)) == []
        played = []

        async def watch(episodes: AsyncIterator[mcprl.Trajectory | object]) -> None:
            played.extend([episode async for episode in episodes])

        evaluation = mcprl.evaluate(recipe, adapter=summary.folder / "adapter", episodes=2, watch=watch)
    assert len(played) == len(evaluation.episodes) == 4
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.fixture
def one_core() -> Iterator[None]:
    """There a thread that wakes another one often loses the core to it at once."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


def in_a_notebook(happens: Callable[[], object]) -> str:
    """Run work that ends when it is asked to. A cell runs in the main thread, inside a running loop."""
    asked = []

    async def work() -> str:
        stopping = asyncio.Event()
        asked.append(stopping)
        happens()
        await stopping.wait()
        return "saved"

    async def cell() -> str:
        return _run(work, lambda: asked[0].set())

    loop = asyncio.new_event_loop()  # unlike asyncio.run, it does not handle SIGINT itself
    try:
        return loop.run_until_complete(cell())
    finally:
        assert asked[0].is_set()
        loop.close()


def interrupt() -> None:
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


@pytest.mark.usefixtures("one_core")
def test_in_a_notebook_an_interrupt_asks_the_work_to_stop_and_waits_for_it():
    for _ in range(10):  # most of them arrive just before the main thread waits
        assert in_a_notebook(interrupt) == "saved"


def test_in_a_notebook_any_other_exception_stops_the_work_too():
    def leave(*_: object) -> None:
        raise SystemExit(3)

    signal.signal(signal.SIGINT, leave)
    with pytest.raises(SystemExit):
        in_a_notebook(interrupt)


def test_a_recipe_made_in_python_is_read_as_a_file_in_the_working_directory_would_be(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = RunConfig.model_validate(
        {"name": "made", "model": {"path": "./model"}, "tasks": {"train": "tasks.jsonl"}}
        | {"servers": {"file": "servers.json"}}
    )
    assert made.tasks.train == Path("tasks.jsonl")
    read = mcprl.load_recipe(made, ["training.steps=3"])
    assert (read.tasks.train, read.model.path) == (tmp_path / "tasks.jsonl", str(tmp_path / "model"))
    assert read.training.steps == 3
    (tmp_path / "recipe.yaml").write_text(made.to_yaml())
    assert read == mcprl.load_recipe(tmp_path / "recipe.yaml", ["training.steps=3"])
    with pytest.raises(mcprl.ConfigurationError, match=r"--set training\.steps=0: 'training\.steps' is 0"):
        mcprl.load_recipe(made, ["training.steps=0"])

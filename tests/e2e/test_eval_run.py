"""`mcprl eval` on real servers and a real model: two evaluations, the second against the first, and their files."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from mcprl.cli.eval import command
from mcprl.evaluation.results import read_evaluation
from mcprl.runs.trajectories import read_trajectories

pytestmark = pytest.mark.process

EPISODES, TASKS = 2, 3


@pytest.fixture
def evaluated(root, small_qwen3, time_server, tmp_path, monkeypatch):
    """Evaluates a small model on three tasks of the hello recipe; the folder, and what was printed."""
    monkeypatch.chdir(root)
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command)

    def run(name: str, *options: str):
        settings = ("engine=transformers", "sampling.max_tokens=4", "model.context_tokens=1024", "tasks.preamble=null")
        arguments = ["recipes/hello-cpu.yaml", "--tasks", "recipes/hello/tasks.jsonl", "--model", str(small_qwen3)]
        arguments += ["--episodes", str(EPISODES), "--sample", str(TASKS), "--out", str(tmp_path / name), "--json"]
        arguments += [part for setting in settings for part in ("--set", setting)]
        done = CliRunner().invoke(app, [*arguments, *options], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return tmp_path / name, json.loads(done.stdout)

    return run


def test_a_model_is_evaluated_twice_and_compared_with_itself(evaluated):
    first, printed = evaluated("first")
    assert printed["figures"]["episodes"] == EPISODES * TASKS
    assert set(printed["figures"]["pass_at"]) == {"1", "2"}
    second, compared = evaluated("second", "--against", str(first))
    # One seed, one result: the same weights play the same episodes.
    assert compared["comparison"]["p"] == 1.0
    assert compared["comparison"]["won"] == compared["comparison"]["lost"] == 0
    one, other = read_trajectories(first / "trajectories.parquet"), read_trajectories(second / "trajectories.parquet")
    assert [t.token_ids for t in one] == [t.token_ids for t in other]
    evaluation = read_evaluation(second)
    assert len(evaluation.episodes) == len(other) == EPISODES * TASKS
    assert evaluation.tasks_in_suite == 4
    assert sum(evaluation.figures.failures.values()) == sum(not episode.success for episode in evaluation.episodes)
    assert "Before and after" in (second / "report.md").read_text()
    assert "Before and after" not in (first / "report.md").read_text()

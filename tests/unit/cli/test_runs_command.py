"""`mcprl runs`: from its arguments to what it prints, for a person and for a script."""
# R25, R28

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from mcprl.cli import app
from mcprl.errors import NoRunError
from mcprl.recipe import load_recipe
from mcprl.runs.checkpoints import Checkpoints
from mcprl.runs.folder import RunFolder
from mcprl.verdicts import Severity, Verdict
from step_records import step_record

HELLO = Path(__file__).parents[3] / "recipes" / "hello-cpu.yaml"
FINE = Verdict(severity=Severity.OK, name="healthy", what="healthy", fix="")


def make_run(outputs: Path, rewards: list[float], *overrides: str) -> Path:
    config = load_recipe(HELLO, [f"training.outputs={outputs}", *overrides])
    with RunFolder.create(config) as folder:
        for step, reward in enumerate(rewards):
            folder.record_step(step, step_record((), {"reward": reward, "step_s": 2.0, "kl": float("nan")}, [FINE]))
        if rewards:
            checkpoints = Checkpoints(folder.checkpoints)
            (checkpoints.begin(len(rewards)) / "state.json").write_text("{}")
            checkpoints.commit(len(rewards))
    return folder.path


@pytest.fixture
def outputs(tmp_path, monkeypatch) -> Path:
    """A folder of two runs, hello-cpu and hello-cpu-2, seen from its parent."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    make_run(tmp_path / "outputs", [0.1, 0.3])
    make_run(tmp_path / "outputs", [0.2, 0.1], "seed=9")
    return tmp_path / "outputs"


def runs(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["runs", *arguments])


def strict_json(text: str) -> object:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_runs_are_listed_with_how_to_go_on(outputs):
    result = runs("list")
    assert result.exit_code == 0
    assert "hello-cpu-2" in result.stdout
    assert "+0.10 → +0.30" in result.stdout
    assert "\n  mcprl resume outputs/hello-cpu\n" in result.stdout.replace(" \n", "\n")


def test_the_list_is_json_for_a_script(outputs):
    listed = strict_json(runs("list", str(outputs), "--json").stdout)
    by_name = {run["name"]: run for run in listed}
    assert set(by_name) == {"hello-cpu", "hello-cpu-2"}
    run = by_name["hello-cpu"]
    assert (run["state"], run["steps_done"], run["steps_wanted"]) == ("interrupted", 2, 4)
    assert (run["rewards"], run["verdict"], run["checkpoints"][0]["step"]) == ([0.1, 0.3], "ok", 2)


def test_a_folder_without_runs_is_said_to_have_none(tmp_path):
    result = runs("list", str(tmp_path))
    assert (result.exit_code, result.stdout) == (0, f"No runs in {tmp_path}. Start one with `mcprl train RECIPE`.\n")
    assert strict_json(runs("list", str(tmp_path), "--json").stdout) == []


@pytest.mark.parametrize("run", ["hello-cpu", "outputs/hello-cpu", "./outputs/hello-cpu/"])
def test_a_run_is_found_by_its_name_and_by_its_path(outputs, run):
    result = runs("show", run)
    assert result.exit_code == 0
    assert result.stdout.startswith("hello-cpu  interrupted")
    assert "✓  step-00002" in result.stdout
    assert "Next: mcprl resume outputs/hello-cpu" in result.stdout


def test_a_folder_of_the_same_name_that_is_no_run_does_not_hide_the_run(outputs):
    (outputs.parent / "hello-cpu").mkdir()
    assert runs("show", "hello-cpu").exit_code == 0


def test_a_run_is_json_for_a_script_with_its_checkpoints_verified(outputs):
    (outputs / "hello-cpu" / "checkpoints" / "step-00002" / "state.json").write_text("[]")
    run = strict_json(runs("show", "hello-cpu", "--json").stdout)
    damaged = {"name": "step-00002", "whole": False, "why": "state.json does not match its checksum"}
    assert run["checkpoints"] == [damaged]
    assert (run["next"], run["verdicts"][0]["name"]) == ("mcprl resume outputs/hello-cpu", "healthy")
    assert run["changed_settings"]["training.steps"] == "4"


def test_a_run_that_is_not_there_is_an_error_with_the_nearest_name(outputs):
    error = runs("show", "helo-cpu").exception
    assert isinstance(error, NoRunError)
    assert "did you mean 'hello-cpu" in error.what


def test_a_long_command_is_printed_whole(outputs):
    far = outputs.parent / ("a-long-name-" * 6) / ("another-" * 8)
    run = make_run(far, [0.1])
    assert f"mcprl resume {run}\n" in runs("list", str(far)).stdout
    assert f"mcprl resume {run}\n" in runs("show", str(run)).stdout

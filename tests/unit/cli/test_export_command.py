"""`mcprl export`: what is in the folder for the Hub, and what stays on this machine."""

from __future__ import annotations

import json
import sys

import pytest
import typer
import yaml
from typer.testing import CliRunner

from healthy_steps import HEALTHY, make_config
from made_evaluations import make_evaluation
from mcprl.cli.export import command
from mcprl.errors import BadValueError, NoRunError
from mcprl.evaluation.results import write_evaluation
from mcprl.runs.folder import RunFolder
from step_records import step_record


@pytest.fixture
def run(tmp_path):
    """A finished run of 25 steps with an adapter."""
    outputs = tmp_path / "secret-place" / "outputs"
    config = make_config(model={"path": str(tmp_path / "secret-place" / "my-base")}, training={"outputs": str(outputs)})
    with RunFolder.create(config) as folder:
        for step in range(25):
            metrics = {**HEALTHY, "reward": step / 100, "success_rate": step / 50}
            folder.record_step(step, step_record((), metrics, ()))
    adapter = folder.path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(
        json.dumps({"r": 8, "base_model_name_or_path": str(tmp_path / "secret-place" / "my-base")})
    )
    (adapter / "adapter_model.safetensors").write_bytes(b"weights")
    (adapter / "README.md").write_text("of PEFT")
    (folder.path / "conditions.json").write_text(json.dumps({"settings": {}, "tasks": "6f1c", "tools": "09aa"}))
    (folder.path / "summary.json").write_text("{}")
    return folder.path


@pytest.fixture
def export(tmp_path, monkeypatch):
    # Without --merged it must not need them.
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "mcprl.learning.models", None)
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command)

    def invoke(run, *options: str):
        done = CliRunner().invoke(app, [str(run), "--out", str(tmp_path / "out"), *options], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return tmp_path / "out", done.output

    return invoke


def test_the_folder_has_the_adapter_and_a_card_that_the_hub_reads(run, export):
    out, printed = export(run, "--base", "org/base", "--license", "apache-2.0")
    assert sorted(path.name for path in out.iterdir()) == [
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert (out / "adapter_model.safetensors").read_bytes() == b"weights"
    assert json.loads((out / "adapter_config.json").read_text())["base_model_name_or_path"] == "org/base"
    _, metadata, card = (out / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(metadata) == {
        "base_model": "org/base",
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        "license": "apache-2.0",
        "tags": ["mcprl", "reinforcement-learning", "tool-use", "mcp", "lora"],
    }
    assert "25 steps" in card
    assert "| tasks | `6f1c` |" in card
    assert "| base model | not recorded |" in card
    assert f"hf upload ORG/NAME {out}" in printed.replace("\n", "")


def test_the_curves_have_about_ten_steps_with_the_first_and_the_last(run, export):
    out, _ = export(run, "--base", "org/base")
    curves = (out / "README.md").read_text().partition("## Curves")[2].strip().splitlines()
    assert curves[0] == "| steps done | reward | success | valid calls | KL per token |"
    assert 10 <= len(curves) - 2 <= 12
    assert curves[2].startswith("| 1 | 0 | 0 |")
    assert curves[-1].startswith("| 25 | 0.24 | 0.48 |")


def test_no_folder_of_this_machine_is_in_any_file(run, export):
    out, _ = export(run, "--base", "org/base")
    assert "`my-base`" in (out / "README.md").read_text()  # of model.path, the last part
    assert all(b"secret-place" not in path.read_bytes() for path in out.iterdir())


def test_evaluations_are_shown_with_their_intervals(run, export, tmp_path):
    write_evaluation(tmp_path, make_evaluation([1.0, 1.0, 0.0]), {})
    out, _ = export(run, "--base", "org/base", "--eval", str(tmp_path / "results.json"))
    table = (out / "README.md").read_text().partition("## Evaluation")[2]
    assert "| `smollm2-135m` | `market` | 3 | 66.7% (" in table


def test_a_base_that_nobody_else_has_is_refused(run, export):
    with pytest.raises(BadValueError, match=r"is a folder on this machine.*--base"):
        export(run)


def test_a_run_without_final_weights_is_refused(run, export):
    (run / "summary.json").unlink()
    with pytest.raises(NoRunError, match=r"is interrupted and has no final weights.*mcprl resume"):
        export(run, "--base", "org/base")


def test_nothing_is_overwritten(run, export):
    export(run, "--base", "org/base")
    with pytest.raises(BadValueError, match="out already exists"):
        export(run, "--base", "org/base")

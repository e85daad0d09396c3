"""`mcprl plan`: from its arguments to what it prints, for a person and for a script."""
# R24, R28

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from click.testing import Result
from typer.testing import CliRunner

from mcprl.cli import app
from mcprl.errors import BadValueError, McprlError, NoRunError, UnknownKeyError
from mcprl.recipe import load_recipe
from mcprl.runs.folder import RunFolder
from step_records import step_record

ROOT = Path(__file__).parents[3]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
HELLO = ROOT / "recipes" / "hello-cpu.yaml"
QWEN = ROOT / "recipes" / "qwen3-fsdp2.yaml"
HEAVY = ("torch", "vllm", "transformers", "ray", "peft", "tinker", "mcp")
WITHOUT_HEAVY = f"""
import sys
from mcprl.cli import main
sys.argv = ["mcprl", "plan", {str(HELLO)!r}, "--json"]
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
print(sorted(set(sys.modules) & set({HEAVY!r})))
"""

NUMBER = {"type": "number", "minimum": 0}
MAYBE = {"type": ["number", "null"], "minimum": 0}
WHOLE = {"type": "integer", "minimum": 0}
TEXT = {"type": "string", "minLength": 1}
AMOUNTS = ("seconds", "episodes", "turns", "calls", "prompt_tokens", "sampled_tokens", "learned_tokens")


def exactly(**properties: object) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def list_of(items: object) -> dict[str, object]:
    return {"type": "array", "items": items}


STEP = exactly(**dict.fromkeys((*AMOUNTS, "trajectory_bytes", "usd"), NUMBER))
SCHEMA = exactly(
    name=TEXT,
    engine={"enum": ["vllm", "transformers", "skyrl"]},
    gpus=WHOLE,
    workers=WHOLE,
    steps=WHOLE,
    model=exactly(parameters=MAYBE, rank_parameters=MAYBE, source=TEXT),
    figures={
        "type": "object",
        "additionalProperties": exactly(value=NUMBER, source=TEXT, assumed={"type": "boolean"}),
    },
    step=STEP,
    run=STEP,
    collect_s=NUMBER,
    update_s=NUMBER,
    parts=list_of(exactly(name=TEXT, units=WHOLE, busy_s=NUMBER, setting=TEXT)),
    memory_bytes={"type": "object", "additionalProperties": NUMBER, "required": ["driver"]},
    checkpoint_bytes=MAYBE,
    warnings=list_of(TEXT),
    machine=TEXT,
)


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["plan", *arguments], env={"COLUMNS": "140"})


def planned(*arguments: str) -> dict:
    result = plan(*arguments, "--json")
    assert result.exit_code == 0, result.exception
    return json.loads(result.stdout)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_every_recipe_has_a_plan_whose_json_keeps_its_form(recipe):
    jsonschema.validate(planned(str(recipe)), SCHEMA)
    jsonschema.validate(planned(str(recipe), "--gpus", "8", "--workers", "16"), SCHEMA)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_every_recipe_has_a_plan_for_a_person(recipe):
    result = plan(str(recipe), "--gpus", "4", "--workers", "8")
    assert result.exit_code == 0, result.exception
    for words in (
        "Bottleneck: ",
        "assumed: ",
        "8 workers",
        "cost of tools",
        "disk: ",
        "memory: ",
        "no GPU was measured",
    ):
        assert words in result.stdout


@pytest.mark.process
def test_the_plan_needs_no_heavy_library():
    command = [sys.executable, "-c", WITHOUT_HEAVY]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.process
def test_the_plan_takes_less_than_two_seconds_of_a_processor(mcprl_process, record_property):
    def spent() -> float:
        before = os.times()
        assert mcprl_process("plan", str(HELLO)).returncode == 0
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    # Twice the bar fails, and only if it is missed in a second measurement, too.
    spent_s = spent()
    spent_s = spent_s if spent_s <= 2 * 2.0 else min(spent_s, spent())
    record_property("plan_s", round(spent_s, 2))
    assert spent_s <= 2 * 2.0


def test_workers_and_settings_of_the_command_line_count():
    found = planned(str(HELLO), "--workers", "6", "--set", "training.steps=9")
    assert (found["workers"], found["steps"]) == (6, 9)
    assert found["run"]["calls"] == pytest.approx(9 * found["step"]["calls"])
    assert planned(str(HELLO), "--workers", "0")["workers"] == 0


@pytest.mark.parametrize(
    ("gpus", "drawn", "warning"),
    [
        ("0", None, None),
        ("2", "GPUs 0-1: vLLM ×2", "2 GPUs, but placement and learner.processes need 4"),
        ("4", "GPUs 0-3: vLLM ×4 and learner ×4, in turns", None),
        ("6", "GPUs 0-1: vLLM ×2 | GPUs 2-5: learner ×4", None),
    ],
)
def test_the_placement_is_drawn_and_gpus_that_are_missing_are_named(gpus, drawn, warning):
    said = " ".join(plan(str(QWEN), "--gpus", gpus).stdout.split())
    assert drawn in said if drawn else "Placement" not in said
    assert (warning or "GPUs, but") in said or warning is None


def test_gpus_that_nothing_uses_are_named():
    said = plan(str(QWEN), "--gpus", "8", "--set", "placement.sampler.replicas=2").stdout
    assert "8 GPUs, but 2 would be idle" in said


def test_figures_that_are_given_are_used_and_no_longer_assumed():
    found = planned(str(QWEN), "--gpus", "4", "--assume", "turns=3", "--assume", "sampler_tokens_per_s=2000")
    assert found["step"]["turns"] == 3 * found["step"]["episodes"]
    assert found["figures"]["sampler_tokens_per_s"] == {"value": 2000.0, "source": "given", "assumed": False}
    assert found["figures"]["turns"] == {"value": 3.0, "source": "given", "assumed": False}
    assert found["figures"]["learner_tokens_per_s"]["assumed"]


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ("trns=3", UnknownKeyError, "did you mean 'turns'"),
        ("turns", BadValueError, "at least 1"),
        ("turns=0", BadValueError, "at least 1"),
        ("turns=many", BadValueError, "at least 1"),
        ("tool_s=nan", BadValueError, "at least 0"),
        ("tool_s=inf", BadValueError, "at least 0"),
        ("sampler_tokens_per_s=0", BadValueError, "at least 0.001"),
    ],
)
def test_a_figure_that_cannot_be_is_refused(given, error, words):
    result = plan(str(HELLO), "--assume", given)
    assert isinstance(result.exception, error)
    assert words in str(result.exception)


def make_run(outputs: Path, steps: int) -> Path:
    config = load_recipe(HELLO, [f"training.outputs={outputs}"])
    metrics = {
        "reward": 0.1,
        "episodes": 16.0,
        "turns_per_episode": 2.0,
        "calls": 24.0,
        "tool_latency_mean_s": 0.25,
        "sampled_tokens": 640.0,
        "context_tokens": 6400.0,
        "step_s": 10.0,
        "update_s": 4.0,
        "sampler_idle_share": 0.5,
    }
    with RunFolder.create(config) as folder:
        for step in range(steps):
            folder.record_step(step, step_record((), metrics, []))
    return folder.path


def test_a_run_tells_the_shape_of_its_episodes_and_the_speed_of_its_hardware(tmp_path):
    path = make_run(tmp_path, 2)
    found = planned(str(HELLO), "--run", str(path))
    shape = {name: figure["value"] for name, figure in found["figures"].items()}
    assert (shape["turns"], shape["turn_tokens"], shape["calls"], shape["tool_s"]) == (2.0, 20.0, 1.5, 0.25)
    assert shape["prompt_tokens"] + 40 + shape["observation_tokens"] == pytest.approx(440)
    assert (shape["sampler_tokens_per_s"], shape["learner_tokens_per_s"]) == (128.0, 1760.0)
    assert found["figures"]["turns"]["source"] == f"run {path.name}"


def test_what_is_given_counts_more_than_what_a_run_tells(tmp_path):
    found = planned(str(HELLO), "--run", str(make_run(tmp_path, 1)), "--assume", "turns=5")
    assert found["figures"]["turns"]["value"] == 5


def test_a_run_without_a_step_tells_nothing(tmp_path):
    assert isinstance(plan(str(HELLO), "--run", str(make_run(tmp_path, 0))).exception, NoRunError)


@pytest.mark.parametrize(
    "arguments", [["nowhere.yaml"], [str(HELLO), "--run", "nowhere"], [str(HELLO), "--set", "x=1"]]
)
def test_what_cannot_be_read_is_an_error_with_a_fix(arguments):
    error = plan(*arguments).exception
    assert isinstance(error, McprlError)
    assert error.fix

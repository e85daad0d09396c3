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
from mcprl.training.folder import RunFolder
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
TEXT = {"type": "string", "minLength": 1}
COUNTS = ("episodes", "turns", "calls", "prompt_tokens", "read_tokens", "sampled_tokens", "learned_tokens")
AMOUNTS = dict.fromkeys((*COUNTS, "trajectory_bytes", "relayed_bytes", "usd", "seconds"), NUMBER)


def exactly(**properties: object) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def list_of(**properties: object) -> dict[str, object]:
    return {"type": "array", "items": exactly(**properties)}


RATE = exactly(tokens_per_s=NUMBER, source=TEXT)
SCHEMA = exactly(
    name=TEXT,
    engine={"enum": ["torch", "skyrl"]},
    model=exactly(parameters=MAYBE, rank_parameters=MAYBE, source=TEXT),
    episode=exactly(
        **dict.fromkeys(("turns", "prompt_tokens", "turn_tokens", "observation_tokens", "calls", "tool_s"), NUMBER)
    ),
    hardware=exactly(
        engine=TEXT,
        gpus={"type": "integer"},
        sampler_units={"type": "integer"},
        learner_units={"type": "integer"},
        sampler=RATE,
        learner=RATE,
        workers={"type": ["integer", "null"]},
        cores={"type": ["integer", "null"]},
    ),
    step=exactly(
        **AMOUNTS,
        weights_bytes=MAYBE,
        collect_s=NUMBER,
        update_s=NUMBER,
        driver_cpu_s=NUMBER,
        driver_bytes=NUMBER,
        worker_cpu_s=MAYBE,
        worker_bytes=MAYBE,
    ),
    run=exactly(**AMOUNTS, weights_bytes=MAYBE, steps={"type": "integer"}),
    parts=list_of(name=TEXT, units=NUMBER, episodes_per_s=MAYBE, busy_s=NUMBER, share=NUMBER, setting=TEXT),
    bottleneck=exactly(part=TEXT, setting=TEXT),
    growth=list_of(
        factor={"enum": [10, 100, 1000]},
        step_s=NUMBER,
        bottleneck=TEXT,
        setting=TEXT,
        usd=NUMBER,
        needs=list_of(part=TEXT, units={"type": "integer"}, possible={"type": "boolean"}),
    ),
    known={"type": "object", "additionalProperties": exactly(value=NUMBER, source=TEXT)},
    assumptions=list_of(name=TEXT, value=NUMBER, why=TEXT),
    warnings={"type": "array", "items": TEXT},
    measured_on=TEXT,
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
    for words in ("Bottleneck: ", "10×", "1,000×", "assumed: ", "8 workers", "money for tools", "no GPU was measured"):
        assert words in result.stdout


@pytest.mark.process
def test_the_plan_needs_no_heavy_library():
    command = [sys.executable, "-c", WITHOUT_HEAVY]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.process
def test_the_plan_takes_less_than_two_seconds_of_a_processor(mcprl, record_property):
    def spent() -> float:
        before = os.times()
        assert mcprl("plan", str(HELLO)).returncode == 0
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    # Twice the bar fails, and only if it is missed in a second measurement, too.
    spent_s = spent()
    spent_s = spent_s if spent_s <= 2 * 2.0 else min(spent_s, spent())
    record_property("plan_s", round(spent_s, 2))
    assert spent_s <= 2 * 2.0


def test_workers_and_settings_of_the_command_line_count():
    assert planned(str(HELLO), "--workers", "6")["hardware"]["workers"] == 6
    assert planned(str(HELLO), "--workers", "6", "--set", "training.steps=9")["run"]["steps"] == 9
    assert planned(str(HELLO), "--workers", "0")["hardware"]["workers"] is None


def test_figures_that_are_given_are_used_and_no_longer_assumed():
    found = planned(str(QWEN), "--gpus", "4", "--assume", "turns=3", "--assume", "sampler_tokens_per_s=2000")
    assert found["episode"]["turns"] == 3
    assert found["hardware"]["sampler"] == {"tokens_per_s": 2000.0, "source": "given"}
    assert found["known"]["turns"] == {"value": 3.0, "source": "given"}
    assert {"turns", "sampler_tokens_per_s"}.isdisjoint(assumed["name"] for assumed in found["assumptions"])


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
    shape = found["episode"]
    assert (shape["turns"], shape["turn_tokens"], shape["calls"], shape["tool_s"]) == (2.0, 20.0, 1.5, 0.25)
    assert shape["prompt_tokens"] + 40 + shape["observation_tokens"] == pytest.approx(440)
    assert found["hardware"]["sampler"] == {"tokens_per_s": 128.0, "source": f"run {path.name}"}
    assert found["hardware"]["learner"]["tokens_per_s"] == 1760.0
    assert found["known"]["turns"]["source"] == f"run {path.name}"


def test_what_is_given_counts_more_than_what_a_run_tells(tmp_path):
    found = planned(str(HELLO), "--run", str(make_run(tmp_path, 1)), "--assume", "turns=5")
    assert found["episode"]["turns"] == 5


def test_a_run_without_a_step_tells_nothing(tmp_path):
    assert isinstance(plan(str(HELLO), "--run", str(make_run(tmp_path, 0))).exception, NoRunError)


@pytest.mark.parametrize(
    "arguments", [["nowhere.yaml"], [str(HELLO), "--run", "nowhere"], [str(HELLO), "--set", "x=1"]]
)
def test_what_cannot_be_read_is_an_error_with_a_fix(arguments):
    error = plan(*arguments).exception
    assert isinstance(error, McprlError)
    assert error.fix

"""`mcprl doctor` on the shipped recipes: no false alarm without a model, and the hello recipe whole, with vLLM."""
# R7, R8, R22, R25

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from mcprl.cli.doctor import command

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
IN_THE_GATE = ("finance-cpu", "qwen3-fsdp2")  # without a GPU and with several

# What may be said of a recipe on a machine without GPUs and without the hub; of the recipe itself, nothing.
ABOUT_THE_MACHINE = "this machine"

pytestmark = pytest.mark.process


def examine(recipe: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command)
    done = CliRunner().invoke(app, [str(recipe), "--json", *arguments], catch_exceptions=False)
    assert done.stdout, done.stderr
    return done.exit_code, json.loads(done.stdout)


def of(report: dict[str, Any], *severities: str) -> list[dict[str, Any]]:
    return [finding for finding in report["findings"] if finding["severity"] in severities]


@pytest.mark.parametrize(
    "recipe",
    [pytest.param(r, marks=[] if r.stem in IN_THE_GATE else [pytest.mark.full]) for r in RECIPES],
    ids=lambda recipe: recipe.stem,
)
def test_a_shipped_recipe_raises_no_false_alarm(recipe, time_server, smollm2, skyrl_python):
    status, report = examine(recipe, "--fast")
    assert of(report, "bad") == []
    assert status == 0
    assert [finding for finding in of(report, "warn") if ABOUT_THE_MACHINE not in finding["measured"]] == []


def test_the_hello_recipe_is_examined_whole(time_server, shared_vllm, record_property):
    with shared_vllm.lent():
        status, report = examine(ROOT / "recipes" / "hello-cpu.yaml")
    record_property("doctor_s", report["seconds"])
    assert of(report, "bad", "skipped") == []
    assert status == 0
    measured = {finding["check"]: finding["measured"] for finding in report["findings"]}
    assert "vllm started in" in measured["sampler"]
    assert "exact: sampler and learner agree on every token" in measured["parity"]
    assert "based on the sample episodes" in measured["forecast"]
    # The untrained model hardly calls anything; that is what the recipe's warm start is for.
    assert "valid calls" not in {finding["check"] for finding in of(report, "warn")}

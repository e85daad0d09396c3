"""The page of the proof says what the runs that are kept beside it show, and no more."""

from __future__ import annotations

import json
import re
import sys

import pytest
from source_files import ROOT

from mcprl.recipe import load_recipe

sys.path.append(str(ROOT / "bench"))

from proving.arms import ARMS, RECIPE, TIMED, Arm
from proving.report import PAGE, figures, judge_runs, tables


@pytest.mark.parametrize("arm", [*ARMS.values(), *TIMED], ids=lambda arm: arm.name)
def test_what_is_compared_are_settings_that_a_run_accepts(arm: Arm):
    load_recipe(ROOT / RECIPE, arm.settings)


def test_the_tables_are_made_of_the_runs_that_are_kept():
    page = PAGE.read_text()
    for marker, table in tables(judge_runs()).items():
        _, _, rest = page.partition(f"<!-- {marker} -->")
        shown, end, _ = rest.partition(f"<!-- /{marker} -->")
        assert end, marker
        assert shown.strip() == table, "run: python bench/proof.py report"


def test_the_readme_shows_steps_and_figures_of_the_runs_that_are_kept():
    readme = (ROOT / "README.md").read_text()
    steps = [json.loads(line) for line in (ROOT / "docs/results/finance-1/metrics.jsonl").read_text().splitlines()]
    shown = re.findall(r"^step (\d+)/(\d+)  (reward .*)  …$", readme, re.MULTILINE)
    assert len(shown) > 5
    for number, of, said in shown:
        step = steps[int(number) - 1]
        assert int(of) == len(steps)
        assert said == (
            f"reward {step['reward']:+.3f}  success {step['success_rate']:.0%}"
            f"  valid calls {step['valid_call_rate']:.0%}  KL {step['kl']:.1e}  ratio {step['ratio_mean']:.4f}"
        )
    assert f"in {sum(step['step_s'] for step in steps) / 60:.0f} minutes" in readme
    found = figures(judge_runs())
    for name in ("success_untrained", "success_warm", "success_rl"):
        assert f"{found[name]:.1%}" in readme


def test_reinforcement_learning_adds_to_the_warm_start(record_property):
    found = figures(judge_runs())
    for name, figure in found.items():
        record_property(name, figure)
    assert found["seeds"] >= 3
    assert found["warm_high"] < found["rl_low"]


def test_shared_prefixes_make_a_step_shorter(record_property):
    ratio = figures(judge_runs())["no_sharing_over_recipe"]
    record_property("no_sharing_over_recipe", ratio)
    assert ratio > 1

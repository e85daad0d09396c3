"""The summary of a run: sums, first and last values, worst steps, success metrics, verdicts."""

# R9, R30

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from healthy_steps import HEALTHY
from mcprl.runs.summary import Summary
from mcprl.verdicts import Severity, Verdict

STEP = {
    "optimiser_steps": 2.0,
    "episodes": 8.0,
    "groups": 2.0,
    "episodes_lost_to_infrastructure": 1.0,
    "server_restarts": 1.0,
    "sampler_restarts": 0.0,
    "reward": 0.5,
    "valid_call_rate": 0.25,
    "alignment": 1.0,
    "parity_ratio_mean_abs_error": 1e-6,
    "parity_logprob_max_abs_error": 1e-5,
    "kl": 0.01,
    "step_s": 3.0,
    "wait_s": 2.0,
    "update_s": 1.0,
    "sampled_tokens": 100.0,
}


def summary_of(*changes: dict[str, float]) -> dict[str, Any]:
    summary = Summary(Path("outputs/hello"))
    for change in changes:
        summary.add(STEP | change)
    return summary.as_dict()


def test_counts_and_seconds_are_summed():
    found = summary_of({}, {"optimiser_steps": 0.0, "step_s": 4.5}, {"episodes_lost_to_infrastructure": 0.0})
    assert (found["updates"], found["optimiser_steps"], found["episodes"], found["groups_complete"]) == (3, 4, 24, 6)
    assert (found["episodes_lost_to_infrastructure"], found["sampled_tokens"]) == (2, 300)
    assert (found["seconds"], found["wait_s"], found["update_s"]) == (10.5, 6.0, 3.0)


def test_learning_is_summarised_by_the_first_and_the_last_step():
    found = summary_of({"reward": 0.1}, {"reward": 9.0}, {"reward": 0.9, "valid_call_rate": 1.0})
    assert (found["reward_first"], found["reward_last"]) == (0.1, 0.9)
    assert (found["valid_call_rate_first"], found["valid_call_rate_last"]) == (0.25, 1.0)


def test_correctness_is_summarised_by_the_worst_step():
    parity = {"parity_logprob_max_abs_error": 0.2, "parity_ratio_mean_abs_error": 0.1}
    found = summary_of({"kl": 0.3, **parity}, {"alignment": 0.99}, {})
    assert (found["alignment"], found["kl_max"]) == (0.99, 0.3)
    assert {name: found[name] for name in parity} == parity


def test_restarts_are_counted_by_the_servers_and_not_added_up_again():
    assert summary_of({"server_restarts": 1.0}, {"server_restarts": 2.0})["server_restarts"] == 2


def test_a_skipped_update_is_counted_apart_and_leaves_out_what_it_does_not_know():
    summary = Summary(Path("outputs/hello"))
    summary.add(STEP | {"kl": 0.2})
    left_out = ("alignment", "kl", "parity_ratio_mean_abs_error", "parity_logprob_max_abs_error", "optimiser_steps")
    summary.add({name: value for name, value in STEP.items() if name not in left_out} | {"update_skipped": 1.0})
    found = summary.as_dict()
    assert (found["updates"], found["updates_skipped"], found["kl_max"], found["optimiser_steps"]) == (1, 1, 0.2, 2)


def test_figures_that_no_step_knows_are_left_out():
    summary = Summary(Path("outputs/hello"))
    summary.add({name: value for name, value in STEP.items() if name not in ("alignment", "kl")})
    found = summary.as_dict()
    assert "alignment" not in found
    assert "kl_max" not in found
    names = [metric["name"] for metric in found["success"]]
    assert names == ["valid tool calls, last step"]


def success_of(*changes: dict[str, float]) -> dict[str, dict[str, Any]]:
    summary = Summary(Path("outputs/hello"))
    for change in changes:
        summary.add(HEALTHY | change)
    return {metric["name"]: metric for metric in summary.as_dict()["success"]}


def test_a_healthy_run_meets_every_bar():
    found = success_of({}, {}, {})
    assert [name for name, metric in found.items() if not metric["met"]] == []
    assert len(found) == 10


@pytest.mark.parametrize(
    ("name", "steps", "value"),
    [
        ("learnable tokens, worst step", [{}, {"learnable_share": 0.3}, {}], 0.3),
        ("token alignment, worst step", [{}, {"alignment": 0.9999}, {}], 0.9999),
        ("mean ratio, worst step", [{"ratio_mean": 1.1}, {"ratio_mean": 0.7}, {}], 0.7),
        ("mean ratio, worst step", [{"ratio_mean": 1.3}, {"ratio_mean": 0.9}, {}], 1.3),
        ("ratio spread, worst step", [{}, {"ratio_std": 0.5}], 0.5),
        ("KL per token, mean", [{"kl": 0.2}, {"kl": 1.0}], 0.6),
        ("KL per token, worst step", [{"kl": 3.1}, {}], 3.1),
        ("KL to the reference, mean", [{"kl_reference": 0.2}, {"kl_reference": 1.0}], 0.6),
        ("KL to the reference, worst step", [{"kl_reference": 3.1}, {}], 3.1),
        ("active tokens, mean", [{"active_fraction": 0.4}, {"active_fraction": 0.6}], 0.5),
        ("valid tool calls, last step", [{}, {"valid_call_rate": 0.7}], 0.7),
    ],
)
def test_a_missed_bar_is_reported_with_its_figure(name, steps, value):
    found = success_of(*steps)[name]
    assert found["value"] == pytest.approx(value)
    assert not found["met"]


def test_one_bad_step_fails_the_worst_step_but_not_the_mean():
    found = success_of(*[{}] * 19, {"kl": 4.0})
    assert found["KL per token, mean"]["met"]
    assert not found["KL per token, worst step"]["met"]


def test_valid_calls_are_those_of_the_last_step_and_a_short_run_says_so():
    found = success_of({"valid_call_rate": 0.1}, {"valid_call_rate": 0.95})["valid tool calls, last step"]
    assert (found["met"], found["bar"], found["note"]) == (True, "≥ 90% by step 50", "after 2 steps")
    assert success_of(*[{}] * 50)["valid tool calls, last step"]["note"] == ""


def test_the_note_says_what_lowers_the_active_tokens():
    steps = [{"groups_without_variance": 4.0, "clipped_fraction": 0.1}, {"clipped_fraction": 0.2}]
    assert success_of(*steps)["active tokens, mean"]["note"] == "31% of groups without variance, 15% of tokens clipped"
    # Groups that were left out of the batch lower nothing.
    left_out = {"groups": 10.0, "groups_without_variance": 4.0, "groups_dropped": 2.0}
    assert success_of(left_out)["active tokens, mean"]["note"] == "25% of groups without variance, 5% of tokens clipped"


def test_a_figure_that_was_not_a_number_meets_no_bar_and_is_still_json():
    found = success_of({}, {"kl": math.nan})
    assert found["KL per token, mean"]["value"] is None
    assert not found["KL per token, mean"]["met"]
    assert found["KL per token, mean"]["note"] == "not finite in 1 of 2 steps"
    json.dumps(found, allow_nan=False)


def verdict(severity: Severity, name: str, what: str = "") -> Verdict:
    return Verdict(severity=severity, name=name, what=what, fix="")


def test_verdicts_are_counted_by_the_worst_of_each_step_and_listed_with_the_gravest_and_commonest_first():
    ok, warn, bad = Severity.OK, Severity.WARN, Severity.BAD
    summary = Summary(Path("outputs/hello"))
    summary.add(STEP, [verdict(ok, "healthy")])
    summary.add(STEP, [verdict(bad, "KL", "first"), verdict(warn, "clipping")])
    summary.add(STEP, [verdict(warn, "clipping"), verdict(warn, "KL")])
    summary.add(STEP, [verdict(bad, "ratio"), verdict(warn, "clipping")])
    summary.add(STEP, [verdict(bad, "KL", "then")])
    found = summary.as_dict()["verdicts"]
    assert found["steps"] == {"ok": 1, "warn": 1, "bad": 3}
    listed = [(row["severity"], row["name"], row["steps"], row["last_step"], row["what"]) for row in found["found"]]
    assert listed == [
        ("bad", "KL", 2, 5, "then"),
        ("bad", "ratio", 1, 4, ""),
        ("warn", "clipping", 3, 4, ""),
        ("warn", "KL", 1, 3, ""),
    ]


def test_steps_without_metrics_count_and_leave_the_figures_to_the_others():
    verdict = Verdict(severity=Severity.WARN, what="slow", fix="", name="slow")
    summary = Summary(Path("outputs/hello"))
    summary.add({}, [verdict])
    assert "reward_first" not in summary.as_dict()
    summary.add(STEP | {"reward": 0.75}, [verdict])
    found = summary.as_dict()
    assert (found["updates"], found["reward_first"], found["reward_last"], found["episodes"]) == (2, 0.75, 0.75, 8)
    assert found["verdicts"]["found"][0]["last_step"] == 2

"""The quickstart as a newcomer takes it: from the built wheel, in an environment of its own, to a better model.

SmolLM2 in vLLM and two MCP servers; and what the run says about itself. The machine is its own, since it is timed.
"""
# R8, R9, R14, R22, R23, R25

import pytest

from mcprl.recipe import load_recipe
from mcprl.runs.trajectories import read_trajectories

pytestmark = [pytest.mark.process, pytest.mark.alone, pytest.mark.timeout(2400)]

STEPS = 4


def test_every_command_of_the_page_ends_well_and_their_times_are_known(quickstart, record_property):
    for name, figure in quickstart.figures.items():
        record_property(name, figure)
    assert list(quickstart.made.seconds) == ["doctor", "play", "before", "train", "resume", "after"]


def test_the_doctor_finds_nothing_wrong(quickstart):
    said = quickstart.made.printed["doctor"]
    assert "✗" not in said
    assert "No errors found" in said


def test_a_person_is_shown_how_a_task_is_solved(quickstart):
    said = quickstart.made.printed["play"]
    assert 'assistant: {"name": "find_person", "arguments": {"name": "Luz"}}' in said  # in the examples of the preamble
    assert '{"name": "find_person", "arguments": {"name": "Hiro"}}\nanswer Asia/Tokyo' in said


def test_the_dashboard_shows_the_run_beside_it(quickstart):
    assert quickstart.made.seen_runs == ["hello-cpu"]


def test_the_run_goes_on_where_it_stood_and_every_group_is_complete(quickstart):
    config = load_recipe(quickstart.folder / "recipes" / "hello-cpu.yaml")
    assert quickstart.summary["updates"] == STEPS
    assert quickstart.summary["groups_complete"] == STEPS * config.training.tasks_per_step
    servers = set()
    for step in range(STEPS):
        trajectories = read_trajectories(quickstart.run / "trajectories" / f"step-{step:05d}.parquet")
        assert len(trajectories) == config.training.tasks_per_step * config.episodes.group_size
        servers |= {seen.server for t in trajectories for turn in t.turns for seen in turn.observations}
    assert {"time", "directory"} <= servers


def test_reward_rises_and_the_adapter_does_better_in_another_vllm(quickstart):
    figures = quickstart.figures
    assert figures["reward_last"] > figures["reward_first"]
    assert figures["success_after"] > figures["success_before"]


def test_the_run_itself_prints_alignment_and_parity_within_their_bounds(quickstart, record_property):
    summary, printed = quickstart.summary, quickstart.made.printed["resume"]
    for name in ("alignment", "parity_ratio_mean_abs_error", "parity_logprob_max_abs_error"):
        record_property(name, summary[name])
    assert summary["alignment"] == 1.0
    assert summary["parity_ratio_mean_abs_error"] <= 1e-4
    assert summary["parity_logprob_max_abs_error"] <= 1e-3
    assert "✓  token alignment, worst step    100.00%" in printed
    assert "sampler vs learner      mean |ratio − 1|" in printed
    # On-policy from the first to the last step, not only while the adapter is still the identity.
    assert all(step["parity_logprob_max_abs_error"] <= 1e-3 for step in quickstart.steps)
    assert any(step["grad_norm"] > 0 for step in quickstart.steps)


def test_the_run_ends_with_the_measures_of_success(quickstart):
    rows = [line for line in quickstart.made.printed["resume"].splitlines() if line.startswith(("✓", "✗"))]
    for name in (
        "learnable tokens",
        "token alignment",
        "mean ratio",
        "ratio spread",
        "KL per token",
        "active tokens",
        "valid tool calls",
    ):
        assert any(name in row for row in rows), name
    assert any("token alignment" in row and row.startswith("✓") and "100.00%" in row for row in rows)
    assert {line["severity"] for line in quickstart.verdicts} <= {"ok", "warn", "bad"}
    assert {line["step"] for line in quickstart.verdicts} == set(range(STEPS))


def test_live_progress_names_what_a_person_wants_to_know(quickstart):
    (first, *_rest) = [line for line in quickstart.made.printed["train"].splitlines() if line.startswith("step 1/")]
    for column in ("reward", "valid calls", "KL", "ratio", "tokens/s", "ETA"):
        assert column in first
    next_command = "Next: mcprl try outputs/hello-cpu/config.yaml --adapter outputs/hello-cpu/adapter"
    assert next_command in quickstart.made.printed["train"]

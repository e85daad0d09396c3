"""`mcprl train recipes/hello-cpu.yaml`: SmolLM2 in vLLM, two MCP servers, and what the run says about itself."""
# R8, R9, R14, R22, R23

import pytest

from mcprl.recipe import load_recipe
from mcprl.records import Weights
from mcprl.samplers import SampleRequest
from mcprl.samplers.vllm import VllmSampler
from mcprl.training.trajectory_files import read_trajectories

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_at_least_5_updates_in_under_15_minutes(hello_run, record_property):
    record_property("updates", hello_run.summary["updates"])
    record_property("minutes", round(hello_run.seconds / 60, 2))
    assert hello_run.summary["updates"] >= 5
    assert hello_run.seconds < 15 * 60


def test_every_group_is_complete_and_every_server_was_called(hello_run, root):
    config = load_recipe(root / "recipes" / "hello-cpu.yaml")
    assert hello_run.summary["groups_complete"] == config.training.steps * config.training.tasks_per_step
    servers = set()
    for step in range(config.training.steps):
        trajectories = read_trajectories(hello_run.folder / "trajectories" / f"step-{step:05d}.parquet")
        assert len(trajectories) == config.training.tasks_per_step * config.episodes.group_size
        servers |= {seen.server for t in trajectories for turn in t.turns for seen in turn.observations}
    assert {"time", "directory"} <= servers


def test_the_run_itself_prints_alignment_and_parity_within_their_bounds(hello_run, record_property):
    summary = hello_run.summary
    for name in ("alignment", "parity_ratio_mean_abs_error", "parity_logprob_max_abs_error"):
        record_property(name, summary[name])
    assert summary["alignment"] == 1.0
    assert summary["parity_ratio_mean_abs_error"] <= 1e-4
    assert summary["parity_logprob_max_abs_error"] <= 1e-3
    assert "✓  token alignment, worst step    100.00%" in hello_run.stdout
    assert "sampler vs learner      mean |ratio − 1|" in hello_run.stdout
    # On-policy from the first to the last step, not only while the adapter is still the identity.
    assert all(step["parity_logprob_max_abs_error"] <= 1e-3 for step in hello_run.steps)
    assert any(step["grad_norm"] > 0 for step in hello_run.steps)


def test_the_run_ends_with_the_measures_of_success(hello_run):
    rows = [line for line in hello_run.stdout.splitlines() if line.startswith(("✓", "✗"))]
    for name in (
        "learnable tokens",
        "token alignment",
        "mean ratio",
        "ratio spread",
        "KL a token",
        "active tokens",
        "valid tool calls",
        "groups complete",
        "forced actions",
    ):
        assert any(name in row for row in rows), name
    assert any("forced actions" in row and row.startswith("✓") and "0.00%" in row for row in rows)
    assert {line["severity"] for line in hello_run.verdicts} <= {"ok", "warn", "bad"}
    assert {line["step"] for line in hello_run.verdicts} == set(range(len(hello_run.steps)))


def test_live_progress_names_what_a_person_wants_to_know(hello_run):
    (first, *_rest) = [line for line in hello_run.stdout.splitlines() if line.startswith("step 1/")]
    for column in ("reward", "valid calls", "KL", "ratio", "tokens/s", "ETA"):
        assert column in first
    assert f"Next: mcprl try recipes/hello-cpu.yaml --adapter {hello_run.folder / 'adapter'}" in hello_run.stdout


async def test_the_adapter_loads_in_another_vllm_and_changes_its_logprobs(hello_run, root, tmp_path, record_property):
    config = load_recipe(root / "recipes" / "hello-cpu.yaml")
    trajectory = read_trajectories(hello_run.folder / "trajectories" / "step-00000.parquet")[0]
    first_sampled = trajectory.sampled.index(True)
    request = SampleRequest(
        prompt_ids=trajectory.token_ids[:first_sampled],
        max_tokens=16,
        temperature=0.7,
        stop=(),
        stop_token_ids=(),
        seed=1,
    )
    async with VllmSampler(config.model, config.sampling, config.learner, log=tmp_path / "vllm.log") as sampler:
        base = await sampler.sample(request)
        again = await sampler.sample(request)
        await sampler.publish(Weights(version=1, adapter=hello_run.folder / "adapter"))
        adapted = await sampler.sample(request)
    assert again.token_ids == base.token_ids
    noise = max(abs(a - b) for a, b in zip(again.logprobs, base.logprobs, strict=True))
    # Up to and including the first token that differs, both were asked about the same context.
    same = next((i for i, (a, b) in enumerate(zip(base.token_ids, adapted.token_ids, strict=False)) if a != b), 16)
    change = max(abs(a - b) for a, b in zip(base.logprobs[: same + 1], adapted.logprobs[: same + 1], strict=True))
    record_property("adapter_logprob_change", change)
    assert set(adapted.weights_versions) == {1}
    assert noise < 1e-4 < change

"""A run without fault: its settings, and the figures of a step in which nothing is wrong."""

from __future__ import annotations

from typing import Any

from mcprl.config import RunConfig

HEALTHY = {
    "reward": 0.35,
    "success_rate": 0.4,
    "calls": 120.0,
    "valid_call_rate": 0.95,
    "turns_with_call_rate": 0.6,
    "groups": 8.0,
    "groups_without_variance": 1.0,
    "groups_dropped": 0.0,
    "groups_refilled": 0.0,
    "episodes": 64.0,
    "episodes_lost_to_infrastructure": 1.0,
    "stop_answered": 0.9,
    "stop_cut_by_length": 0.05,
    "stop_turn_limit": 0.05,
    "stop_context_limit": 0.0,
    "sampled_tokens": 5000.0,
    "sampled_tokens_per_second": 55.0,
    "collect_s": 90.0,
    "tool_latency_mean_s": 0.02,
    "turn_without_tools_mean_s": 0.5,
    "loss": -0.01,
    "policy_loss": -0.01,
    "grad_norm": 0.5,
    "optimiser_steps": 2.0,
    "optimiser_steps_over_cap": 0.0,
    "minibatches_without_signal": 0.0,
    "update_skipped": 0.0,
    "nonfinite": 0.0,
    "nonfinite_in_a_row": 0.0,
    "alignment": 1.0,
    "learnable_tokens": 4000.0,
    "learnable_share": 0.8,
    "sampled_share": 0.3,
    "forced_share": 0.2,
    "fixed_text_share": 0.1,
    "parity_logprob_max_abs_error": 0.4,
    "parity_logprob_mean_abs_error": 0.02,
    "parity_ratio_mean": 1.0,
    "parity_ratio_mean_abs_error": 0.02,
    "parity_kl": 1e-3,
    "parity_outside_share": 0.08,
    "ratio_mean": 1.001,
    "ratio_std": 0.1,
    "ratio_p10": 0.9,
    "ratio_p50": 1.0,
    "ratio_p90": 1.1,
    "ratio_mean_positive": 1.01,
    "ratio_mean_negative": 0.99,
    "kl": 0.005,
    "kl_unmasked": 0.004,
    "clipped_fraction": 0.05,
    "active_fraction": 0.8,
    "gated_fraction": 0.0,
    "entropy": 0.8,
    "learning_rate": 2e-5,
    "staleness_mean": 0.0,
    "staleness_max": 0.0,
    "update_s": 17.0,
    "replay_s": 0.1,
    "server_restarts": 0.0,
    "sampler_restarts": 0.0,
    "step_s": 107.0,
    # Where a recipe has a reference, a critic, a correction and a warm start:
    "kl_reference": 0.05,
    "kl_coefficient": 0.02,
    "kl_loss": 0.001,
    "reference_synced": 1.0,
    "reference_tensors_differing": 0.0,
    "value_loss": 0.1,
    "explained_variance": 0.4,
    "importance_mean": 1.0,
    "importance_cut_fraction": 0.01,
    "imitation_loss": 0.7,
    "demonstration_weight": 0.0,
}


def make_config(**sections: dict[str, Any]) -> RunConfig:
    """A run of 100 steps with 8 groups each; sections are laid over that."""
    base: dict[str, Any] = {
        "name": "trial",
        "model": {"path": "some/model"},
        "tasks": {"train": "tasks.jsonl"},
        "servers": {"file": "servers.json"},
        "training": {"steps": 100, "tasks_per_step": 8},
    }
    for name, section in sections.items():
        base[name] = {**base.get(name, {}), **section}
    return RunConfig.model_validate(base)

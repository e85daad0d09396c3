"""The closing figures of a run: sums, firsts and lasts, and the worst where correctness is concerned."""

from __future__ import annotations

from mcprl.training import Summary

STEP = {
    "optimiser_steps": 2.0,
    "episodes": 8.0,
    "groups": 2.0,
    "episodes_lost_to_infrastructure": 1.0,
    "server_restarts": 1.0,
    "reward": 0.5,
    "valid_call_rate": 0.25,
    "alignment": 1.0,
    "parity_ratio_mean_abs_error": 1e-6,
    "parity_logprob_max_abs_error": 1e-5,
    "kl": 0.01,
    "step_s": 3.0,
    "collect_s": 2.0,
    "update_s": 1.0,
    "sampled_tokens": 100.0,
}


def summary_of(*changes: dict[str, float]) -> dict[str, float]:
    summary = Summary()
    for change in changes:
        summary.add(STEP | change)
    return summary.as_dict()


def test_counts_and_seconds_are_summed():
    found = summary_of({}, {"optimiser_steps": 0.0, "step_s": 4.5}, {"episodes_lost_to_infrastructure": 0.0})
    assert (found["updates"], found["optimiser_steps"], found["episodes"], found["groups_complete"]) == (3, 4, 24, 6)
    assert (found["episodes_lost_to_infrastructure"], found["sampled_tokens"]) == (2, 300)
    assert (found["seconds"], found["collect_s"], found["update_s"]) == (10.5, 6.0, 3.0)


def test_what_is_learnt_is_told_by_the_first_and_the_last_step():
    found = summary_of({"reward": 0.1}, {"reward": 9.0}, {"reward": 0.9, "valid_call_rate": 1.0})
    assert (found["reward_first"], found["reward_last"]) == (0.1, 0.9)
    assert (found["valid_call_rate_first"], found["valid_call_rate_last"]) == (0.25, 1.0)


def test_correctness_is_told_by_the_worst_step():
    found = summary_of({"kl": 0.3, "parity_logprob_max_abs_error": 0.2}, {"alignment": 0.99}, {})
    assert (found["alignment"], found["kl_max"], found["parity_logprob_max_abs_error"]) == (0.99, 0.3, 0.2)


def test_restarts_are_counted_by_the_servers_and_not_added_up_again():
    assert summary_of({"server_restarts": 1.0}, {"server_restarts": 2.0})["server_restarts"] == 2

"""The figures of an update against plain loops and numpy."""
# R9

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_episodes import make_episode

from mcprl.learning.algorithms import parity_metrics, ratio_metrics, staleness_metrics
from mcprl.records import Trajectory

logprobs = st.floats(min_value=-5.0, max_value=0.0)
columns = st.lists(st.tuples(logprobs, logprobs, st.sampled_from([-1.5, -0.3, 0.0, 0.2, 1.5])), min_size=1, max_size=30)
LOW, HIGH = 0.2, 0.28


def measured(rows) -> dict[str, float]:
    logprob_N, sampled_N, advantage_N = torch.tensor(rows, dtype=torch.float64).unbind(1)
    return ratio_metrics(logprob_N, sampled_N, advantage_N, clip_low=LOW, clip_high=HIGH)


@given(columns)
def test_parity_is_that_of_a_plain_loop(rows):
    logprob_N, sampled_N, _ = torch.tensor(rows, dtype=torch.float64).unbind(1)
    deltas = [abs(a - b) for a, b, _ in rows]
    ratios = [math.exp(a - b) for a, b, _ in rows]
    assert parity_metrics(logprob_N, sampled_N) == pytest.approx(
        {
            "parity_logprob_max_abs_error": max(deltas),
            "parity_logprob_mean_abs_error": sum(deltas) / len(rows),
            "parity_ratio_mean": sum(ratios) / len(rows),
            "parity_ratio_mean_abs_error": sum(abs(ratio - 1.0) for ratio in ratios) / len(rows),
            "parity_kl": sum(ratio - 1.0 - math.log(ratio) for ratio in ratios) / len(rows),
            "parity_outside_share": sum(not 0.9 <= ratio <= 1.1 for ratio in ratios) / len(rows),
        },
        rel=1e-9,
        abs=1e-12,
    )


def test_a_sampler_and_a_learner_that_agree_have_no_parity_error():
    logprob_N = torch.tensor([-0.5, -3.0, 0.0])
    figures = parity_metrics(logprob_N, logprob_N.clone())
    assert figures.pop("parity_ratio_mean") == 1.0
    assert set(figures.values()) == {0.0}


@given(columns)
def test_ratios_have_the_mean_deviation_and_quantiles_of_numpy(rows):
    ratios = np.exp(np.array([a - b for a, b, _ in rows]))
    result = measured(rows)
    assert result["ratio_mean"] == pytest.approx(ratios.mean(), rel=1e-9)
    assert result["ratio_std"] == pytest.approx(ratios.std(), rel=1e-6, abs=1e-9)
    for name, share in [("ratio_p10", 0.1), ("ratio_p50", 0.5), ("ratio_p90", 0.9)]:
        assert result[name] == pytest.approx(np.quantile(ratios, share), rel=1e-9)


@given(columns)
def test_clipped_and_active_shares_are_those_of_a_plain_loop(rows):
    clipped = active = 0
    for logprob, sampled, advantage in rows:
        ratio = math.exp(logprob - sampled)
        is_clipped = (ratio > 1.0 + HIGH and advantage > 0) or (ratio < 1.0 - LOW and advantage < 0)
        clipped += is_clipped
        active += advantage != 0 and not is_clipped
    result = measured(rows)
    assert result["clipped_fraction"] == pytest.approx(clipped / len(rows), abs=1e-6)
    assert result["active_fraction"] == pytest.approx(active / len(rows), abs=1e-6)


@given(columns)
def test_mean_ratios_by_the_sign_of_the_advantage_are_those_of_a_plain_loop(rows):
    result = measured(rows)
    for name, sign in [("ratio_mean_positive", 1.0), ("ratio_mean_negative", -1.0)]:
        own = [math.exp(logprob - sampled) for logprob, sampled, advantage in rows if sign * advantage > 0]
        assert result[name] == pytest.approx(sum(own) / len(own) if own else 1.0, rel=1e-9)


def test_an_on_policy_batch_has_ratio_one():
    result = measured([(-0.5, -0.5, 1.0), (-2.0, -2.0, -1.0), (-1.0, -1.0, 0.0)])
    assert result["ratio_mean"] == result["ratio_p10"] == result["ratio_p90"] == 1.0
    assert result["ratio_std"] == result["clipped_fraction"] == 0.0
    assert result["active_fraction"] == pytest.approx(2 / 3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_figures_of_tensors_on_a_gpu_are_those_on_the_cpu():
    columns_3N = torch.tensor([[-0.5, -1.0], [-0.6, -0.9], [1.0, -1.0]])
    on_gpu = ratio_metrics(*columns_3N.cuda(), clip_low=LOW, clip_high=HIGH)
    assert on_gpu == pytest.approx(ratio_metrics(*columns_3N, clip_low=LOW, clip_high=HIGH), rel=1e-5)


def sampled_by(*versions: int) -> Trajectory:
    """A token for each version of the weights; −1 is context."""
    return replace(make_episode("".join("c" if version < 0 else "s" for version in versions)), weights_version=versions)


def test_staleness_is_how_many_versions_behind_the_sampled_tokens_are():
    metrics = staleness_metrics([sampled_by(-1, 7, 7, -1, 5), sampled_by(-1, 4)], newest_version=7)
    assert metrics == {"staleness_mean": (0 + 0 + 2 + 3) / 4, "staleness_max": 3.0}


def test_without_sampled_tokens_nothing_is_stale():
    assert staleness_metrics([sampled_by(-1)], newest_version=7) == {"staleness_mean": 0.0, "staleness_max": 0.0}


def test_ratios_of_more_tokens_than_torch_takes_quantiles_of_have_quantiles():
    tokens = 2**24 + 1
    log_ratio_N = torch.linspace(-1.0, 1.0, tokens)
    figures = ratio_metrics(log_ratio_N, torch.zeros(1), torch.ones(tokens), clip_low=LOW, clip_high=HIGH)
    quantiles = [figures[f"ratio_p{percent}"] for percent in (10, 50, 90)]
    assert quantiles == pytest.approx([math.exp(-0.8), 1.0, math.exp(0.8)], rel=1e-5)

"""The cases of bench/oracles.py: random numbers, what mcprl makes of them, and what plain Python makes of them.

Names of results are `function/aspect`. Losses are added up over tokens, or their mean is taken, as the oracle does it;
each has its gradient beside it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcprl.learning import algorithms as ours
from mcprl.records import StopReason, Trajectory

__all__ = ["Case", "make_cases", "of_mcprl", "of_plain_python"]

GROUP, ROWS, TOKENS, STEPS = 6, 3, 5, 12
CLIP = {"clip_low": 0.2, "clip_high": 0.3}

Case = dict[str, Tensor]


def make_cases(count: int) -> dict[str, np.ndarray]:
    """Random cases. Ratios stay below 3, where SkyRL's float32 keeps seven digits behind the point."""
    draw = np.random.default_rng(20)
    tokens = (count, ROWS, TOKENS)
    old = -draw.uniform(0.0, 6.0, tokens)
    mask = draw.random(tokens) < 0.7
    mask[..., 0] |= ~mask.any(-1)  # a sequence without tokens counts as one in SkyRL and TRL, and as none in mcprl
    graded, passed = draw.normal(size=(count, GROUP)), draw.integers(0, 2, (count, GROUP)).astype(float)
    earned = draw.normal(size=tokens)
    old_value = earned + draw.normal(0.0, 0.5, tokens)
    clip_high = draw.uniform(0.1, 0.4, count)
    return {
        "reward_CG": np.where(draw.random((count, 1)) < 0.5, graded, passed),  # a few groups have no variance
        "step_reward_CS": draw.normal(size=(count, STEPS)) * (draw.random((count, STEPS)) < 0.5),
        "step_value_CS": draw.normal(size=(count, STEPS)),
        "gamma_C": draw.uniform(0.8, 1.0, count),
        "lam_C": draw.uniform(0.0, 1.0, count),
        "old_logprob_CBT": old,
        "logprob_CBT": np.minimum(old + draw.uniform(-1.0, 1.0, tokens), 0.0),
        "reference_logprob_CBT": np.minimum(old + draw.uniform(-1.0, 1.0, tokens), 0.0),
        "advantage_CBT": draw.normal(size=tokens).clip(-2.0, 2.0),
        "mask_CBT": mask.astype(float),
        "clip_low_C": draw.uniform(0.1, 0.4, count),
        "clip_high_C": clip_high,
        "return_CBT": earned,
        "old_value_CBT": old_value,
        "value_CBT": old_value + draw.normal(0.0, 0.5, tokens),
        "value_clip_C": draw.uniform(0.1, 0.5, count),
        "constant_tokens_C": draw.integers(1, 50, count),
        "cap_C": draw.uniform(1.0, 2.5, count),
        "gate_low_C": draw.uniform(0.3, 0.9, count),
        "gate_high_C": draw.uniform(1.1, 2.5, count),
        "coefficient_C": draw.uniform(0.001, 0.1, count),
        "target_C": draw.uniform(0.05, 0.5, count),
        "kl_C": draw.uniform(0.0, 0.7, count),
        "horizon_C": draw.integers(1, 100, count),
    }


def of_mcprl(case: Case) -> dict[str, Any]:
    return {**_advantages(case), **_losses(case), **_weights(case), **_figures(case)}


def _advantages(case: Case) -> dict[str, Any]:
    reward_G, value_S = case["reward_CG"], case["step_value_CS"]
    gamma, lam = (float(case[name]) for name in ("gamma_C", "lam_C"))
    advantage_S, return_S = ours.gae(case["step_reward_CS"], value_S, gamma=gamma, lam=lam)
    return {
        "grpo_advantages/value": ours.grpo_advantages(reward_G),
        "dr_grpo_advantages/value": ours.dr_grpo_advantages(reward_G),
        "rloo_advantages/value": ours.rloo_advantages(reward_G),
        "gae/returns": return_S,
        "gae/whitened": ours.whitened(advantage_S),  # SkyRL's advantages come whitened
        "whitened/value": ours.whitened(value_S),
    }


def _losses(case: Case) -> dict[str, Any]:
    chosen = case["mask_CBT"].bool()
    sequence_N = chosen.nonzero()[:, 0]
    old_N, reference_N, advantage_N = (
        case[name][chosen] for name in ("old_logprob_CBT", "reference_logprob_CBT", "advantage_CBT")
    )
    episode_N = case["advantage_CBT"][:, 0][sequence_N]
    low, high, value_clip = (float(case[name]) for name in ("clip_low_C", "clip_high_C", "value_clip_C"))
    clip = {"clip_low": low, "clip_high": high}
    old_value_N, return_N = case["old_value_CBT"][chosen], case["return_CBT"][chosen]
    weights = _sequence_weights(case)
    found: dict[str, Any] = {}

    def add(name: str, how: str | None, loss_of: Callable[[Tensor], Tensor], at: str = "logprob_CBT") -> None:
        leaf = case[at].clone().requires_grad_()
        weight_N = weights[how][sequence_N] if how else 1.0
        loss = (weight_N * loss_of(leaf[chosen])).sum()
        found[name] = loss.detach()
        found[f"{name} gradient"] = torch.autograd.grad(loss, leaf)[0]

    def ppo(logprob_N: Tensor) -> Tensor:
        return ours.clipped_policy_loss(logprob_N, old_N, advantage_N, **clip)

    def gspo(logprob_N: Tensor, advantage_N: Tensor = advantage_N) -> Tensor:
        return ours.gspo_loss(logprob_N, old_N, advantage_N, sequence_N, **clip)

    def cispo(logprob_N: Tensor, clip_low: float = low) -> Tensor:
        return ours.cispo_loss(logprob_N, old_N, advantage_N, clip_low=clip_low, clip_high=high)

    def distance(logprob_N: Tensor, estimator: ours.Estimator = "k3") -> Tensor:
        return ours.divergence(logprob_N, reference_N, estimator)

    def critic(value_N: Tensor, bound: float | None = value_clip) -> Tensor:
        return ours.value_loss(value_N, old_value_N, return_N, clip=bound)

    add("clipped_policy_loss/mean", "token_mean", ppo)
    add("gspo_loss/mean", "token_mean", gspo)
    add("gspo_loss/mean of episodes", "sequence_mean", lambda x: gspo(x, episode_N))
    add("cispo_loss/mean", "token_mean", cispo)
    add("cispo_loss/mean, clipped from above", "token_mean", lambda x: cispo(x, 1.0))
    add("imitation_loss/sum", None, ours.imitation_loss)
    add("divergence, k1/sum", None, lambda x: distance(x, "k1"))
    add("divergence, k2/sum", None, lambda x: distance(x, "k2"))
    add("divergence, k3/sum", None, distance)
    add("divergence, k3/mean", "token_mean", distance)
    add("value_loss/mean", "sequence_mean", critic, "value_CBT")
    add("value_loss, no clip/mean", "sequence_mean", lambda x: critic(x, None), "value_CBT")
    for how in weights:
        add(f"sequence_weights, {how}/loss", how, ppo)
    return found


def _sequence_weights(case: Case) -> dict[str, Tensor]:
    counts, tokens = case["mask_CBT"].sum(1).long(), int(case["constant_tokens_C"])
    return {
        "token_mean": ours.sequence_weights(counts, "token_mean", constant_tokens=tokens),
        "sequence_mean": ours.sequence_weights(counts, "sequence_mean", constant_tokens=tokens),
        "constant": ours.sequence_weights(counts, "constant", constant_tokens=tokens),
    }


def _weights(case: Case) -> dict[str, Any]:
    old, sampled = case["old_logprob_CBT"], case["reference_logprob_CBT"]
    gate = (float(case["gate_low_C"]), float(case["gate_high_C"]))
    weights = {
        f"sequence_weights, {how}/value": w[:, None] * case["mask_CBT"] for how, w in _sequence_weights(case).items()
    }
    return weights | {
        "importance_weights/value": ours.importance_weights(old, sampled, cap=float(case["cap_C"])),
        "inside_gate/value": ours.inside_gate((old - sampled).exp(), gate).double(),
        "next_coefficient/value": ours.next_coefficient(
            float(case["coefficient_C"]),
            float(case["kl_C"]),
            target=float(case["target_C"]),
            horizon=int(case["horizon_C"]),
        ),
    }


def _figures(case: Case) -> dict[str, Any]:
    logprob_N, old_N, advantage_N = (
        case[name].flatten() for name in ("logprob_CBT", "old_logprob_CBT", "advantage_CBT")
    )
    value_N, return_N = case["value_CBT"].flatten(), case["return_CBT"].flatten()
    figures = {
        **ours.parity_metrics(logprob_N, old_N),
        **ours.ratio_metrics(logprob_N, old_N, advantage_N, **CLIP),
        **ours.staleness_metrics([_sampled_by(_versions(case))], _NEWEST),
    }
    of = {"parity": "parity_metrics", "staleness": "staleness_metrics"}
    named = {f"{of.get(name.split('_')[0], 'ratio_metrics')}/{name}": number for name, number in figures.items()}
    return named | {"explained_variance/value": ours.explained_variance(value_N, return_N)}


_NEWEST = 60


def _versions(case: Case) -> list[int]:
    """For each token the version that sampled it: numbers at hand that are whole. −1 is context."""
    chosen, first = case["mask_CBT"].flatten().tolist(), int(case["constant_tokens_C"])
    return [first + place % 7 if sampled else -1 for place, sampled in enumerate(chosen)]


def _sampled_by(versions: list[int]) -> Trajectory:
    sampled, nothing = tuple(version >= 0 for version in versions), (False,) * len(versions)
    return Trajectory(
        task_id="case",
        step=0,
        member=0,
        attempt=0,
        temperature=1.0,
        token_ids=(0,) * len(versions),
        sampled=sampled,
        forced=nothing,
        fixed=nothing,
        logprobs=(0.0,) * len(versions),
        turn_index=tuple(0 if own else -1 for own in sampled),
        weights_version=tuple(versions),
        turns=(),
        stop=StopReason.ANSWERED,
        reward=0.0,
        reward_parts={},
    )


def of_plain_python(case: Case) -> dict[str, Any]:
    """What no peer has a function for, by loops over floats."""
    logprobs, olds, advantages, values, returns = (
        case[f"{name}_CBT"].flatten().tolist() for name in ("logprob", "old_logprob", "advantage", "value", "return")
    )
    deltas = [logprob - old for logprob, old in zip(logprobs, olds, strict=True)]
    ratios = [math.exp(delta) for delta in deltas]
    pairs = list(zip(ratios, advantages, strict=True))
    cut = [(r > 1 + CLIP["clip_high"] and adv > 0) or (r < 1 - CLIP["clip_low"] and adv < 0) for r, adv in pairs]
    k3 = statistics.fmean(math.exp(delta) - 1.0 - delta for delta in deltas)
    tenths = statistics.quantiles(ratios, n=10, method="inclusive")
    errors = [earned - value for earned, value in zip(returns, values, strict=True)]
    ages = [_NEWEST - version for version in _versions(case) if version >= 0]
    return {
        "explained_variance/value": 1.0 - statistics.variance(errors) / statistics.variance(returns),
        "parity_metrics/parity_logprob_max_abs_error": max(map(abs, deltas)),
        "parity_metrics/parity_logprob_mean_abs_error": statistics.fmean(map(abs, deltas)),
        "parity_metrics/parity_ratio_mean": statistics.fmean(ratios),
        "parity_metrics/parity_ratio_mean_abs_error": statistics.fmean(abs(ratio - 1.0) for ratio in ratios),
        "parity_metrics/parity_kl": k3,
        "parity_metrics/parity_outside_share": statistics.fmean(not 0.9 <= ratio <= 1.1 for ratio in ratios),
        "ratio_metrics/ratio_mean": statistics.fmean(ratios),
        "ratio_metrics/ratio_mean_positive": statistics.fmean([r for r, adv in pairs if adv > 0] or [1.0]),
        "ratio_metrics/ratio_mean_negative": statistics.fmean([r for r, adv in pairs if adv < 0] or [1.0]),
        "ratio_metrics/ratio_std": statistics.pstdev(ratios),
        "ratio_metrics/ratio_p10": tenths[0],
        "ratio_metrics/ratio_p50": tenths[4],
        "ratio_metrics/ratio_p90": tenths[8],
        "ratio_metrics/clipped_fraction": statistics.fmean(cut),
        "ratio_metrics/active_fraction": statistics.fmean(
            adv != 0 and not is_cut for (_, adv), is_cut in zip(pairs, cut, strict=True)
        ),
        "staleness_metrics/staleness_mean": statistics.fmean(ages),
        "staleness_metrics/staleness_max": max(ages),
    }

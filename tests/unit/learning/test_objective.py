"""The objective of an update, put together from its parts: held against sums and derivatives done by hand."""
# R2 R3 R5 R6 R10 R11

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_trajectories import make_trajectory
from small_models import save_small_model, small_batch, small_config, small_groups, small_learner
from torch import Tensor

from mcprl.config import AlgorithmConfig
from mcprl.learning import TorchLearner
from mcprl.learning.algorithms import make_batch, sequence_weights
from mcprl.learning.algorithms.objective import Outcome, Scores, policy_outcome
from mcprl.learning.attention import lay_out_rows
from mcprl.learning.optimizer import learning_rate_share
from mcprl.learning.packing import Example, Pack, make_examples, make_pack
from mcprl.records import Batch, Readings, Trajectory

CPU = torch.device("cpu")
LOSSES = ("ppo", "gspo", "cispo")
AGGREGATIONS = ("token_mean", "sequence_mean", "constant")
PARTS: dict[str, Any] = {
    "kl": {"coefficient": 0.3, "estimator": "k3"},
    "entropy": 0.05,
    "old_logprobs": "recomputed",
    "ratio_gate": (0.8, 1.3),
    "masks": "text",
}


def made_examples(algorithm: AlgorithmConfig, seed: int = 0) -> list[Example]:
    """Four episodes with tokens that carry no loss among them, and columns of their own for everything."""
    generator = torch.Generator().manual_seed(seed)
    kinds = ("cssxcss", "csx", "ccssssfs", "cxx")
    trajectories = [
        make_trajectory(range(3, 3 + len(kind)), kind, logprobs=[0.0 if k == "c" else -1.0 for k in kind])
        for kind in kinds
    ]
    groups = small_groups()
    pairs = (trajectories[:2], trajectories[2:])
    groups = tuple(
        replace(group, trajectories=tuple(replace(t, task_id=group.task.id, member=i) for i, t in enumerate(pair)))
        for group, pair in zip(groups, pairs, strict=True)
    )

    def column(shift: float, scale: float) -> tuple[tuple[float, ...], ...]:
        return tuple(
            tuple((torch.randn(len(t.sampled), generator=generator) * scale + shift).tolist()) for t in trajectories
        )

    readings = Readings(logprobs=column(-1.0, 0.2), reference_logprobs=column(-1.0, 0.2), values=column(0.0, 1.0))
    batch = make_batch(0, groups, algorithm.model_copy(update={"advantages": "grpo"}), readings)
    batch = replace(batch, advantages=column(0.0, 1.0), returns=column(0.0, 1.0))
    return make_examples(batch)


def made_pack(examples: list[Example]) -> Pack:
    return make_pack(examples, lay_out_rows([example.trajectory.token_ids for example in examples], CPU), None, CPU)


def weights_of(examples: list[Example], algorithm: AlgorithmConfig) -> Tensor:
    counts_S = torch.tensor([example.learnable_tokens for example in examples])
    return sequence_weights(counts_S, algorithm.aggregation, constant_tokens=5)


def objective(**algorithm: Any) -> AlgorithmConfig:
    return AlgorithmConfig(**algorithm)


def leaves(count: int, *, critic: bool = False, seed: int = 1) -> list[Tensor]:
    """Logprobs, entropies and values as a model might give them, in 64 bits, to take derivatives by."""
    generator = torch.Generator().manual_seed(seed)
    made = torch.randn(3 if critic else 2, count, generator=generator, dtype=torch.float64)
    shifts = (-1.0, 2.0, 0.0)
    return [(row * 0.2 + shift).requires_grad_() for row, shift in zip(made, shifts, strict=False)]


def scored(columns: list[Tensor], chosen: Tensor | None = None) -> Scores:
    parts = [column if chosen is None else column[chosen] for column in columns]
    return Scores(parts[0], parts[1], parts[2] if len(parts) > 2 else None)


def outcome_in(pack: Pack, scores: Scores, weight_N: Tensor, algorithm: AlgorithmConfig, kl: float) -> Outcome:
    return policy_outcome(scores, pack.columns, pack.sequence_N, weight_N, algorithm, kl)


@given(st.data())
def test_packs_of_any_size_and_order_add_up_to_the_same_loss_and_gradient(data):
    critic = data.draw(st.booleans(), "critic")
    algorithm = objective(
        **PARTS,
        loss=data.draw(st.sampled_from(LOSSES)),
        aggregation=data.draw(st.sampled_from(AGGREGATIONS)),
        advantages="gae" if critic else "grpo",
    )
    examples = made_examples(algorithm, data.draw(st.integers(0, 5), "seed"))
    sizes = [len(example.position_N) for example in examples]
    columns = leaves(sum(sizes), critic=critic)
    weight_S, whole = weights_of(examples, algorithm), made_pack(examples)
    one = outcome_in(whole, scored(columns), weight_S[whole.sequence_N], algorithm, 0.3).loss
    order = data.draw(st.permutations(range(len(examples))), "order")
    cuts = sorted(data.draw(st.sets(st.integers(1, 3)), "cuts"))
    place_of = torch.arange(sum(sizes)).split(sizes)
    total = torch.zeros((), dtype=torch.float64)
    for low, high in zip([0, *cuts], [*cuts, 4], strict=True):
        chosen = order[low:high]
        pack = made_pack([examples[i] for i in chosen])
        scores = scored(columns, torch.cat([place_of[i] for i in chosen]))
        total = total + outcome_in(pack, scores, weight_S[chosen][pack.sequence_N], algorithm, 0.3).loss
    torch.testing.assert_close(total, one, rtol=1e-10, atol=1e-12)
    for found, true in zip(torch.autograd.grad(total, columns), torch.autograd.grad(one, columns), strict=True):
        torch.testing.assert_close(found, true, rtol=1e-10, atol=1e-12)


def outcome_of(algorithm: AlgorithmConfig, *, critic: bool = False) -> tuple[list[Example], list[Tensor], Outcome]:
    examples = made_examples(algorithm)
    pack = made_pack(examples)
    columns = leaves(len(pack.sequence_N), critic=critic)
    weight_N = weights_of(examples, algorithm)[pack.sequence_N]
    return examples, columns, outcome_in(pack, scored(columns), weight_N, algorithm, algorithm.kl.coefficient)


def tokens_of(examples: list[Example], algorithm: AlgorithmConfig, columns: list[Tensor]) -> list[dict[str, float]]:
    """All that is known of each token that carries loss, as plain numbers."""
    tokens: list[dict[str, float]] = []
    weights: list[float] = weights_of(examples, algorithm).tolist()
    place = 0
    for example, weight in zip(examples, weights, strict=True):
        own = example.columns
        assert own.reference_logprob_N is not None
        assert own.old_value_N is not None
        assert own.return_N is not None
        for i in range(len(example.position_N)):
            if own.carries_loss_N[i]:
                known = {
                    "place": place,
                    "weight": weight,
                    "new": float(columns[0][place].detach()),
                    "entropy": float(columns[1][place].detach()),
                    "value": float(columns[-1][place].detach()),
                    "old": float(own.old_logprob_N[i]),
                    "sampled": float(own.sampled_logprob_N[i]),
                    "advantage": float(own.advantage_N[i]),
                    "reference": float(own.reference_logprob_N[i]),
                    "old_value": float(own.old_value_N[i]),
                    "return": float(own.return_N[i]),
                }
                tokens.append(known)
            place += 1
    assert 0 < len(tokens) < place
    return tokens


def ppo_by_hand(t: dict[str, float]) -> float:
    ratio = math.exp(t["new"] - t["old"])
    return -min(ratio * t["advantage"], min(max(ratio, 0.8), 1.2) * t["advantage"])


def test_ratios_outside_of_the_gate_carry_no_loss_and_no_gradient():
    algorithm = objective(ratio_gate=(0.9, 1.1), masks="text")
    examples, columns, outcome = outcome_of(algorithm)
    tokens = tokens_of(examples, algorithm, columns)
    inside = [t for t in tokens if 0.9 <= math.exp(t["new"] - t["old"]) <= 1.1]
    assert 0 < len(inside) < len(tokens)
    assert float(outcome.loss) == pytest.approx(sum(t["weight"] * ppo_by_hand(t) for t in inside), rel=1e-6)
    assert int(outcome.parts["gated"].sum()) == len(tokens) - len(inside)
    (gradient,) = torch.autograd.grad(outcome.loss, columns[:1])
    assert {int(i) for i in gradient.nonzero().flatten()} == {int(t["place"]) for t in inside}


def test_a_gated_ratio_too_large_for_32_bits_leaves_the_other_tokens_their_gradient():
    algorithm = objective(ratio_gate=(0.25, 4.0), masks="text")
    examples = made_examples(algorithm)
    for example in examples[:1]:
        example.columns.old_logprob_N[0] = -120.0
    pack = made_pack(examples)
    columns = [column.detach().float().requires_grad_() for column in leaves(len(pack.sequence_N))]
    weight_N = weights_of(examples, algorithm)[pack.sequence_N].float()
    outcome = outcome_in(pack, scored(columns), weight_N, algorithm, 0.0)
    (gradient,) = torch.autograd.grad(outcome.loss, columns[:1])
    assert bool(outcome.loss.isfinite())
    assert bool(gradient.isfinite().all())
    assert float(gradient[0]) == 0.0


def test_losses_are_weighted_by_how_far_sampler_and_learner_differ(monkeypatch):
    monkeypatch.setattr("mcprl.learning.algorithms.objective.MAX_IMPORTANCE", 1.1)
    algorithm = objective(old_logprobs="recomputed", masks="text")
    examples, columns, outcome = outcome_of(algorithm)
    tokens = tokens_of(examples, algorithm, columns)
    weights = [min(math.exp(t["old"] - t["sampled"]), 1.1) for t in tokens]
    assert min(weights) < 1.0 < max(weights) == 1.1
    true = sum(t["weight"] * w * ppo_by_hand(t) for t, w in zip(tokens, weights, strict=True))
    assert float(outcome.loss) == pytest.approx(true, rel=1e-6)
    assert outcome.parts["importance"].tolist() == pytest.approx(weights, rel=1e-6)
    (gradient,) = torch.autograd.grad(outcome.loss, columns[:1])
    ratios = [math.exp(t["new"] - t["old"]) for t in tokens]
    for t, weight, ratio in zip(tokens, weights, ratios, strict=True):
        clipped = (ratio > 1.2 and t["advantage"] > 0) or (ratio < 0.8 and t["advantage"] < 0)
        slope = 0.0 if clipped else -t["weight"] * weight * ratio * t["advantage"]
        assert float(gradient[int(t["place"])]) == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_distance_to_the_reference_is_in_the_loss_unless_k1_takes_it_off_the_reward(estimator):
    algorithm = objective(kl={"coefficient": 0.3, "estimator": estimator}, masks="text")
    examples, columns, outcome = outcome_of(algorithm)
    tokens = tokens_of(examples, algorithm, columns)
    apart = [t["new"] - t["reference"] for t in tokens]
    by_hand = {
        "k1": apart,
        "k2": [d * d / 2 for d in apart],
        "k3": [math.exp(-d) - 1 + d for d in apart],
    }[estimator]
    share = 0.0 if estimator == "k1" else 0.3
    true = sum(t["weight"] * (ppo_by_hand(t) + share * kl) for t, kl in zip(tokens, by_hand, strict=True))
    assert float(outcome.loss) == pytest.approx(true, rel=1e-6)
    assert outcome.parts["kl_reference"].tolist() == pytest.approx(by_hand, rel=1e-6, abs=1e-9)
    assert ("kl_loss" in outcome.parts) == (estimator != "k1")
    parts = [outcome.parts[name] for name in ("policy_loss", "kl_loss") if name in outcome.parts]
    assert float(sum(part.sum() for part in parts)) == pytest.approx(true, rel=1e-6)


def test_entropy_is_taken_off_the_loss_by_its_weight():
    algorithm = objective(entropy=0.07, masks="text")
    examples, columns, outcome = outcome_of(algorithm)
    tokens = tokens_of(examples, algorithm, columns)
    true = sum(t["weight"] * (ppo_by_hand(t) - 0.07 * t["entropy"]) for t in tokens)
    assert float(outcome.loss) == pytest.approx(true, rel=1e-6)
    (gradient,) = torch.autograd.grad(outcome.loss, columns[1:])
    assert float(gradient.sum()) == pytest.approx(-0.07 * sum(t["weight"] for t in tokens), rel=1e-6)


def test_half_of_the_value_loss_is_added():
    algorithm = objective(advantages="gae", masks="text")
    examples, columns, outcome = outcome_of(algorithm, critic=True)
    tokens, true = tokens_of(examples, algorithm, columns), 0.0
    for t in tokens:
        moved = t["old_value"] + min(max(t["value"] - t["old_value"], -0.2), 0.2)
        error = max((t["value"] - t["return"]) ** 2, (moved - t["return"]) ** 2)
        true += t["weight"] * (ppo_by_hand(t) + 0.5 * 0.5 * error)
    assert float(outcome.loss) == pytest.approx(true, rel=1e-6)
    parts = outcome.parts
    assert float((parts["policy_loss"] + 0.5 * parts["value_loss"]).sum()) == pytest.approx(true, rel=1e-6)
    assert parts["value"].tolist() == [t["value"] for t in tokens]


# --- whole updates --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("objective-model"))


def weights(learner: TorchLearner) -> list[Tensor]:
    return [p.detach().clone() for p in learner.policy.parameters()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


async def on_policy_batch(learner: TorchLearner, **more: Any) -> Batch:
    """A batch as this policy would have sampled it."""
    groups = small_groups()
    columns = await learner.score([t for group in groups for t in group.trajectories])
    own = iter(columns)
    groups = tuple(
        replace(group, trajectories=tuple(replace(t, logprobs=next(own)) for t in group.trajectories))
        for group in groups
    )
    readings = await learner.read([t for group in groups for t in group.trajectories])
    return small_batch(learner._config, groups, readings=readings, **more)


async def test_a_step_beyond_the_cap_is_not_made(model, tmp_path):
    config = small_config(model, algorithm={"kl": {"cap": 0.5}})
    learner = small_learner(config, tmp_path)
    batch = await on_policy_batch(learner)
    reference = batch.readings.reference_logprobs
    assert reference is not None
    far = tuple(tuple(x - 3.0 if x else 0.0 for x in column) for column in reference)
    before = weights(learner)
    update = await learner.update(replace(batch, readings=replace(batch.readings, reference_logprobs=far)))
    assert update.skipped is not None
    assert "kl.cap" in update.skipped
    assert update.metrics["optimiser_steps_over_cap"] == 1.0
    assert update.metrics["kl_reference"] == pytest.approx(4.5, rel=1e-3)  # k2 of 3 nats
    assert same(weights(learner), before)
    assert not (tmp_path / "v1").exists()
    assert (await learner.update(batch)).skipped is None
    assert not same(weights(learner), before)


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ({"min_learnable_tokens": 18}, "but algorithm.min_learnable_tokens is 18"),
        ({"min_learnable_tokens": 1, "min_learnable_share": 0.9}, "of the sampled tokens are learnable"),
        ({"min_learnable_tokens": 17}, None),
    ],
)
async def test_too_few_learnable_tokens_make_no_update_and_say_so(model, limit, reason, tmp_path):
    config = small_config(model, algorithm=limit)
    learner = small_learner(config, tmp_path)
    before = weights(learner)
    batch = await on_policy_batch(learner)
    assert sum(sum(mask) for mask in batch.learnable) == 17
    if "min_learnable_share" in limit:
        batch = replace(
            batch, learnable=tuple(tuple(m and i % 2 for i, m in enumerate(mask)) for mask in batch.learnable)
        )
    update = await learner.update(batch)
    assert (update.skipped is None) == (reason is None)
    assert same(weights(learner), before) == (reason is not None)
    assert reason is None or reason in (update.skipped or "")


def demonstration() -> Trajectory:
    return replace(make_trajectory([3, 4, 5, 40, 41, 42, 43], "cccssss"), task_id="shown")


async def test_imitation_makes_demonstrations_likelier(model, tmp_path):
    learner = small_learner(small_config(model), tmp_path)
    shown = demonstration()
    before = (await learner.score([shown]))[0]
    for _ in range(3):
        update = await learner.update(await on_policy_batch(learner, demonstrations=[shown], demonstration_weight=1.0))
    after = (await learner.score([shown]))[0]
    assert all(b > a for a, b, own in zip(before, after, shown.sampled, strict=True) if own)
    assert update.metrics["imitation_loss"] < -sum(before) / 4
    assert update.metrics["demonstration_weight"] == 1.0


async def test_the_weight_of_imitation_scales_its_gradient(model, tmp_path):
    """Rewards without difference leave imitation alone: the norm of the gradient is its weight's multiple."""
    norms: list[float] = []
    for weight in (0.25, 0.5):
        learner = small_learner(small_config(model), tmp_path / str(weight))
        groups = small_groups(rewards=(1.0, 1.0, 1.0, 1.0))
        batch = small_batch(learner._config, groups, demonstrations=[demonstration()], demonstration_weight=weight)
        update = await learner.update(batch)
        norms.append(update.metrics["grad_norm"])
        mean = -sum((await small_learner(small_config(model), tmp_path / "fresh").score([demonstration()]))[0]) / 4
        assert update.metrics["imitation_loss"] == pytest.approx(mean, rel=1e-5)
    assert norms[0] > 0
    assert norms[1] == pytest.approx(2 * norms[0], rel=1e-5)


def test_the_learning_rate_rises_and_falls_as_computed_by_hand():
    def rates(schedule: str) -> list[float]:
        return [learning_rate_share(step, schedule=schedule, warmup=3, total=11) for step in range(12)]

    rising = [0.25, 0.5, 0.75]
    assert rates("constant") == [*rising, *[1.0] * 9]
    assert rates("linear") == pytest.approx([*rising, *(1 - i / 8 for i in range(9))])
    assert rates("cosine") == pytest.approx([*rising, *((1 + math.cos(math.pi * i / 8)) / 2 for i in range(9))])
    assert [learning_rate_share(s, schedule="linear", warmup=0, total=2) for s in range(4)] == [1.0, 0.5, 0.0, 0.0]


async def test_the_optimiser_steps_at_the_scheduled_rates(model, tmp_path):
    config = small_config(model, algorithm={"minibatches": 2}, learning_rate=1e-3, schedule="linear", warmup_steps=2)
    config = config.model_copy(update={"training": config.training.model_copy(update={"steps": 3})})
    learner = small_learner(config, tmp_path)
    rates = [(await learner.update(await on_policy_batch(learner))).metrics["learning_rate"] for _ in range(3)]
    assert rates == pytest.approx([1e-3 / 3, 1e-3, 0.5e-3])  # two optimiser steps between; six in all, two of warm-up


async def test_ratios_leave_1_with_the_first_step_of_an_update(model, tmp_path):
    spread: dict[tuple[int, int], float] = {}
    for epochs, minibatches in ((1, 1), (1, 2), (3, 1)):
        config = small_config(model, algorithm={"epochs": epochs, "minibatches": minibatches})
        learner = small_learner(config, tmp_path / f"{epochs}-{minibatches}")
        metrics = (await learner.update(await on_policy_batch(learner))).metrics
        assert metrics["optimiser_steps"] == epochs * minibatches
        spread[epochs, minibatches] = metrics["ratio_std"]
    assert spread[1, 1] < 1e-5
    assert min(spread[1, 2], spread[3, 1]) > 1e-3

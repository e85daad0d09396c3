"""The loss of supervised fine-tuning against an oracle: transformers' own forward pass and cross entropy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from made_trajectories import make_trajectory
from torch.nn.functional import cross_entropy

from mcprl.records import Batch

TEXTS = (
    "Where is Ana now? She is in Lima.",
    "Where is Ana at noon? In Tokyo, at the office.",
    "What time is it? Late.",
)


def conversations(tokenizer: Any, temperature: float) -> list:
    """Three that share a beginning, in pieces of six tokens, every other one of which is the assistant's."""
    made = []
    for number, text in enumerate(TEXTS):
        ids = tokenizer.encode(f"You are a helpful assistant. {text}")
        kinds = "".join("s" if place // 6 % 2 else "c" for place in range(len(ids)))
        made.append(replace(make_trajectory(ids, kinds, temperature=temperature), task_id=f"chat-{number}"))
    return made


def oracle(model: Any, trajectories: list, temperature: float) -> tuple[float, list[torch.Tensor]]:
    """The loss and its gradient for each weight, one conversation at a time."""
    total, count = torch.zeros(()), 0
    for t in trajectories:
        ids = torch.tensor([t.token_ids])
        logits = model(input_ids=ids).logits[0, :-1] / temperature
        labels = torch.where(torch.tensor(t.sampled), ids[0], -100)[1:]
        total = total + cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
        count += int((labels >= 0).sum())
    gradients = torch.autograd.grad(total / count, list(model.parameters()))
    return float(total / count), list(gradients)


def sft_batch(trajectories: list) -> Batch:
    return Batch(
        step=0, groups=(), learnable=(), advantages=(), demonstrations=tuple(trajectories), demonstration_weight=1.0
    )


@pytest.mark.parametrize("share_prefix", [True, False])
@pytest.mark.parametrize("temperature", [1.0, pytest.param(0.7, marks=pytest.mark.slow)])
async def test_loss_and_gradient_are_those_of_the_cross_entropy_of_the_assistants_tokens(
    make_learner, tiny_model, tokenizer, share_prefix, temperature, record_property
):
    trajectories = conversations(tokenizer, temperature)
    learner = make_learner(tuning="full", share_prefix=share_prefix, tokens_per_pack=1, max_grad_norm=None)
    update = await learner.update(sft_batch(trajectories))
    loss, gradients = oracle(tiny_model, trajectories, temperature)
    assert update.skipped is None
    assert update.metrics["imitation_loss"] == pytest.approx(loss, abs=1e-5)
    assert update.metrics["loss"] == update.metrics["imitation_loss"]
    assert update.metrics["learnable_tokens"] == sum(sum(t.sampled) for t in trajectories)
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    assert update.metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    record_property("sft_loss_difference", abs(update.metrics["imitation_loss"] - loss))


async def test_a_batch_without_episodes_makes_one_step_and_has_no_metrics_of_episodes(make_learner, tokenizer):
    learner = make_learner()
    batch = sft_batch(conversations(tokenizer, 1.0))
    first, second = await learner.update(batch), await learner.update(batch)
    assert first.metrics["optimiser_steps"] == 1.0
    assert second.metrics["imitation_loss"] < first.metrics["imitation_loss"]
    assert not {"kl", "ratio_mean", "alignment", "staleness_mean"} & first.metrics.keys()
    assert first.ratios == ()

"""Trajectories and batches made by hand, and the naive arithmetic that the learner is held against."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mcprl.config import AlgorithmConfig, LearnerConfig, ModelConfig, RunConfig, ServersConfig, TasksConfig
from mcprl.goals import Goal
from mcprl.learning import TorchLearner
from mcprl.learning.algorithms import Masks, make_batch
from mcprl.learning.attention import lay_out_rows, lay_out_tree
from mcprl.learning.packing import Example, Pack, Policy, make_pack, plain_examples
from mcprl.records import Batch, FinishReason, Group, StopReason, Task, Trajectory, Turn

TINY_QWEN3 = Path(__file__).resolve().parents[3] / ".cache" / "models" / "tiny-qwen3"

_LEARNER = {"learning_rate": 1e-2, "lora_rank": 4, "lora_alpha": 8, "checkpointing": False}  # faster


def make_config(*, seed: int = 0, algorithm: dict[str, Any] | None = None, **learner: Any) -> RunConfig:
    """A run on the tiny model in float32: one minibatch unless told otherwise."""
    return RunConfig(
        name="test",
        seed=seed,
        model=ModelConfig(path=str(TINY_QWEN3), renderer="qwen3", dtype="float32"),
        tasks=TasksConfig(train=Path("unused.jsonl")),
        servers=ServersConfig(file=Path("unused.json")),
        algorithm=AlgorithmConfig(**({"minibatches": 1, "min_learnable_tokens": 1} | (algorithm or {}))),
        learner=LearnerConfig(**(_LEARNER | learner)),
    )


def make_trajectory(
    ids: Sequence[int],
    kinds: str,
    *,
    member: int = 0,
    reward: float = 0.0,
    temperature: float = 1.0,
    logprobs: Sequence[float] | None = None,
    grammar: str | None = None,
    stop_token_ids: tuple[int, ...] = (),
) -> Trajectory:
    """A trajectory from one letter a token: c context, s sampled, f sampled where the grammar left no choice, x sampled
    where it left no choice but how to cut the text into tokens.
    """
    sampled = tuple(kind != "c" for kind in kinds)
    turn_index: list[int] = []
    turns: list[Turn] = []
    for own, run in groupby(zip(ids, sampled, strict=True), key=lambda pair: pair[1]):
        tokens = tuple(token for token, _ in run)
        turn_index.extend([len(turns) if own else -1] * len(tokens))
        if own:
            turns.append(Turn(text="", sampled_ids=tokens, finish=FinishReason.STOP, weights_version=0))
    return Trajectory(
        task_id="task",
        step=0,
        member=member,
        attempt=0,
        temperature=temperature,
        token_ids=tuple(ids),
        sampled=sampled,
        forced=tuple(kind == "f" for kind in kinds),
        fixed=tuple(kind == "x" for kind in kinds),
        logprobs=tuple(logprobs or [-0.5 if own else 0.0 for own in sampled]),
        turn_index=tuple(turn_index),
        weights_version=tuple(0 if own else -1 for own in sampled),
        turns=tuple(turns),
        stop=StopReason.ANSWERED,
        reward=reward,
        reward_parts={"answer": reward},
        grammar=grammar,
        stop_token_ids=stop_token_ids,
    )


def naive_logprobs(model: Any, trajectory: Trajectory) -> list[float]:
    """The logprob of every token but the first: whole logits, one trajectory, no padding."""
    model = model.model if isinstance(model, Policy) else model
    with torch.no_grad():
        logit_TV = model(input_ids=torch.tensor([trajectory.token_ids]), use_cache=False).logits[0].float()
    logprob_TV = torch.log_softmax(logit_TV / trajectory.temperature, dim=-1)
    scored = [float(logprob_TV[i - 1, token]) for i, token in enumerate(trajectory.token_ids) if i > 0]
    return [0.0, *scored]


def on_policy(model: Any, trajectory: Trajectory) -> Trajectory:
    """The trajectory as if `model` had sampled it."""
    scored = naive_logprobs(model, trajectory)
    own = zip(scored, trajectory.sampled, strict=True)
    return replace(trajectory, logprobs=tuple(logprob if sampled else 0.0 for logprob, sampled in own))


def make_groups(*groups: Sequence[Trajectory]) -> tuple[Group, ...]:
    return tuple(
        Group(
            task=Task(id=f"task-{number}", prompt=({"role": "user", "content": "?"},), goal=Goal()),
            trajectories=tuple(replace(t, task_id=f"task-{number}", member=i) for i, t in enumerate(group)),
        )
        for number, group in enumerate(groups)
    )


def batch_of(*groups: Sequence[Trajectory], masks: Masks = "exact") -> Batch:
    return make_batch(0, make_groups(*groups), AlgorithmConfig(masks=masks))


def ragged_batch(model: Any, *, rewards: Sequence[float] = (1.0, 0.0, 0.25, 0.7)) -> Batch:
    """Four on-policy trajectories of two tasks, of different lengths, several turns and two temperatures."""
    generator = torch.Generator().manual_seed(11)
    kinds = ["cccssscccss", "ccss", "cccccsssscs", "ccsffsccs"]
    made: list[Trajectory] = []
    for kind, reward, temperature in zip(kinds, rewards, [0.7, 0.7, 1.0, 1.0], strict=True):
        ids: list[int] = torch.randint(0, 1000, (len(kind),), generator=generator).tolist()
        made.append(on_policy(model, make_trajectory(ids, kind, reward=reward, temperature=temperature)))
    return batch_of(made[:2], made[2:])


def weights_hash(policy: Any) -> str:
    digest = hashlib.blake2b()
    for name, tensor in sorted(policy.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def randomise_adapter(policy: Any, *, scale: float = 0.1) -> None:
    """Give the adapter weights of its own: a new one is the identity, which would hide a wrong use of it."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)


def flat(gradients: Sequence[Tensor]) -> Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients])


def plain_pack(
    made: Sequence[Trajectory], scored: Sequence[tuple[bool, ...]], *, admissible_NW: Tensor | None = None, tree: bool
) -> tuple[Pack, list[Example]]:
    """These tokens of trajectories, packed as one tree or as padded rows."""
    examples, device = plain_examples(made, scored), torch.device("cpu")
    layout = (lay_out_tree if tree else lay_out_rows)([t.token_ids for t in made], device)
    return make_pack(examples, layout, admissible_NW, device), examples


def gradient_of(learner: TorchLearner, batch: Batch) -> tuple[float, Tensor]:
    """The loss of a batch's first minibatch and the gradient that a step would be made of. No step is made, then or
    later."""
    optimisation: Any = learner.optimisation
    kept: list[Tensor] = []

    def step() -> float:
        kept.append(flat([p.grad for p in optimisation.parameters]).clone())
        return 0.0

    optimisation.step = step
    return learner._update(batch).metrics["loss"], kept[0]

"""Random models with a small vocabulary, of real architectures, and learners on them: an update takes milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from made_trajectories import make_config, make_groups, make_trajectory
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from mcprl.config import ModelConfig, RunConfig
from mcprl.learning import TorchLearner
from mcprl.learning.algorithms import make_batch
from mcprl.records import Batch, Group, Readings

ARCHITECTURES = ("qwen3", "llama")


def save_small_model(folder: Path, architecture: str = "llama", *, vocabulary: int = 67, layers: int = 2) -> Path:
    """Weights large enough for attention to matter. The head is the embedding's own with qwen3, another with llama."""
    shape: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": layers,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "initializer_range": 0.15,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": architecture == "qwen3",
        # the defaults lie beyond so small a vocabulary
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
    }
    torch.manual_seed(7)
    model: Any = Qwen3ForCausalLM(Qwen3Config(**shape)) if architecture == "qwen3" else None
    model = model or LlamaForCausalLM(LlamaConfig(**shape))
    model.save_pretrained(folder)
    return folder


def small_config(model: Path, *, algorithm: dict[str, Any] | None = None, **learner: Any) -> RunConfig:
    """As `make_config`, on another model. What sampler and learner disagree in is not looked at."""
    learner = {"max_parity_error": 1e6} | learner
    config = make_config(algorithm={"min_learnable_tokens": 1} | (algorithm or {}), **learner)
    path = ModelConfig(path=str(model), renderer="chatml", dtype="float32")
    return config.model_copy(update={"model": path})


def small_groups(*, rewards: Sequence[float] = (1.0, 0.0, 0.3, 0.9), vocabulary: int = 67) -> tuple[Group, ...]:
    """Two tasks, two episodes each of one and two turns, with prompts in common. Rewards stand on the last turn."""
    generator = torch.Generator().manual_seed(9)

    def ids(count: int) -> list[int]:
        return torch.randint(3, vocabulary, (count,), generator=generator).tolist()

    tools, episodes = ids(17), []
    for number, kinds in enumerate(("cccsssccss", "cccssss", "ccsssscss", "ccss")):
        made = make_trajectory(
            [*tools, *ids(len(kinds))], "c" * len(tools) + kinds, reward=rewards[number], temperature=1.0
        )
        sampled_N = (-4.2 - torch.rand(len(made.token_ids), generator=generator)).tolist()
        logprobs = tuple(x if own else 0.0 for x, own in zip(sampled_N, made.sampled, strict=True))
        turns = (*made.turns[:-1], replace(made.turns[-1], reward=rewards[number]))
        episodes.append(replace(made, logprobs=logprobs, turns=turns))
    return make_groups(episodes[:2], episodes[2:])


def small_batch(config: RunConfig, groups: Sequence[Group] | None = None, **more: Any) -> Batch:
    algorithm = config.algorithm
    readings: Readings = more.pop("readings", Readings())
    return make_batch(0, groups or small_groups(), algorithm, readings, kl_coefficient=algorithm.kl.coefficient, **more)


def small_learner(config: RunConfig, folder: Path) -> TorchLearner:
    return TorchLearner(config, folder=folder, grammars=None)

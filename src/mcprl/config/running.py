"""Settings of the model, the sampler and the loop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from mcprl.config.section import ModelLocation, Section

__all__ = [
    "NOT_REPRODUCIBLE",
    "ModelConfig",
    "SamplingConfig",
    "TrainingConfig",
    "VllmConfig",
]


class ModelConfig(Section):
    """The model to train."""

    path: ModelLocation = Field(description="Folder of the model (begins with . or /), or its name on the hub.")
    renderer: str = Field(
        default="auto",
        description="How chats become tokens: a family's name, such as qwen3; auto: by the model's name on the hub; "
        "chatml; template: by the model's own chat template.",
    )
    thinking: bool | None = Field(
        default=None,
        description="Whether the model thinks before it acts, in families that can be told; null: as the family does.",
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        default="bfloat16", description="Number format of sampler and learner. float32 makes their logprobs equal."
    )
    context_tokens: int = Field(default=4096, ge=64, description="Longest conversation, in tokens.")


class VllmConfig(Section):
    """The vLLM server that mcprl starts."""

    max_sequences: int = Field(default=64, ge=1, description="Sequences decoded at once.")
    memory_fraction: float = Field(default=0.5, gt=0, lt=1, description="Share of GPU memory for vLLM.")
    cpu_cache_gib: int = Field(default=1, ge=1, description="GiB of key/value cache where vLLM runs on a CPU.")
    merge_adapters: bool = Field(
        default=False,
        description="Whether an adapter is added to the weights instead of computed beside them: much faster on a CPU. "
        "With model.dtype float32 only: in bfloat16 a small adapter would be rounded away.",
    )
    start_deadline_s: float = Field(default=600.0, gt=0, description="Seconds until it must be healthy.")
    max_restarts: int = Field(
        default=3, ge=0, description="Times it is started again after it ended, without a turn sampled in between."
    )


# What other trainers let through; their ratios are then those of another distribution than the one sampled from.
NOT_REPRODUCIBLE = frozenset(
    {
        "top_p",
        "top_k",
        "min_p",
        "typical_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "min_tokens",
        "logit_bias",
        "bad_words",
    }
)


def _off_as_text(value: object) -> object:
    # YAML reads a bare `off` as false.
    return "off" if value is False else value


class SamplingConfig(Section):
    """How the policy's turns are sampled."""

    engine: Literal["vllm", "transformers"] = Field(
        default="vllm", description="What generates tokens, with engine torch."
    )
    temperature: float = Field(default=1.0, gt=0, description="Temperature; the learner uses the same.")
    max_tokens: int = Field(default=512, ge=1, description="Longest turn, in tokens.")
    stop: tuple[str, ...] = Field(default=(), description="Texts that end a turn, such as </tool_call>.")
    constrain: Annotated[Literal["off", "calls", "act"], BeforeValidator(_off_as_text)] = Field(
        default="off",
        description="Grammar of the tools: off; calls: a call, once begun, is valid; act: also no prose around calls.",
    )
    loose_tools: tuple[str, ...] = Field(
        default=(),
        description="Tools whose schemas say more than a grammar can hold; their calls are held to the rest.",
    )
    request_deadline_s: float = Field(default=300.0, gt=0, description="Seconds one turn may take to sample.")
    vllm: VllmConfig = VllmConfig()


class TrainingConfig(Section):
    """The loop."""

    steps: int = Field(default=100, ge=1, description="Batches to collect and learn from.")
    tasks_per_step: int = Field(default=8, ge=1, description="Groups in a batch.")
    pipeline: Literal["sync", "async"] = Field(
        default="sync",
        description="sync: a step is collected by the weights it trains; async: coming steps are collected meanwhile.",
    )
    max_staleness: int = Field(
        default=1, ge=1, description="With pipeline async: versions that a token's weights may be behind at most."
    )
    checkpoint_every: int = Field(default=1, ge=1, description="Steps from one checkpoint to the next.")
    keep_checkpoints: int = Field(
        default=3,
        ge=1,
        description="Newest checkpoints that are kept; the best and the last healthy one are kept besides.",
    )
    shutdown_s: float = Field(
        default=10.0, gt=0, description="Seconds after SIGTERM or Ctrl-C until the run has saved itself and ended."
    )
    outputs: Path = Field(default=Path("outputs"), description="Folder of all runs, seen from where mcprl starts.")

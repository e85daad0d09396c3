"""Settings of the torch learner: what is trained, how it fits in memory, how it is optimised."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from mcprl.config.section import Section

__all__ = ["LearnerConfig"]


class LearnerConfig(Section):
    """The torch learner: transformers and PEFT, AdamW."""

    tuning: Literal["lora", "lora_4bit", "full"] = Field(
        default="lora",
        description="lora: an adapter; lora_4bit: an adapter on a base of 4 bits (CUDA only); full: all weights.",
    )
    learning_rate: float = Field(default=2e-5, gt=0, description="AdamW's learning rate, at its highest.")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="How the learning rate falls after warm-up: not at all, or to 0 at the end."
    )
    warmup_steps: int = Field(default=0, ge=0, description="Optimiser steps over which the learning rate rises from 0.")
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW's weight decay.")
    max_grad_norm: float | None = Field(
        default=1.0, gt=0, description="Gradients are scaled down to this norm; null: never."
    )
    lora_rank: int = Field(default=16, ge=1, description="Rank of the adapter.")
    lora_alpha: int = Field(default=32, ge=1, description="Scale of the adapter is alpha / rank.")
    microbatch: int = Field(default=4, ge=1, description="Trajectories in one forward pass.")
    share_prefix: bool = Field(
        default=True,
        description="Whether what trajectories of a forward pass have in common at their start is computed once.",
    )
    checkpointing: bool = Field(
        default=True,
        description="Whether activations are computed again for the gradient: about a fifth slower, and a fraction of "
        "the memory.",
    )
    offload_reference: bool = Field(
        default=False, description="Whether the frozen copy of full tuning waits in the CPU's memory."
    )
    processes: int = Field(default=1, ge=1, description="Processes, one a GPU, that share the work.")
    sharding: Literal["fsdp2", "zero3"] = Field(
        default="fsdp2", description="How several processes share the weights: torch's FSDP2 or DeepSpeed's ZeRO-3."
    )
    max_parity_error: float = Field(
        default=0.2,  # bfloat16 gives 0.01 to 0.06 with nothing wrong, float32 below 1e-5
        gt=0,
        description="Largest mean |Δlogprob| per token between sampler and learner before an update; above it the run "
        "stops. In float32, 1e-4.",
    )

    @model_validator(mode="after")
    def _settings_belong_together(self) -> LearnerConfig:
        if self.tuning == "lora_4bit" and self.processes > 1:
            raise ValueError("learner.tuning lora_4bit runs in one process: its weights cannot be sharded")
        if self.offload_reference and self.processes > 1:
            raise ValueError(
                "learner.offload_reference belongs to one process: several share the frozen copy instead of moving it, "
                "so leave it out"
            )
        if self.offload_reference and self.tuning != "full":
            raise ValueError("learner.offload_reference belongs to tuning full: an adapter's reference has no copy")
        return self

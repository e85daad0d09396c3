"""Settings of where a run computes: the engine that trains and samples, and the workers that play episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from mcprl.config.section import FilePath, Section

if TYPE_CHECKING:
    from mcprl.config import RunConfig

__all__ = ["SkyrlConfig", "WorkersConfig", "lacking_in_skyrl"]


class SkyrlConfig(Section):
    """A server of the Tinker API: SkyRL's, started here or on a cluster, or a hosted one. Used with engine skyrl."""

    url: str | None = Field(
        default=None, description="Address of a server that someone else started; null: one is started here."
    )
    backend: Literal["jax", "fsdp", "megatron", "hosted"] = Field(
        default="jax", description="What computes behind the API; the scale of its loss and what it lacks follow."
    )
    python: FilePath | None = Field(
        default=None,
        description="Interpreter of the environment with SkyRL, for a server that is started here; null: our own.",
    )
    backend_config: dict[str, int | float | bool | str] = Field(
        default_factory=dict[str, int | float | bool | str],
        description="Passed to the backend of a server that is started here.",
    )
    start_deadline_s: float = Field(default=300.0, gt=0, description="Seconds until it must answer.")
    request_deadline_s: float = Field(
        default=600.0, gt=0, description="Seconds that one request of the learner may take; its first compiles."
    )
    max_restarts: int = Field(
        default=3, ge=0, description="Times the engine is set up again after it was lost, with nothing done in between."
    )


class WorkersConfig(Section):
    """Who plays the episodes: this process, or workers on the nodes of a Ray cluster."""

    kind: Literal["local", "ray"] = Field(
        default="local", description="local: this process; ray: actors, each with tool servers of its own."
    )
    count: int = Field(default=4, ge=1, description="Workers, with kind ray.")
    address: str | None = Field(
        default=None, description="Address of the Ray cluster; null: one is started on this machine."
    )
    cpus: float = Field(default=1.0, gt=0, description="Cores that Ray sets aside for a worker.")


def lacking_in_skyrl(config: RunConfig) -> str | None:
    """What a run asks for that the Tinker API cannot give, and what to do instead; None where it can give all."""
    sampling, algorithm, learner, backend = config.sampling, config.algorithm, config.learner, config.skyrl.backend
    refusals = (
        (algorithm.has_critic, "a value head (algorithm.advantages gae): take grpo, dr_grpo or rloo"),
        (algorithm.entropy > 0, "entropies (algorithm.entropy): set it to 0, or raise algorithm.clip_high"),
        (
            algorithm.kl.needs_reference and algorithm.kl.reference == "ema",
            "a moving average (algorithm.kl.reference ema): take sync, a frozen snapshot, or base",
        ),
        (learner.tuning != "lora", f"learner.tuning {learner.tuning}: it trains adapters, take lora"),
        (learner.lora_alpha != 32, "a scale of the adapter: set learner.lora_alpha to 32, which is the API's own"),
        (
            learner.max_grad_norm is not None,
            "clipping of gradients: set learner.max_grad_norm to null; with fsdp and megatron, the server's own "
            "configuration sets it",
        ),
        (learner.processes > 1, "learner.processes: the server shares the work, set it to 1"),
        (sampling.temperature != 1.0, "logprobs at a temperature: set sampling.temperature to 1.0"),
        (bool(sampling.stop), "texts that end a turn beside token ids: leave sampling.stop empty"),
        (sampling.constrain != "off", "grammars: set sampling.constrain to off"),
        (
            backend == "jax" and config.training.pipeline == "async",
            "sampling from older weights than it trains (training.pipeline async): on jax both are one adapter, take "
            "sync; fsdp, megatron and hosted can",
        ),
        (
            backend in ("fsdp", "megatron") and learner.weight_decay > 0,
            "weight decay by request: with fsdp and megatron, set learner.weight_decay to 0 and configure the server",
        ),
        (
            backend != "jax" and config.skyrl.url is None,
            f"backend {backend} on a server that is started here: start it on its nodes and give skyrl.url",
        ),
    )
    found = [what for holds, what in refusals if holds]
    return None if not found else "engine skyrl has no " + "; and no ".join(found)

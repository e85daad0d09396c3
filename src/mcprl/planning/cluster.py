"""What a run computes on: GPUs for the sampler and the learner, workers for the episodes, and how fast each is."""

from __future__ import annotations

from dataclasses import dataclass

from mcprl.config import RunConfig
from mcprl.planning.measured import Constants
from mcprl.planning.model_size import ModelSize

__all__ = ["Cluster", "Rate", "make_cluster"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Tokens a second of one unit, and where the figure comes from: Rate(tokens_per_s=5200.0, source="given")."""

    tokens_per_s: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The hardware of a run. Without GPUs, the sampler and the learner are one unit each, a CPU.

    `workers` is None where the run's own process plays the episodes; `cores` is None where driver and workers have a
    core each, else how many they share on one machine.

    Cluster(engine="skyrl", gpus=8, sampler_units=8, learner_units=8, sampler=Rate(…), learner=Rate(…), workers=16)
    """

    engine: str
    gpus: int
    sampler_units: int
    learner_units: int
    sampler: Rate
    learner: Rate
    workers: int | None
    cores: int | None = None


def make_cluster(
    config: RunConfig, constants: Constants, size: ModelSize, *, gpus: int, known: dict[str, Rate]
) -> Cluster:
    """The hardware that a recipe can use of `gpus`.

    Engine torch samples on one GPU and learns on learner.processes of them. Behind the Tinker API, sampler and learner
    take turns on all GPUs with pipeline sync; with async, each has half of them.
    """
    if config.engine == "torch":
        sampler_units, learner_units = 1, min(config.learner.processes, gpus) or 1
    elif config.training.pipeline == "async":
        sampler_units = max(1, gpus // 2)
        learner_units = max(1, gpus - sampler_units)
    else:
        sampler_units = learner_units = max(1, gpus)
    return Cluster(
        engine=config.engine,
        gpus=gpus,
        sampler_units=sampler_units,
        learner_units=learner_units,
        sampler=known.get("sampler_tokens_per_s")
        or _of_a_cpu(constants.cpu_sampler_tokens_per_s, constants, size, gpus),
        learner=known.get("learner_tokens_per_s")
        or _of_a_cpu(constants.cpu_learner_tokens_per_s, constants, size, gpus),
        workers=config.workers.count if config.workers.kind == "ray" else None,
    )


def _of_a_cpu(tokens_per_s: float, constants: Constants, size: ModelSize, gpus: int) -> Rate:
    """The rate of the CPU that was measured, for a model of this size: time grows with the parameters."""
    source = f"a CPU, measured at {constants.cpu_parameters / 1e6:.0f}M parameters"
    if size.parameters is None:
        source += ", which this model is taken to have"
    scale = 1.0 if size.parameters is None else constants.cpu_parameters / size.parameters
    return Rate(
        tokens_per_s=tokens_per_s * scale,
        source=f"{source}; no GPU was measured" if gpus else source,
    )

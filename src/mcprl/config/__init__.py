"""The configuration of a run: every setting with its type, bounds, default and meaning. `recipe.py` reads it."""

from __future__ import annotations

from typing import Any, Literal, cast

import yaml
from pydantic import Field, model_validator

from mcprl.config.engines import SkyrlConfig, WorkersConfig, lacking_in_skyrl
from mcprl.config.episodes import EpisodesConfig, JudgeConfig, RewardsConfig, TasksConfig
from mcprl.config.learner import LearnerConfig
from mcprl.config.objective import AlgorithmConfig, CriticConfig, KlConfig, WarmStartConfig
from mcprl.config.running import ModelConfig, SamplingConfig, TrainingConfig, VllmConfig
from mcprl.config.section import Section
from mcprl.config.servers import (
    BreakerSettings,
    BudgetSettings,
    CassetteMode,
    ErrorRule,
    RateSettings,
    RetrySettings,
    ServersConfig,
    ServerSettings,
)
from mcprl.config.tracking import OpenTelemetryConfig, TrackingConfig, WandbConfig, WeaveConfig

__all__ = [
    "AlgorithmConfig",
    "BreakerSettings",
    "BudgetSettings",
    "CassetteMode",
    "CriticConfig",
    "EpisodesConfig",
    "ErrorRule",
    "JudgeConfig",
    "KlConfig",
    "LearnerConfig",
    "ModelConfig",
    "OpenTelemetryConfig",
    "RateSettings",
    "RetrySettings",
    "RewardsConfig",
    "RunConfig",
    "SamplingConfig",
    "ServerSettings",
    "ServersConfig",
    "SkyrlConfig",
    "TasksConfig",
    "TrackingConfig",
    "TrainingConfig",
    "VllmConfig",
    "WandbConfig",
    "WarmStartConfig",
    "WeaveConfig",
    "WorkersConfig",
]


class RunConfig(Section):
    """All settings of a run."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Name of the run and of its folder.")
    seed: int = Field(default=0, ge=0, description="Root of every random draw.")
    engine: Literal["torch", "skyrl"] = Field(
        default="torch",
        description="torch: learner and sampler on this machine; skyrl: both behind the Tinker API, see section skyrl.",
    )
    model: ModelConfig
    tasks: TasksConfig
    servers: ServersConfig
    sampling: SamplingConfig = SamplingConfig()
    episodes: EpisodesConfig = EpisodesConfig()
    rewards: RewardsConfig = RewardsConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    learner: LearnerConfig = LearnerConfig()
    training: TrainingConfig = TrainingConfig()
    skyrl: SkyrlConfig = SkyrlConfig()
    workers: WorkersConfig = WorkersConfig()
    tracking: TrackingConfig = TrackingConfig()

    @model_validator(mode="after")
    def _minibatches_are_not_empty(self) -> RunConfig:
        trajectories = self.episodes.group_size * self.training.tasks_per_step
        if self.algorithm.minibatches > trajectories:
            raise ValueError(
                f"algorithm.minibatches is {self.algorithm.minibatches}, but a batch has only {trajectories} episodes"
            )
        return self

    @model_validator(mode="after")
    def _stale_tokens_are_corrected(self) -> RunConfig:
        if self.training.pipeline == "async" and self.algorithm.old_logprobs != "recomputed":
            raise ValueError(
                "training.pipeline async trains on tokens of older weights, which algorithm.old_logprobs recomputed "
                "corrects for"
            )
        return self

    @model_validator(mode="after")
    def _merged_adapters_are_not_rounded_away(self) -> RunConfig:
        merged = self.sampling.vllm.merge_adapters and self.learner.tuning != "full"
        if merged and self.model.dtype != "float32":
            raise ValueError(
                f"sampling.vllm.merge_adapters with model.dtype {self.model.dtype} would round most of a small adapter "
                "away: set merge_adapters to false, or model.dtype to float32"
            )
        return self

    @model_validator(mode="after")
    def _zero3_can_do_it(self) -> RunConfig:
        learner, kl = self.learner, self.algorithm.kl
        if learner.processes == 1 or learner.sharding != "zero3":
            return self
        if kl.needs_reference and (learner.tuning == "full" or kl.reference != "base"):
            raise ValueError(
                "learner.sharding zero3 holds one set of weights, and the reference policy of algorithm.kl would be a "
                "second one: use learner.sharding fsdp2, or learner.tuning lora with algorithm.kl.reference base"
            )
        if learner.tuning != "full" and self.model.dtype != "float32":
            raise ValueError(
                f"learner.tuning {learner.tuning} keeps the base in {self.model.dtype} and the adapter in float32, and "
                "learner.sharding zero3 needs one dtype: use learner.sharding fsdp2, or model.dtype float32"
            )
        return self

    @model_validator(mode="after")
    def _engine_can_do_it(self) -> RunConfig:
        lacking = lacking_in_skyrl(self) if self.engine == "skyrl" else None
        if lacking is not None:
            raise ValueError(lacking)
        return self

    def to_yaml(self) -> str:
        """The resolved configuration, every default written out."""
        return yaml.dump(self.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Writes each text so that it is read back as it was."""


def _represent_text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    # YAML counts these as line breaks, which only double quotes keep.
    style = '"' if any(character in value for character in "\x85\u2028\u2029") else None
    return cast("Any", dumper).represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _represent_text)

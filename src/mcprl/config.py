"""The configuration of a run: every setting with its type, bounds, default and meaning. `recipe.py` reads it.

Relative paths of inputs are relative to the file that names them; a model is a path where it begins with `.` or `/`,
and a hub name otherwise.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from mcprl.records import Difficulty

__all__ = [
    "AlgorithmConfig",
    "BreakerSettings",
    "BudgetSettings",
    "CassetteMode",
    "EpisodesConfig",
    "ErrorRule",
    "LearnerConfig",
    "ModelConfig",
    "RateSettings",
    "RetrySettings",
    "RewardsConfig",
    "RunConfig",
    "SamplingConfig",
    "ServerSettings",
    "ServersConfig",
    "TasksConfig",
    "TrainingConfig",
    "VllmConfig",
]


def _relative_to_file(value: object, info: ValidationInfo) -> object:
    context = cast("Mapping[str, Path]", info.context or {})
    folder = context.get("folder")
    return os.path.abspath(folder / value) if folder is not None and isinstance(value, str) else value


def _model_location(value: object, info: ValidationInfo) -> object:
    if isinstance(value, str) and value.startswith((".", "/")):
        return str(_relative_to_file(value, info))
    return value


FilePath = Annotated[Path, BeforeValidator(_relative_to_file)]
ModelLocation = Annotated[str, BeforeValidator(_model_location)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelConfig(_Section):
    """The model to train."""

    path: ModelLocation = Field(description="Folder of the model (begins with . or /), or its name on the hub.")
    renderer: str = Field(
        default="auto",
        description="How chats become tokens: auto, chatml, or a name that `renderers` knows, such as qwen3.",
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        default="bfloat16", description="Number format of sampler and learner. float32 makes their logprobs equal."
    )
    context_tokens: int = Field(default=4096, ge=64, description="Longest conversation, in tokens.")


class TasksConfig(_Section):
    """What to train on."""

    train: FilePath = Field(description="Task file, one JSON object a line.")
    preamble: FilePath | None = Field(
        default=None, description="JSON list of messages put before each task's own: system prompt, worked examples."
    )


class RateSettings(_Section):
    """How often a server may be called. A call that comes too early waits."""

    calls: int = Field(ge=1, description="Calls allowed in each period.")
    per_s: float = Field(default=1.0, gt=0, description="Length of the period in seconds.")


class BudgetSettings(_Section):
    """How much a run may use a server. The call that would exceed it is not made, and the run stops."""

    calls: int | None = Field(default=None, ge=0, description="Calls in the whole run.")
    usd: float | None = Field(default=None, ge=0, description="Money for the whole run.")
    usd_per_call: float = Field(default=0.0, ge=0, description="Price of one call.")

    @model_validator(mode="after")
    def _money_has_a_price(self) -> BudgetSettings:
        if self.usd is not None and not self.usd_per_call:
            raise ValueError("budget.usd limits nothing without budget.usd_per_call")
        return self


class RetrySettings(_Section):
    """When a call that the infrastructure failed is made again: only where that cannot do a thing twice."""

    attempts: int = Field(default=3, ge=1, description="Times a call may be made; 1 means never again.")
    wait_s: float = Field(default=0.1, ge=0, description="Wait before the second attempt; it doubles each time.")
    max_wait_s: float = Field(
        default=30.0, ge=0, description="Longest wait; a server that asks for a longer one is given up."
    )


class BreakerSettings(_Section):
    """When a server that keeps failing is left alone for a while."""

    failures: int = Field(default=5, ge=1, description="Failures in a row that open the breaker.")
    rest_s: float = Field(default=5.0, gt=0, description="Seconds until one call may try the server again.")


class ErrorRule(_Section):
    """Recognises an error in a result, also one that the server reports as a success."""

    match: str = Field(description="Regular expression searched for in the result's text.")
    fault: Literal["policy", "infrastructure"] = Field(
        default="policy", description="policy: it is shown as an error; infrastructure: the call failed."
    )
    tools: tuple[str, ...] = Field(default=("*",), description="Tools that it judges; * stands for any text.")

    @field_validator("match")
    @classmethod
    def _compiles(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from error
        return value


class ServerSettings(_Section):
    """What a run adds to one entry of the mcpServers file."""

    start: tuple[str, ...] = Field(
        default=(),
        description="Command that starts a server reached by URL; `{port}` in it and in the URL is a free port.",
    )
    start_deadline_s: float = Field(default=30.0, gt=0, description="Seconds to start and shake hands.")
    call_deadline_s: float = Field(default=30.0, gt=0, description="Seconds one call may take.")
    replicas: int = Field(default=1, ge=1, description="Processes of a shared server; each call goes to the idlest.")
    isolation: Literal["shared", "per_episode"] = Field(
        default="shared", description="per_episode: each episode gets a server of its own, fresh and never used again."
    )
    spares: int = Field(default=2, ge=0, description="Servers kept warm for the next episodes (per_episode).")
    max_result_bytes: int = Field(default=65536, ge=256, description="Longer results are cut, and say so.")
    rate: RateSettings | None = Field(default=None, description="Limit on how often it is called.")
    budget: BudgetSettings = BudgetSettings()
    retry: RetrySettings = RetrySettings()
    breaker: BreakerSettings = BreakerSettings()
    cache_s: float = Field(
        default=0.0, ge=0, description="Seconds for which the same call of a read-only tool gets the same answer."
    )
    read_only: tuple[str, ...] = Field(
        default=(), description="Tools without side effects, where the server does not say so itself; * is any text."
    )
    allow: tuple[str, ...] = Field(default=("*",), description="Tools on offer; * stands for any text.")
    deny: tuple[str, ...] = Field(default=(), description="Tools never on offer, even where allowed.")
    tool_aliases: dict[str, str] = Field(
        default_factory=dict[str, str], description="Other names of tools, each with the tool it means."
    )
    argument_aliases: dict[str, str] = Field(
        default_factory=dict[str, str],
        description="Other names of arguments, used where a tool has the argument meant and not the other.",
    )
    errors: tuple[ErrorRule, ...] = Field(
        default=(), description="Rules that recognise errors; the first match counts."
    )

    @model_validator(mode="after")
    def _replicas_are_shared(self) -> ServerSettings:
        if self.isolation == "per_episode" and (self.replicas != 1 or self.cache_s):
            raise ValueError("replicas and cache_s belong to a shared server, isolation is per_episode")
        return self


CassetteMode = Literal["live", "record", "replay_else_live", "replay"]


class ServersConfig(_Section):
    """Where the tools are."""

    file: FilePath | None = Field(
        default=None, description="mcpServers file, in the JSON that MCP clients share; only replay does without."
    )
    env_file: FilePath | None = Field(
        default=None, description="File of keys, NAME=value a line; default: .env where mcprl starts, if there is one."
    )
    pins: FilePath | None = Field(
        default=None, description="File written by `mcprl tools pin`; other tools than those stop the run."
    )
    cassette: FilePath | None = Field(default=None, description="SQLite file of recorded calls.")
    cassette_mode: CassetteMode = Field(
        default="live",
        description="live: unused; record: written; replay_else_live: read, else written; replay: read, no server.",
    )
    settings: dict[str, ServerSettings] = Field(
        default_factory=dict[str, ServerSettings], description="Settings of single servers, by name."
    )

    @model_validator(mode="after")
    def _a_mode_has_its_file(self) -> ServersConfig:
        if self.file is None and self.cassette_mode != "replay":
            raise ValueError("servers.file is missing: only cassette_mode replay does without servers")
        if self.cassette is None and self.cassette_mode != "live":
            raise ValueError(f"servers.cassette_mode is {self.cassette_mode}, but servers.cassette names no file")
        return self


class VllmConfig(_Section):
    """The vLLM server that mcprl starts."""

    max_sequences: int = Field(default=64, ge=1, description="Sequences decoded at once.")
    memory_fraction: float = Field(default=0.5, gt=0, lt=1, description="Share of GPU memory for vLLM.")
    cpu_cache_gib: int = Field(default=1, ge=1, description="GiB of key/value cache where vLLM runs on a CPU.")
    start_deadline_s: float = Field(default=600.0, gt=0, description="Seconds until it must be healthy.")


class SamplingConfig(_Section):
    """How the policy's turns are sampled."""

    engine: Literal["vllm", "transformers"] = Field(default="vllm", description="What generates tokens.")
    temperature: float = Field(default=1.0, gt=0, description="Temperature; the learner uses the same.")
    max_tokens: int = Field(default=512, ge=1, description="Longest turn, in tokens.")
    stop: tuple[str, ...] = Field(default=(), description="Texts that end a turn, such as </tool_call>.")
    request_deadline_s: float = Field(default=300.0, gt=0, description="Seconds one turn may take to sample.")
    vllm: VllmConfig = VllmConfig()


_AtLeastOne = Annotated[int, Field(ge=1)]
_MAX_TURNS = {Difficulty.EASY: 5, Difficulty.MEDIUM: 8, Difficulty.HARD: 10}


def _with_default_turns(value: object) -> object:
    # A difficulty left out keeps its limit: a task of it must not fail in the middle of a run.
    return {**_MAX_TURNS, **cast("dict[Any, Any]", value)} if isinstance(value, dict) else value


class EpisodesConfig(_Section):
    """How episodes run."""

    group_size: int = Field(default=8, ge=2, description="Episodes of one task that are compared with each other.")
    max_concurrent: int = Field(default=64, ge=1, description="Episodes alive at once.")
    max_turns: Annotated[dict[Difficulty, _AtLeastOne], BeforeValidator(_with_default_turns)] = Field(
        default=_MAX_TURNS, description="Turns an episode may take, by difficulty of its task."
    )
    deadline_s: float = Field(default=600.0, gt=0, description="Seconds an episode may take.")
    max_attempts: int = Field(
        default=5, ge=1, description="Times an episode may be tried; those the infrastructure failed are run again."
    )


class RewardsConfig(_Section):
    """Weights of the parts of a reward. A part with weight 0 is still measured and logged."""

    answer: float = Field(default=1.0, ge=0, description="The final answer is right.")
    calls: float = Field(default=0.5, ge=0, description="Share of the needed tools called, in order.")
    arguments: float = Field(default=0.5, ge=0, description="Share of the needed arguments given rightly.")
    invalid_call: float = Field(default=0.1, ge=0, description="Taken off for each call that is invalid.")
    unanswered: float = Field(default=0.1, ge=0, description="Taken off where the episode ends without an answer.")


class AlgorithmConfig(_Section):
    """The objective: group-relative advantages, clipped policy ratio."""

    clip_low: float = Field(default=0.2, gt=0, lt=1, description="Ratios below 1 − this bring no more gain.")
    clip_high: float = Field(default=0.2, gt=0, description="Ratios above 1 + this bring no more gain.")
    epochs: int = Field(default=1, ge=1, description="Passes over a batch.")
    minibatches: int = Field(default=2, ge=1, description="Optimiser steps in each pass.")


class LearnerConfig(_Section):
    """The torch learner: a LoRA adapter trained with AdamW."""

    learning_rate: float = Field(default=2e-5, gt=0, description="AdamW's learning rate.")
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW's weight decay.")
    max_grad_norm: float = Field(default=1.0, gt=0, description="Gradients are scaled down to this norm.")
    lora_rank: int = Field(default=16, ge=1, description="Rank of the adapter.")
    lora_alpha: int = Field(default=32, ge=1, description="Scale of the adapter is alpha / rank.")
    microbatch: int = Field(default=4, ge=1, description="Trajectories in one forward pass.")
    max_parity_error: float = Field(
        default=0.5,
        gt=0,
        description="Largest |Δlogprob| between sampler and learner before an update; beyond it the run stops.",
    )


class TrainingConfig(_Section):
    """The loop."""

    steps: int = Field(default=100, ge=1, description="Batches to collect and learn from.")
    tasks_per_step: int = Field(default=8, ge=1, description="Groups in a batch.")
    outputs: Path = Field(default=Path("outputs"), description="Folder of all runs, seen from where mcprl starts.")


class RunConfig(_Section):
    """All settings of a run."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Name of the run and of its folder.")
    seed: int = Field(default=0, ge=0, description="Root of every random draw.")
    model: ModelConfig
    tasks: TasksConfig
    servers: ServersConfig
    sampling: SamplingConfig = SamplingConfig()
    episodes: EpisodesConfig = EpisodesConfig()
    rewards: RewardsConfig = RewardsConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    learner: LearnerConfig = LearnerConfig()
    training: TrainingConfig = TrainingConfig()

    @model_validator(mode="after")
    def _minibatches_are_not_empty(self) -> RunConfig:
        trajectories = self.episodes.group_size * self.training.tasks_per_step
        if self.algorithm.minibatches > trajectories:
            raise ValueError(
                f"algorithm.minibatches is {self.algorithm.minibatches}, but a batch has only {trajectories} episodes"
            )
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

"""The configuration of a run: every setting with its type, bounds, default and meaning. `recipe.py` reads it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, cast
from urllib.parse import urlsplit

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from mcprl.errors import MissingExtraError
from mcprl.records import Difficulty, Task

__all__ = [
    "NOT_REPRODUCIBLE",
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


# Files of a package of mcprl's own: `mcprl:market/train.jsonl` is in mcprl_market/data.
_SHIPPED = "mcprl:"


def _relative_to_file(value: object, info: ValidationInfo) -> object:
    if isinstance(value, str) and value.startswith(_SHIPPED):
        return str(_shipped(value))
    context = cast("Mapping[str, Path]", info.context or {})
    folder = context.get("folder")
    return os.path.abspath(folder / value) if folder is not None and isinstance(value, str) else value


def _shipped(value: str) -> Path:
    extra, _, name = value.removeprefix(_SHIPPED).partition("/")
    package = find_spec(f"mcprl_{extra}")
    if package is None or package.origin is None:
        raise MissingExtraError(f"{value} is in a package that is not installed", fix=f"pip install 'mcprl[{extra}]'")
    return Path(package.origin).parent / "data" / name


def _model_location(value: object, info: ValidationInfo) -> object:
    if isinstance(value, str) and value.startswith((".", "/")):
        return str(_relative_to_file(value, info))
    return value


FilePath = Annotated[Path, BeforeValidator(_relative_to_file)]
ModelLocation = Annotated[str, BeforeValidator(_model_location)]


class Section(BaseModel):
    """A part of the configuration: no unknown keys, nothing changed later, no NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


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


class TasksConfig(Section):
    """What to train on."""

    train: FilePath = Field(description="Task file: one JSON object a line, or a JSON list of SkyRL rows.")
    validation: FilePath | None = Field(
        default=None, description="Task file to judge the policy by, in the same forms; no step learns from it."
    )
    order: Literal["shuffled", "curriculum"] = Field(
        default="shuffled",
        description="shuffled: all alike; curriculum: easy ones first, then those that are neither easy nor hopeless.",
    )
    preamble: FilePath | None = Field(
        default=None, description="JSON list of messages put before each task's own: system prompt, worked examples."
    )


_AtLeastOne = Annotated[int, Field(ge=1)]
_MAX_TURNS = {Difficulty.EASY: 5, Difficulty.MEDIUM: 8, Difficulty.HARD: 10}


def _with_default_turns(value: object) -> object:
    # A difficulty left out keeps its limit: a task of it must not fail in the middle of a run.
    return {**_MAX_TURNS, **cast("dict[Any, Any]", value)} if isinstance(value, dict) else value


class EpisodesConfig(Section):
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
    spares: int = Field(
        default=0,
        ge=0,
        description="Episodes of a task beyond group_size; the first to finish count, which favours short ones.",
    )
    injected_errors: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Share of calls that fail on purpose, for the policy to learn to recover.",
    )

    def turn_limit(self, task: Task) -> int:
        """The turns that an episode of a task may take, each time that the user speaks."""
        return task.max_turns or self.max_turns[task.difficulty]


class JudgeConfig(Section):
    """A language model that grades answers, reached through an OpenAI-compatible endpoint."""

    url: str = Field(description="Base URL of the endpoint, such as http://127.0.0.1:8000/v1.")
    model: str = Field(description="Name of the model there.")
    key_env: str | None = Field(default=None, description="Environment variable that holds the key, if it needs one.")
    deadline_s: float = Field(default=60.0, gt=0, description="Seconds one grade may take.")
    cache: FilePath | None = Field(default=None, description="SQLite file of grades; the same question is asked once.")


class RewardsConfig(Section):
    """Weights of the parts of a reward. What a task does not check is left out; the others add up to 1.

    A part with weight 0 is still measured and logged.
    """

    answer: float = Field(default=1.0, ge=0, description="The final answer is right.")
    state: float = Field(default=1.0, ge=0, description="Share of what must be true of the world afterwards.")
    calls: float = Field(default=0.5, ge=0, description="Share of the needed tools called, in order where it matters.")
    arguments: float = Field(default=0.5, ge=0, description="Share of the needed arguments given rightly.")
    efficiency: float = Field(default=0.1, ge=0, description="Needed calls as a share of all calls made.")
    rubric: float = Field(default=1.0, ge=0, description="The judge's grade, for tasks with a rubric.")
    invalid_call: float = Field(default=0.05, ge=0, description="Taken off for each call that is invalid.")
    unanswered: float = Field(
        default=0.05, ge=0, description="Taken off where a limit (turns, tokens) ends the episode without an answer."
    )
    clip_low: float = Field(default=-1.0, description="No reward is lower.")
    clip_high: float = Field(default=1.0, description="No reward is higher.")
    judge: JudgeConfig | None = Field(default=None, description="Who grades the answers of tasks with a rubric.")

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> RewardsConfig:
        if not self.clip_low < self.clip_high:
            raise ValueError(f"rewards.clip_low is {self.clip_low:g}, clip_high {self.clip_high:g}: nothing is between")
        return self


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


class KlConfig(Section):
    """How far the policy may move from a reference policy. Without a coefficient or a cap there is no reference."""

    coefficient: float = Field(default=0.0, ge=0, description="Weight of the divergence from the reference policy.")
    estimator: Literal["k1", "k2", "k3"] = Field(
        default="k2",
        description="Estimate for a token: k1: log ratio, right in the reward and without effect in the loss; "
        "k2: half its square, right in the loss; k3: unbiased and never negative, with a biased gradient.",
    )
    place: Literal["loss", "reward"] = Field(
        default="loss",
        description="loss: added to the loss; reward: taken off the reward of each token. grpo scales the reward "
        "only, not the penalty.",
    )
    target: float | None = Field(
        default=None, gt=0, description="Nats a token that the coefficient is steered to; null: it stays as it is."
    )
    horizon: int = Field(
        default=10, ge=1, description="Updates over which a divergence 20% off its target moves the coefficient by 20%."
    )
    cap: float | None = Field(
        default=None,
        gt=0,
        description="Nats per token. An optimiser step is not made if the policy is further from the reference. An "
        "update that leaves it further away, or moves it by more, is undone; after a jump the learning rate is halved.",
    )
    refresh_at_cap: bool = Field(
        default=False, description="Whether the reference becomes the policy after an update that the cap stopped."
    )
    reference: Literal["base", "ema", "sync"] = Field(
        default="base",
        description="base: the untouched model; ema: a moving average of the policy; sync: a copy of it, renewed.",
    )
    ema_decay: float = Field(default=0.99, gt=0, lt=1, description="Share of the old reference kept at each update.")
    sync_every: int = Field(default=20, ge=1, description="Updates after which the reference becomes the policy.")

    @property
    def needs_reference(self) -> bool:
        return self.coefficient > 0 or self.cap is not None

    @model_validator(mode="after")
    def _nothing_is_left_unused(self) -> KlConfig:
        if self.target is not None and self.coefficient == 0:
            raise ValueError("kl.target steers kl.coefficient, which must start above 0")
        if self.refresh_at_cap and self.cap is None:
            raise ValueError("kl.refresh_at_cap is set, but there is no kl.cap")
        if self.refresh_at_cap and self.reference == "base":
            raise ValueError("kl.refresh_at_cap replaces the reference, and kl.reference base never changes")
        return self


class CriticConfig(Section):
    """The value head and its generalised advantage estimates; used with algorithm.advantages gae only."""

    gamma: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Discount per step. With steps of a token, 0.99 leaves 2% of the reward after 400 tokens.",
    )
    lam: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="Between one-step errors (0) and whole returns (1). Below 1 it fades per step, as gamma does.",
    )
    step: Literal["token", "turn"] = Field(
        default="token", description="What a step is: a sampled token, or a turn, whose tokens share its advantage."
    )
    coefficient: float = Field(default=0.5, gt=0, description="Weight of the value loss.")
    clip: float | None = Field(default=0.2, gt=0, description="How far a value may move in one update; null: freely.")
    learning_rate: float = Field(default=1e-3, gt=0, description="AdamW's learning rate for the value head.")


class WarmStartConfig(Section):
    """Imitation of the tasks' own solutions, beside reinforcement learning, fading out."""

    weight: float = Field(default=0.0, ge=0, description="Weight of the imitation loss in the first step.")
    steps: int = Field(default=10, ge=1, description="Steps over which that weight falls to 0 in a straight line.")

    def weight_at(self, step: int) -> float:
        return self.weight * max(0.0, 1.0 - step / self.steps)


_Gate = Annotated[tuple[float, float], Field(description="lowest and highest ratio")]


class AlgorithmConfig(Section):
    """The objective: how good an episode's tokens were, and how the policy moves by it."""

    advantages: Literal["grpo", "dr_grpo", "rloo", "gae"] = Field(
        default="grpo",
        description="grpo: reward against the group, in its standard deviations; dr_grpo: not scaled; "
        "rloo: against the others of the group; gae: against a value head.",
    )
    whiten: bool = Field(
        default=False, description="Whether advantages are made mean 0 and deviation 1 over the whole batch."
    )
    loss: Literal["ppo", "gspo", "cispo"] = Field(
        default="ppo",
        description="ppo: clipped ratio of each token; gspo: of each sequence; cispo: clipped weight of the logprob.",
    )
    aggregation: Literal["token_mean", "sequence_mean", "constant"] = Field(
        default="token_mean",
        description="token_mean: all tokens weigh the same; sequence_mean: all episodes do; "
        "constant: tokens weigh 1 / constant_tokens of an episode, however long it is.",
    )
    constant_tokens: int | None = Field(
        default=None, ge=1, description="Tokens that an episode counts as, with aggregation constant."
    )
    clip_low: float = Field(default=0.2, gt=0, le=1, description="Ratios below 1 − this bring no more gain.")
    clip_high: float = Field(default=0.2, gt=0, description="Ratios above 1 + this bring no more gain.")
    dual_clip: float | None = Field(
        default=None, gt=1, description="Loss of a token with negative advantage is at most this times |advantage|."
    )
    ratio_gate: _Gate | None = Field(
        default=None, description="Tokens with a ratio outside of these two, such as [0.25, 4.0], carry no loss."
    )
    old_logprobs: Literal["sampled", "recomputed"] = Field(
        default="sampled",
        description="What ratios are against: sampled: the sampler's logprobs; recomputed: the learner's before the "
        "update, weighted by how far the two differ, for samplers in another precision.",
    )
    max_importance: float = Field(
        default=2.0, ge=1, description="Those weights are cut off here, with old_logprobs recomputed."
    )
    entropy: float = Field(default=0.0, ge=0, description="Weight of the entropy bonus.")
    masks: Literal["exact", "text", "none"] = Field(
        default="exact",
        description="Sampled tokens without loss: exact: those with one admissible token; text: with one text; none.",
    )
    dead_groups: Literal["keep", "refill"] = Field(
        default="keep",
        description="Groups whose rewards are all the same: keep: they count as tokens and teach nothing; "
        "refill: they are left out, and other tasks are played in their place.",
    )
    max_refills: int = Field(default=2, ge=1, description="Rounds of other tasks that one step may play.")
    min_learnable_tokens: int = Field(
        default=16, ge=1, description="A batch with fewer learnable tokens makes no update."
    )
    min_learnable_share: float = Field(
        default=0.0, ge=0, lt=1, description="A batch with a smaller share of its sampled tokens makes no update."
    )
    epochs: int = Field(default=1, ge=1, description="Passes over a batch.")
    minibatches: int = Field(default=2, ge=1, description="Optimiser steps in each pass.")
    kl: KlConfig = KlConfig()
    critic: CriticConfig = CriticConfig()
    warm_start: WarmStartConfig = WarmStartConfig()

    @property
    def has_critic(self) -> bool:
        return self.advantages == "gae"

    @model_validator(mode="after")
    def _settings_belong_together(self) -> AlgorithmConfig:
        if (self.aggregation == "constant") != (self.constant_tokens is not None):
            raise ValueError("aggregation constant and constant_tokens go together")
        if self.ratio_gate is not None and not 0 <= self.ratio_gate[0] < 1 < self.ratio_gate[1]:
            raise ValueError("ratio_gate needs a number below 1 and one above it, such as [0.25, 4.0]")
        if self.dual_clip is not None and self.loss != "ppo":
            raise ValueError("dual_clip belongs to loss ppo")
        if self.has_critic and self.dead_groups == "refill":
            raise ValueError("with gae no group is dead: a value head judges each episode by itself")
        return self


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


class RateSettings(Section):
    """How often a server may be called. A call that comes too early waits."""

    calls: int = Field(ge=1, description="Calls allowed in each period.")
    per_s: float = Field(default=1.0, gt=0, description="Length of the period in seconds.")


class BudgetSettings(Section):
    """How much a run may use a server. The call that would exceed it is not made, and the run stops."""

    calls: int | None = Field(default=None, ge=0, description="Calls in the whole run.")
    usd: float | None = Field(default=None, ge=0, description="Money for the whole run.")
    usd_per_call: float = Field(default=0.0, ge=0, description="Price of one call.")

    @model_validator(mode="after")
    def _money_has_a_price(self) -> BudgetSettings:
        if self.usd is not None and not self.usd_per_call:
            raise ValueError("budget.usd limits nothing without budget.usd_per_call")
        return self


class RetrySettings(Section):
    """When a call that the infrastructure failed is made again: only where that cannot do a thing twice."""

    attempts: int = Field(default=3, ge=1, description="Times a call may be made; 1 means never again.")
    wait_s: float = Field(default=0.1, ge=0, description="Wait before the second attempt; it doubles each time.")
    max_wait_s: float = Field(
        default=30.0, ge=0, description="Longest wait; a server that asks for a longer one is given up."
    )


class BreakerSettings(Section):
    """When a server that keeps failing is left alone for a while."""

    failures: int = Field(default=5, ge=1, description="Failures in a row that open the breaker.")
    rest_s: float = Field(default=5.0, gt=0, description="Seconds until one call may try the server again.")


class ErrorRule(Section):
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


class ServerSettings(Section):
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


class ServersConfig(Section):
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


def _http_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("an address begins with http:// or https:// and names a host")
    return value


_HttpUrl = Annotated[str, AfterValidator(_http_url)]


class WandbConfig(Section):
    """Weights & Biases: metrics, verdicts, a few episodes a step, and the trained weights as an artefact."""

    project: str = Field(min_length=1, description="Project in W&B.")
    entity: str | None = Field(default=None, description="User or team in W&B; null: the default one of the key.")
    mode: Literal["online", "offline"] = Field(
        default="online", description="offline: into the run's folder, for `wandb sync` to send later."
    )
    url: _HttpUrl | None = Field(
        default=None, description="Address of a W&B server of one's own; null: WANDB_BASE_URL, or W&B's cloud."
    )


class WeaveConfig(Section):
    """Weave: one trace an episode, with its turns and calls."""

    project: str = Field(
        pattern=r"^[^/\s]+(/[^/\s]+)?$", description="Project in Weave: entity/project, or a project of the key's user."
    )


class OpenTelemetryConfig(Section):
    """OpenTelemetry: spans of episodes, turns and calls, by OTLP over HTTP."""

    endpoint: _HttpUrl = Field(
        description="Where a collector takes spans, path included: http://127.0.0.1:4318/v1/traces."
    )


class TrackingConfig(Section):
    """Who is told of a run besides its own folder. A tracker that is down neither slows nor stops the run."""

    tensorboard: bool = Field(default=False, description="Write files for TensorBoard into the run's folder.")
    flush_s: float = Field(
        default=5.0, gt=0, description="Seconds after the run's end that trackers have to send what is left."
    )
    wandb: WandbConfig | None = Field(default=None, description="Weights & Biases; null: not told.")
    weave: WeaveConfig | None = Field(default=None, description="Weave; null: not told.")
    opentelemetry: OpenTelemetryConfig | None = Field(default=None, description="OpenTelemetry; null: not told.")

    @property
    def named(self) -> list[str]:
        """The trackers that are on: their settings, their extras and their processes have the same names."""
        asked = {
            "wandb": self.wandb is not None,
            "weave": self.weave is not None,
            "tensorboard": self.tensorboard,
            "opentelemetry": self.opentelemetry is not None,
        }
        return [name for name, is_asked in asked.items() if is_asked]


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

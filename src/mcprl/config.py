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

from mcprl.bounds import MAX_NUMBER, MIN_NUMBER, why_no_pattern
from mcprl.errors import BadValueError, MissingExtraError
from mcprl.records import Difficulty, Task

__all__ = [
    "LOSSES",
    "NOT_REPRODUCIBLE",
    "SOLUTIONS",
    "AlgorithmConfig",
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
    "RewardsConfig",
    "RunConfig",
    "SamplingConfig",
    "SandboxSettings",
    "ServerSettings",
    "ServersConfig",
    "SftConfig",
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


SOLUTIONS = "solutions"
"""The entry of sft.data that stands for the solutions of the tasks."""

# Prefix of files in mcprl's own packages: `mcprl:market/train.jsonl` is in mcprl_market/data.
_SHIPPED = "mcprl:"


def _relative_to_file(value: object, info: ValidationInfo) -> object:
    if isinstance(value, str) and value.startswith(_SHIPPED):
        return str(_shipped(value))
    context = cast("Mapping[str, Path]", info.context or {})
    folder = context.get("folder")
    return os.path.abspath(folder / value) if folder is not None and isinstance(value, str) else value


def _own_function(value: object, info: ValidationInfo) -> object:
    """The file of `file.py:name` is relative to the recipe."""
    if not isinstance(value, str) or ".py:" not in value:
        return value
    file, _, name = value.rpartition(":")
    return f"{_relative_to_file(file, info)}:{name}"


def _shipped(value: str) -> Path:
    extra, _, name = value.removeprefix(_SHIPPED).partition("/")
    package = find_spec(f"mcprl_{extra}")
    if package is None or package.origin is None:
        raise MissingExtraError(f"{value} is in a package that is not installed", fix=f"pip install 'mcprl[{extra}]'")
    return Path(package.origin).parent / "data" / name


def _model_location(value: object, info: ValidationInfo) -> object:
    if not isinstance(value, str):
        return value
    if value.startswith((".", "/")):
        return str(_relative_to_file(value, info))
    if value.startswith("~") or value.count("/") > 1:
        raise ValueError("is neither a folder, which begins with ./, ../ or /, nor a name on the hub (owner/name)")
    if Path(str(_relative_to_file(value, info))).is_dir():
        raise ValueError(f"is a name on the hub, but there is a folder of that name: write ./{value} for the folder")
    return value


def _no_float16(value: object) -> object:
    if value in ("float16", "fp16", "half"):
        raise ValueError(
            "float16 overflows above 65,504 and rounds small gradients to 0, and mcprl has no loss scaling: use "
            "bfloat16, or float32 on a GPU without bfloat16"
        )
    return value


def _sft_source(value: object, info: ValidationInfo) -> object:
    return value if value == SOLUTIONS else _relative_to_file(value, info)


FilePath = Annotated[Path, BeforeValidator(_relative_to_file)]
ModelLocation = Annotated[str, BeforeValidator(_model_location)]
_REFERENCE = r".+\.py:[A-Za-z_][A-Za-z0-9_]*"
OwnFunction = Annotated[str, BeforeValidator(_own_function), Field(pattern=f"^{_REFERENCE}$")]


def _is_usual(number: float) -> bool:
    return number == 0 or MIN_NUMBER <= abs(number) <= MAX_NUMBER


class Section(BaseModel):
    """A section of the configuration. It is immutable, and does not accept unknown keys or NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _is_bounded(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, int | float) and info.field_name != "seed" and not _is_usual(value):
            raise ValueError(f"a number must be 0, or from {MIN_NUMBER:g} to {MAX_NUMBER:,.0f}")
        given: object = value  # keeps the type of `value` plain
        items = cast("tuple[object, ...]", given) if isinstance(given, tuple) else (given,)
        if any(isinstance(item, str | Path) and "\0" in str(item) for item in items):
            raise ValueError("there is a null character in it")
        return value


class SkyrlConfig(Section):
    """The Tinker API server of engine skyrl: a SkyRL server, started by the run or on a cluster, or a hosted one."""

    url: str | None = Field(
        default=None, description="Address of a running server; null: mcprl starts one on this machine."
    )
    backend: Literal["jax", "fsdp", "megatron", "hosted"] = Field(
        default="jax",
        description="Backend behind the API. It decides how the loss is scaled and which settings are refused.",
    )
    python: FilePath | None = Field(
        default=None,
        description="Python interpreter of the environment with SkyRL, used if mcprl starts the server; null: the one "
        "that runs mcprl.",
    )
    backend_config: dict[str, int | float | bool | str] = Field(
        default_factory=dict[str, int | float | bool | str],
        description="Options passed to the backend of a server that mcprl starts.",
    )


class WorkersConfig(Section):
    """Where episodes run: in this process, or in Ray workers, each with its own tool servers."""

    count: int = Field(
        default=0, ge=0, description="Ray workers, at one core each; 0: this process plays all episodes, without Ray."
    )
    address: str | None = Field(
        default=None, description="Address of the Ray cluster; null: mcprl starts Ray on this machine."
    )


def lacking_in_skyrl(config: RunConfig) -> str | None:
    """Describe the settings that the Tinker API does not support, and what to do instead. None if it supports all."""
    sampling, algorithm, learner, backend = config.sampling, config.algorithm, config.learner, config.skyrl.backend
    refusals = (
        (algorithm.has_critic, "a value head (algorithm.advantages=gae): use grpo, dr_grpo or rloo"),
        (algorithm.entropy > 0, "entropies (algorithm.entropy): set it to 0, or raise algorithm.clip_high"),
        (
            algorithm.kl.needs_reference and algorithm.kl.reference == "ema",
            "a moving average (algorithm.kl.reference=ema): use sync, a frozen snapshot, or base",
        ),
        (learner.tuning != "lora", f"learner.tuning={learner.tuning}: it only trains adapters, so use lora"),
        (learner.lora_alpha != 32, "a scale of the adapter: set learner.lora_alpha to 32, which the API always uses"),
        (
            learner.max_grad_norm is not None,
            "gradient clipping: set learner.max_grad_norm to null; with fsdp and megatron, the server's own "
            "configuration sets it",
        ),
        (learner.processes > 1, "learner.processes above 1: the server distributes the work itself, so set it to 1"),
        (sampling.temperature != 1.0, "logprobs at a temperature other than 1: set sampling.temperature to 1.0"),
        (bool(sampling.stop), "texts that end a turn, only token ids: leave sampling.stop empty"),
        (sampling.constrain != "off", "grammars: set sampling.constrain to off"),
        (config.model.adapter is not None, "an adapter to start from: set model.adapter to null"),
        (
            backend == "jax" and config.training.max_staleness > 0,
            "sampling from weights older than those in training (training.max_staleness): with backend jax both are "
            "one adapter, so set it to 0, or use fsdp, megatron or hosted",
        ),
        (
            backend in ("fsdp", "megatron") and learner.weight_decay > 0,
            "weight decay per request: with fsdp and megatron, set learner.weight_decay to 0 and configure the server",
        ),
        (
            backend != "jax" and config.skyrl.url is None,
            f"backend {backend} on a server that mcprl starts: start the server on its nodes and set skyrl.url",
        ),
    )
    found = [what for holds, what in refusals if holds]
    return None if not found else "engine skyrl does not support " + "; nor ".join(found)


class TasksConfig(Section):
    """The tasks to train on."""

    train: FilePath = Field(description="File of tasks to train on: JSON lines, or a JSON list of SkyRL rows.")
    validation: FilePath | None = Field(
        default=None, description="File of tasks for evaluation, in the same formats; the policy never trains on them."
    )
    order: Literal["shuffled", "curriculum"] = Field(
        default="shuffled",
        description="shuffled: all tasks alike; curriculum: easy tasks first, then those solved sometimes.",
    )
    preamble: FilePath | None = Field(
        default=None,
        description="JSON list of messages put before the messages of each task: a system prompt, worked examples.",
    )


_AtLeastOne = Annotated[int, Field(ge=1)]
_MAX_TURNS = {Difficulty.EASY: 5, Difficulty.MEDIUM: 8, Difficulty.HARD: 10}


def _with_default_turns(value: object) -> object:
    # A difficulty that is left out keeps its default limit, so that its tasks do not fail in the middle of a run.
    return {**_MAX_TURNS, **cast("dict[Any, Any]", value)} if isinstance(value, dict) else value


class EpisodesConfig(Section):
    """How episodes run."""

    group_size: int = Field(default=8, ge=2, description="Episodes per task; their rewards are compared.")
    max_concurrent: int = Field(default=64, ge=1, description="Episodes that run at the same time.")
    max_turns: Annotated[dict[Difficulty, _AtLeastOne], BeforeValidator(_with_default_turns)] = Field(
        default=_MAX_TURNS, description="Turns per episode, by difficulty of the task."
    )
    deadline_s: float = Field(default=600.0, gt=0, description="Seconds per episode; no single turn may take longer.")
    injected_errors: float = Field(
        default=0.0, ge=0, lt=1, description="Share of tool calls that fail on purpose, to teach recovery."
    )

    def turn_limit(self, task: Task) -> int:
        """Return how many turns an episode of a task may take after each user message."""
        return task.max_turns or self.max_turns[task.difficulty]


class JudgeConfig(Section):
    """A language model that grades answers, behind an OpenAI-compatible endpoint."""

    url: str = Field(description="Base URL of the endpoint, such as http://127.0.0.1:8000/v1.")
    model: str = Field(description="Name of the model at the endpoint.")
    key_env: str | None = Field(default=None, description="Environment variable that holds the API key; null: no key.")
    cache: FilePath | None = Field(
        default=None, description="SQLite file of grades, so that no question is asked twice; null: no cache."
    )


class RewardFunctionConfig(Section):
    """A reward function in Python. It is one more part of the reward of every episode."""

    function: OwnFunction = Field(description="The function, as rewards.py:name, relative to the recipe.")
    weight: float = Field(ge=0, description="Weight of its value, from -1 to 1.")
    deadline_s: float = Field(default=10.0, gt=0, le=3600, description="Seconds that one call may take.")
    probes: tuple[str, ...] = Field(default=(), description="Tools that it may call on the episode's servers.")
    on_error: Literal["stop", "lose_episode"] = Field(
        default="stop",
        description="If it raises, misses its deadline or returns no number. stop: the run ends; lose_episode: the "
        "episode is played again, as after a fault of the infrastructure.",
    )


class RewardsConfig(Section):
    """Weights of the parts of a reward, which is the weighted mean of the parts that a task checks, minus penalties.

    A part with weight 0 is still measured and logged. Rewards are clipped to [−1, 1].
    """

    answer: float = Field(default=1.0, ge=0, description="Weight of a correct final answer.")
    state: float = Field(default=1.0, ge=0, description="Weight of the share of expected facts that hold at the end.")
    calls: float = Field(default=0.5, ge=0, description="Weight of the share of expected tools that were called.")
    arguments: float = Field(default=0.5, ge=0, description="Weight of the share of expected arguments that are right.")
    efficiency: float = Field(default=0.1, ge=0, description="Weight of call efficiency: expected calls ÷ calls made.")
    rubric: float = Field(default=1.0, ge=0, description="Weight of the judge's grade, for tasks with a rubric.")
    invalid_call: float = Field(default=0.05, ge=0, description="Penalty per invalid call.")
    unanswered: float = Field(
        default=0.05, ge=0, description="Penalty if a limit of turns or tokens ends the episode without an answer."
    )
    judge: JudgeConfig | None = Field(default=None, description="Judge of the answers to tasks with a rubric.")
    functions: dict[str, RewardFunctionConfig] = Field(
        default_factory=dict[str, RewardFunctionConfig],
        description="Reward functions in Python, by the name of their part.",
    )

    @model_validator(mode="after")
    def _functions_have_names_of_their_own(self) -> RewardsConfig:
        for name in self.functions:
            if name in RewardsConfig.model_fields or not name.isidentifier():
                raise ValueError(
                    f"a reward function cannot be named {name!r}: choose a name in Python's form that is not a part"
                )
        return self

    def weight_of(self, part: str) -> float:
        function = self.functions.get(part)
        return float(getattr(self, part)) if function is None else function.weight


class LearnerConfig(Section):
    """The torch learner: transformers, PEFT and AdamW."""

    tuning: Literal["lora", "lora_4bit", "full"] = Field(
        default="lora",
        description="lora: train an adapter; lora_4bit: an adapter on a 4-bit base (CUDA only); full: all weights.",
    )
    learning_rate: float = Field(default=2e-5, gt=0, description="Peak learning rate of AdamW.")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="Decay of the learning rate after warm-up: none, or to 0 at the last step."
    )
    warmup_steps: int = Field(
        default=0, ge=0, description="Optimizer steps over which the learning rate warms up linearly."
    )
    weight_decay: float = Field(default=0.0, ge=0, description="Weight decay of AdamW.")
    max_grad_norm: float | None = Field(default=1.0, gt=0, description="Norm to clip gradients to; null: no clipping.")
    lora_rank: int = Field(default=16, ge=1, le=8192, description="Rank of the adapter.")
    lora_alpha: int = Field(default=32, ge=1, description="Alpha of the adapter; its scale is alpha / rank.")
    microbatch: int = Field(default=4, ge=1, description="Trajectories per forward pass.")
    share_prefix: bool = Field(
        default=True, description="Compute a prefix only once if several trajectories in a pass share it."
    )
    checkpointing: bool = Field(
        default=True, description="Gradient checkpointing: about a fifth slower, for a fraction of the memory."
    )
    processes: int = Field(default=1, ge=1, description="Processes that share the work, one per GPU.")
    sharding: Literal["fsdp2", "zero3"] = Field(
        default="fsdp2", description="How several processes shard the weights: torch's FSDP2 or DeepSpeed's ZeRO-3."
    )
    max_parity_error: float = Field(
        default=0.2,  # normal values: 0.01 to 0.06 with bfloat16, below 1e-5 with float32
        gt=0,
        description="Largest mean |Δlogprob| per token between sampler and learner before an update; above it the run "
        "stops. Use 1e-4 with float32.",
    )

    @model_validator(mode="after")
    def _four_bits_are_not_sharded(self) -> LearnerConfig:
        if self.tuning == "lora_4bit" and self.processes > 1:
            raise ValueError("learner.tuning=lora_4bit runs in one process: its weights cannot be sharded")
        return self


class KlConfig(Section):
    """KL divergence of the policy from a reference policy. Without a coefficient or a cap there is no reference."""

    coefficient: float = Field(default=0.0, ge=0, description="Weight of the KL penalty.")
    estimator: Literal["k1", "k2", "k3"] = Field(
        default="k2",
        description="Estimate per token. k1: the log ratio, subtracted from the reward of each token; k2: half its "
        "square, added to the loss; k3: added to the loss, unbiased and never negative, with a biased gradient.",
    )
    target: float | None = Field(
        default=None,
        gt=0,
        description="Target KL in nats per token, to which the coefficient is adapted; null: the coefficient is fixed.",
    )
    cap: float | None = Field(
        default=None,
        gt=0,
        description="Maximum KL in nats per token. Above it, optimizer steps are skipped. An update that ends above "
        "it, or moves the policy by more, is rolled back, and after such a jump the learning rate is halved. Unless "
        "the reference is base, it is then reset to the policy.",
    )
    reference: Literal["base", "ema", "sync"] = Field(
        default="base",
        description="base: the original model; ema: a moving average of the policy; sync: a periodic copy of it.",
    )
    lag: int | None = Field(
        default=None,
        ge=1,
        description="sync: number of updates between copies of the policy (null: 20). ema: number of updates to "
        "average over; the decay is 1 − 1 / lag (null: 100).",
    )

    @property
    def needs_reference(self) -> bool:
        return self.coefficient > 0 or self.cap is not None

    @property
    def in_reward(self) -> bool:
        """Whether the penalty is subtracted from the reward. As a loss, k1 would have no gradient."""
        return self.estimator == "k1"

    @property
    def sync_every(self) -> int:
        return self.lag or 20

    @property
    def ema_decay(self) -> float:
        return 1.0 - 1.0 / (self.lag or 100)

    @model_validator(mode="after")
    def _a_target_needs_a_start(self) -> KlConfig:
        if self.target is not None and self.coefficient == 0:
            raise ValueError("kl.target adapts kl.coefficient, which must start above 0")
        return self


class CriticConfig(Section):
    """The value head and generalized advantage estimation; used only with algorithm.advantages=gae."""

    gamma: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Discount per step. With a step per token, 0.99 leaves 2% of the reward after 400 tokens.",
    )
    lam: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="GAE's λ, from one-step errors (0) to whole returns (1); it decays per step, as gamma does.",
    )
    step: Literal["token", "turn"] = Field(
        default="token", description="A step is a sampled token, or a turn, whose tokens share one advantage."
    )
    learning_rate: float = Field(default=1e-3, gt=0, description="Learning rate of the value head.")


class WarmStartConfig(Section):
    """Imitation of the solutions in the task file in addition to reinforcement learning. Its weight decreases to 0."""

    weight: float = Field(default=0.0, ge=0, description="Weight of the imitation loss in the first step.")
    steps: int = Field(
        default=10, ge=1, description="Steps over which the weight of the imitation loss falls linearly to 0."
    )

    def weight_at(self, step: int) -> float:
        return self.weight * max(0.0, 1.0 - step / self.steps)


_Gate = Annotated[tuple[float, float], Field(description="lowest and highest ratio")]


LOSSES = ("ppo", "gspo", "cispo")


def _known_loss(value: str) -> str:
    if value not in LOSSES and not re.fullmatch(_REFERENCE, value):
        raise ValueError(f"a loss is {', '.join(LOSSES)}, or a function of your own such as losses.py:name")
    return value


class AlgorithmConfig(Section):
    """The objective: how advantages and the loss are computed."""

    advantages: Literal["grpo", "dr_grpo", "rloo", "gae"] = Field(
        default="grpo",
        description="grpo: reward minus the group's mean, divided by its standard deviation; dr_grpo: not divided; "
        "rloo: reward minus the mean of the other members; gae: against a value head.",
    )
    whiten: bool = Field(default=False, description="Normalize advantages over the batch to mean 0 and deviation 1.")
    loss: Annotated[str, BeforeValidator(_own_function), AfterValidator(_known_loss)] = Field(
        default="ppo",
        description="ppo: clipped ratio per token; gspo: per sequence; cispo: clipped weight of the logprob; or a "
        "function of your own, as losses.py:name.",
    )
    aggregation: Literal["token_mean", "sequence_mean", "constant"] = Field(
        default="token_mean",
        description="token_mean: mean over all tokens; sequence_mean: mean over episodes of their means; constant: "
        "each episode's sum divided by model.context_tokens, as in Dr. GRPO.",
    )
    clip_low: float = Field(default=0.2, gt=0, le=1, description="Ratios are clipped below 1 − clip_low.")
    clip_high: float = Field(default=0.2, gt=0, description="Ratios are clipped above 1 + clip_high.")
    dual_clip: float | None = Field(
        default=None,
        gt=1,
        description="Limit on the loss of a token with negative advantage, as a multiple of |advantage|; null: none.",
    )
    ratio_gate: _Gate | None = Field(
        default=None, description="Tokens whose ratio is outside this range, such as [0.25, 4.0], carry no loss."
    )
    old_logprobs: Literal["sampled", "recomputed"] = Field(
        default="sampled",
        description="Denominator of the ratio. sampled: the sampler's logprobs; recomputed: the learner's logprobs "
        "before the update, with an importance weight per token that corrects for the difference (use it "
        "with bfloat16 or stale weights).",
    )
    max_importance: float = Field(
        default=2.0, ge=1, description="Upper limit on the importance weight (only with old_logprobs=recomputed)."
    )
    entropy: float = Field(default=0.0, ge=0, description="Weight of the entropy bonus.")
    masks: Literal["exact", "text", "none"] = Field(
        default="exact",
        description="Sampled tokens that carry no loss. exact: those where the grammar allowed one token; text: those "
        "where it allowed one text; none: all tokens carry loss.",
    )
    refill_rounds: int = Field(
        default=0,
        ge=0,
        description="How many times per step groups with equal rewards are replaced by groups of other tasks. 0: "
        "never; such groups stay in the batch and contribute no gradient.",
    )
    min_learnable_tokens: int = Field(
        default=16, ge=1, description="Learnable tokens that a batch needs; with fewer its update is skipped."
    )
    min_learnable_share: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Share of sampled tokens that must be learnable; below it the update is skipped.",
    )
    epochs: int = Field(default=1, ge=1, description="Passes over each batch.")
    minibatches: int = Field(default=2, ge=1, description="Optimizer steps per pass.")
    kl: KlConfig = KlConfig()
    critic: CriticConfig = CriticConfig()
    warm_start: WarmStartConfig = WarmStartConfig()

    @property
    def has_critic(self) -> bool:
        return self.advantages == "gae"

    @property
    def has_own_loss(self) -> bool:
        return self.loss not in LOSSES

    @model_validator(mode="after")
    def _settings_belong_together(self) -> AlgorithmConfig:
        if self.ratio_gate is not None and not 0 <= self.ratio_gate[0] < 1 < self.ratio_gate[1]:
            raise ValueError("ratio_gate needs a number below 1 and one above it, such as [0.25, 4.0]")
        if self.dual_clip is not None and self.loss != "ppo":
            raise ValueError("dual_clip applies only to the ppo loss")
        if self.has_critic and self.refill_rounds:
            raise ValueError("refill_rounds does not apply to gae: a value head judges each episode by itself")
        return self


class ModelConfig(Section):
    """The model to train."""

    path: ModelLocation = Field(description="Folder of the model (begins with . or /), or its name on the hub.")
    renderer: str = Field(
        default="auto",
        description="How chats become tokens. A model family such as qwen3, or chatml: that format; template: the "
        "model's own chat template; auto: chosen by the model's name on the hub.",
    )
    thinking: bool | None = Field(
        default=None,
        description="Whether the model thinks before it answers, for families with such a switch; null: the family's "
        "default.",
    )
    dtype: Annotated[Literal["float32", "bfloat16"], BeforeValidator(_no_float16)] = Field(
        default="bfloat16", description="Data type of sampler and learner. With float32 their logprobs agree."
    )
    context_tokens: int = Field(default=4096, ge=64, description="Longest conversation in tokens.")
    adapter: FilePath | None = Field(
        default=None,
        description="Folder of a LoRA adapter to start from, such as outputs/hello-cpu-sft/adapter; null: none.",
    )


class VllmConfig(Section):
    """The vLLM server that mcprl starts."""

    max_sequences: int = Field(default=64, ge=1, description="Sequences that vLLM decodes at the same time.")
    memory_fraction: float = Field(default=0.5, gt=0, lt=1, description="Share of the GPU's memory that vLLM takes.")
    cpu_cache_gib: int = Field(default=1, ge=1, description="Size of the KV cache in GiB if vLLM runs on a CPU.")
    merge_adapters: bool = Field(
        default=False,
        description="Merge each adapter into vLLM's weights: much faster on a CPU. Needs model.dtype=float32, since "
        "bfloat16 would round a small adapter away.",
    )


# Other trainers allow these settings. Their ratios are then wrong, because tokens come from another distribution.
NOT_REPRODUCIBLE = frozenset(
    ("top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "presence_penalty")
) | frozenset(("frequency_penalty", "min_tokens", "logit_bias", "bad_words"))


def _off_as_text(value: object) -> object:
    # YAML reads a bare `off` as false.
    return "off" if value is False else value


class SamplingConfig(Section):
    """How the policy samples its turns."""

    temperature: float = Field(default=1.0, gt=0, description="Sampling temperature; the learner uses the same.")
    max_tokens: int = Field(default=512, ge=1, description="Longest turn in tokens.")
    stop: tuple[str, ...] = Field(default=(), description="Texts that end a turn, such as </tool_call>.")
    constrain: Annotated[Literal["off", "calls", "act"], BeforeValidator(_off_as_text)] = Field(
        default="off",
        description="Constrain tool calls with a grammar. off: no grammar; calls: once the model starts a call, it "
        "must match the tool's schema; act: like calls, and no text outside calls.",
    )
    loose_tools: tuple[str, ...] = Field(
        default=(),
        description="Tools whose schemas no grammar can express in full; the grammar enforces the rest of them.",
    )
    vllm: VllmConfig = VllmConfig()


class TrainingConfig(Section):
    """The training loop."""

    steps: int = Field(default=100, ge=1, description="Steps of the run: each collects a batch and learns from it.")
    tasks_per_step: int = Field(default=8, ge=1, description="Tasks per batch, each with a group of episodes.")
    max_staleness: int = Field(
        default=0,
        ge=0,
        description="Maximum number of updates by which the sampler's weights may lag behind the learner's. 0: "
        "synchronous; above 0: the next steps are collected during an update, which needs "
        "algorithm.old_logprobs=recomputed.",
    )
    checkpoint_every: int = Field(default=1, ge=1, description="Steps between checkpoints.")
    keep_checkpoints: int = Field(
        default=3,
        ge=1,
        description="How many of the newest checkpoints to keep, besides the best one and the last healthy one.",
    )
    outputs: Path = Field(
        default=Path("outputs"), description="Folder of all runs, relative to the folder where mcprl starts."
    )


class SftConfig(Section):
    """Supervised fine-tuning with `mcprl sft`. `mcprl train` ignores this section."""

    data: tuple[Annotated[str, BeforeValidator(_sft_source)], ...] = Field(
        default=(SOLUTIONS,),
        min_length=1,
        description="What to imitate. solutions: those of the tasks; a file of JSON lines: demonstrations of tasks, or "
        "chats in OpenAI's format; the folder of a run: its episodes that passed their checks.",
    )
    steps: int = Field(default=100, ge=1, description="Optimizer steps, unless the validation loss stops improving.")
    batch_size: int = Field(default=16, ge=1, description="Conversations per step.")
    learning_rate: float = Field(default=2e-4, gt=0, description="Takes the place of learner.learning_rate.")
    validation: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="Share of the conversations that is held out to measure the validation loss; conversations of "
        "validation tasks are always held out.",
    )
    validate_every: int = Field(
        default=10, ge=1, description="Steps between validations; each one also saves a checkpoint."
    )


class RateSettings(Section):
    """Rate limit of a server. Calls above it wait."""

    calls: int = Field(ge=1, description="Calls per period.")
    per_s: float = Field(default=1.0, gt=0, description="Length of the period in seconds.")


class BudgetSettings(Section):
    """How much a run may use a server. A call that would exceed the budget is not made, and the run stops."""

    calls: int | None = Field(default=None, ge=0, description="Calls per run; null: no limit.")
    usd: float | None = Field(default=None, ge=0, description="US dollars per run; null: no limit.")
    usd_per_call: float = Field(default=0.0, ge=0, description="Price of a call in US dollars.")

    @model_validator(mode="after")
    def _money_has_a_price(self) -> BudgetSettings:
        if self.usd is not None and not self.usd_per_call:
            raise ValueError("budget.usd limits nothing without budget.usd_per_call")
        return self


class ErrorRule(Section):
    """Recognizes an error in the text of a result, even if the server reports success."""

    match: str = Field(
        description="Regular expression to search for in the first 2,048 characters of the result (Rust syntax: no "
        "look-around, no backreferences)."
    )
    fault: Literal["policy", "infrastructure"] = Field(
        default="policy",
        description="policy: the result is shown as an error; infrastructure: the call has failed and may be retried.",
    )

    @field_validator("match")
    @classmethod
    def _compiles(cls, value: str) -> str:
        problem = why_no_pattern(value)
        if problem is not None:
            raise ValueError(problem)
        return value


class SandboxSettings(Section):
    """Runs a server's command in a bubblewrap sandbox. `true`: it sees its own program and no other file of yours, no
    network and no variables except its own `env`; `null`: it runs like any other program of yours."""

    read: tuple[FilePath, ...] = Field(default=(), description="Files and folders that the server may read.")
    write: tuple[FilePath, ...] = Field(default=(), description="Folders that the server may read and write.")
    network: bool = Field(
        default=False, description="Whether the server may use the network, including the ports of this machine."
    )

    @field_validator("read", "write")
    @classmethod
    def _not_everything(cls, value: tuple[Path, ...]) -> tuple[Path, ...]:
        if Path("/") in value:
            raise ValueError("may not be /, which is every file of this machine")
        return value


class ServerSettings(Section):
    """Settings of a run for one server of the mcpServers file."""

    start: tuple[str, ...] = Field(
        default=(),
        description="Command that starts a server reached by URL; `{port}` in it and in the URL becomes a free port.",
    )
    start_deadline_s: float = Field(default=30.0, gt=0, description="Seconds to start the server and list its tools.")
    call_deadline_s: float = Field(default=30.0, gt=0, description="Seconds that a call may take.")
    attempts: int = Field(
        default=3,
        ge=1,
        description="Attempts per call that fails by no fault of the policy; a call is repeated only if that is safe.",
    )
    replicas: int = Field(default=1, ge=1, description="Processes of a shared server; calls go to the least busy.")
    isolation: Literal["shared", "per_episode"] = Field(
        default="shared", description="shared: all episodes use one server; per_episode: each gets a fresh one."
    )
    max_result_bytes: int = Field(
        default=65536, ge=256, description="Longest result in bytes; longer ones are truncated with a note."
    )
    rate: RateSettings | None = Field(default=None, description="Rate limit; null: none.")
    budget: BudgetSettings = BudgetSettings()
    cache_s: float = Field(
        default=0.0, ge=0, description="Seconds for which the result of a read-only tool is reused for the same call."
    )
    read_only: tuple[str, ...] = Field(
        default=(),
        description="Tools to treat as free of side effects even if the server does not declare that; * matches any "
        "text.",
    )
    allow: tuple[str, ...] = Field(default=("*",), description="Tools to offer; * matches any text.")
    deny: tuple[str, ...] = Field(default=(), description="Tools never to offer, even if `allow` matches them.")
    tool_aliases: dict[str, str] = Field(
        default_factory=dict[str, str], description="Aliases of tools: maps each alias to the tool it stands for."
    )
    argument_aliases: dict[str, str] = Field(
        default_factory=dict[str, str],
        description="Aliases of arguments: maps each alias to the argument it stands for, in tools that have no "
        "argument named like the alias.",
    )
    recorded: tuple[str, ...] = Field(
        default=("*",),
        description="With cassette_mode=mixed, tools to replay if they have recordings; the others are called. * "
        "matches any text.",
    )
    errors: tuple[ErrorRule, ...] = Field(
        default=(), description="Rules that find errors in results; the first match counts."
    )
    sandbox: SandboxSettings | None = None

    @field_validator("sandbox", mode="before")
    @classmethod
    def _true_or_false(cls, value: object) -> object:
        return (SandboxSettings() if value else None) if isinstance(value, bool) else value

    @model_validator(mode="after")
    def _replicas_are_shared(self) -> ServerSettings:
        if self.isolation == "per_episode" and (self.replicas != 1 or self.cache_s):
            raise ValueError("replicas and cache_s apply only to a shared server, but isolation is per_episode")
        return self


CassetteMode = Literal["live", "record", "replay_else_live", "replay", "mixed"]


class ServersConfig(Section):
    """The MCP servers that offer the tools."""

    file: FilePath | None = Field(
        default=None, description="mcpServers file, in the JSON format that MCP clients share; not needed for replay."
    )
    env_file: FilePath | None = Field(
        default=None,
        description="File of keys with NAME=value lines; null: .env in the folder where mcprl was started, if it "
        "exists.",
    )
    pins: FilePath | None = Field(
        default=None, description="File written by `mcprl tools pin`; the run stops if the tools differ from it."
    )
    cassette: FilePath | None = Field(default=None, description="SQLite file of recorded calls.")
    cassette_mode: CassetteMode = Field(
        default="live",
        description="live: call servers, no cassette; record: call servers and record; replay_else_live: replay, and "
        "record what is missing; replay: replay only, without servers; mixed: replay the tools that have recordings, "
        "and call the servers of the file for the others.",
    )
    settings: dict[str, ServerSettings] = Field(
        default_factory=dict[str, ServerSettings], description="Settings per server, by its name."
    )

    @model_validator(mode="after")
    def _a_mode_has_its_file(self) -> ServersConfig:
        if self.file is None and self.cassette_mode != "replay":
            raise ValueError("servers.file is missing: only cassette_mode=replay works without servers")
        if self.cassette is None and self.cassette_mode != "live":
            raise ValueError(f"servers.cassette_mode is {self.cassette_mode}, but servers.cassette is not set")
        return self


def _http_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("an address begins with http:// or https:// and has a host")
    return value


_HttpUrl = Annotated[str, AfterValidator(_http_url)]


_PROJECT = r"^[^/\s]+(/[^/\s]+)?$"


class WandbConfig(Section):
    """Weights & Biases: metrics, verdicts, a few episodes per step, and the trained weights as an artifact."""

    project: str = Field(pattern=_PROJECT, description="Project in W&B, as entity/project or project alone.")


class WeaveConfig(Section):
    """Weave: a trace per episode, with its turns and calls."""

    project: str = Field(pattern=_PROJECT, description="Project in Weave, as entity/project or project alone.")


class OpenTelemetryConfig(Section):
    """OpenTelemetry: spans of episodes, turns and calls, sent as OTLP over HTTP."""

    endpoint: _HttpUrl = Field(description="URL of the collector for traces, such as http://127.0.0.1:4318/v1/traces.")


class TrackingConfig(Section):
    """Trackers of a run, in addition to its folder. A tracker that is down neither slows nor stops the run."""

    tensorboard: bool = Field(default=False, description="Write TensorBoard files into the run's folder.")
    tracker: OwnFunction | None = Field(
        default=None, description="A tracker of your own, as tracker.py:Class; null: none."
    )
    wandb: WandbConfig | None = Field(default=None, description="Weights & Biases; null: off.")
    weave: WeaveConfig | None = Field(default=None, description="Weave; null: off.")
    opentelemetry: OpenTelemetryConfig | None = Field(default=None, description="OpenTelemetry; null: off.")

    @property
    def named(self) -> list[str]:
        """The trackers that are on. Their settings, extras and processes have the same names."""
        return [name for name in ("wandb", "weave", "tensorboard", "opentelemetry", "tracker") if getattr(self, name)]


class RunConfig(Section):
    """All settings of a run."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Name of the run and of its folder.")
    seed: int = Field(default=0, ge=0, description="Seed of all random draws.")
    engine: Literal["vllm", "transformers", "skyrl"] = Field(
        default="vllm",
        description="Backend for sampling and training. vllm, transformers: sample with that library and train with "
        "torch on this machine; skyrl: do both through the Tinker API (section skyrl).",
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
    sft: SftConfig | None = Field(default=None, description="Supervised fine-tuning; null: the defaults.")
    skyrl: SkyrlConfig = SkyrlConfig()
    workers: WorkersConfig = WorkersConfig()
    tracking: TrackingConfig = TrackingConfig()

    @property
    def own_functions(self) -> list[str]:
        """The functions and classes of the user's own files, as file.py:name."""
        rewards = (function.function for function in self.rewards.functions.values())
        return [name for name in (self.algorithm.loss, self.tracking.tracker, *rewards) if name and ".py:" in name]

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
        if self.training.max_staleness and self.algorithm.old_logprobs != "recomputed":
            raise ValueError(
                "training.max_staleness above 0 trains on tokens of older weights: set algorithm.old_logprobs to "
                "recomputed, which corrects for that"
            )
        return self

    @model_validator(mode="after")
    def _merged_adapters_are_not_rounded_away(self) -> RunConfig:
        merged = self.sampling.vllm.merge_adapters and self.learner.tuning != "full"
        if merged and self.model.dtype != "float32":
            raise ValueError(
                f"sampling.vllm.merge_adapters with model.dtype={self.model.dtype} would round most of a small adapter "
                "away: set merge_adapters to false, or model.dtype to float32"
            )
        return self

    @model_validator(mode="after")
    def _an_adapter_is_trained_further(self) -> RunConfig:
        if self.model.adapter is not None and self.learner.tuning == "full":
            raise ValueError("model.adapter is set, but learner.tuning=full trains no adapter: use learner.tuning=lora")
        return self

    @model_validator(mode="after")
    def _zero3_can_do_it(self) -> RunConfig:
        learner, kl = self.learner, self.algorithm.kl
        if learner.processes == 1 or learner.sharding != "zero3":
            return self
        if kl.needs_reference and (learner.tuning == "full" or kl.reference != "base"):
            raise ValueError(
                "learner.sharding=zero3 holds one set of weights, but the reference policy of algorithm.kl would be a "
                "second one: use learner.sharding=fsdp2, or learner.tuning=lora with algorithm.kl.reference=base"
            )
        if learner.tuning != "full" and self.model.dtype != "float32":
            raise ValueError(
                f"learner.tuning={learner.tuning} keeps the base in {self.model.dtype} and the adapter in float32, "
                "but learner.sharding=zero3 needs one dtype: use learner.sharding=fsdp2, or model.dtype=float32"
            )
        return self

    @model_validator(mode="after")
    def _engine_can_do_it(self) -> RunConfig:
        lacking = lacking_in_skyrl(self) if self.engine == "skyrl" else None
        if lacking is not None:
            raise ValueError(lacking)
        return self

    def for_rl(self) -> RunConfig:
        """Return the settings of a run of reinforcement learning: those without the section `sft`."""
        return self.model_copy(update={"sft": None})

    def for_sft(self) -> RunConfig:
        """Return the settings of a run of supervised fine-tuning. It may be applied to its own result.

        The settings of `sft` take the places of those that they stand for. Whatever only reinforcement learning has (a
        critic, a reference, a curriculum, injected errors) is off. A validation plays each of its tasks twice.
        """
        if self.engine == "skyrl":
            raise BadValueError("engine skyrl does not support `mcprl sft`", fix="set engine to vllm or transformers")
        sft = self.sft or SftConfig()
        training = {"steps": sft.steps, "checkpoint_every": sft.validate_every, "tasks_per_step": 1, "max_staleness": 0}
        return self.model_copy(
            update={
                "name": self.name if self.name.endswith("-sft") else f"{self.name}-sft",
                "sft": sft,
                "tasks": self.tasks.model_copy(update={"order": "shuffled"}),
                "episodes": self.episodes.model_copy(update={"group_size": 2, "injected_errors": 0.0}),
                "algorithm": AlgorithmConfig(minibatches=1, min_learnable_tokens=1, masks=self.algorithm.masks),
                "learner": self.learner.model_copy(update={"learning_rate": sft.learning_rate}),
                "training": self.training.model_copy(update=training),
            }
        )

    def to_yaml(self) -> str:
        """Return the resolved configuration as YAML, including all defaults."""
        return yaml.dump(self.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Writes each string so that reading it returns the same string."""


def _represent_text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    # YAML treats these characters as line breaks, which only double quotes preserve.
    style = '"' if any(character in value for character in "\x85\u2028\u2029") else None
    return cast("Any", dumper).represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _represent_text)

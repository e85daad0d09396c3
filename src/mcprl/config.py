"""The configuration of a run: every setting with its type, bounds and default, and its meaning in the text below it."""

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

from mcprl.bounds import MAX_NUMBER, MIN_NUMBER, usable_pattern
from mcprl.errors import BadValueError, MissingExtraError
from mcprl.records import Difficulty, Task

__all__ = [
    "LOSSES",
    "NOT_REPRODUCIBLE",
    "PENALTIES",
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
    "UserConfig",
    "VllmConfig",
    "WandbConfig",
    "WarmStartConfig",
    "WeaveConfig",
    "WorkersConfig",
]

SOLUTIONS = "solutions"
"""The entry of sft.data that means the solutions of the tasks."""

# Prefix of files in mcprl's own packages: `mcprl:market/train.jsonl` is in mcprl_market/data.
_SHIPPED = "mcprl:"


def _relative_to_file(value: object, info: ValidationInfo) -> object:
    if isinstance(value, str) and value.startswith(_SHIPPED):
        return str(_shipped(value))
    context = cast("Mapping[str, Path]", info.context or {})
    folder = context.get("folder")
    return os.path.abspath(folder / value) if folder is not None and isinstance(value, str) else value


def _own_function(value: object, info: ValidationInfo) -> object:
    """Resolve the file of `file.py:name` relative to the recipe."""
    if not isinstance(value, str) or ".py:" not in value:
        return value
    file, _, name = value.rpartition(":")
    return f"{_relative_to_file(file, info)}:{name}"


def _shipped(value: str) -> Path:
    extra, _, name = value.removeprefix(_SHIPPED).partition("/")
    package = find_spec(f"mcprl_{extra}")
    if package is None or package.origin is None:
        raise MissingExtraError(f"{value} needs a package that is not installed", fix=f"pip install 'mcprl[{extra}]'")
    return Path(package.origin).parent / "data" / name


def _model_location(value: object, info: ValidationInfo) -> object:
    if not isinstance(value, str):
        return value
    if value.startswith((".", "/")):
        return str(_relative_to_file(value, info))
    if value.startswith("~") or value.count("/") > 1:
        raise ValueError("it is neither a folder (starting with ./, ../ or /) nor a Hugging Face name (owner/name)")
    if Path(str(_relative_to_file(value, info))).is_dir():
        raise ValueError(f"it is ambiguous, because a folder has the same name: write ./{value} for the folder")
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


class Section(BaseModel):
    """A section of the configuration. It is immutable, and does not accept unknown keys or NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _is_bounded(cls, value: object, info: ValidationInfo) -> object:
        is_free = info.field_name == "seed" or value == 0
        if isinstance(value, int | float) and not is_free and not MIN_NUMBER <= abs(value) <= MAX_NUMBER:
            raise ValueError(f"a number must be 0, or from {MIN_NUMBER:g} to {MAX_NUMBER:,.0f}")
        given: object = value  # keep the type of `value` simple
        items = cast("tuple[object, ...]", given) if isinstance(given, tuple) else (given,)
        if any(isinstance(item, str | Path) and "\0" in str(item) for item in items):
            raise ValueError("it contains a null character")
        return value


def _http_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("an address must start with http:// or https:// and contain a host")
    return value


_HttpUrl = Annotated[str, AfterValidator(_http_url)]


class SkyrlConfig(Section):
    """The Tinker API server of engine skyrl: a SkyRL server, started by the run or on a cluster, or a hosted one."""

    url: str | None = None
    """Address of a running server; null: mcprl starts one on this machine."""
    backend: Literal["jax", "fsdp", "megatron", "hosted"] = "jax"
    """Backend behind the API. It determines how the loss is scaled and which settings are allowed."""
    python: FilePath | None = None
    """Python interpreter of SkyRL's environment, used if mcprl starts the server; null: the interpreter that runs
    mcprl."""
    backend_config: dict[str, int | float | bool | str] = Field(default_factory=dict[str, int | float | bool | str])
    """Options passed to the backend of a server that mcprl starts."""


class WorkersConfig(Section):
    """Where episodes run: in this process, or in Ray workers, each with its own tool servers."""

    count: int = Field(default=0, ge=0)
    """Number of Ray workers, one core each, on the cluster at RAY_ADDRESS if that is set, otherwise on this machine; 0:
    run all episodes in this process, without Ray."""


class SamplerPlacement(Section):
    """The vLLM servers that sample, each a replica of the policy."""

    replicas: int | None = Field(default=None, ge=1)
    """Number of vLLM servers; null: as many as fit on the GPUs that the learner leaves free. The turns of an episode
    and the episodes of a group go to the same server, unless it is busier than the others by a whole group."""
    tensor_parallel: int = Field(default=1, ge=1)
    """GPUs per vLLM server."""
    devices: tuple[int, ...] = ()
    """Indices of the GPUs for vLLM, replica by replica; []: the first ones that the learner leaves free."""
    urls: tuple[_HttpUrl, ...] = ()
    """Addresses of vLLM servers that are already running, to use instead of starting servers. They must see the run's
    folder under the same path."""
    key_env: str | None = None
    """Environment variable with the API key of the servers in urls; null: no key."""

    @model_validator(mode="after")
    def _devices_suffice(self) -> SamplerPlacement:
        per_server = self.tensor_parallel
        wanted = (self.replicas or max(1, len(self.devices) // per_server)) * per_server
        if self.devices and len(self.devices) != wanted:
            raise ValueError(
                f"devices names {len(self.devices)} GPUs, but {wanted // per_server} replicas with "
                f"tensor_parallel={per_server} need {wanted}"
            )
        if self.urls and (self.replicas or self.devices or per_server > 1):
            raise ValueError("urls names servers that already run: remove replicas, devices and tensor_parallel")
        return self


class LearnerPlacement(Section):
    """The GPUs of the learner. learner.processes sets how many it uses."""

    devices: tuple[int, ...] = ()
    """Indices of the GPUs, one per process; []: the last ones, or, if colocated, the first ones."""
    colocated: bool | None = None
    """Learn on the GPUs that sample. vLLM and the learner then take turns: each leaves the GPU while the other works.
    null: only if there are too few GPUs for both."""


class PlacementConfig(Section):
    """Which GPUs sample and which learn. By default, mcprl chooses them: `mcprl plan` shows the result."""

    sampler: SamplerPlacement = SamplerPlacement()
    learner: LearnerPlacement = LearnerPlacement()

    @model_validator(mode="after")
    def _devices_are_shared_only_if_colocated(self) -> PlacementConfig:
        sampling, learning, colocated = set(self.sampler.devices), set(self.learner.devices), self.learner.colocated
        if colocated is False and sampling & learning:
            raise ValueError(
                f"sampler and learner both name GPU {min(sampling & learning)}: give them different devices, or set "
                "placement.learner.colocated to true"
            )
        if colocated and (self.sampler.urls or (sampling and learning and not sampling & learning)):
            raise ValueError("placement.learner.colocated is true, but sampler and learner have no GPU in common")
        return self


def lacking_in_skyrl(config: RunConfig) -> str | None:
    """Describe settings that the Tinker API does not support, and what to do instead. None if it supports all."""
    sampling, algorithm, learner, backend = config.sampling, config.algorithm, config.learner, config.skyrl.backend
    refusals = (
        (algorithm.has_critic, "a value head (algorithm.advantages=gae): use grpo, dr_grpo or rloo"),
        (algorithm.entropy > 0, "an entropy bonus (algorithm.entropy): set it to 0, or raise algorithm.clip_high"),
        (
            algorithm.kl.needs_reference and algorithm.kl.reference == "ema",
            "a moving average (algorithm.kl.reference=ema): use sync (a periodic copy of the policy) or base",
        ),
        (learner.tuning != "lora", f"learner.tuning={learner.tuning}: the API trains only adapters, so use lora"),
        (learner.lora_alpha != 32, "an adapter scale of your own: set learner.lora_alpha to 32, the API's fixed value"),
        (
            learner.max_grad_norm is not None,
            f"learner.max_grad_norm={learner.max_grad_norm:g}, because the API has no field for it: leave it out, and "
            "the server clips gradients as its own configuration says"
            if learner.max_grad_norm is not None
            else "",
        ),
        (learner.processes > 1, "learner.processes above 1: the server distributes the work itself, so set it to 1"),
        (
            sampling.temperature != 1.0,
            "learning at a temperature other than 1, because the API scores tokens at 1 only: set sampling.temperature "
            "to 1.0",
        ),
        (sampling.constrain != "off", "grammars: set sampling.constrain to off"),
        (config.model.adapter is not None, "an initial adapter: set model.adapter to null"),
        (
            backend == "jax" and config.training.max_staleness > 0,
            "sampling from older weights (training.max_staleness): backend jax samples from the adapter being trained, "
            "so set it to 0, or use fsdp, megatron or hosted",
        ),
        (
            backend != "jax" and config.skyrl.url is None,
            f"backend {backend} on a server that mcprl starts: start the server on its nodes and set skyrl.url",
        ),
    )
    found = [what for holds, what in refusals if holds]
    return None if not found else "engine skyrl does not support " + "; nor ".join(found)


class UserConfig(Section):
    """A language model that plays the user, behind an OpenAI-compatible endpoint."""

    url: str
    """Base URL of the endpoint, such as http://127.0.0.1:8000/v1."""
    model: str
    """Name of the model at the endpoint."""
    key_env: str | None = None
    """Environment variable that holds the API key; null: no key."""
    price: tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(ge=0)]] | None = None
    """USD per million prompt tokens, and per million completion tokens."""
    max_usd: float | None = Field(default=None, gt=0)
    """Maximum cost of the requests in USD, counted from each start of the run; needs price."""
    per_minute: int | None = Field(default=None, ge=1)
    """Maximum requests per minute."""

    @model_validator(mode="after")
    def _has_prices(self) -> UserConfig:
        if self.max_usd is not None and self.price is None:
            raise ValueError("max_usd needs price, in USD per million tokens")
        return self


class TasksConfig(Section):
    """The tasks to train on."""

    train: FilePath
    """File of training tasks: JSON lines, or a JSON list of SkyRL rows."""
    validation: FilePath | None = None
    """File of tasks for evaluation, in the same formats; the policy never trains on them."""
    order: Literal["shuffled", "curriculum"] = "shuffled"
    """shuffled: all tasks in random order; curriculum: easy tasks first, then tasks that are solved only sometimes."""
    preamble: FilePath | None = None
    """JSON list of messages inserted before those of each task, such as a system prompt and worked examples."""
    user: UserConfig | None = None
    """Model that plays the user of tasks with `user.instructions`."""


_AtLeastOne = Annotated[int, Field(ge=1)]
_MAX_TURNS = {Difficulty.EASY: 5, Difficulty.MEDIUM: 8, Difficulty.HARD: 10}


def _with_default_turns(value: object) -> object:
    # If the user leaves a difficulty out, it keeps its default limit; otherwise its tasks would fail during a run.
    return {**_MAX_TURNS, **cast("dict[Any, Any]", value)} if isinstance(value, dict) else value


class AgentConfig(Section):
    """A program that plays the episodes with its own prompts and its own loop. It needs the extra `agents`."""

    command: tuple[str, ...] = Field(min_length=1)
    """The program and its arguments, started once per episode in the folder where mcprl was started."""


class EpisodesConfig(Section):
    """How episodes run."""

    group_size: int = Field(default=8, ge=2)
    """Number of episodes per task, whose rewards are compared."""
    max_concurrent: int = Field(default=64, ge=1)
    """Maximum number of concurrent episodes, and of sequences that vLLM decodes concurrently."""
    max_turns: Annotated[dict[Difficulty, _AtLeastOne], BeforeValidator(_with_default_turns)] = _MAX_TURNS
    """Maximum turns per episode, by difficulty of the task."""
    deadline_s: float = Field(default=600.0, gt=0)
    """Deadline of an episode, in seconds. It also limits each turn."""
    injected_errors: float = Field(default=0.0, ge=0, lt=1)
    """Share of tool calls that mcprl makes fail on purpose, to teach the policy to recover."""
    agent: AgentConfig | None = None
    """Program that plays the episodes; null: the loop of mcprl."""

    def turn_limit(self, task: Task) -> int:
        """Return how many turns an episode of a task may take after each user message."""
        return task.max_turns or self.max_turns[task.difficulty]


class JudgeConfig(Section):
    """A language model that grades answers, behind an OpenAI-compatible endpoint."""

    url: str
    """Base URL of the endpoint, such as http://127.0.0.1:8000/v1."""
    model: str
    """Name of the model at the endpoint."""
    key_env: str | None = None
    """Environment variable that holds the API key; null: no key."""


class RewardFunctionConfig(Section):
    """A reward function in Python. Its result becomes one more part of the reward of every episode."""

    function: OwnFunction
    """The function, such as rewards.py:name, relative to the recipe."""
    weight: float = Field(ge=0)
    """Weight of the function's value. The value is from -1 to 1."""
    deadline_s: float = Field(default=10.0, gt=0, le=3600)
    """Deadline of a call, in seconds."""
    probes: tuple[str, ...] = ()
    """Tools that the function may call on the episode's servers."""
    on_error: Literal["stop", "lose_episode"] = "stop"
    """What to do if the function raises, misses its deadline or does not return a number. stop: end the run;
    lose_episode: rerun the episode, as after an infrastructure fault."""


_GRADES = ("rubric", "check")  # parts of a reward with the weight of the answer
PENALTIES = ("invalid_call", "unanswered")
"""Parts of a reward that are counts. Each occurrence subtracts `rewards.penalty`."""


class RewardsConfig(Section):
    """Weights of the parts of a reward. The reward is the weighted mean of the parts that a task checks, minus
    penalties.

    A part with weight 0 is still measured and logged. Rewards are clipped to [−1, 1].
    """

    answer: float = Field(default=1.0, ge=0)
    """Weight of a correct final answer, of the judge's grade, and of what a task's own check returns."""
    state: float = Field(default=1.0, ge=0)
    """Weight of the share of expected facts that are true at the end."""
    calls: float = Field(default=0.5, ge=0)
    """Weight of the share of expected tools that were called."""
    arguments: float = Field(default=0.5, ge=0)
    """Weight of the share of expected arguments that are correct."""
    efficiency: float = Field(default=0.1, ge=0)
    """Weight of call efficiency: expected calls ÷ calls made."""
    penalty: float = Field(default=0.05, ge=0)
    """Penalty per invalid call, and if a turn or token limit ends the episode without an answer."""
    judge: JudgeConfig | None = None
    """Model that grades the answers to tasks with a rubric."""
    functions: dict[str, RewardFunctionConfig] = Field(default_factory=dict[str, RewardFunctionConfig])
    """Reward functions in Python. Each name becomes a part of the reward."""

    @model_validator(mode="after")
    def _functions_have_names_of_their_own(self) -> RewardsConfig:
        for name in self.functions:
            if name in (*RewardsConfig.model_fields, *_GRADES, *PENALTIES) or not name.isidentifier():
                raise ValueError(
                    f"a reward function cannot be named {name!r}: choose a Python identifier that is not the name of "
                    "a built-in part"
                )
        return self

    def weight_of(self, part: str) -> float:
        function = self.functions.get(part)
        return float(getattr(self, "answer" if part in _GRADES else part)) if function is None else function.weight


class LearnerConfig(Section):
    """The torch learner: transformers, PEFT and AdamW."""

    tuning: Literal["lora", "lora_4bit", "full"] = "lora"
    """lora: train an adapter; lora_4bit: train an adapter on a 4-bit base (CUDA only); full: train all weights."""
    learning_rate: float = Field(default=2e-5, gt=0)
    """Peak learning rate of AdamW."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning-rate schedule after warm-up: constant, or decay to 0 at the last step."""
    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps over which the learning rate warms up linearly."""
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    """Maximum gradient norm; null: no clipping. With engine skyrl it must be null: the server's own configuration
    applies."""
    lora_rank: int = Field(default=16, ge=1, le=8192)
    """Rank of the adapter."""
    lora_alpha: int = Field(default=32, ge=1)
    """Alpha of the adapter; its scale is alpha / rank."""
    tokens_per_pack: int = Field(default=8192, ge=1)
    """Maximum tokens per forward pass, with shared prefixes counted once. A longer episode gets a pass of its own. If
    memory runs out, the minibatch is repeated once with packs of half the size."""
    share_prefix: bool = True
    """Compute a prefix only once if several trajectories of a forward pass share it."""
    checkpointing: bool = True
    """Gradient checkpointing: about 20% slower, but uses a fraction of the memory."""
    processes: int = Field(default=1, ge=1)
    """Number of learner processes, one per GPU."""
    sharding: Literal["fsdp2", "zero3"] = "fsdp2"
    """How several processes shard the weights: torch's FSDP2 or DeepSpeed's ZeRO-3."""
    max_parity_error: float = Field(default=0.2, gt=0)
    """Stop the run if the mean |Δlogprob| per token between sampler and learner is above this before an update. Use
    1e-4 with float32."""

    @model_validator(mode="after")
    def _four_bits_are_not_sharded(self) -> LearnerConfig:
        if self.tuning == "lora_4bit" and self.processes > 1:
            raise ValueError(
                "learner.tuning=lora_4bit requires a single process, because 4-bit weights cannot be sharded"
            )
        return self


class KlConfig(Section):
    """KL divergence of the policy from a reference policy. Without a coefficient or a cap there is no reference."""

    coefficient: float = Field(default=0.0, ge=0)
    """Weight of the KL penalty."""
    estimator: Literal["k1", "k2", "k3"] = "k2"
    """KL estimator per token. k1: the log ratio, subtracted from the reward of each token; k2: half its square, added
    to the loss; k3: added to the loss; unbiased and nonnegative, but with a biased gradient."""
    target: float | None = Field(default=None, gt=0)
    """Target KL in nats per token; the coefficient is adapted to reach it; null: fixed coefficient."""
    cap: float | None = Field(default=None, gt=0)
    """Maximum KL in nats per token. Optimizer steps above the cap are skipped. An update that exceeds it is rolled
    back; if that update alone moved the policy by more than half of the cap, the learning rate is halved. If the KL
    from the reference is above the cap, a reference other than base is reset to the policy."""
    reference: Literal["base", "ema", "sync"] = "base"
    """base: the original model; ema: a moving average of the policy; sync: a periodic copy of it."""
    lag: int | None = Field(default=None, ge=1)
    """sync: updates between copies of the policy (null: 20). ema: updates to average over; the decay is 1 − 1 / lag
    (null: 100)."""

    @property
    def needs_reference(self) -> bool:
        return self.coefficient > 0 or self.cap is not None

    @property
    def in_reward(self) -> bool:
        """Return whether the penalty is subtracted from the reward. As a loss, k1 would have no gradient."""
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
            raise ValueError("kl.target adapts kl.coefficient, so the initial coefficient must be above 0")
        return self


class CriticConfig(Section):
    """The value head and generalized advantage estimation; used only with algorithm.advantages=gae."""

    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount per step. If each token is a step, 0.99 leaves 2% of the reward after 400 tokens."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """λ of GAE, from one-step errors (0) to full returns (1). It applies per step, like gamma."""
    step: Literal["token", "turn"] = "token"
    """What counts as a step: each sampled token, or each turn (its tokens share one advantage)."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Learning rate of the value head."""


class WarmStartConfig(Section):
    """Imitation learning from the solutions in the task file, in addition to RL. Its weight decreases to 0."""

    weight: float = Field(default=0.0, ge=0)
    """Weight of the imitation loss in the first step."""
    steps: int = Field(default=10, ge=1)
    """Steps over which the weight of the imitation loss falls linearly to 0."""

    def weight_at(self, step: int) -> float:
        return self.weight * max(0.0, 1.0 - step / self.steps)


_Gate = Annotated[tuple[float, float], Field(description="lowest and highest ratio")]

LOSSES = ("ppo", "gspo", "cispo")
ADVANTAGES = ("grpo", "dr_grpo", "rloo", "gae")


def _known_loss(value: str) -> str:
    if value not in LOSSES and not re.fullmatch(_REFERENCE, value):
        raise ValueError(f"a loss is {', '.join(LOSSES)}, or your own function, such as losses.py:name")
    return value


def _known_advantages(value: str) -> str:
    if value not in ADVANTAGES and not re.fullmatch(_REFERENCE, value):
        raise ValueError(f"advantages are {', '.join(ADVANTAGES)}, or your own function, such as advantages.py:name")
    return value


class AlgorithmConfig(Section):
    """The objective: how advantages and the loss are computed."""

    advantages: Annotated[str, BeforeValidator(_own_function), AfterValidator(_known_advantages)] = "grpo"
    """grpo: reward minus the group's mean, divided by its standard deviation; dr_grpo: the same without the division;
    rloo: reward minus the mean of the group's other episodes; gae: relative to a value head, normalized over the batch;
    or your own function, such as advantages.py:name."""
    loss: Annotated[str, BeforeValidator(_own_function), AfterValidator(_known_loss)] = "ppo"
    """ppo: clipped ratio per token; gspo: per sequence; cispo: clipped weight of the logprob; or your own function,
    such as losses.py:name."""
    aggregation: Literal["token_mean", "sequence_mean", "constant"] = "token_mean"
    """token_mean: mean over all tokens; sequence_mean: mean of the episodes' means; constant: each episode's sum
    divided by model.context_tokens, as in Dr. GRPO."""
    clip_low: float = Field(default=0.2, gt=0, le=1)
    """Ratios are clipped below 1 − clip_low."""
    clip_high: float = Field(default=0.2, gt=0)
    """Ratios are clipped above 1 + clip_high."""
    ratio_gate: _Gate | None = None
    """Tokens whose ratio is outside this range, such as [0.25, 4.0], carry no loss."""
    old_logprobs: Literal["sampled", "recomputed"] = "sampled"
    """Denominator of the ratio. sampled: the sampler's logprobs; recomputed: the learner's logprobs before the update,
    with an importance weight per token, of at most 2, that corrects for the difference (use it with bfloat16 or stale
    weights)."""
    entropy: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
    masks: Literal["exact", "text", "none"] = "exact"
    """Which sampled tokens carry no loss. exact: those for which the grammar allowed only one token; text: also those
    for which it allowed only one text, however tokenized; none: all tokens carry loss."""
    mask_overlong: bool = False
    """Mask the loss of episodes that ended at sampling.max_tokens or model.context_tokens. Their rewards still count
    in the baseline of their group."""
    refill_rounds: int = Field(default=0, ge=0)
    """How many times per step to replace groups whose rewards are all equal with groups of other tasks. 0: never; such
    groups stay in the batch but contribute no gradient."""
    min_learnable_tokens: int = Field(default=16, ge=1)
    """Minimum number of learnable tokens in a batch; if there are fewer, the update is skipped."""
    min_learnable_share: float = Field(default=0.0, ge=0, lt=1)
    """Minimum share of sampled tokens that are learnable; if it is lower, the update is skipped."""
    epochs: int = Field(default=1, ge=1)
    """Number of passes over each batch."""
    minibatches: int = Field(default=2, ge=1)
    """Number of optimizer steps per pass."""
    kl: KlConfig = KlConfig()
    critic: CriticConfig = CriticConfig()
    warm_start: WarmStartConfig = WarmStartConfig()

    @property
    def has_critic(self) -> bool:
        return self.advantages == "gae"

    @property
    def has_own_advantages(self) -> bool:
        return self.advantages not in ADVANTAGES

    @property
    def has_own_loss(self) -> bool:
        return self.loss not in LOSSES

    @model_validator(mode="after")
    def _settings_belong_together(self) -> AlgorithmConfig:
        if self.ratio_gate is not None and not 0 <= self.ratio_gate[0] < 1 < self.ratio_gate[1]:
            raise ValueError("ratio_gate needs a number below 1 and a number above 1, such as [0.25, 4.0]")
        if self.has_critic and self.refill_rounds:
            raise ValueError(
                "refill_rounds does not apply to gae, because a value head does not compare the episodes of a group"
            )
        return self


class ModelConfig(Section):
    """The model to train."""

    path: ModelLocation
    """Folder of the model (starts with . or /), or its Hugging Face name."""
    renderer: str = "auto"
    """Chat format. A model family such as qwen3, or chatml: that format; template: the model's own chat template; auto:
    chosen by the model's Hugging Face name."""
    thinking: bool | None = None
    """Whether the model thinks before it answers, for families that support both; null: the family's default."""
    dtype: Annotated[Literal["float32", "bfloat16"], BeforeValidator(_no_float16)] = "bfloat16"
    """Data type of sampler and learner. With float32 their logprobs agree."""
    context_tokens: int = Field(default=4096, ge=64)
    """Maximum length of a conversation, in tokens."""
    adapter: FilePath | None = None
    """Folder of a LoRA adapter to start from, such as outputs/hello-cpu-sft/adapter; null: none."""


class VllmConfig(Section):
    """The vLLM server that mcprl starts."""

    memory_fraction: float | None = Field(default=None, gt=0, lt=1)
    """Share of GPU memory for vLLM. null: 0.9 on GPUs without a learner, 0.85 if vLLM and the learner take turns, and
    0.5 if both use a GPU at once, as with training.max_staleness above 0."""
    merge_adapters: bool = False
    """Merge each adapter into vLLM's weights, which is much faster on a CPU. Requires model.dtype=float32, because
    bfloat16 would round away most of an adapter with small weights."""

    weight_transfer: Literal["files", "direct"] = "files"
    """How all weights (learner.tuning=full) reach vLLM. files: each version is a folder; direct: vLLM's weight-transfer
    API (NCCL, or CUDA IPC if both take turns on a GPU; shared memory on a CPU); only the last version is written."""

    @property
    def cpu_cache_gib(self) -> int:
        """Return the size in GiB of vLLM's KV cache on a CPU, from the environment variable that vLLM reads."""
        given = os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")
        if not given.isdecimal():
            raise BadValueError(f"VLLM_CPU_KVCACHE_SPACE is {given!r}", fix="set it to a whole number of GiB")
        return int(given)


# Other trainers allow these settings. They make ratios wrong, because tokens are sampled from another distribution.
NOT_REPRODUCIBLE = frozenset(
    ("top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "presence_penalty")
) | frozenset(("frequency_penalty", "min_tokens", "logit_bias", "bad_words"))


def _off_as_text(value: object) -> object:
    # YAML reads a bare `off` as false.
    return "off" if value is False else value


class SamplingConfig(Section):
    """How the policy samples its turns."""

    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature, also used by the learner."""
    max_tokens: int = Field(default=512, ge=1)
    """Maximum length of a turn, in tokens."""
    stop: tuple[str, ...] = ()
    """Strings that end a turn, such as </tool_call>."""
    constrain: Annotated[Literal["off", "calls", "act"], BeforeValidator(_off_as_text)] = "off"
    """Constrain tool calls with a grammar. off: no grammar; calls: once the model starts a call, the call must match
    the tool's schema; act: like calls, but with no text outside calls."""
    loose_tools: tuple[str, ...] = ()
    """Tools whose schemas a grammar cannot fully express; the grammar enforces the parts that it can express."""
    vllm: VllmConfig = VllmConfig()


class TrainingConfig(Section):
    """The training loop."""

    steps: int = Field(default=100, ge=1)
    """Number of steps; each step collects a batch and learns from it."""
    tasks_per_step: int = Field(default=8, ge=1)
    """Number of tasks per batch; each task gets a group of episodes."""
    max_staleness: int = Field(default=0, ge=0)
    """Maximum number of updates by which the sampler's weights may lag behind the learner's. 0: synchronous; above 0:
    later steps are collected during an update (requires algorithm.old_logprobs=recomputed)."""
    checkpoint_every: int = Field(default=1, ge=1)
    """Number of steps between checkpoints."""
    keep_checkpoints: int = Field(default=3, ge=1)
    """How many recent checkpoints to keep, in addition to the best one and the last healthy one."""
    outputs: Path = Path("outputs")
    """Folder for all runs, relative to the folder where mcprl is started."""


class SftConfig(Section):
    """Supervised fine-tuning with `mcprl sft`. `mcprl train` ignores this section."""

    data: tuple[Annotated[str, BeforeValidator(_sft_source)], ...] = Field(default=(SOLUTIONS,), min_length=1)
    """What to imitate. solutions: the solutions of the tasks; a JSONL file: demonstrations of tasks, or chats in
    OpenAI's format; the folder of a run: its episodes that passed their checks."""
    steps: int = Field(default=100, ge=1)
    """Maximum optimizer steps; training ends earlier if the validation loss stops improving."""
    batch_size: int = Field(default=16, ge=1)
    """Number of conversations per step."""
    learning_rate: float = Field(default=2e-4, gt=0)
    """Learning rate for fine-tuning, instead of learner.learning_rate."""

    @property
    def validate_every(self) -> int:
        """Return the steps between validations, which save checkpoints: 10, or fewer to get four validations."""
        return max(1, min(10, self.steps // 4))


class RateSettings(Section):
    """Rate limit of a server. Calls above the limit wait."""

    calls: int = Field(ge=1)
    """Maximum calls per period."""
    per_s: float = Field(default=1.0, gt=0)
    """Length of the period in seconds."""


class BudgetSettings(Section):
    """Maximum use of a server by a run. A call that would exceed the budget is not made, and the run stops."""

    calls: int | None = Field(default=None, ge=0)
    """Maximum calls per run; null: no limit."""
    usd: float | None = Field(default=None, ge=0)
    """Maximum cost per run in US dollars; null: no limit."""
    usd_per_call: float = Field(default=0.0, ge=0)
    """Price of a call in US dollars."""

    @model_validator(mode="after")
    def _money_has_a_price(self) -> BudgetSettings:
        if self.usd is not None and not self.usd_per_call:
            raise ValueError("budget.usd has no effect without budget.usd_per_call")
        return self


class ErrorRule(Section):
    """A pattern that marks the text of a result as an error, even if the server reports success."""

    match: str
    """Regular expression to search for in the first 2,048 characters of the result (Rust syntax: no look-around, no
    backreferences)."""
    fault: Literal["policy", "infrastructure"] = "policy"
    """Whose fault the error is. policy: show it to the model; infrastructure: the call failed and may be retried."""

    _compiles = field_validator("match")(usable_pattern)


class SandboxSettings(Section):
    """Runs a server's command in a bubblewrap sandbox. With `true`, the server sees its own program but none of your
    other files, no network, and no variables except its own `env`. With `null`, it runs like any other program of
    yours."""

    read: tuple[FilePath, ...] = ()
    """Files and folders that the server may read."""
    write: tuple[FilePath, ...] = ()
    """Folders that the server may read and write."""
    network: bool = False
    """Whether the server may use the network, including the ports of this machine."""

    @field_validator("read", "write")
    @classmethod
    def _not_everything(cls, value: tuple[Path, ...]) -> tuple[Path, ...]:
        if Path("/") in value:
            raise ValueError("it must not be /, which would allow every file on this machine")
        return value


class ServerSettings(Section):
    """Settings for one server of the mcpServers file."""

    start: tuple[str, ...] = ()
    """Command that starts a server reached by URL; `{port}` in the command and the URL is replaced by a free port."""
    call_deadline_s: float = Field(default=30.0, gt=0)
    """Deadline of a call, in seconds."""
    attempts: int = Field(default=3, ge=1)
    """Maximum attempts per call if it fails and the policy is not at fault; a call is retried only if that is safe."""
    replicas: int = Field(default=1, ge=1)
    """Number of processes of a shared server; calls go to the least busy process."""
    isolation: Literal["shared", "per_episode"] = "shared"
    """shared: all episodes use one server; per_episode: each episode gets a fresh server."""
    max_result_bytes: int = Field(default=65536, ge=256)
    """Maximum size of a result in bytes; longer results are truncated, with a note."""
    rate: RateSettings | None = None
    """Rate limit; null: none."""
    budget: BudgetSettings = BudgetSettings()
    cache_s: float = Field(default=0.0, ge=0)
    """How many seconds to cache the results of read-only tools."""
    read_only: tuple[str, ...] = ()
    """Tools to treat as read-only even if the server does not declare them read-only; * matches any text."""
    allow: tuple[str, ...] = ("*",)
    """Tools to offer; * matches any text."""
    deny: tuple[str, ...] = ()
    """Tools never to offer, even if `allow` matches them."""
    tool_aliases: dict[str, str] = Field(default_factory=dict[str, str])
    """Aliases of tools: a mapping from each alias to the name of the tool."""
    argument_aliases: dict[str, str] = Field(default_factory=dict[str, str])
    """Aliases of arguments: a mapping from each alias to the name of the argument. An alias is ignored if the tool has
    an argument of that name."""
    recorded: tuple[str, ...] = ("*",)
    """With cassette_mode=mixed, which tools to replay if they have recordings; other tools are called live. * matches
    any text."""
    errors: tuple[ErrorRule, ...] = ()
    """Rules that detect errors in results; the first match applies."""
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

    file: FilePath | None = None
    """mcpServers file, in the JSON format used by MCP clients; not needed for replay."""
    cassette: FilePath | None = None
    """SQLite file of recorded calls."""
    cassette_mode: CassetteMode = "live"
    """live: call the servers, without a cassette; record: call the servers and record; replay_else_live: replay
    recorded calls, make all others, and record those; replay: only replay, without servers; mixed: replay tools with
    recordings, and call the servers of the file for all other tools."""
    settings: dict[str, ServerSettings] = Field(default_factory=dict[str, ServerSettings])
    """Settings of individual servers, by name."""

    @model_validator(mode="after")
    def _a_mode_has_its_file(self) -> ServersConfig:
        if self.file is None and self.cassette_mode != "replay":
            raise ValueError("servers.file must be set unless cassette_mode=replay")
        if self.cassette is None and self.cassette_mode != "live":
            raise ValueError(f"servers.cassette_mode is {self.cassette_mode}, but servers.cassette is not set")
        return self


_PROJECT = r"^[^/\s]+(/[^/\s]+)?$"


class WandbConfig(Section):
    """Weights & Biases: metrics, verdicts, a few episodes per step, and the trained weights as an artifact."""

    project: str = Field(pattern=_PROJECT)
    """W&B project: entity/project, or project alone."""


class WeaveConfig(Section):
    """Weave: a trace per episode, with its turns and calls."""

    project: str = Field(pattern=_PROJECT)
    """Weave project: entity/project, or project alone."""


class TrackingConfig(Section):
    """Trackers of a run, in addition to its folder. A tracker that is down neither slows nor stops the run."""

    tensorboard: bool = False
    """Write TensorBoard files to the run's folder."""
    tracker: OwnFunction | None = None
    """Your own tracker, such as tracker.py:Class; null: none."""
    wandb: WandbConfig | None = None
    """Weights & Biases; null: off."""
    weave: WeaveConfig | None = None
    """Weave; null: off."""

    @property
    def named(self) -> list[str]:
        """Return the names of the enabled trackers. Their settings, extras and processes have the same names."""
        return [name for name in ("wandb", "weave", "tensorboard", "tracker") if getattr(self, name)]


class RunConfig(Section):
    """All settings of a run."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the run and of its folder."""
    seed: int = Field(default=0, ge=0)
    """Seed of all random numbers."""
    engine: Literal["vllm", "transformers", "skyrl"] = "vllm"
    """Backend for sampling and training. vllm, transformers: sample with that library, and train with torch on this
    machine; skyrl: sample and train through the Tinker API (section skyrl)."""
    model: ModelConfig
    tasks: TasksConfig
    servers: ServersConfig
    sampling: SamplingConfig = SamplingConfig()
    episodes: EpisodesConfig = EpisodesConfig()
    rewards: RewardsConfig = RewardsConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    learner: LearnerConfig = LearnerConfig()
    training: TrainingConfig = TrainingConfig()
    sft: SftConfig | None = None
    """Supervised fine-tuning with `mcprl sft`; null: the defaults."""
    skyrl: SkyrlConfig = SkyrlConfig()
    workers: WorkersConfig = WorkersConfig()
    placement: PlacementConfig = PlacementConfig()
    tracking: TrackingConfig = TrackingConfig()

    @property
    def own_functions(self) -> list[str]:
        """Return the user's own functions and classes, as file.py:name."""
        rewards = (function.function for function in self.rewards.functions.values())
        others = (self.algorithm.loss, self.algorithm.advantages, self.tracking.tracker)
        return [name for name in (*others, *rewards) if name and ".py:" in name]

    @model_validator(mode="before")
    @classmethod
    def _skyrl_clips_gradients_itself(cls, given: Any) -> Any:
        """With engine skyrl, the default of learner.max_grad_norm is null: the value of the server's configuration."""
        if not isinstance(given, Mapping) or cast("Mapping[str, Any]", given).get("engine") != "skyrl":
            return cast("Any", given)
        settings = dict(cast("Mapping[str, Any]", given))
        learner: Any = settings.get("learner", {})
        if isinstance(learner, LearnerConfig) and "max_grad_norm" not in learner.model_fields_set:
            settings["learner"] = learner.model_copy(update={"max_grad_norm": None})
        elif isinstance(learner, Mapping) and "max_grad_norm" not in learner:
            settings["learner"] = {**learner, "max_grad_norm": None}
        return settings

    @model_validator(mode="after")
    def _minibatches_are_not_empty(self) -> RunConfig:
        trajectories = self.episodes.group_size * self.training.tasks_per_step
        if self.algorithm.minibatches > trajectories:
            raise ValueError(
                f"algorithm.minibatches is {self.algorithm.minibatches}, but a batch has only {trajectories} episodes"
            )
        return self

    @model_validator(mode="after")
    def _placement_can_be_had(self) -> RunConfig:
        placed, chosen = self.placement.learner, PlacementConfig()
        if self.placement.sampler != chosen.sampler and self.engine != "vllm":
            raise ValueError(f"placement.sampler places vLLM servers, but engine is {self.engine}: set engine to vllm")
        if placed.devices and (len(set(placed.devices)) != self.learner.processes or self.engine == "skyrl"):
            raise ValueError(
                f"placement.learner.devices names {len(set(placed.devices))} GPUs, but learner.processes is "
                f"{self.learner.processes} and engine is {self.engine}: name one GPU per process of the torch learner"
            )
        if placed.colocated and (self.engine != "vllm" or self.training.max_staleness):
            raise ValueError(
                "with placement.learner.colocated, vLLM and the learner take turns on the GPUs, which requires "
                "engine=vllm and training.max_staleness=0"
            )
        return self

    @model_validator(mode="after")
    def _stale_tokens_are_corrected(self) -> RunConfig:
        if self.training.max_staleness and self.algorithm.old_logprobs != "recomputed":
            raise ValueError(
                "training.max_staleness above 0 trains on tokens sampled from older weights: set "
                "algorithm.old_logprobs to recomputed to correct for this"
            )
        return self

    @model_validator(mode="after")
    def _merged_adapters_are_not_rounded_away(self) -> RunConfig:
        merged = self.sampling.vllm.merge_adapters and self.learner.tuning != "full"
        if merged and self.model.dtype != "float32":
            raise ValueError(
                f"sampling.vllm.merge_adapters with model.dtype={self.model.dtype} would round off most of a small "
                "adapter: set merge_adapters to false, or model.dtype to float32"
            )
        return self

    @property
    def sends_weights(self) -> bool:
        """Return whether the learner sends all weights to vLLM instead of writing each version to files."""
        return self.sampling.vllm.weight_transfer == "direct" and self.learner.tuning == "full"

    @model_validator(mode="after")
    def _weights_can_be_sent(self) -> RunConfig:
        is_zero3 = self.learner.processes > 1 and self.learner.sharding == "zero3"
        if self.sends_weights and (self.engine != "vllm" or self.placement.sampler.urls or is_zero3):
            raise ValueError(
                "sampling.vllm.weight_transfer=direct sends all weights to vLLM servers that the run starts: it needs "
                "engine=vllm, learner.sharding=fsdp2 and no placement.sampler.urls; otherwise, set it to files"
            )
        return self

    @model_validator(mode="after")
    def _an_adapter_is_trained_further(self) -> RunConfig:
        if self.model.adapter is not None and self.learner.tuning == "full":
            raise ValueError(
                "model.adapter is set, but learner.tuning=full does not train adapters: use learner.tuning=lora"
            )
        return self

    @model_validator(mode="after")
    def _zero3_can_do_it(self) -> RunConfig:
        learner, kl = self.learner, self.algorithm.kl
        if learner.processes == 1 or learner.sharding != "zero3":
            return self
        if kl.needs_reference and (learner.tuning == "full" or kl.reference != "base"):
            raise ValueError(
                "learner.sharding=zero3 supports only one set of weights, but the reference policy of algorithm.kl "
                "needs a second: use learner.sharding=fsdp2, or learner.tuning=lora with algorithm.kl.reference=base"
            )
        if learner.tuning != "full" and self.model.dtype != "float32":
            raise ValueError(
                f"learner.tuning={learner.tuning} keeps the base model in {self.model.dtype} and the adapter in "
                "float32, but learner.sharding=zero3 needs a single dtype: use learner.sharding=fsdp2, or "
                "model.dtype=float32"
            )
        return self

    @model_validator(mode="after")
    def _engine_can_do_it(self) -> RunConfig:
        lacking = lacking_in_skyrl(self) if self.engine == "skyrl" else None
        if lacking is not None:
            raise ValueError(lacking)
        return self

    def for_rl(self) -> RunConfig:
        """Return the settings of an RL run: all except the section `sft`."""
        return self.model_copy(update={"sft": None})

    def for_sft(self) -> RunConfig:
        """Return the settings of a run of supervised fine-tuning. Applying it again changes nothing.

        Settings in `sft` replace the corresponding settings of other sections. Features that only RL has (a critic, a
        reference, a curriculum, injected errors) are turned off. A validation runs each of its tasks twice.
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
    """Dumps YAML such that each string is read back unchanged."""


def _represent_text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    # YAML treats these characters as line breaks. Only double quotes preserve them.
    style = '"' if any(character in value for character in "\x85\u2028\u2029") else None
    return cast("Any", dumper).represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _represent_text)

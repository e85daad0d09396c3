"""Forecasts a run: time, tokens, calls, money, disk, memory, and its bottleneck. It loads and starts nothing.

docs/scaling.md explains the formulas; `bench/scaling.py --write` measures the constants in measured.json.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from mcprl.config import RunConfig, ServersConfig, ServerSettings
from mcprl.errors import BadValueError, ServerFileError
from mcprl.placement import place
from mcprl.records import Message, Task

MEASURED_FILE = Path(__file__).parent / "measured.json"
_FULL_BATCH = 64  # sequences; more of them do not raise the tokens per second
FORWARD_SHARE = 1 / 3  # of the cost of a pass with gradients, whose backward pass costs two forward passes

FIGURES: Mapping[str, float] = {
    "turns": 1.0,
    "prompt_tokens": 0.0,
    "turn_tokens": 1.0,
    "observation_tokens": 0.0,
    "length_tokens": 1.0,
    "calls": 0.0,
    "tool_s": 0.0,
    "sampler_tokens_per_s": 0.001,
    "learner_tokens_per_s": 0.001,
    "parameters": 1.0,
}
"""The figures of a run that the user may set, each with its minimum."""

_CHARACTERS_PER_TOKEN = 4
_TOOL_S = 1.0
_GIB = 1024**3
_NAMED_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)([bm])(?![A-Za-z0-9])", re.IGNORECASE)
_MODEL_KEYS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
# AdamW: the weight, its gradient and two moments, all in 32 bits. A checkpoint has no gradients.
_TRAINED_BYTES, _CHECKPOINT_BYTES = 16, 12
_FOUR_BIT_BYTES = 0.6  # including the scales of quantization
_SKYRL_GPUS = "GPUs of the server at skyrl.url"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number that is not in the recipe, and its source: Figure(value=3.2, source="given")"""

    value: float
    source: str
    assumed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Measured costs, in seconds of one core of `machine`.

    The driver is the process that trains; a worker is a Ray worker with its tool servers. Each takes `…_base_bytes`,
    plus `…_episode_bytes` per running episode. The two rates are those of a CPU with a model of `cpu_parameters`.
    """

    machine: str
    driver_turn_s: float
    worker_turn_s: float
    driver_base_bytes: float
    driver_episode_bytes: float
    worker_base_bytes: float
    worker_episode_bytes: float
    trajectory_token_bytes: float
    cpu_parameters: float
    cpu_sampler_tokens_per_s: float
    cpu_learner_tokens_per_s: float


def read_constants() -> Constants:
    """Load the measured constants, which bench/scaling.py wrote to a file."""
    written: Mapping[str, Any] = json.loads(MEASURED_FILE.read_text(encoding="utf-8"))
    names = [field.name for field in fields(Constants) if field.name != "machine"]
    values = {name: float(written["constants"][name]["value"]) for name in names}
    return Constants(machine=str(written["machine"]), **values)


# --- the model


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """The parameters of a model, and of a rank-1 adapter on all its linear layers; None if unknown.

    ModelSize(parameters=134_515_008, rank_parameters=305_280, source="config.json")
    """

    parameters: float | None
    rank_parameters: float | None
    source: str

    def trained_parameters(self, config: RunConfig) -> float | None:
        """Return the number of all parameters, or of the adapter's."""
        if config.learner.tuning == "full":
            return self.parameters
        return None if self.rank_parameters is None else self.rank_parameters * config.learner.lora_rank

    def checkpoint_bytes(self, config: RunConfig) -> float | None:
        """Return the approximate size of a checkpoint: the trained weights and their moments."""
        trained = self.trained_parameters(config)
        return None if trained is None else trained * _CHECKPOINT_BYTES

    def memory_bytes(self, config: RunConfig, *, on_gpu: bool) -> dict[str, float] | None:
        """Return the bytes of "sampler" and "learner": weights, gradients, moments and the sampler's cache, not
        activations.

        On a GPU, vLLM takes a fixed fraction of the memory, so the sampler's part is 0. None if the model's size is
        unknown.
        """
        if self.parameters is None:
            return None
        width = 4 if config.model.dtype == "float32" else 2
        if config.learner.tuning == "full":
            reference = 4 if config.algorithm.kl.needs_reference else 0
            learner = self.parameters * (_TRAINED_BYTES + reference)
        else:
            base = _FOUR_BIT_BYTES if config.learner.tuning == "lora_4bit" else width
            learner = self.parameters * base + (self.trained_parameters(config) or 0) * _TRAINED_BYTES
        if config.engine == "skyrl" or on_gpu:
            return {"sampler": 0.0, "learner": learner}
        cache = config.sampling.vllm.cpu_cache_gib * _GIB if config.engine == "vllm" else 0
        return {"sampler": self.parameters * width + cache, "learner": learner}


def model_size(path: str, given: float | None = None) -> ModelSize:
    """Return the size of a model: as given, or else computed from its config.json, or else read from its name
    (Qwen3-0.6B)."""
    counted, rank_parameters = _count_parameters(Path(path) / "config.json")
    if given is not None:
        return ModelSize(parameters=given, rank_parameters=rank_parameters, source="given")
    if counted is not None:
        return ModelSize(parameters=counted, rank_parameters=rank_parameters, source="config.json")
    named = _NAMED_SIZE.search(Path(path).name)
    if named is None:
        return ModelSize(parameters=None, rank_parameters=None, source="unknown")
    scale = 1e9 if named[2].lower() == "b" else 1e6
    return ModelSize(parameters=float(named[1]) * scale, rank_parameters=None, source="from its name")


def _count_parameters(path: Path) -> tuple[float | None, float | None]:
    """Count the parameters of a gated decoder (Llama, Qwen) without norms and biases, and of a rank-1 adapter."""
    try:
        read: object = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None, None
    except (OSError, ValueError) as error:
        raise BadValueError(f"cannot read {path}: {error}", fix="download the model again") from error
    shape = cast("dict[str, Any]", read) if isinstance(read, dict) else {}
    if not all(isinstance(shape.get(name), int) for name in _MODEL_KEYS):
        return None, None
    hidden, inner, layers, heads, vocabulary = (int(shape[name]) for name in _MODEL_KEYS)
    head = int(shape.get("head_dim") or hidden // heads)
    queries, keys = heads * head, int(shape.get("num_key_value_heads") or heads) * head
    # (inputs, outputs) of q, k, v, o, gate, up, down
    linear = [(hidden, queries), (hidden, keys), (hidden, keys), (queries, hidden)]
    linear += [(hidden, inner), (hidden, inner), (inner, hidden)]
    embeddings = vocabulary * hidden * (1 if shape.get("tie_word_embeddings") else 2)
    return embeddings + layers * sum(a * b for a, b in linear), layers * sum(a + b for a, b in linear)


# --- an episode


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeShape:
    """A typical episode, as means. `tool_s` is the duration of one call in seconds.

    EpisodeShape(turns=3, prompt_tokens=400, turn_tokens=40, observation_tokens=60, calls=2, tool_s=0.5)
    """

    turns: float
    prompt_tokens: float
    turn_tokens: float
    observation_tokens: float
    calls: float
    tool_s: float

    @property
    def sampled_tokens(self) -> float:
        return self.turns * self.turn_tokens

    @property
    def length_tokens(self) -> float:
        """The length of the finished conversation: the prompt, the turns, and the observations between turns."""
        return self.prompt_tokens + self.sampled_tokens + (self.turns - 1) * self.observation_tokens


def _episode_figures(
    config: RunConfig, tasks: Sequence[Task], preamble: Sequence[Message], known: Mapping[str, Figure]
) -> dict[str, Figure]:
    """Return the figures of an episode. Unknown ones are set to the recipe's limits, so they are upper bounds."""

    def value(name: str, otherwise: float) -> float:
        return known[name].value if name in known else otherwise

    turns = value("turns", fmean(config.episodes.turn_limit(task) * task.max_messages for task in tasks))
    written = _characters(preamble) + fmean(_characters(task.prompt) for task in tasks)
    length = value("length_tokens", config.model.context_tokens)
    prompt = value("prompt_tokens", min(length / 2, written / _CHARACTERS_PER_TOKEN))
    turn = value("turn_tokens", min(config.sampling.max_tokens, max(1.0, (length - prompt) / turns)))
    rest = max(0.0, length - prompt - turns * turn)
    filled = "length_tokens" if "length_tokens" in known else "model.context_tokens, which the conversation fills"
    of_prompt = f"preamble and task at {_CHARACTERS_PER_TOKEN} characters per token, without the tools' schemas"
    assumed = {
        "turns": (turns, "every episode takes all turns that episodes.max_turns or its task allows"),
        "prompt_tokens": (prompt, of_prompt),
        "turn_tokens": (turn, "every turn is as long as sampling.max_tokens or model.context_tokens allows"),
        "observation_tokens": (rest / (turns - 1) if turns > 1 else 0.0, f"the remainder of {filled}"),
        "calls": (max(0.0, turns - 1), "one call in every turn except the last"),
        "tool_s": (_TOOL_S, "the speed of the tools is unknown"),
    }
    return {
        name: known[name] if name in known else Figure(value=number, source=why, assumed=True)
        for name, (number, why) in assumed.items()
    }


def _characters(messages: Sequence[Message]) -> int:
    return sum(len(message.get("content", "")) for message in messages)


def _cpu_rate(tokens_per_s: float, constants: Constants, size: ModelSize, gpus: int) -> Figure:
    """Scale the rate of the measured CPU to a model of this size."""
    source = f"measured on a CPU with a model of {constants.cpu_parameters / 1e6:.0f}M parameters"
    if size.parameters is None:
        source += ", the size assumed for this model"
    if gpus:
        source += "; no GPU was measured"
    scale = 1.0 if size.parameters is None else constants.cpu_parameters / size.parameters
    return Figure(value=tokens_per_s * scale, source=source, assumed=True)


# --- a step


def learned_tokens(config: RunConfig, shape: EpisodeShape) -> float:
    """Return the tokens that an update computes. A token in a pass without gradients counts as a third.

    tasks · (⌈G / min(G, m)⌉ · P + G · (L − P)) · (1 + f / 3), with groups of G, of which m fit into a pack, a prompt of
    P tokens, conversations of L tokens, and f passes without gradients. Without a shared prefix, P is computed G times.
    """
    group = config.episodes.group_size
    own_tokens = shape.length_tokens - shape.prompt_tokens
    fitting = max(1, int((config.learner.tokens_per_pack - shape.prompt_tokens) // max(1, own_tokens)))
    prompts = math.ceil(group / min(group, fitting)) if config.learner.share_prefix else group
    forward = int(config.algorithm.old_logprobs == "recomputed") + int(config.algorithm.kl.needs_reference)
    tokens = prompts * shape.prompt_tokens + group * own_tokens
    return config.training.tasks_per_step * tokens * (1 + forward * FORWARD_SHARE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """The totals of a step or a run. `prompt_tokens` counts the prompt tokens that are new in each turn.

    Amounts(seconds=121.2, episodes=32, turns=96, calls=64, prompt_tokens=16640, sampled_tokens=3840,
            learned_tokens=8480, trajectory_bytes=1.2e6, usd=0.5)
    """

    seconds: float
    episodes: float
    turns: float
    calls: float
    prompt_tokens: float
    sampled_tokens: float
    learned_tokens: float
    trajectory_bytes: float
    usd: float

    def times(self, steps: int) -> Amounts:
        return Amounts(**{name: value * steps for name, value in asdict(self).items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A resource that a step uses: its units, how long they are busy per step, and the setting for their number.

    Part(name="workers", units=4, busy_s=0.64, setting="workers.count")
    """

    name: str
    units: int
    busy_s: float
    setting: str


def _counts(config: RunConfig) -> tuple[int, int, int]:
    """Return three counts: episodes per step, steps that are collected ahead, and concurrent episodes."""
    episodes = config.training.tasks_per_step * config.episodes.group_size
    ahead = config.training.max_staleness
    return episodes, ahead, min(config.episodes.max_concurrent, episodes * (1 + ahead))


def _units(config: RunConfig, gpus: int) -> tuple[int, int]:
    """Return the number of GPUs that sample and of GPUs that learn; a CPU counts as one.

    The torch engines are placed as in a run. Behind the Tinker API, sampler and learner take turns on all GPUs; with
    max_staleness above 0, each has half of them.
    """
    if config.engine != "skyrl":
        placed = place(config, gpus)
        elsewhere = len(placed.urls) * config.placement.sampler.tensor_parallel
        return elsewhere or min(len(placed.sampling), gpus) or len(placed.replicas) or 1, len(
            placed.learner[:gpus]
        ) or 1
    sampling = gpus // 2 if config.training.max_staleness else 0
    return max(1, sampling or gpus), max(1, gpus - sampling)


def _parts(
    config: RunConfig,
    shape: EpisodeShape,
    tokens_per_s: tuple[float, float],
    *,
    gpus: int,
    servers: Mapping[str, ServerSettings],
    constants: Constants,
) -> tuple[list[Part], float]:
    """Return the parts of a step, the learner last, and the seconds of an episode that never waits in a queue."""
    (episodes, ahead, alive), torch = _counts(config), config.engine != "skyrl"
    (sampler_rate, learner_rate), (sampler_units, learner_units) = tokens_per_s, _units(config, gpus)
    parts: list[Part] = []

    def add(name: str, units: int, demand_s: float, setting: str) -> None:
        """Add a part. An episode needs `demand_s` seconds of one of its units."""
        parts.append(Part(name=name, units=units, busy_s=episodes * demand_s / units, setting=setting))

    driver_s, worker_s = shape.turns * constants.driver_turn_s, shape.turns * constants.worker_turn_s
    # A sequence gets an equal share of a full batch.
    stream_s = shape.sampled_tokens * min(alive, _FULL_BATCH) / sampler_rate
    path_s = shape.calls * shape.tool_s + stream_s + driver_s + worker_s
    limited = alive < episodes * (1 + ahead)
    setting = "episodes.max_concurrent" if limited else "training.max_staleness=1, faster tools, fewer turns"
    add("concurrent episodes", alive, path_s, setting)
    if config.workers.count:
        add("driver", 1, driver_s, "fewer turns per episode, or several runs")
        add("workers", config.workers.count, worker_s, "workers.count")
    else:
        add("driver", 1, driver_s + worker_s, "workers.count")
    setting = "more GPUs for placement.sampler, or lower sampling.max_tokens" if torch else _SKYRL_GPUS
    add("sampler", sampler_units, shape.sampled_tokens / sampler_rate, setting)
    for name, settings in servers.items():
        if settings.rate is not None:
            demand_s = shape.calls / len(servers) * settings.rate.per_s / settings.rate.calls
            add(f"rate of {name}", 1, demand_s, f"servers.settings.{name}: rate, cache_s")
    setting = "learner.processes, learner.share_prefix" if torch else _SKYRL_GPUS
    add("learner", learner_units, learned_tokens(config, shape) / learner_rate / episodes, setting)
    return parts, path_s


# --- the plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The forecast of a run. `parts` is sorted by load; the first is the bottleneck.

    `memory_bytes` is the memory of "driver", "workers" (all of them), "sampler" and each process of the "learner",
    without activations. The last two are present only if the model's size is known. `warnings` names budgets that stop
    the run early. The constants were measured on `machine`.
    """

    model: ModelSize
    figures: dict[str, Figure]
    step: Amounts
    run: Amounts
    collect_s: float
    update_s: float
    parts: tuple[Part, ...]
    memory_bytes: dict[str, float]
    checkpoint_bytes: float | None
    warnings: tuple[str, ...]
    machine: str


def make_plan(
    config: RunConfig,
    tasks: Sequence[Task],
    preamble: Sequence[Message],
    *,
    gpus: int,
    known: Mapping[str, Figure],
    constants: Constants | None = None,
) -> Plan:
    """Make the plan of a recipe. With 0 GPUs, a CPU samples and learns. Figures not in `known` are assumed.

    collect   max(⌈episodes / concurrent⌉ · seconds per episode, the busiest part): the lower bound of a closed queue
    sync      collect + update
    async     max(the busiest part, (collect + update) / (max_staleness + 1))
    """
    constants = constants or read_constants()
    size = model_size(config.model.path, known["parameters"].value if "parameters" in known else None)
    figures = {**known, **_episode_figures(config, tasks, preamble, known)}
    shape = EpisodeShape(**{field.name: figures[field.name].value for field in fields(EpisodeShape)})
    for name in ("sampler_tokens_per_s", "learner_tokens_per_s"):
        figures[name] = known.get(name) or _cpu_rate(getattr(constants, f"cpu_{name}"), constants, size, gpus)
    servers = {name: config.servers.settings.get(name, ServerSettings()) for name in server_names(config.servers)}
    if len(servers) > 1 and any(each.rate or each.budget.usd_per_call for each in servers.values()):
        even = "calls are spread evenly over the servers"
        figures["server_share"] = Figure(value=1 / len(servers), source=even, assumed=True)
    rates = figures["sampler_tokens_per_s"].value, figures["learner_tokens_per_s"].value
    parts, path_s = _parts(config, shape, rates, gpus=gpus, servers=servers, constants=constants)
    (episodes, ahead, alive), update_s = _counts(config), parts[-1].busy_s
    waves = math.ceil(episodes / min(alive, episodes))
    collect_s = max(waves * path_s, *(part.busy_s for part in parts[1:-1]))
    step_s = collect_s + update_s
    if ahead:
        step_s = max(step_s / (1 + ahead), *(part.busy_s for part in parts))
    step = _amounts(config, shape, servers, constants, step_s)
    return Plan(
        model=size,
        figures=figures,
        step=step,
        run=step.times(config.training.steps),
        collect_s=collect_s,
        update_s=update_s,
        parts=tuple(sorted(parts, key=lambda part: -part.busy_s)),
        memory_bytes=_memory_bytes(config, size, constants, gpus),
        checkpoint_bytes=size.checkpoint_bytes(config),
        warnings=_budget_warnings(servers, step.calls, config.training.steps),
        machine=constants.machine,
    )


def _amounts(
    config: RunConfig, shape: EpisodeShape, servers: Mapping[str, ServerSettings], constants: Constants, step_s: float
) -> Amounts:
    episodes, _, _ = _counts(config)
    prices = [settings.budget.usd_per_call for settings in servers.values()]
    return Amounts(
        seconds=step_s,
        episodes=episodes,
        turns=episodes * shape.turns,
        calls=episodes * shape.calls,
        prompt_tokens=episodes * (shape.length_tokens - shape.sampled_tokens),
        sampled_tokens=episodes * shape.sampled_tokens,
        learned_tokens=learned_tokens(config, shape),
        trajectory_bytes=episodes * shape.length_tokens * constants.trajectory_token_bytes,
        usd=episodes * shape.calls * sum(prices) / max(1, len(prices)),
    )


def _memory_bytes(config: RunConfig, size: ModelSize, constants: Constants, gpus: int) -> dict[str, float]:
    _, _, alive = _counts(config)
    held = size.memory_bytes(config, on_gpu=gpus > 0) or {}
    if "learner" in held:
        held["learner"] /= config.learner.processes
    held["driver"] = constants.driver_base_bytes + alive * constants.driver_episode_bytes
    if config.workers.count:
        held["workers"] = config.workers.count * constants.worker_base_bytes + alive * constants.worker_episode_bytes
    return held


def _budget_warnings(servers: Mapping[str, ServerSettings], calls: float, steps: int) -> tuple[str, ...]:
    """Return a warning for each budget that ends the run before its last step."""
    found: list[str] = []
    for name, settings in servers.items():
        budget, needed = settings.budget, calls * steps / len(servers)
        for what, need, allowed in (("calls", needed, budget.calls), ("usd", needed * budget.usd_per_call, budget.usd)):
            if allowed is not None and need > allowed:
                found.append(
                    f"servers.settings.{name}.budget.{what} is {allowed:g}, but the run needs about {need:,.6g} and "
                    f"would stop after step {int(steps * allowed / need)}"
                )
    return tuple(found)


def server_names(config: ServersConfig) -> tuple[str, ...]:
    """Return the servers of the mcpServers file that are not disabled; without a file, those that have settings.

    Unlike mcprl.tools, this needs neither the servers' keys nor the MCP SDK.
    """
    path = config.file
    if path is None:
        return tuple(sorted(config.settings))
    fix = 'correct servers.file; its format is {"mcpServers": {"NAME": {…}}}'
    try:
        entries: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["mcpServers"]
        named = tuple(name for name, entry in entries.items() if not entry.get("disabled"))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ServerFileError(f"cannot read the servers of {path}: {error}", fix=fix) from error
    if not entries:
        raise ServerFileError(f"{path} lists no servers", fix=fix)
    return named

"""What a run will take of the machine, and who is told of it: time and money, memory, disk, trackers."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import psutil

from mcprl.checks.doctor.examination import (
    Examination,
    Finding,
    fine,
    gpu_memories,
    in_words,
    needed_gpus,
    warning,
    wrong,
)
from mcprl.checks.health import Health
from mcprl.checks.plan import Figure, make_plan, model_size
from mcprl.config import RunConfig
from mcprl.errors import StorageError
from mcprl.runs.checkpoints import forecast
from mcprl.tools.keys import load_keys

__all__ = ["check_disk", "check_forecast", "check_memory", "check_trackers"]


_REACH_S = 2.0
_WANDB_CLOUD: Final = "https://api.wandb.ai"


async def check_forecast(examination: Examination) -> AsyncIterator[Finding]:
    """Time, tokens, calls and money of the whole run: from the sample if one was played, else from the limits."""
    config = examination.config.value
    known = _known(examination)
    plan = make_plan(
        config,
        examination.tasks.value.tasks,
        examination.preamble.value,
        gpus=len(gpu_memories()),
        known=known,
    )
    run = plan.run
    lacking = needed_gpus(config) > len(gpu_memories())
    time = "not known without the GPUs it counts on" if lacking else f"about {_duration(run.seconds)}"
    basis = "as in the episodes played" if known else "at most, by the recipe's limits; `mcprl plan` has the details"
    yield fine(
        "forecast",
        f"time {time}; {run.episodes:,.0f} episodes, {_count(run.sampled_tokens)} sampled tokens, "
        f"{_count(run.calls)} calls, ${run.usd:,.2f} for tools; {basis}",
    )
    for sentence in plan.warnings:
        yield warning("forecast", sentence, fix="raise that budget, or lower training.steps")


def _known(examination: Examination) -> dict[str, Figure]:
    if not examination.sample.there:
        return {}
    sample, source = examination.sample.value, "the examination's own episodes"
    trajectories = sample.trajectories
    turns = sum(len(t.turns) for t in trajectories)
    sampled = sum(sum(t.sampled) for t in trajectories)
    seen = [observation for t in trajectories for turn in t.turns for observation in turn.observations]
    figures = {
        "turns": turns / len(trajectories),
        "turn_tokens": sampled / turns,
        "calls": len(seen) / len(trajectories),
        "tool_s": sum(observation.latency_s for observation in seen) / max(1, len(seen)),
        "length_tokens": sum(len(t.token_ids) for t in trajectories) / len(trajectories),
        "sampler_tokens_per_s": sampled / sample.seconds,
    }
    if examination.learner_tokens_per_s is not None:
        figures["learner_tokens_per_s"] = examination.learner_tokens_per_s
    return {name: Figure(value=value, source=source) for name, value in figures.items()}


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def _count(number: float) -> str:
    return f"{number / 1e6:.1f} M" if number >= 1e6 else f"{number:,.0f}"


async def check_memory(examination: Examination) -> AsyncIterator[Finding]:
    """What the run will hold against what the machine has: by the model's size, and as seen where it was loaded."""
    config = examination.config.value
    if config.engine == "skyrl" and config.skyrl.url is not None:
        yield fine("memory", f"not this machine's: the model is held by the server at {config.skyrl.url}")
        return
    gpus = gpu_memories()
    size = model_size(_model_folder(examination))
    needs = size.memory_bytes(config, on_gpu=bool(gpus))
    if needs is None:
        yield fine("memory", f"not known: the size of {config.model.path} is not")
    elif gpus:
        yield _gpu_memory(config, needs, gpus)
    elif config.learner.processes > 1:
        share = needs["learner"] / config.learner.processes
        yield warning(
            "memory",
            f"this machine has no GPU; on one that has, the learner holds about {in_words(share)} of each of "
            f"{config.learner.processes}, and vLLM {config.sampling.vllm.memory_fraction:.0%} of the first",
            fix=f"run it on a machine with {config.learner.processes} GPUs",
        )
    else:
        yield _main_memory(needs, examination.memory_bytes)


def _main_memory(needs: Mapping[str, float], seen: Mapping[str, int]) -> Finding:
    machine = psutil.virtual_memory()
    measured = sum(seen.values())
    needed = max(sum(needs.values()), measured)
    basis = (
        f"{in_words(seen['sampler'])} with the sampler and {in_words(seen['learner'])} with the learner were seen"
        if "sampler" in seen and "learner" in seen
        else "weights, moments and cache; activations come on top"
    )
    figures = f"about {in_words(needed)} needed ({basis}), {in_words(machine.total)} here"
    ways = "take a smaller model, lower sampling.vllm.cpu_cache_gib, or set learner.tuning to lora"
    if needed > machine.total:
        return wrong("memory", figures, fix=ways)
    if needed > machine.available:
        return warning("memory", f"{figures}, but only {in_words(machine.available)} are free now", fix="end others")
    return fine("memory", f"{figures}, {in_words(machine.available)} free")


def _gpu_memory(config: RunConfig, needs: Mapping[str, float], gpus: tuple[int, ...]) -> Finding:
    fraction = config.sampling.vllm.memory_fraction if config.engine == "vllm" else 0.0
    share, room = needs["learner"] / config.learner.processes, gpus[0] * (1 - fraction)
    figures = f"the learner holds about {in_words(share)} of a GPU, {in_words(room)} of the first are left beside vLLM"
    if share > room:
        return wrong(
            "memory",
            figures,
            fix="lower sampling.vllm.memory_fraction, raise learner.processes, or set learner.tuning to lora",
        )
    return fine("memory", figures)


async def check_disk(examination: Examination) -> AsyncIterator[Finding]:
    """Whether runs can be written where the recipe wants them, and their checkpoints fit."""
    config = examination.config.value
    outputs = config.training.outputs.absolute()
    place = next(folder for folder in (outputs, *outputs.parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise StorageError(
            f"training.outputs is {config.training.outputs}, and nothing can be written to {place}: {error.strerror}",
            fix="set training.outputs to a folder that you may write to",
        ) from error
    size = model_size(_model_folder(examination))
    estimated = size.checkpoint_bytes(config)
    exact = examination.state_bytes
    free = shutil.disk_usage(place).free
    if exact is None and estimated is None:
        yield fine("disk", f"{in_words(free)} are free; what a checkpoint takes is not known without the model")
        return
    kept = config.training.keep_checkpoints + Health.most_kept(config)
    line = forecast(exact if exact is not None else int(estimated or 0), kept, free)
    yield fine("disk", line if exact is not None else f"about: {line}")


def _model_folder(examination: Examination) -> str:
    return examination.model.value if examination.model.there else examination.config.value.model.path


async def check_trackers(examination: Examination) -> AsyncIterator[Finding]:
    """Whether the trackers that the recipe names can be reached. One that is down stops no run, so this only warns."""
    config = examination.config.value
    tracking, keys = config.tracking, load_keys(config.servers.env_file)
    named: list[str] = []
    addresses: dict[str, str] = {}
    if tracking.tensorboard:
        named.append("tensorboard")
    if tracking.wandb is not None:
        mode = keys.get("WANDB_MODE") or "online"
        named.append(f"wandb ({mode})")
        if mode == "online":
            addresses["tracking.wandb"] = keys.get("WANDB_BASE_URL") or _WANDB_CLOUD
    if tracking.weave is not None:
        named.append("weave")
        addresses["tracking.weave"] = keys.get("WANDB_BASE_URL") or _WANDB_CLOUD
    if tracking.opentelemetry is not None:
        named.append("opentelemetry")
        addresses["tracking.opentelemetry"] = tracking.opentelemetry.endpoint
    down = [setting for setting, address in addresses.items() if not await _answers(address)]
    for setting in down:
        yield warning(
            "trackers",
            f"{setting}: nobody answers at {addresses[setting]}; the run would go on without",
            fix="start it, correct its address, or leave it out (W&B with WANDB_MODE=offline sends later)",
        )
    if "tracking.wandb" in addresses and not _has_wandb_key(keys):
        yield warning("trackers", "tracking.wandb is online, and there is no key for it", fix="run `wandb login`")
    if not down:
        yield fine("trackers", ", ".join(named) if named else "none is named; the run's own folder has everything")


def _has_wandb_key(keys: Mapping[str, str]) -> bool:
    return bool(keys.get("WANDB_API_KEY")) or (Path.home() / ".netrc").is_file()


async def _answers(address: str) -> bool:
    """Whether somebody listens at an address; no word is said to them."""
    parts = urlsplit(address)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(_REACH_S):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True

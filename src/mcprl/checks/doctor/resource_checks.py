"""Checks of the resources of a run (time, money, memory, disk), and of whether its trackers can be reached."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

import psutil
from rich.filesize import decimal

from mcprl.checks.doctor.examination import Examination, Finding, fine, needed_gpus, skipped, warning, wrong
from mcprl.checks.health import Health
from mcprl.checks.plan import Figure, make_plan, model_size
from mcprl.placement import gpu_memories, place
from mcprl.runs.checkpoints import forecast
from mcprl.runs.folder import find_writable
from mcprl.tools.keys import load_keys
from mcprl.tools.session import port_answers

_LONG_ON_A_CPU_S = 6 * 3600
_WANDB_CLOUD: Final = "https://api.wandb.ai"


async def check_forecast(examination: Examination) -> AsyncIterator[Finding]:
    """Forecast the run's time, tokens, calls and cost, from the sampled episodes or else from the recipe's limits."""
    config, gpus, known = examination.config.value, len(gpu_memories()), _known(examination)
    plan = make_plan(config, examination.tasks.value.tasks, examination.preamble.value, gpus=gpus, known=known)
    run = plan.run
    time = "unknown without the required GPUs" if needed_gpus(config) > gpus else f"about {_duration(run.seconds)}"
    if config.training.steps > 1 and needed_gpus(config) <= gpus:
        time += f", {_duration(run.seconds / config.training.steps)} per step"
    basis = (
        "based on the sample episodes"
        if known
        else "upper bounds from the recipe's limits; `mcprl plan` has the details"
    )
    what = (
        f"time {time}; {run.episodes:,.0f} episodes, {_count(run.sampled_tokens)} sampled tokens, "
        f"{_count(run.calls)} calls, ${run.usd:,.2f} for tools; {basis}"
    )
    if needed_gpus(config) <= gpus == 0 and config.engine != "skyrl" and run.seconds > _LONG_ON_A_CPU_S:
        fix = "train on a machine with a GPU, choose a smaller model.path, or lower training.steps"
        yield warning("forecast", f"slow on a CPU: {what}", fix)
    else:
        yield fine("forecast", what)
    for sentence in plan.warnings:
        yield warning("forecast", sentence, fix="raise this budget, or lower training.steps")


def _known(examination: Examination) -> dict[str, Figure]:
    if not examination.sample.there:
        return {}
    sample, source = examination.sample.value, "doctor's sample episodes"
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


def _bytes(size: float) -> str:
    return decimal(round(size))


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def _count(number: float) -> str:
    return f"{number / 1e6:.1f} M" if number >= 1e6 else f"{number:,.0f}"


async def check_memory(examination: Examination) -> AsyncIterator[Finding]:
    """Compare the memory that the run needs (measured, or estimated from the model's size) with the machine's."""
    config = examination.config.value
    if config.engine == "skyrl" and config.skyrl.url is not None:
        yield skipped("memory", f"the model is on the server at {config.skyrl.url}")
        return
    gpus = gpu_memories()
    size = model_size(_model_folder(examination))
    needs = size.memory_bytes(config, on_gpu=bool(gpus))
    if needs is None:
        yield skipped("memory", f"the size of {config.model.path} is unknown")
    elif gpus:
        yield await _gpu_memory(examination, needs, gpus)
    elif config.learner.processes > 1:
        share = _bytes(needs["learner"] / config.learner.processes)
        yield skipped("memory", f"this machine has no GPU; the learner needs about {share} per GPU")
    else:
        yield _main_memory(needs, examination.memory_bytes)


def _main_memory(needs: Mapping[str, float], seen: Mapping[str, int]) -> Finding:
    machine = psutil.virtual_memory()
    needed = max(sum(needs.values()), sum(seen.values()))
    basis = (
        f"measured: sampler {_bytes(seen['sampler'])}, learner {_bytes(seen['learner'])}"
        if "sampler" in seen and "learner" in seen
        else "weights, optimizer state and KV cache, without activations"
    )
    figures = f"about {_bytes(needed)} needed ({basis}); this machine has {_bytes(machine.total)}"
    if needed > machine.total:
        fix = "use a smaller model, or set learner.tuning to lora"
        return wrong("memory", figures, fix)
    if needed > machine.available:
        what = f"{figures}, but only {_bytes(machine.available)} is free now"
        return warning("memory", what, fix="stop other programs")
    return fine("memory", f"{figures}, {_bytes(machine.available)} free")


# Of a GPU's memory, for the CUDA context, workspaces, fragmentation, and a vLLM that sleeps.
_RESERVED = 0.08


async def _gpu_memory(examination: Examination, needs: Mapping[str, float], gpus: tuple[int, ...]) -> Finding:
    """Compare what the learner needs on each of its GPUs with what vLLM leaves there."""
    config = examination.config.value
    placed, processes, tokens = place(config, len(gpus)), config.learner.processes, config.learner.tokens_per_pack
    share, parts = needs["learner"] / processes, "without activations"
    if examination.model.there and not examination.fast:
        from mcprl.learning.memory import predict_update

        update = (await asyncio.to_thread(predict_update, config, examination.model.value, tokens=tokens)).of_each(
            processes
        )
        share = update.peak
        parts = f"{_bytes(update.activations)} of it to train on a pack of {tokens:,} tokens"
    is_beside = bool({*placed.sampling} & {*placed.learner}) and not placed.in_turns
    room = min(gpus) * (1 - (placed.vllm_share if is_beside else 0.0) - _RESERVED)
    where = "vLLM leaves" if is_beside else "each GPU has room for"
    figures = f"the learner needs about {_bytes(share)} per GPU ({parts}), and {where} {_bytes(room)}"
    if share > room:
        fix = "lower learner.tokens_per_pack or model.context_tokens, raise learner.processes, or set learner.tuning "
        fix += "to lora or lora_4bit" + ("; or lower sampling.vllm.memory_fraction" if is_beside else "")
        return wrong("memory", figures, fix)
    return fine("memory", figures)


async def check_disk(examination: Examination) -> AsyncIterator[Finding]:
    """Check that runs can be written to training.outputs, and that their checkpoints fit on the disk."""
    config = examination.config.value
    place = find_writable(config.training.outputs)
    estimated = model_size(_model_folder(examination)).checkpoint_bytes(config)
    size = examination.state_bytes if examination.state_bytes is not None else estimated
    free = shutil.disk_usage(place).free
    if size is None:
        yield fine("disk", f"{_bytes(free)} free; the size of a checkpoint is unknown without the model")
        return
    line = forecast(int(size), config.training.keep_checkpoints + Health.most_kept(config), free)
    yield fine("disk", line if examination.state_bytes is not None else f"estimated: {line}")


def _model_folder(examination: Examination) -> str:
    return examination.model.value if examination.model.there else examination.config.value.model.path


async def check_trackers(examination: Examination) -> AsyncIterator[Finding]:
    """Check that the recipe's trackers can be reached. A run continues without them, so this only warns."""
    config = examination.config.value
    tracking, keys = config.tracking, load_keys()
    wandb_mode = keys.get("WANDB_MODE") or "online"
    named = [f"wandb ({wandb_mode})" if name == "wandb" else name for name in tracking.named]
    addresses: dict[str, str] = {}
    if tracking.wandb is not None and wandb_mode == "online":
        addresses["tracking.wandb"] = keys.get("WANDB_BASE_URL") or _WANDB_CLOUD
    if tracking.weave is not None:
        addresses["tracking.weave"] = keys.get("WANDB_BASE_URL") or _WANDB_CLOUD
    down = [setting for setting, address in addresses.items() if not await port_answers(address)]
    for setting in down:
        yield warning(
            "trackers",
            f"{setting}: {addresses[setting]} does not answer; the run would continue without this tracker",
            fix="start the tracker, correct its address, or remove the setting (for W&B, WANDB_MODE=offline allows a "
            "later upload)",
        )
    if "tracking.wandb" in addresses and not keys.get("WANDB_API_KEY") and not (Path.home() / ".netrc").is_file():
        yield warning("trackers", "tracking.wandb is online, but no W&B API key is set", fix="run `wandb login`")
    if not down:
        yield fine("trackers", ", ".join(named) if named else "none; all results are in the run folder")

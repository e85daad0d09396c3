"""What to evaluate, from what a person names: a recipe or a suite, a file of tasks, a model or an adapter."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from mcprl.config import RunConfig
from mcprl.errors import BadValueError
from mcprl.evaluation.harness import Request
from mcprl.evaluation.suites import Suite, TaskSuite, named_suite
from mcprl.recipe import load_recipe
from mcprl.tasks import load_tasks

__all__ = ["GREEDY_TEMPERATURE", "Wishes", "make_request"]

GREEDY_TEMPERATURE: Final = 0.01
"""As good as greedy. Samplers take no 0: a turn has logprobs, and those of a certain choice say nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What a person asks for. A recipe or a suite is needed; the rest has defaults.

    Wishes(recipe=Path("recipes/hello-cpu.yaml"), tasks=Path("recipes/hello/tasks.jsonl"), episodes=4,
           overrides=("sampling.engine=transformers",))
    """

    recipe: Path | None = None
    suite: str | None = None
    tasks: Path | None = None
    model: str | None = None
    adapter: Path | None = None
    episodes: int = 1
    sample: int | None = None
    greedy: bool = False
    overrides: Sequence[str] = ()


def make_request(wishes: Wishes) -> Request:
    """The request that fulfils the wishes. Raises a ConfigurationError where they contradict each other."""
    if wishes.recipe is None and wishes.suite is None:
        raise BadValueError("there is nothing to evaluate", fix="name a recipe, or a suite with --suite")
    if wishes.suite is not None and wishes.tasks is not None:
        raise BadValueError("a suite has tasks of its own", fix="give --suite or --tasks, not both")
    named = None if wishes.suite is None else named_suite(wishes.suite)
    settings = _settings(wishes)
    config = (
        _bare_config(wishes.suite or "", settings) if wishes.recipe is None else load_recipe(wishes.recipe, settings)
    )
    # Nothing is imitated here, so no task needs a solution.
    config = _without_warm_start(config)
    suite = named or _task_suite(config, wishes.tasks)
    return Request(
        config=suite.adapt(config),
        suite=suite,
        episodes=wishes.episodes,
        sample=wishes.sample,
        adapter=wishes.adapter,
    )


def _settings(wishes: Wishes) -> list[str]:
    """All that is set besides the recipe, the later the stronger."""
    # Faults are injected to train by, so not here, unless they are asked for.
    settings = ["episodes.injected_errors=0", *wishes.overrides]
    if wishes.greedy:
        settings.append(f"sampling.temperature={GREEDY_TEMPERATURE}")
    if wishes.model is not None:
        settings.append(f"model.path={json.dumps(_location(wishes.model))}")
    return [*settings, *_adapter_settings(wishes.adapter)]


def _task_suite(config: RunConfig, tasks: Path | None) -> Suite:
    file = tasks or config.tasks.validation
    if file is None:
        raise BadValueError(
            "the recipe has no tasks.validation",
            fix=f"set it, or name a task file, such as --tasks {config.tasks.train}",
        )
    return TaskSuite(file.stem if file.stem not in ("tasks", "validation") else config.name, load_tasks(file))


def _bare_config(suite: str, settings: Sequence[str]) -> RunConfig:
    """A configuration without a recipe: whatever the suite does not replace is a default or set on the command line."""
    bare: dict[str, Any] = {"name": suite, "tasks": {"train": f"{suite}.jsonl"}, "servers": {"file": f"{suite}.json"}}
    with tempfile.TemporaryDirectory(prefix="mcprl-eval-") as folder:
        path = Path(folder) / f"{suite}.yaml"
        path.write_text(yaml.safe_dump(bare), encoding="utf-8")
        # Paths on the command line are seen from where it was typed.
        return load_recipe(path, [_seen_from_here(setting) for setting in settings])


def _seen_from_here(setting: str) -> str:
    name, _, value = setting.partition("=")
    return f"{name}={json.dumps(_location(value))}" if name == "model.path" and value.startswith(".") else setting


def _location(model: str) -> str:
    """A folder by its absolute path, since a recipe's own paths are seen from the recipe; a hub name as it is."""
    return str(Path(model).absolute()) if Path(model).is_dir() or model.startswith((".", "/")) else model


def _adapter_settings(adapter: Path | None) -> list[str]:
    """Settings of a sampler that can load the adapter, whatever the recipe trains."""
    if adapter is None:
        return []
    path = adapter / "adapter_config.json"
    fix = "name the folder of a LoRA adapter, such as outputs/hello-cpu/adapter"
    try:
        rank = json.loads(path.read_bytes())["r"]
    except OSError as error:
        raise BadValueError(f"--adapter {adapter}: {path.name} cannot be read: {error.strerror}", fix=fix) from error
    except (ValueError, KeyError, TypeError) as error:
        raise BadValueError(f"--adapter {adapter}: {path.name} names no rank of an adapter", fix=fix) from error
    return ["learner.tuning=lora", "learner.offload_reference=false", f"learner.lora_rank={rank}"]


def _without_warm_start(config: RunConfig) -> RunConfig:
    warm_start = config.algorithm.warm_start.model_copy(update={"weight": 0.0})
    algorithm = config.algorithm.model_copy(update={"warm_start": warm_start})
    return config.model_copy(update={"algorithm": algorithm})

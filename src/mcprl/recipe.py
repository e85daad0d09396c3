"""Reads a recipe, the YAML file of a run. Applies dotted overrides; errors name the file and line, with hints."""

from __future__ import annotations

import ast
import difflib
import inspect
import json
import reprlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, to_jsonable_python

from mcprl.bounds import MAX_RECIPE_BYTES, read_text, read_yaml
from mcprl.config import NOT_REPRODUCIBLE, RunConfig
from mcprl.errors import BadValueError, ConfigFileError, ConfigurationError, UnknownKeyError

__all__ = ["load_recipe", "sections", "settings"]

_BOUNDS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
_NAMES: dict[object, str] = {str: "text", int: "whole number", float: "number", bool: "true or false", Path: "path"}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `default` is written as in a recipe; None means that the setting is required."""

    path: str
    type: str
    default: str | None
    description: str


@dataclass(frozen=True, slots=True)
class DescribedSection:
    """A section of the configuration. In a mapping of sections, the key is shown as NAME."""

    path: str
    description: str
    settings: tuple[Setting, ...]


def settings() -> Iterator[Setting]:
    """Yield every setting of a run."""
    for section in sections():
        yield from section.settings


def sections(model: type[BaseModel] = RunConfig, path: str = "") -> Iterator[DescribedSection]:
    """Yield a section, then its subsections, in the order of the file."""
    own: list[Setting] = []
    descriptions = _descriptions(model)
    inner: list[tuple[type[BaseModel], str]] = []
    for name, field in model.model_fields.items():
        dotted = f"{path}.{name}" if path else name
        section = section_of(field.annotation)
        if section is not None:
            inner.append((section, f"{dotted}.NAME" if get_origin(field.annotation) is dict else dotted))
        else:
            own.append(Setting(dotted, _type_text(field), _default_text(field), descriptions[name]))
    yield DescribedSection(path, inspect.getdoc(model) or "", tuple(own))
    for section, dotted in inner:
        yield from sections(section, dotted)


def _descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Return the description of each setting of a section: the text below it in the source."""
    return {
        cast("ast.Name", setting.target).id: " ".join(text.value.value.split())
        for setting, text in pairwise(_classes(model.__module__)[model.__name__].body)
        if isinstance(setting, ast.AnnAssign)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    # inspect.getsource of a class parses its whole module each time.
    body = ast.parse(inspect.getsource(sys.modules[module])).body
    return {statement.name: statement for statement in body if isinstance(statement, ast.ClassDef)}


def section_of(annotation: object) -> type[BaseModel] | None:
    """Return the section that a setting holds, directly or as the value type of a mapping or list."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _type_text(field: FieldInfo) -> str:
    """Return a field's type with its bounds, such as `number, > 0`."""
    bounds = [
        f"{sign} {getattr(limit, name):g}"
        for limit in field.metadata
        for name, sign in _BOUNDS.items()
        if getattr(limit, name, None) is not None
    ]
    return ", ".join([_type_name(field.annotation), *bounds])


def _type_name(annotation: object) -> str:
    """Return a type as a person would write it in YAML."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_name(arguments[0])
    if origin is Literal:
        return " or ".join(str(a) for a in arguments)
    if origin is tuple:
        return f"list of {_type_name(arguments[0])}"
    if origin is dict:
        return f"mapping of {_type_name(arguments[0])} to {_type_name(arguments[1])}"
    if arguments:
        return " or ".join("null" if a is type(None) else _type_name(a) for a in arguments)
    if section_of(annotation) is not None:
        return "section"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "/".join(str(member.value) for member in annotation)
    return _NAMES[annotation]


def _default_text(field: FieldInfo) -> str | None:
    if field.is_required():
        return None
    value: object = to_jsonable_python(field.get_default(call_default_factory=True, validated_data={}))
    # JSON is valid YAML, and text needs no quotes unless it is empty.
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


# Settings of 0.1.0 that were removed, each with its replacement.
CHANGED_SETTINGS = {
    "sampling.engine": "move this value to engine, at the top level (vllm, transformers or skyrl)",
    "sampling.request_deadline_s": "set episodes.deadline_s, which now also limits each turn",
    "sampling.vllm.start_deadline_s": "delete it: vLLM has 30 minutes to start, and its end is noticed at once",
    "sampling.vllm.max_restarts": "delete it: the run ends after three restarts in a row without a sampled turn",
    "skyrl.start_deadline_s": "delete it: the server has 15 minutes to start, and its exit is noticed at once",
    "skyrl.request_deadline_s": "delete it: the learner's requests have a fixed deadline of 30 minutes",
    "skyrl.max_restarts": "delete it: the run ends after three recoveries in a row without progress",
    "sampling.vllm.max_sequences": "set episodes.max_concurrent, which now also limits concurrent sequences in vLLM",
    "sampling.vllm.cpu_cache_gib": "delete it, and set VLLM_CPU_KVCACHE_SPACE, vLLM's own variable",
    "workers.address": "delete it, and set RAY_ADDRESS, Ray's own variable, to the address or to auto",
    "learner.microbatch": "set learner.tokens_per_pack instead, which limits the tokens of a pack",
    "workers.kind": "set workers.count instead: 0 runs episodes in this process, a higher number uses Ray workers",
    "workers.cpus": "delete it: a worker is one process with one core",
    "episodes.max_attempts": "delete it: an episode lost to the infrastructure gets at most 5 attempts",
    "episodes.spares": (
        "delete it: it favored short episodes; use training.max_staleness, which overlaps slow episodes with updates"
    ),
    "servers.settings.NAME.spares": "delete it: with isolation per_episode, two spare servers are always kept ready",
    "servers.pins": "delete it: a run stops if a server changes its tools; resuming compares them too",
    "servers.env_file": "delete it, and write the keys to .env in the folder where mcprl is started, or export them",
    "servers.settings.NAME.start_deadline_s": "delete it: a server has 120 seconds to start",
    "servers.settings.NAME.retry": "write attempts: 3 instead of retry: {attempts: 3}; delays can no longer be set",
    "servers.settings.NAME.breaker": "delete it: after 5 failures in a row, a server gets no calls for 5 seconds",
    "servers.settings.NAME.errors.tools": (
        "delete it: a rule applies to all tools, so use `match` to distinguish their results"
    ),
    "rewards.rubric": "delete it: the judge's grade has the weight of rewards.answer",
    "rewards.invalid_call": "set rewards.penalty (per invalid call, and per episode cut off without an answer)",
    "rewards.unanswered": "set rewards.penalty (per invalid call, and per episode cut off without an answer)",
    "rewards.clip_low": "delete it: rewards are clipped to [-1, 1]",
    "rewards.clip_high": "delete it: rewards are clipped to [-1, 1]",
    "rewards.judge.deadline_s": "delete it: grading has a fixed deadline of 60 seconds",
    "rewards.judge.cache": "delete it: a run keeps its grades in memory",
    "algorithm.constant_tokens": "delete it: algorithm.aggregation=constant divides by model.context_tokens",
    "algorithm.whiten": "delete it: only gae normalizes its advantages over the batch",
    "algorithm.dual_clip": "delete it, or set algorithm.loss to a function of your own",
    "algorithm.max_importance": "delete it: an importance weight is at most 2",
    "algorithm.dead_groups": "set algorithm.refill_rounds instead: 0 for keep, 2 for refill",
    "algorithm.max_refills": "rename it to algorithm.refill_rounds",
    "algorithm.kl.place": "delete it: algorithm.kl.estimator=k1 penalizes the reward, k2 and k3 penalize the loss",
    "algorithm.kl.horizon": "delete it: the coefficient moves by at most 2% per update",
    "algorithm.kl.refresh_at_cap": (
        "delete it: above algorithm.kl.cap, a reference other than base is reset to the policy"
    ),
    "algorithm.kl.ema_decay": "set algorithm.kl.lag to 1 / (1 - ema_decay) instead, which is 100 for 0.99",
    "algorithm.kl.sync_every": "rename it to algorithm.kl.lag",
    "algorithm.critic.coefficient": "delete it: the value loss has weight 0.5; tune algorithm.critic.learning_rate",
    "algorithm.critic.clip": "delete it: a value may change by at most 0.2 per update",
    "learner.weight_decay": "delete it: AdamW runs without weight decay",
    "learner.offload_reference": (
        "delete it: the reference stays on the GPU; to save memory, set learner.tuning to lora"
    ),
    "training.pipeline": "set training.max_staleness: 0 for sync, 1 for async",
    "training.shutdown_s": "delete it: a run that is asked to stop saves its state and ends within 10 seconds",
    "tracking.opentelemetry": "delete it, or set tracking.tracker to a tracker of your own that sends spans",
    "tracking.flush_s": "delete it: trackers have 60 seconds to send their data after the run ends",
    "tracking.wandb.entity": "write tracking.wandb.project as entity/project",
    "tracking.wandb.mode": "delete it, and set WANDB_MODE=offline in the environment or the key file",
    "tracking.wandb.url": "delete it, and set WANDB_BASE_URL in the environment or the key file",
}

_MAX_KEYS_TOLD = 20

# The origin of each value: its path in the configuration → "file:line" or "--set key=value".
_Places = dict[tuple[str, ...], str]


def load_recipe(recipe: Path | RunConfig, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a recipe and apply overrides such as `training.steps=3`. Raises a ConfigurationError that names the line.

    A recipe made in Python is read as if it were a file in the working directory.
    """
    places: _Places = {}
    if isinstance(recipe, RunConfig):
        path, data = Path("recipe"), recipe.model_dump(mode="json")
    else:
        path, data = recipe, _read_recipe(recipe, places)
    for override in overrides:
        _apply_override(data, override, places)
    try:
        return RunConfig.model_validate(data, context={"folder": path.resolve().parent})
    except ValidationError as error:
        raise _explain(error, path, places) from error


def _read_recipe(path: Path, places: _Places) -> dict[str, Any]:
    try:
        text = read_text(path, MAX_RECIPE_BYTES)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it {error}"
        raise ConfigFileError(
            f"cannot read {path}: {reason}", fix="pass the path of a recipe, such as recipes/hello-cpu.yaml"
        ) from error
    return _parse_yaml(text, str(path), places)


def _parse_yaml(text: str, source: str, places: _Places) -> dict[str, Any]:
    try:
        node, data = read_yaml(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source}:{mark.line + 1}" if mark is not None else source
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigFileError(f"{where}: {problem}", fix="correct the YAML at this line") from error
    if not isinstance(node, yaml.MappingNode):
        raise ConfigFileError(f"{source} is not a mapping", fix="write settings as `key: value` lines")
    _record_places(node, (), source, places)
    return cast("dict[str, Any]", data)


def _record_places(node: yaml.Node, path: tuple[str, ...], source: str, places: _Places) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*path, str(key.value))
            place = f"{source}:{key.start_mark.line + 1}"
            if here in places:
                raise ConfigFileError(f"{place}: duplicate key {key.value!r}", fix="remove one of the two")
            places[here] = place
            _record_places(value, here, source, places)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            here = (*path, str(index))
            places[here] = f"{source}:{item.start_mark.line + 1}"
            _record_places(item, here, source, places)


def _apply_override(data: dict[str, Any], override: str, places: _Places) -> None:
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise BadValueError(f"--set {override}: not key=value", fix="write, for example, --set training.steps=3")
    path = tuple(key.split("."))
    target = data
    for section in path[:-1]:
        # `training:` without a value is an empty section.
        inner: object = {} if target.get(section) is None else target[section]
        if not isinstance(inner, dict):
            raise BadValueError(
                f"--set {override}: {section!r} is not a section", fix="run `mcprl config explain` to list all sections"
            )
        target[section] = inner
        target = cast("dict[str, Any]", inner)
    try:
        target[path[-1]] = read_yaml(value)[1]
    except yaml.YAMLError as error:
        raise BadValueError(f"--set {override}: the value is not YAML", fix="quote the value") from error
    for replaced in [place for place in places if place[: len(path)] == path]:
        del places[replaced]
    for depth in range(1, len(path) + 1):
        places.setdefault(path[:depth], f"--set {override}")


def _explain(error: ValidationError, path: Path, places: _Places) -> ConfigurationError:
    """Return an error for all unknown keys, since they cause other problems, or else for the first problem."""
    found = error.errors()
    unknown = [each for each in found if each["type"] == "extra_forbidden"]
    told = [_problem(each, path, places) for each in unknown[:_MAX_KEYS_TOLD] or found[:1]]
    rest = len(found) - len(told)
    more = f" (and {rest} more)" if rest else ""
    fixes = [each.fix for each in told]
    if len(told) > 1:
        fixes = [f"{'.'.join(map(str, each['loc']))}: {fix}" for each, fix in zip(unknown, fixes, strict=False)]
    return type(told[0])("\n".join(each.what for each in told) + more, fix="; ".join(fixes))


def _problem(found: ErrorDetails, path: Path, places: _Places) -> ConfigurationError:
    location = found["loc"]
    dotted = ".".join(str(part) for part in location)
    place = _place_of(location, places) or str(path)
    if found["type"] == "extra_forbidden" and location[0] == "sampling" and location[-1] in NOT_REPRODUCIBLE:
        return BadValueError(
            f"{place}: {dotted!r} is not supported: the learner cannot reproduce the resulting distribution, so every "
            "ratio would be wrong",
            fix="delete it; use sampling.temperature and sampling.constrain, which the learner reproduces",
        )
    if found["type"] == "extra_forbidden" and (key := _key_of(location)) in CHANGED_SETTINGS:
        return UnknownKeyError(f"{place}: {dotted!r} was a setting of mcprl 0.1.0", fix=CHANGED_SETTINGS[key])
    if found["type"] == "extra_forbidden":
        suggestion = _closest_setting(location)
        hint = f" (did you mean {suggestion!r}?)" if suggestion else ""
        return UnknownKeyError(
            f"{place}: unknown key {dotted!r}{hint}",
            fix=f"rename it to {suggestion!r}"
            if suggestion
            else "delete it, or run `mcprl config explain` to list all settings",
        )
    if found["type"] == "missing":
        return BadValueError(f"{place}: {dotted!r} is missing", fix=f"add {dotted!r}")
    reason = found["msg"].removeprefix("Value error, ")
    subject = f"{dotted!r} is {reprlib.repr(found['input'])}: {reason}" if location else reason
    explain = f"mcprl config explain {_documented_path(location)}".rstrip()
    return BadValueError(f"{place}: {subject}", fix=f"correct it; `{explain}` describes it")


def _place_of(location: tuple[str | int, ...], places: _Places) -> str | None:
    """Return where a value was written, or else where the innermost section around it was."""
    path = tuple(str(part) for part in location)
    return next((places[path[:depth]] for depth in range(len(path), 0, -1) if path[:depth] in places), None)


def _documented_path(location: tuple[str | int, ...]) -> str:
    """Return the setting that `mcprl config explain` describes, or else the section around it."""
    parts = _key_of(location).split(".")
    known = [setting.path for setting in settings()]
    while parts and not any(f"{name}.".startswith(".".join([*parts, ""])) for name in known):
        parts.pop()
    return ".".join(parts)


def _key_of(location: tuple[str | int, ...]) -> str:
    """Return a location as the documentation names it: servers.settings.NAME.errors.match, without list indices."""
    parts = ["NAME" if i == 2 and location[:2] == ("servers", "settings") else p for i, p in enumerate(location)]
    return ".".join(part for part in parts if isinstance(part, str))


def _closest_setting(location: tuple[str | int, ...]) -> str | None:
    """Return the sibling setting with the most similar name, or else the most similar setting of another section."""
    model: type[BaseModel] = RunConfig
    for part in location[:-1]:
        info = model.model_fields.get(str(part))
        model = (section_of(info.annotation) if info else None) or model
    wanted = str(location[-1])
    siblings = difflib.get_close_matches(wanted, list(model.model_fields), n=1)
    if siblings:
        return siblings[0]
    # If several settings have the same name, such as learning_rate, the one closest to the top level is probably meant.
    by_name: dict[str, str] = {}
    for setting in sorted(settings(), key=lambda each: each.path.count(".")):
        by_name.setdefault(setting.path.rpartition(".")[2], setting.path)
    elsewhere = difflib.get_close_matches(wanted, list(by_name), n=1, cutoff=0.9)
    return by_name[elsewhere[0]] if elsewhere else None

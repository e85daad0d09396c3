"""Reading a recipe, the YAML file of a run: dotted overrides, errors with file and line, did-you-mean."""

from __future__ import annotations

import difflib
import inspect
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from mcprl.config import NOT_REPRODUCIBLE, RunConfig
from mcprl.errors import BadValueError, ConfigFileError, ConfigurationError, UnknownKeyError

__all__ = ["load_recipe", "sections", "settings"]


_BOUNDS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
_NAMES: dict[object, str] = {str: "text", int: "whole number", float: "number", bool: "true or false", Path: "path"}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `default` is what one would write into a recipe, None where the setting is required."""

    path: str
    type: str
    default: str | None
    description: str


@dataclass(frozen=True, slots=True)
class DescribedSection:
    """A part of the configuration with settings of its own. In a mapping of sections, NAME stands for the key."""

    path: str
    description: str
    settings: tuple[Setting, ...]


def settings() -> Iterator[Setting]:
    """Every setting of a run."""
    for section in sections():
        yield from section.settings


def sections(model: type[BaseModel] = RunConfig, path: str = "") -> Iterator[DescribedSection]:
    """A section, then those inside it, in the order of the file."""
    own: list[Setting] = []
    inner: list[tuple[type[BaseModel], str]] = []
    for name, field in model.model_fields.items():
        dotted = f"{path}.{name}" if path else name
        section = section_of(field.annotation)
        is_mapping = get_origin(field.annotation) is dict
        if section is not None:
            inner.append((section, f"{dotted}.NAME" if is_mapping else dotted))
        if section is None or is_mapping:
            own.append(Setting(dotted, _type_text(field), _default_text(field), field.description or ""))
    yield DescribedSection(path, inspect.getdoc(model) or "", tuple(own))
    for section, dotted in inner:
        yield from sections(section, dotted)


def section_of(annotation: object) -> type[BaseModel] | None:
    """The section that a setting holds, directly or as the values of a mapping."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _type_text(field: FieldInfo) -> str:
    """The type with its bounds, as in `number, > 0`."""
    bounds = [
        f"{sign} {getattr(limit, name):g}"
        for limit in field.metadata
        for name, sign in _BOUNDS.items()
        if getattr(limit, name, None) is not None
    ]
    return ", ".join([_type_name(field.annotation), *bounds])


def _type_name(annotation: object) -> str:
    """A type as a person writes it in YAML."""
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
    # JSON is YAML, and a text needs no quotes unless it is empty.
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


# Where in the user's input each value stands: its path in the configuration → "file:line" or "--set key=value".
_Places = dict[tuple[str, ...], str]


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a recipe and apply overrides such as `training.steps=3`. Raises a ConfigurationError that names the line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise ConfigFileError(
            f"cannot read {path}: {reason}", fix="give the path of a recipe, such as recipes/hello-cpu.yaml"
        ) from error
    places: _Places = {}
    data = _parse_yaml(text, str(path), places)
    for override in overrides:
        _apply_override(data, override, places)
    try:
        return RunConfig.model_validate(data, context={"folder": path.resolve().parent})
    except ValidationError as error:
        raise _explain(error, path, places) from error


def _parse_yaml(text: str, source: str, places: _Places) -> dict[str, Any]:
    try:
        node = cast("yaml.Node | None", yaml.compose(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
        data: object = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:  # a ValueError is a date such as 2026-99-99
        mark = getattr(error, "problem_mark", None)
        where = f"{source}:{mark.line + 1}" if mark is not None else source
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigFileError(f"{where}: {problem}", fix="correct the YAML there") from error
    if not isinstance(node, yaml.MappingNode):
        raise ConfigFileError(f"{source} holds no mapping", fix="write settings as `key: value` lines")
    _record_places(node, (), source, places)
    return cast("dict[str, Any]", data)


def _record_places(node: yaml.Node, path: tuple[str, ...], source: str, places: _Places) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*path, str(key.value))
            place = f"{source}:{key.start_mark.line + 1}"
            if here in places:
                raise ConfigFileError(f"{place}: key {key.value!r} stands twice", fix="keep one of the two")
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
        raise BadValueError(f"--set {override}: no key=value", fix="write, for example, --set training.steps=3")
    path = tuple(key.split("."))
    target = data
    for section in path[:-1]:
        # `training:` with nothing below it is an empty section.
        inner: object = {} if target.get(section) is None else target[section]
        if not isinstance(inner, dict):
            raise BadValueError(f"--set {override}: {section!r} is no section", fix="see `mcprl config explain`")
        target[section] = inner
        target = cast("dict[str, Any]", inner)
    try:
        target[path[-1]] = yaml.safe_load(value)
    except (yaml.YAMLError, ValueError) as error:
        raise BadValueError(f"--set {override}: the value is no YAML", fix="quote the value") from error
    for replaced in [place for place in places if place[: len(path)] == path]:
        del places[replaced]
    for depth in range(1, len(path) + 1):
        places.setdefault(path[:depth], f"--set {override}")


def _explain(error: ValidationError, path: Path, places: _Places) -> ConfigurationError:
    """The first problem as an error with file and line; unknown keys first, since they cause the others."""
    first, *others = sorted(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    location = first["loc"]
    dotted = ".".join(str(part) for part in location)
    place = _place_of(location, places) or str(path)
    more = f" (and {len(others)} more)" if others else ""
    if first["type"] == "extra_forbidden" and location[0] == "sampling" and location[-1] in NOT_REPRODUCIBLE:
        return BadValueError(
            f"{place}: {dotted!r} is refused: the learner cannot reproduce the distribution it makes, so every ratio "
            f"would be wrong{more}",
            fix="delete it; sampling.temperature and sampling.constrain are what the learner reproduces",
        )
    if first["type"] == "extra_forbidden":
        suggestion = _closest_setting(location)
        hint = f" (did you mean {suggestion!r}?)" if suggestion else ""
        return UnknownKeyError(
            f"{place}: unknown key {dotted!r}{hint}{more}",
            fix=f"rename it to {suggestion!r}" if suggestion else "delete it, or see `mcprl config explain`",
        )
    if first["type"] == "missing":
        return BadValueError(f"{place}: {dotted!r} is missing{more}", fix=f"add {dotted!r}")
    reason = first["msg"].removeprefix("Value error, ")
    subject = f"{dotted!r} is {first['input']!r}: {reason}" if location else reason
    explain = f"mcprl config explain {_documented_path(location)}".rstrip()
    return BadValueError(f"{place}: {subject}{more}", fix=f"correct it; `{explain}` describes it")


def _place_of(location: tuple[str | int, ...], places: _Places) -> str | None:
    """Where a value stands, or the innermost section around it where it stands nowhere itself."""
    path = tuple(str(part) for part in location)
    return next((places[path[:depth]] for depth in range(len(path), 0, -1) if path[:depth] in places), None)


def _documented_path(location: tuple[str | int, ...]) -> str:
    """The name under which `mcprl config explain` knows a place: that of its setting, or of the section around it."""
    parts = ["NAME" if i == 2 and location[:2] == ("servers", "settings") else str(p) for i, p in enumerate(location)]
    known = [setting.path for setting in settings()]
    while parts and not any(f"{name}.".startswith(".".join([*parts, ""])) for name in known):
        parts.pop()
    return ".".join(parts)


def _closest_setting(location: tuple[str | int, ...]) -> str | None:
    """The sibling setting whose name is nearest to the last part of `location`, else a namesake in another section."""
    model: type[BaseModel] = RunConfig
    for part in location[:-1]:
        info = model.model_fields.get(str(part))
        model = (section_of(info.annotation) if info else None) or model
    wanted = str(location[-1])
    siblings = difflib.get_close_matches(wanted, list(model.model_fields), n=1)
    if siblings:
        return siblings[0]
    return next((s.path for s in settings() if s.path.rpartition(".")[2] == wanted), None)

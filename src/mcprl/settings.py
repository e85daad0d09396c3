"""The settings described: what `mcprl config explain`, the documentation and error messages say about each of them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from mcprl.config import RunConfig

__all__ = ["DescribedSection", "Setting", "section_of", "sections", "settings"]

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

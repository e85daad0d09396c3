"""Validates arguments against a tool's schema. The error messages tell the policy what to change."""

from __future__ import annotations

import difflib
import json
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any, cast

from jsonschema.exceptions import ValidationError

from mcprl.bounds import OverLimitError, Steps
from mcprl.errors import BadToolSchemaError, ToolLimitError
from mcprl.files import is_unicode
from mcprl.schemas import BadSchemaError, SchemaCheck, schema_search

JSON_TYPES: Mapping[type, str] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}
"""Python type → the name of the JSON Schema type."""

MAX_PROBLEM_CHARS = 300
_MAX_DEPTH = 64
_SAFE_INTEGER = 2**53
# Limits the length of a name and the number of names compared, because the comparison takes quadratic time.
_MAX_COMPARED = 200


class ArgumentCheck:
    """The compiled schema of one tool's arguments. `steps` limits the work of compiling it."""

    def __init__(self, tool: str, server: str, schema: Mapping[str, Any], steps: Steps | None = None) -> None:
        self._tool = tool
        try:
            self._check = SchemaCheck(schema, steps)
        except BadSchemaError as error:
            raise BadToolSchemaError(
                f"server {server!r} describes the arguments of tool {tool!r} with an invalid schema: "
                f"{_one_line(str(error))}",
                fix=f"correct the schema in the server, or exclude the tool with servers.settings.{server}.deny",
            ) from error
        except OverLimitError as error:
            raise ToolLimitError(
                f"server {server!r} describes the arguments of tool {tool!r} with a schema that {error}",
                fix=f"exclude the tool with servers.settings.{server}.deny, or ask its author for a smaller schema",
            ) from error

    @property
    def unenforced(self) -> tuple[str, ...]:
        """The parts of the schema that are not checked here, because checking them could take more than linear time."""
        return self._check.unenforced

    def problem(self, arguments: Mapping[str, Any]) -> str | None:
        """Return the problem with the arguments in one line, or None if they are valid. Does not raise."""
        instance = dict(arguments)
        trouble = None if all(map(_is_plain, (*instance, *instance.values()))) else _not_json(instance)
        if trouble is None:
            try:
                error = self._check.error(instance)
            except RecursionError:
                trouble = "The arguments are nested too deeply"
            except OverLimitError as error:
                trouble = f"The call {error}; make it shorter"
            else:
                trouble = None if error is None else _explain(error)
        return None if trouble is None else _one_line(f"Bad arguments for {self._tool}: {trouble}.")


def _is_plain(value: object) -> bool:
    """Return True if the value is certainly valid JSON. Nearly all arguments are, so the slower full check is rare."""
    kind = type(value)
    if kind is str:
        return cast("str", value).isascii()
    if kind is int:
        return abs(cast("int", value)) <= _SAFE_INTEGER
    if kind is float:
        return math.isfinite(cast("float", value))
    if kind is list:
        return all(type(item) is str and item.isascii() for item in cast("list[object]", value))
    return value is None or kind is bool


def _not_json(arguments: dict[str, Any]) -> str | None:
    """Return why the arguments cannot be sent as JSON, or None if they can. Sending bad ones would end the session."""
    for name, value in arguments.items():
        for part, depth in _parts(name, value):
            if depth > _MAX_DEPTH:
                return f"argument {_show(name)} is nested more than {_MAX_DEPTH} levels deep"
            if isinstance(part, float) and not math.isfinite(part):
                return f"argument {_show(name)} contains {part}, which is not a JSON number"
            if isinstance(part, int) and abs(part) > sys.float_info.max:
                return f"argument {_show(name)} contains a number that is too large"
            if isinstance(part, str) and not is_unicode(part):
                return f"argument {_show(name)} contains text that is not valid Unicode"
            if not isinstance(part, str | int | float | dict | list) and part is not None:
                return f"argument {_show(name)} contains a {type(part).__name__}, which is not a JSON value"
    return None


def _parts(name: str, value: object) -> Iterator[tuple[object, int]]:
    pending: list[tuple[object, int]] = [(name, 0), (value, 1)]
    while pending:
        part, depth = pending.pop()
        yield part, depth
        if depth > _MAX_DEPTH:
            continue
        if isinstance(part, dict):
            items = cast("dict[object, object]", part).items()
            pending.extend((inner, depth + 1) for item in items for inner in item)
        elif isinstance(part, list):
            pending.extend((inner, depth + 1) for inner in cast("list[object]", part))


def _explain(error: ValidationError) -> str:
    """Return the problem and the expected value, without the library's dump of the whole instance."""
    path = [str(step) for step in error.absolute_path]
    where = f"argument {_show('.'.join(path))}" if path else "the call"
    match error.validator:
        case "required":
            missing = [name for name in cast("list[str]", error.validator_value) if name not in _keys(error)]
            inside = f" in {where}" if path else ""
            return f"missing argument {_show(missing[0])}{_expected(error.schema, missing[0])}{inside}{_given(error)}"
        case "additionalProperties" if error.validator_value is False:
            return _explain_unknown(error, where if path else None)
        case "type":
            kind = JSON_TYPES.get(type(cast("object", error.instance)), "object")
            return f"{where} must be {_types(error.validator_value)}, not {kind}"
        case "enum":
            choices = ", ".join(_show(choice) for choice in cast("list[Any]", error.validator_value))
            return f"{where} must be one of {choices}, not {_show(error.instance)}"
        case "const":
            return f"{where} must be {_show(error.validator_value)}, not {_show(error.instance)}"
        case keyword:
            value = _show(error.instance)
            return f"{where} is {value}, which violates {keyword} {_show(error.validator_value)}"


def _explain_unknown(error: ValidationError, where: str | None) -> str:
    schema = cast("dict[str, Any]", error.schema)
    known = list(cast("dict[str, Any]", schema.get("properties", {})))
    patterns = list(cast("dict[str, Any]", schema.get("patternProperties", {})))
    unknown = next(
        key for key in _keys(error) if key not in known and not any(_matches(key, each) for each in patterns)
    )
    close = difflib.get_close_matches(unknown[:_MAX_COMPARED], known[:_MAX_COMPARED], n=1)
    if close:
        hint = f" (did you mean {_show(close[0])}?)"
    else:
        hint = f" (known: {', '.join(known)})" if known else " (it takes none)"
    return f"unknown argument {_show(unknown)}{hint}" + (f" in {where}" if where else "")


def _matches(name: str, pattern: str) -> bool:
    search = schema_search(pattern)
    return search is None or search(name)


def _keys(error: ValidationError) -> list[str]:
    return list(cast("dict[str, Any]", error.instance))


def _given(error: ValidationError) -> str:
    """Return a note that names the unknown arguments: one may be the missing argument under a wrong name."""
    known = cast("dict[str, Any]", cast("dict[str, Any]", error.schema).get("properties", {}))
    unknown = [_show(name) for name in _keys(error) if name not in known]
    return f"; it has no argument {', '.join(unknown[:3])}" if unknown else ""


def _expected(schema: object, name: str) -> str:
    properties: object = cast("dict[str, Any]", schema).get("properties", {}) if isinstance(schema, dict) else {}
    described: object = cast("dict[str, Any]", properties).get(name)
    kind = cast("dict[str, Any]", described).get("type") if isinstance(described, dict) else None
    return f" ({_types(kind)})" if kind is not None else ""


def _types(kind: object) -> str:
    return " or ".join(cast("list[str]", kind)) if isinstance(kind, list) else str(kind)


def _show(value: object) -> str:
    text = f"'{value}'" if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:78]}…"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_PROBLEM_CHARS else f"{line[: MAX_PROBLEM_CHARS - 1]}…"

"""Definitions of tools as files and system prompts write them: lists of MCP, of OpenAI, and plain ones."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from mcprl.errors import CassetteError
from mcprl.tools.definitions import ToolDefinition

__all__ = ["ListedTool", "listed_tools", "load_tool_list", "tools_in_prompt"]

_DECODER = json.JSONDecoder()
# A list of objects, or one object of a `<tools>` block with an object a line.
_BEGINNING = re.compile(r"\[\s{0,64}\{|^\{", re.MULTILINE)
# Python counts the lines before each error it raises, so without a bound many broken lists take time squared.
_MAX_BROKEN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTool:
    """A definition found in a text. `read_only` is None where the text does not say, and most do not.

    ListedTool(definition=ToolDefinition(name="now", description="The time.", parameters={"type": "object"}))
    """

    definition: ToolDefinition
    read_only: bool | None = None


def load_tool_list(path: Path) -> dict[str, ListedTool]:
    """The tools of a JSON file: a list, or an object that holds it as "tools", as servers answer tools/list."""
    fix = 'write a JSON list of objects with "name", "description" and "parameters"'
    try:
        value: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CassetteError(f"the list of tools {path} cannot be read: {error}", fix=fix) from error
    if isinstance(value, dict):
        value = cast("dict[str, Any]", value).get("tools")
    tools = listed_tools(value)
    if tools is None:
        raise CassetteError(f"{path} holds no list of tools", fix=fix)
    return tools


def listed_tools(value: Any) -> dict[str, ListedTool] | None:
    """The tools of a list, by name; None where it is something else."""
    if not isinstance(value, list) or not value:
        return None
    tools = [_listed(entry) for entry in cast("list[Any]", value)]
    return None if None in tools else {tool.definition.name: tool for tool in tools if tool is not None}


def tools_in_prompt(text: str) -> dict[str, ListedTool]:
    """The tools that a system prompt lists as JSON, wherever in it. Text that is no list of tools is passed over."""
    tools: dict[str, ListedTool] = {}
    for value in _values(text):
        tools.update(listed_tools(value if isinstance(value, list) else [value]) or {})
    return tools


def _values(text: str) -> Iterator[Any]:
    place = broken = 0
    while broken < _MAX_BROKEN and (found := _BEGINNING.search(text, place)) is not None:
        try:
            value, place = _DECODER.raw_decode(text, found.start())
        except json.JSONDecodeError as error:
            # Not before the place of the error: what was read once is not read again.
            place = max(found.end(), error.pos)
            broken += 1
        except (ValueError, RecursionError):
            return
        else:
            yield value


def _listed(entry: Any) -> ListedTool | None:
    if not isinstance(entry, dict):
        return None
    fields = cast("dict[str, Any]", entry)
    inner: Any = fields.get("function") if fields.get("type") == "function" else fields
    if not isinstance(inner, dict):
        return None
    tool = cast("dict[str, Any]", inner)
    name, description = tool.get("name"), tool.get("description", "")
    parameters = _first(tool, "parameters", "inputSchema", "input_schema")
    if not isinstance(name, str) or not name or not isinstance(description, str | None):
        return None
    # Some leave the schema of a tool without arguments away, but a name alone is a name of anything.
    if not isinstance(parameters, dict) and not (parameters is None and description):
        return None
    output: Any = _first(tool, "outputSchema", "output_schema")
    hints: Any = tool.get("annotations")
    hints = cast("dict[str, Any]", hints) if isinstance(hints, dict) else {}
    read_only: Any = hints.get("readOnlyHint")
    definition = ToolDefinition(
        name=name,
        description=description or "",
        parameters=cast("dict[str, Any]", parameters or {"type": "object", "properties": {}}),
        output_schema=cast("dict[str, Any]", output) if isinstance(output, dict) else None,
        read_only=read_only is True,
        idempotent=hints.get("idempotentHint") is True,
    )
    return ListedTool(definition=definition, read_only=read_only if isinstance(read_only, bool) else None)


def _first(fields: dict[str, Any], *names: str) -> Any:
    return next((fields[name] for name in names if name in fields), None)

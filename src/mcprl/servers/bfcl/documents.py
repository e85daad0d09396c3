"""Function documents of the wheel as tools: names, descriptions, and parameters as a JSON schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, cast

from mcprl.servers.bfcl.wheel import SIMULATORS, function_documents

__all__ = ["DocumentedTool", "all_tools", "json_schema"]

# The documents name types as Python and BFCL do.
_TYPES: Final = {"dict": "object", "float": "number", "tuple": "array"}
# Where an official answer itself passes another type than the documents name, that type is taken too.
_ALSO_TAKEN: Final = {("close_ticket", "ticket_id"): "string"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentedTool:
    """One public method of a simulator.

    DocumentedTool(name="cd", simulator="GorillaFileSystem", description="…", parameters={"type": "object", …})
    """

    name: str
    simulator: str
    description: str
    parameters: Mapping[str, Any]


@cache
def all_tools() -> Mapping[str, DocumentedTool]:
    """The tools of all simulators by name, in the order of the documents. No two of them share a name."""
    tools = [
        DocumentedTool(
            name=document["name"],
            simulator=simulator,
            description=document["description"],
            parameters=_parameters(document),
        )
        for simulator in SIMULATORS
        for document in function_documents(simulator)
    ]
    by_name = {tool.name: tool for tool in tools}
    assert len(by_name) == len(tools)
    return by_name


def _parameters(document: Mapping[str, Any]) -> dict[str, Any]:
    # Python refuses an argument that a method does not have.
    schema: dict[str, Any] = {**json_schema(document["parameters"]), "additionalProperties": False}
    for name, part in schema["properties"].items():
        also = _ALSO_TAKEN.get((document["name"], name))
        if also is not None:
            part["type"] = [part["type"], also]
    return schema


def json_schema(described: Mapping[str, Any]) -> dict[str, Any]:
    """A type of the documents as a JSON schema: json_schema({"type": "float"}) is {"type": "number"}."""
    schema = dict(described)
    kind = schema.get("type")
    if kind == "any":
        del schema["type"]
    elif isinstance(kind, str):
        schema["type"] = _TYPES.get(kind, kind)
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        named = cast("Mapping[str, Mapping[str, Any]]", properties)
        schema["properties"] = {name: json_schema(part) for name, part in named.items()}
    items = schema.get("items")
    if isinstance(items, Mapping):
        schema["items"] = json_schema(cast("Mapping[str, Any]", items))
    return schema

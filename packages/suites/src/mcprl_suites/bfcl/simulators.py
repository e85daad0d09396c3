"""The simulators of one task, which are its world. Their methods are called by name with keyword arguments.

The official executor builds a line of Python from the model's text and evaluates it. Here a call is looked up in a
fixed table of documented methods, so nothing else can be called. Results have the official wording, because the checker
compares it.
"""

from __future__ import annotations

import copy
import datetime
import hashlib
import inspect
import json
from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, cast

from mcprl.files import canonical_json
from mcprl_suites.bfcl.wheel import SIMULATORS, Entry, function_documents, simulator_class

# The documents use type names of Python and of BFCL.
_TYPES: Final = {"dict": "object", "float": "number", "tuple": "array"}
# Types that official answers use although the documents name another type.
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
    """Return the tools of all simulators by name, in the order of the documents. Names are unique."""
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
    # Python rejects unknown arguments, so the schema does too.
    schema: dict[str, Any] = {**json_schema(document["parameters"]), "additionalProperties": False}
    for name, part in schema["properties"].items():
        if also := _ALSO_TAKEN.get((document["name"], name)):
            part["type"] = [part["type"], also]
    return schema


def json_schema(described: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a type from the documents to a JSON schema: json_schema({"type": "float"}) is {"type": "number"}."""
    schema = dict(described)
    kind = schema.get("type")
    if kind == "any":
        del schema["type"]
    elif isinstance(kind, str):
        schema["type"] = _TYPES.get(kind, kind)
    if "properties" in schema:
        schema["properties"] = {name: json_schema(part) for name, part in schema["properties"].items()}
    if "items" in schema:
        schema["items"] = json_schema(schema["items"])
    return schema


_STATELESS: Final = frozenset({"MathAPI"})
# Limits, because larger numbers keep a processor busy for hours: 10 ** 1e9 has a billion digits.
_MOST: Final[Mapping[tuple[str, str], float]] = {
    ("power", "base"): 1e15,
    ("power", "exponent"): 1e4,
    ("logarithm", "precision"): 1e3,
    ("square_root", "precision"): 1e3,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a call, such as Outcome('{"current_working_directory": "temp"}'), or the reason why it failed."""

    text: str
    is_error: bool = False


class Simulators:
    """The simulators of a task, in the state before its first call. Used for one episode."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.instances: dict[str, Any] = {name: _fresh(name, entry) for name in entry.simulators}
        self._methods = {
            name: getattr(self.instances[tool.simulator], name)
            for name, tool in all_tools().items()
            if tool.simulator in self.instances
        }

    def knows(self, tool: str) -> bool:
        """Return True if one of the simulators has this tool."""
        return tool in self._methods

    def call(self, tool: str, arguments: Mapping[str, Any]) -> Outcome:
        """Call a documented method. It never raises, even for malformed arguments."""
        method = self._methods.get(tool)
        if method is None:
            return Outcome(f"Error during execution: name '{tool}' is not defined", is_error=True)
        too_large = _too_large(tool, arguments)
        if too_large is not None:
            return Outcome(json.dumps({"error": too_large}), is_error=True)
        try:
            # Copied, because a simulator may keep an argument and change it later.
            result = method(**copy.deepcopy(dict(arguments)))
        except _FAILURES as error:
            return Outcome(f"Error during execution: {error}", is_error=True)
        return Outcome(_worded(result), is_error=isinstance(result, dict) and "error" in result)

    def state(self) -> dict[str, Any]:
        """Return the state that the checker compares, as JSON: the public attributes of each simulator."""
        return {name: public_state(instance) for name, instance in self.instances.items()}


# Errors that simulators raise for unexpected arguments. Any other error is a bug of ours.
_FAILURES: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


@cache
def parameter_names(tool: str) -> tuple[str, ...]:
    """Return the parameters of a tool in order, for official answers with positional arguments."""
    method = getattr(simulator_class(all_tools()[tool].simulator), tool)
    return tuple(name for name in inspect.signature(method).parameters if name != "self")


def public_state(value: Any) -> Any:
    """Convert any value of a simulator to JSON. An object becomes a mapping of its public attributes."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case Mapping():
            items = cast("Mapping[Any, Any]", value).items()
            return {str(key): public_state(entry) for key, entry in items}
        case list() | tuple():
            return [public_state(entry) for entry in cast("list[Any]", value)]
        case Set():
            return sorted((public_state(entry) for entry in cast("Set[Any]", value)), key=canonical_json)
        case _ if hasattr(value, "__dict__"):
            # A folder and its parent refer to each other, so skip the parent.
            held = cast("dict[str, Any]", vars(value))
            return {
                name: public_state(part) for name, part in held.items() if not name.startswith("_") and name != "parent"
            }
        case _:
            return str(value)


def state_digest(state: Mapping[str, Any]) -> str:
    """Return a digest of the state. Only equal states have equal digests."""
    return hashlib.sha256(canonical_json(state).encode()).hexdigest()


def _fresh(name: str, entry: Entry) -> Any:
    simulator = simulator_class(name)()
    if name not in _STATELESS:
        config = copy.deepcopy(entry.config.get(name, {}))
        simulator._load_scenario(config, long_context=entry.is_long)
    return simulator


def _too_large(tool: str, arguments: Mapping[str, Any]) -> str | None:
    for name, value in arguments.items():
        most = _MOST.get((tool, name))
        if most is not None and isinstance(value, int | float) and abs(value) > most:
            return f"{name} is too large: at most {most:g}"
    return None


def _worded(result: Any) -> str:
    try:
        return json.dumps(result) if isinstance(result, dict) else str(result)
    except TypeError:  # a Decimal, or an object of the simulator
        return str(cast("object", result))

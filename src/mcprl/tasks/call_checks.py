"""Whether a call fits the tools that there are, and which alias would mend it where it does not."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

from mcprl.suggestions import did_you_mean

__all__ = ["CallCheck", "Mend", "OfferedTool", "ToolsByName", "check_call"]


class OfferedTool(Protocol):
    """What a tool list says about a tool. `parameters` is the JSON Schema of its arguments."""

    @property
    def name(self) -> str: ...

    @property
    def server(self) -> str: ...

    @property
    def parameters(self) -> Mapping[str, Any]: ...


ToolsByName = Mapping[str, OfferedTool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mend:
    """An alias for the settings of a server, in a recipe under `servers.settings`.

    Mend(server="fmp", setting="argument_aliases", alias="ticker", meant="symbol")
    """

    server: str
    setting: Literal["tool_aliases", "argument_aliases"]
    alias: str
    meant: str

    def __str__(self) -> str:
        return f"{self.setting}: {{{self.alias}: {self.meant}}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCheck:
    """What is wrong with a call, and the aliases that would mend all of it; none where no alias does.

    CallCheck(problems=("has no argument 'ticker'", "lacks the argument 'symbol'"), mends=(Mend(…),))
    """

    problems: tuple[str, ...] = ()
    mends: tuple[Mend, ...] = ()


def check_call(name: str, arguments: Mapping[str, Any], tools: ToolsByName, *, partial: bool = False) -> CallCheck:
    """Hold a call against the tools. With `partial`, arguments may be missing: they are those that a goal expects."""
    if name in tools:
        return _check_arguments(tools[name], arguments, partial=partial)
    problem = f"no server lists it{did_you_mean(name, tools)}"
    # Of the tools with a similar name, the first that takes these arguments is the likeliest to be meant.
    for close in difflib.get_close_matches(name, list(tools), n=3):
        inside = _check_arguments(tools[close], arguments, partial=partial)
        if not inside.problems or inside.mends:
            alias = Mend(server=tools[close].server, setting="tool_aliases", alias=name, meant=close)
            return CallCheck(problems=(problem,), mends=(alias, *inside.mends))
    return CallCheck(problems=(problem,))


def _check_arguments(tool: OfferedTool, arguments: Mapping[str, Any], *, partial: bool) -> CallCheck:
    properties = cast("Mapping[str, Any]", tool.parameters.get("properties", {}))
    required = cast("Sequence[str]", () if partial else tool.parameters.get("required", ()))
    missing = [name for name in required if name not in arguments]
    takes_others = tool.parameters.get("additionalProperties", False) is not False
    unknown = [name for name in arguments if name not in properties and not takes_others]
    problems = [f"has no argument {name!r}" for name in unknown] + [f"lacks the argument {name!r}" for name in missing]
    free = {name: properties[name] for name in properties if name not in arguments}
    meant = _pair({name: arguments[name] for name in unknown}, free, missing)
    if len(meant) < len(unknown) or not set(missing) <= set(meant.values()):
        return CallCheck(problems=tuple(problems))
    mends = tuple(
        Mend(server=tool.server, setting="argument_aliases", alias=alias, meant=name) for alias, name in meant.items()
    )
    return CallCheck(problems=tuple(problems), mends=mends)


def _pair(unknown: Mapping[str, Any], free: Mapping[str, Any], missing: Sequence[str]) -> dict[str, str]:
    """Which argument each unknown one means: by likeness of the names, and the last missing one by elimination."""
    meant: dict[str, str] = {}
    for name, value in unknown.items():
        left = [other for other in free if other not in meant.values() and _fits(value, free[other])]
        close = difflib.get_close_matches(name, left, n=1)
        if close:
            meant[name] = close[0]
    strangers = [name for name in unknown if name not in meant]
    wanted = [name for name in missing if name not in meant.values()]
    if len(strangers) == len(wanted) == 1 and _fits(unknown[strangers[0]], free.get(wanted[0], {})):
        meant[strangers[0]] = wanted[0]
    return meant


_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int, float),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def _fits(value: Any, schema: Any) -> bool:
    """Whether a value has the type that a schema names; a schema that names none takes all."""
    named: Any = cast("Mapping[str, Any]", schema).get("type") if isinstance(schema, Mapping) else None
    names = cast("list[Any]", named) if isinstance(named, list) else [named]
    known = [_TYPES[name] for name in names if isinstance(name, str) and name in _TYPES]
    return not known or any(isinstance(value, kinds) for kinds in known)

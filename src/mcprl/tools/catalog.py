"""The catalog: all tools that a run's servers offer, by name. Also resolves aliases and recognises errors."""

from __future__ import annotations

import difflib
import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from mcprl.bounds import MAX_TOOLS, Steps, is_found
from mcprl.config import ErrorRule
from mcprl.errors import DuplicateToolError, EmptyCatalogError, Fault, ToolLimitError, UnknownToolError
from mcprl.files import canonical_json
from mcprl.protocol import EPISODE_SCOPE, SCOPE
from mcprl.secrets import SECRETS
from mcprl.tools.arguments import ArgumentCheck

if TYPE_CHECKING:
    import mcp_types


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDefinition:
    """A tool as its server lists it. `read_only` and `idempotent` are the server's hints, False by default.

    `episodic` means that the tool uses state that the server keeps per episode (see `mcprl.protocol`).

    ToolDefinition(name="find_person", description="City and time zone of a colleague.", read_only=True,
                   parameters={"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]})
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None = None
    read_only: bool = False
    idempotent: bool = False
    episodic: bool = False

    def fingerprint(self) -> str:
        """SHA-256 of all fields. Equal definitions have equal fingerprints on every machine."""
        return hashlib.sha256(canonical_json(asdict(self)).encode()).hexdigest()


def definition_of(listed: mcp_types.Tool) -> ToolDefinition:
    """Convert a listed tool to its definition. Removes secrets, because definitions appear in prompts and cassettes."""
    hints = listed.annotations
    return ToolDefinition(
        name=listed.name,
        description=SECRETS.redact(listed.description or ""),
        parameters=SECRETS.redact_json(listed.input_schema),
        output_schema=SECRETS.redact_json(listed.output_schema),
        read_only=bool(hints is not None and hints.read_only_hint),
        idempotent=bool(hints is not None and hints.idempotent_hint),
        episodic=(listed.meta or {}).get(SCOPE) == EPISODE_SCOPE,
    )


_MAX_COMPARED = 200
_MAX_COMPILE_STEPS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool as the policy sees it, plus the name of its server.

    Tool(name="find_person", description="City and time zone of a colleague.", server="directory",
         parameters={"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]})
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    server: str
    read_only: bool = False
    idempotent: bool = False
    episodic: bool = False


def compile_checks(server: str, tools: Sequence[Tool]) -> dict[str, ArgumentCheck]:
    """Compile the argument checks of one server's tools, by name. This may take seconds, so call it off the event loop.

    Raises BadToolSchemaError or ToolLimitError.
    """
    if len(tools) > MAX_TOOLS:
        raise ToolLimitError(
            f"server {server!r} offers {len(tools)} tools, but at most {MAX_TOOLS} are allowed",
            fix=f"name only the tools that the tasks need in servers.settings.{server}.allow",
        )
    steps = Steps(_MAX_COMPILE_STEPS, f"read together with the schemas of all other tools of server {server!r}")
    return {tool.name: ArgumentCheck(tool.name, server, tool.parameters, steps) for tool in tools}


class Catalog:
    """All tools and their argument checks, in the order of the servers' lists. Rejects duplicate names."""

    def __init__(self, tools: Iterable[Tool], checks: Mapping[str, ArgumentCheck]) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            other = self._tools.get(tool.name)
            if other is not None:
                raise DuplicateToolError(
                    f"servers {other.server!r} and {tool.server!r} both offer a tool named {tool.name!r}",
                    fix="disable a server in the mcpServers file, or exclude its tool with servers.settings.NAME.deny",
                )
            self._tools[tool.name] = tool
        if not self._tools:
            raise EmptyCatalogError(
                "the servers offer no tools", fix="in the mcpServers file, enable a server that offers tools"
            )
        self._checks = checks

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    def check(self, name: str) -> ArgumentCheck:
        """Return the compiled argument check of a tool."""
        return self._checks[name]

    def closest(self, name: str) -> str | None:
        """Return the tool with the most similar name, or None if no name is similar."""
        close = difflib.get_close_matches(name[:_MAX_COMPARED], self._tools, n=1)
        return close[0] if close else None

    def require(self, tool_names: Iterable[str], wanted_by: str) -> None:
        """Raise UnknownToolError if a tool is not in the catalog. `wanted_by` says what needs it: 'task d03'."""
        for name in tool_names:
            if name not in self._tools:
                close = self.closest(name)
                hint = f" (did you mean {close!r}?)" if close is not None else ""
                raise UnknownToolError(
                    f"no server offers the tool {name!r}, which {wanted_by} needs{hint}",
                    fix="correct the task, or add a server that offers it",
                )

    def select(self, names: Sequence[str] | None) -> tuple[Tool, ...]:
        """Return the named tools in the given order, without duplicates. None selects all tools."""
        if names is None:
            return tuple(self)
        self.require(names, wanted_by="a lease")
        return tuple(self._tools[name] for name in dict.fromkeys(names))


def matches(tool: str, patterns: Sequence[str]) -> bool:
    """Return True if a tool's name matches one of the patterns."""
    return any(fnmatchcase(tool, pattern) for pattern in patterns)


def is_offered(tool: str, allow: Sequence[str], deny: Sequence[str]) -> bool:
    """Return True if a tool is allowed and not denied. `deny` takes precedence."""
    return matches(tool, allow) and not matches(tool, deny)


SEARCHED_CHARS = 2048
"""How many characters of a result the error rules search, from its beginning, where error messages are.

Long results are not errors. `$` matches at the end of the searched part.
"""


def recognise(text: str, is_error: bool, rules: Sequence[ErrorRule]) -> Fault | None:
    """Return whether the policy or the infrastructure caused an error in a result; None if the result is not an error.

    The first matching rule decides, even if the server reports success. If no rule matches, an error that the server
    reports counts as the policy's, because MCP intends such errors for the model.
    """
    for rule in rules:
        if is_found(rule.match, text[:SEARCHED_CHARS]):
            return Fault(rule.fault)
    return Fault.POLICY if is_error else None


def resolve_tool(name: str, offered: Collection[str], aliases: Mapping[str, str]) -> str:
    """Return the tool that `name` refers to. An unknown name is returned unchanged, for use in the error message."""
    if name in offered:
        return name
    target = aliases.get(name)
    return target if target is not None and target in offered else name


def resolve_arguments(
    arguments: Mapping[str, Any], properties: Collection[str], aliases: Mapping[str, str]
) -> dict[str, Any]:
    """Rename arguments to match the tool's schema. Returns a new dictionary in the same order.

    An argument is renamed if the tool has the alias's target but not the given name, and no other argument of the call
    provides the target, directly or through another alias. Aliases do not chain. Nothing is dropped: an ambiguous
    argument keeps its name, and validation reports it.

    resolve_arguments({"python_code": "1+1"}, {"code"}, {"python_code": "code"}) == {"code": "1+1"}
    """
    if not aliases:
        return dict(arguments)
    target = {
        name: aliases[name]
        for name in arguments
        if name in aliases and name not in properties and aliases[name] in properties and aliases[name] not in arguments
    }
    claims = Counter(target.values())
    return {
        target[name] if name in target and claims[target[name]] == 1 else name: value
        for name, value in arguments.items()
    }

"""A cassette made from recorded conversations, with a report of what went in and what did not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from mcprl.redact import SECRETS
from mcprl.tools.cassettes.cassette import ANY_VERSION, Cassette, canonical_arguments
from mcprl.tools.cassettes.inferred import infer_definition, is_inferred, merged_definitions
from mcprl.tools.cassettes.listings import ListedTool
from mcprl.tools.cassettes.recordings import RecordedCall, Recordings
from mcprl.tools.cassettes.sorting import (
    KnownTool,
    SortedCall,
    Verdict,
    error_rules,
    reads_by_name,
    sort_calls,
    tells_of_an_error,
)
from mcprl.tools.definitions import ToolDefinition

__all__ = ["DEFAULT_SERVER", "ImportReport", "ImportRules", "ToolCount", "import_recordings"]

DEFAULT_SERVER = "recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRules:
    """How recorded calls are read. Patterns are those of file names; the first server that matches a tool has it.

    ImportRules(servers=(("fmp", "fmp_*"), ("slack", "*_slack_*")), aliases={"ticker": "symbol"},
                reads=("polygon_aggs",), writes=("*_cart",), errors=error_rules(["No data"]))
    """

    servers: tuple[tuple[str, str], ...] = ((DEFAULT_SERVER, "*"),)
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    errors: tuple[re.Pattern[str], ...] = field(default_factory=error_rules)

    def server_of(self, tool: str) -> str | None:
        return next((server for server, pattern in self.servers if fnmatchcase(tool, pattern)), None)

    def is_read(self, listed: ListedTool) -> bool:
        """A pattern for writes counts first, then one for reads, then what the definition says, then the name."""
        name = listed.definition.name
        if any(fnmatchcase(name, pattern) for pattern in self.writes):
            return False
        if any(fnmatchcase(name, pattern) for pattern in self.reads):
            return True
        return reads_by_name(name) if listed.read_only is None else listed.read_only


@dataclass(slots=True, kw_only=True)
class ToolCount:
    """What became of the calls of one tool. `distinct` counts different calls, `differing` those of several answers.

    ToolCount(server="fmp", tool="fmp_get_quote", seen=107, recorded=83, errors=24, distinct=46, differing=12)
    """

    server: str
    tool: str
    is_write: bool = False
    inferred: bool = False
    seen: int = 0
    recorded: int = 0
    writes: int = 0
    errors: int = 0
    unfit: int = 0
    distinct: int = 0
    differing: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """What an import did. `unassigned` are tools that no server was named for, with the number of their calls.

    ImportReport(tools=[ToolCount(...)], unassigned={"frob": 3}, aliases_applied=20, redactions=0, ...)
    """

    tools: list[ToolCount]
    unassigned: Mapping[str, int]
    aliases_applied: int
    redactions: int


def import_recordings(
    recordings: Recordings, cassette: Cassette, rules: ImportRules, listed: Mapping[str, ListedTool]
) -> ImportReport:
    """Put the replayable calls into the cassette, and the tools. `listed` counts more than what the logs define."""
    definitions = _definitions(recordings, cassette, rules, {**recordings.tools, **listed})
    known: dict[str, KnownTool] = {}
    for name, definition in definitions.items():
        server = rules.server_of(name)
        if server is not None:
            known[name] = KnownTool(server=server, version=ANY_VERSION, definition=definition)
    calls = list(sort_calls(recordings.calls, known, rules.aliases, rules.errors))
    counts = {
        name: ToolCount(
            server=tool.server,
            tool=name,
            is_write=not tool.definition.read_only,
            inferred=is_inferred(tool.definition),
        )
        for name, tool in known.items()
    }
    _count(calls, counts)
    redactions = _record_calls(calls, cassette, counts)
    _record_tools(known.values(), cassette)
    uncalled = {name: 0 for name in definitions if name not in known}
    unassigned = {**uncalled, **_numbers(call.call.tool for call in calls if call.tool is None)}
    return ImportReport(
        tools=sorted(counts.values(), key=lambda count: (count.server, count.tool)),
        unassigned=unassigned,
        aliases_applied=sum(call.renamed for call in calls),
        redactions=redactions,
    )


def _definitions(
    recordings: Recordings,
    cassette: Cassette,
    rules: ImportRules,
    listed: Mapping[str, ListedTool],
) -> dict[str, ToolDefinition]:
    """One definition a tool: written down in a list or a prompt, else from an earlier import, else inferred."""
    earlier = {
        (server, tool.name): tool
        for server, version, tools in cassette.listings()
        if version == ANY_VERSION
        for tool, _ in tools
    }
    made: dict[str, ListedTool] = dict(listed)
    for name, calls in _by_tool(recordings.calls).items():
        if name in made:
            continue
        before = earlier.get((rules.server_of(name) or "", name))
        if before is not None and not is_inferred(before):
            made[name] = ListedTool(definition=before, read_only=before.read_only)
            continue
        # Calls that failed may have failed for their arguments; they are better than nothing.
        worked = [call.arguments for call in calls if not tells_of_an_error(call, rules.errors)]
        inferred = infer_definition(name, worked or [call.arguments for call in calls], rules.aliases)
        made[name] = ListedTool(definition=inferred if before is None else merged_definitions(before, inferred))
    return {name: replace(tool.definition, read_only=rules.is_read(tool)) for name, tool in made.items()}


def _by_tool(calls: Iterable[RecordedCall]) -> dict[str, list[RecordedCall]]:
    grouped: dict[str, list[RecordedCall]] = {}
    for call in calls:
        grouped.setdefault(call.tool, []).append(call)
    return grouped


def _numbers(names: Iterable[str]) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for name in names:
        numbers[name] = numbers.get(name, 0) + 1
    return numbers


def _count(calls: Iterable[SortedCall], counts: Mapping[str, ToolCount]) -> None:
    for call in calls:
        if call.tool is None:
            continue
        count = counts[call.call.tool]
        count.seen += 1
        count.recorded += call.verdict is Verdict.REPLAYABLE
        count.writes += call.verdict is Verdict.WRITE
        count.errors += call.verdict is Verdict.ERROR
        count.unfit += call.verdict is Verdict.UNFIT


def _record_calls(calls: Iterable[SortedCall], cassette: Cassette, counts: Mapping[str, ToolCount]) -> int:
    """Record the answers of each call in the order of the logs, so that the last one is found. Returns redactions."""
    answers: dict[tuple[str, str, str], tuple[Mapping[str, Any], dict[str, None]]] = {}
    redactions = 0
    for call in calls:
        if call.tool is None or call.verdict is not Verdict.REPLAYABLE:
            continue
        arguments, text = SECRETS.redact_json(call.arguments), SECRETS.redact(call.call.text)
        redactions += (arguments != call.arguments) + (text != call.call.text)
        key = (call.tool.server, call.call.tool, canonical_arguments(arguments))
        _, texts = answers.setdefault(key, (arguments, {}))
        # Again at the end: of answers that differ, the order is that of their last time.
        texts.pop(text, None)
        texts[text] = None
    for (server, tool, _), (arguments, texts) in answers.items():
        counts[tool].distinct += 1
        counts[tool].differing += len(texts) > 1
        kept = cassette.answers(server, ANY_VERSION, tool, arguments)
        # The same files imported again change nothing.
        if not texts.keys() <= set(kept) or kept[-1] != list(texts)[-1]:
            for text in texts:
                cassette.record(server, ANY_VERSION, tool, arguments, text)
    return redactions


def _record_tools(known: Iterable[KnownTool], cassette: Cassette) -> None:
    """Add to what earlier imports listed; a definition made now replaces an earlier one."""
    servers: dict[str, dict[str, ToolDefinition]] = {}
    for tool in known:
        servers.setdefault(tool.server, {})[tool.definition.name] = tool.definition
    for server, version, definitions in list(cassette.listings()):
        if version == ANY_VERSION and server in servers:
            servers[server] = {**{tool.name: tool for tool, _ in definitions}, **servers[server]}
    for server, tools in servers.items():
        cassette.record_tools(server, ANY_VERSION, tools.values())

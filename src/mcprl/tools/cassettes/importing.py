"""A cassette made from recorded conversations, with a report of what went in and what did not."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, cast

from mcprl.errors import BadToolSchemaError, BadValueError, CassetteError, ToolLimitError
from mcprl.secrets import SECRETS
from mcprl.tools.arguments import ArgumentCheck
from mcprl.tools.cassettes.cassette import ANY_VERSION, Cassette, Recording, canonical_arguments
from mcprl.tools.cassettes.recordings import ListedTool, RecordedCall, Recordings
from mcprl.tools.catalog import ToolDefinition
from mcprl.tools.names import SEARCHED_CHARS, resolve_arguments

__all__ = [
    "DEFAULT_SERVER",
    "ImportReport",
    "ImportRules",
    "ReplayShare",
    "ToolCount",
    "error_rules",
    "find_faults",
    "import_recordings",
    "infer_definition",
    "is_inferred",
    "merged_definitions",
    "reads_by_name",
    "replay",
    "tells_of_an_error",
]


_READING = re.compile(
    r"calculate|check|compare|convert|count|describe|detect|estimate|extract|fetch|find|geocode|get|inspect|is|list"
    r"|look|lookup|measure|parse|peek|preview|query|read|retrieve|scan|scrape|search|show|suggest|summari[sz]e"
    r"|translate|validate|view"
)
_WRITING = re.compile(
    r"add|append|approve|assign|buy|cancel|configure|create|delete|deploy|disable|drop|edit|enable|eval|exec|execute"
    r"|insert|install|invite|invoke|kill|launch|merge|modify|move|notify|pay|publish|purchase|push|put|register|reject"
    r"|remove|rename|replace|reply|reset|restart|save|sell|send|submit|subscribe|sync|uninstall|unsubscribe|update"
    r"|upload|upsert|write"
)
# Nouns after a verb that reads, as in get_post or list_open_orders; verbs before one, or after an "and".
_EITHER = re.compile(
    r"accept|apply|archive|book|build|call|close|comment|commit|copy|fork|import|log|make|open|order|patch|play|post"
    r"|run|schedule|set|share|start|stop|store|tag|transfer|trigger"
)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

# At the beginning only: an article about errors is no error.
_ERRORS = (
    r"(?i)\A\s*(?:❌|✗|⛔|error\b|failed (?:to|with)\b|(?:failed|failure|fatal|exception|forbidden|denied)\s{0,4}:"
    r"|(?:api|http|internal|server|client|connection|network|timeout|validation|execution|rate limit) error\b"
    r"|traceback \(most recent call last\)|rate limit|too many requests|(?:http )?[45]\d\d (?:client|server) error"
    r"|(?:http )?429\b|request (?:failed|timed out))",
    # The text of an exception: ValueError: …, 'NoneType' object is not iterable
    r"\A\s*(?:[A-Z]\w{0,60}(?:Error|Exception)\s{0,4}:|'\w{1,60}' object (?:is not|has no|does not)\b)",
    r"(?i)\A\s*\{\s*\"(?:error|errors)\"\s*:\s*+(?!null|false|\"\"|\{\s*\}|\[\s*\])",
    r"(?i)\A\s*\{\s*\"(?:is_?error\"\s*:\s*true|success\"\s*:\s*false|ok\"\s*:\s*false|status\"\s*:\s*\"(?:error|fail))",
)


class Verdict(StrEnum):
    """What becomes of a recorded call."""

    REPLAYABLE = "replayable"
    WRITE = "write"
    ERROR = "error"
    UNFIT = "unfit"
    """Its arguments do not fit the tool's definition, so a policy could never make the same call."""
    UNKNOWN = "unknown"
    """No server is named for its tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTool:
    """A tool, the server it belongs to, and the version of that server's listing.

    KnownTool(server="fmp", version="", definition=ToolDefinition(name="fmp_get_quote", ...))
    """

    server: str
    version: str
    definition: ToolDefinition


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedCall:
    """A recorded call with its verdict, and its arguments under the names that the tool knows.

    SortedCall(call=RecordedCall(tool="fmp_get_quote", arguments={"ticker": "AAPL"}, ...), tool=KnownTool(...),
               arguments={"symbol": "AAPL"}, verdict=Verdict.ERROR)
    """

    call: RecordedCall
    tool: KnownTool | None
    arguments: Mapping[str, Any]
    verdict: Verdict

    @property
    def renamed(self) -> bool:
        """Whether an alias was applied."""
        return self.arguments.keys() != self.call.arguments.keys()


def reads_by_name(tool: str) -> bool:
    """Whether a tool of this name surely only reads.

    >>> [reads_by_name(name) for name in ("fmp_get_quote", "listFiles", "send_message", "search_and_replace", "frob")]
    [True, True, False, False, False]
    """
    words = [word.lower() for word in _WORD.findall(tool)]
    if any(_WRITING.fullmatch(word) for word in words):
        return False
    reading = False
    for before, word in zip(["", *words], words, strict=False):
        if _EITHER.fullmatch(word) and (not reading or before in {"and", "then"}):
            return False
        reading = reading or _READING.fullmatch(word) is not None
    return reading


def error_rules(extra: Iterable[str] = ()) -> tuple[re.Pattern[str], ...]:
    """What the answer of a failed call looks like. Raises BadValueError for a rule that is no regular expression."""
    rules = [re.compile(rule) for rule in _ERRORS]
    for rule in extra:
        try:
            rules.append(re.compile(rule))
        except re.error as error:
            raise BadValueError(f"{rule!r} is no regular expression: {error}", fix="correct it") from error
    return tuple(rules)


def tells_of_an_error(call: RecordedCall, rules: Iterable[re.Pattern[str]]) -> bool:
    """Whether the log says that a call failed, or one of the rules finds an error in its answer."""
    return call.failed or any(rule.search(call.text, 0, SEARCHED_CHARS) for rule in rules)


def sort_calls(
    calls: Iterable[RecordedCall],
    known: Mapping[str, KnownTool],
    aliases: Mapping[str, str],
    errors: Sequence[re.Pattern[str]],
) -> Iterator[SortedCall]:
    """A verdict for each call. Raises BadToolSchemaError where the definition of a tool that was called is unusable."""
    checks: dict[str, ArgumentCheck] = {}
    for call in calls:
        tool = known.get(call.tool)
        if tool is None:
            yield SortedCall(call=call, tool=None, arguments=call.arguments, verdict=Verdict.UNKNOWN)
            continue
        if call.tool not in checks:
            checks[call.tool] = ArgumentCheck(call.tool, tool.server, tool.definition.parameters)
        properties = cast("dict[str, Any]", tool.definition.parameters.get("properties", {}))
        arguments = resolve_arguments(call.arguments, properties, aliases)
        if not tool.definition.read_only:
            verdict = Verdict.WRITE
        elif tells_of_an_error(call, errors):
            verdict = Verdict.ERROR
        else:
            verdict = Verdict.REPLAYABLE if checks[call.tool].problem(arguments) is None else Verdict.UNFIT
        yield SortedCall(call=call, tool=tool, arguments=arguments, verdict=verdict)


_INFERRED = "Inferred from recorded calls"
_JSON_TYPES = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


def infer_definition(name: str, calls: Sequence[Mapping[str, Any]], aliases: Mapping[str, str]) -> ToolDefinition:
    """A definition that all the calls fit: each argument seen with its types; required is what every call gave.

    Of two names of which one is an alias of the other, the one seen less often is left out: it was a mistake.

    infer_definition("quote", [{"symbol": "A"}, {"symbol": "B", "limit": 2}], {}).parameters == {
        "type": "object", "required": ["symbol"],
        "properties": {"symbol": {"type": "string"}, "limit": {"type": "integer"}}}
    """
    uses = Counter(argument for call in calls for argument in call)
    mistaken = _mistaken_names(uses, aliases)
    types: dict[str, set[str]] = {}
    required: set[str] | None = None
    for call in calls:
        given = {_meant(argument, mistaken, aliases): value for argument, value in call.items()}
        for argument, value in given.items():
            types.setdefault(argument, set()).add(_JSON_TYPES[type(value)])
        required = set(given) if required is None else required & set(given)
    return _definition(name, types, required or set())


def is_inferred(definition: ToolDefinition) -> bool:
    """Whether a definition was inferred here, so that a written one may replace it and a new one widen it."""
    return definition.description.startswith(_INFERRED)


def merged_definitions(one: ToolDefinition, other: ToolDefinition) -> ToolDefinition:
    """The inferred definition that the calls of both fit."""
    types: dict[str, set[str]] = {}
    for definition in (one, other):
        for argument, schema in cast("dict[str, dict[str, Any]]", definition.parameters["properties"]).items():
            kinds: str | list[str] = schema["type"]
            types.setdefault(argument, set()).update([kinds] if isinstance(kinds, str) else kinds)
    required = set(one.parameters["required"]) & set(other.parameters["required"])
    return _definition(one.name, types, required)


def _mistaken_names(uses: Mapping[str, int], aliases: Mapping[str, str]) -> set[str]:
    mistaken: set[str] = set()
    for other, meant in aliases.items():
        if other in uses and meant in uses and not {other, meant} & mistaken:
            mirrored = aliases.get(meant) == other
            mistaken.add(meant if mirrored and uses[other] > uses[meant] else other)
    return mistaken


def _meant(argument: str, mistaken: Collection[str], aliases: Mapping[str, str]) -> str:
    return aliases[argument] if argument in mistaken else argument


def _definition(name: str, types: Mapping[str, set[str]], required: Collection[str]) -> ToolDefinition:
    properties = {argument: {"type": _schema_type(kinds)} for argument, kinds in types.items()}
    return ToolDefinition(
        name=name,
        description=f"{_INFERRED}: arguments {', '.join(types) or 'none'}.",
        parameters={
            "type": "object",
            "properties": properties,
            "required": [argument for argument in types if argument in required],
        },
    )


def _schema_type(kinds: set[str]) -> str | list[str]:
    # Every integer is a number.
    wide = sorted(kinds - {"integer"} if "number" in kinds else kinds)
    return wide[0] if len(wide) == 1 else wide


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayShare:
    """How many calls of a log a cassette answers. `replayable` are those that an import would have taken.

    ReplayShare(calls=1137, found=891, replayable=889, replayable_found=889, missing=(), lookup_s=(0.00005, ...))
    """

    calls: int
    found: int
    replayable: int
    replayable_found: int
    missing: tuple[SortedCall, ...]
    lookup_s: tuple[float, ...]


def find_faults(cassette: Cassette) -> Iterator[str]:
    """Each fault of a cassette in a sentence. A file that SQLite finds damaged is not looked into further."""
    try:
        damage = cassette.integrity()
        if damage:
            yield from (f"the file is damaged: {line}" for line in damage)
            return
        definitions = _Definitions()
        for server, version, tools in cassette.listings():
            for tool, fingerprint in tools:
                definitions.add(server, version, tool, fingerprint)
        yield from definitions.faults
        for recording in cassette.recordings():
            yield from _faults_of(recording, definitions)
    except CassetteError as error:
        yield error.what


def replay(
    calls: Iterable[RecordedCall], cassette: Cassette, *, aliases: Mapping[str, str], errors: Sequence[re.Pattern[str]]
) -> ReplayShare:
    """Look up every call of a log. `aliases` and `errors` are those of the import."""
    known = {
        tool.name: KnownTool(server=server, version=version, definition=tool)
        for server, (version, tools) in cassette.tools().items()
        for tool in tools
    }
    found = replayable = 0
    missing: list[SortedCall] = []
    lookup_s: list[float] = []
    for call in sort_calls(calls, known, aliases, errors):
        started = time.perf_counter()
        tool = call.tool
        answered = tool is not None and (
            cassette.find(tool.server, tool.version, tool.definition.name, call.arguments) is not None
        )
        lookup_s.append(time.perf_counter() - started)
        found += answered
        if call.verdict is Verdict.REPLAYABLE:
            replayable += 1
            if not answered:
                missing.append(call)
    return ReplayShare(
        calls=len(lookup_s),
        found=found,
        replayable=replayable,
        replayable_found=replayable - len(missing),
        missing=tuple(missing),
        lookup_s=tuple(lookup_s),
    )


class _Definitions:
    """The recorded definitions, each with its check, by server, version and tool."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self._checks: dict[tuple[str, str, str], ArgumentCheck | None] = {}
        self._newest: dict[str, str] = {}

    def add(self, server: str, version: str, tool: ToolDefinition, fingerprint: str) -> None:
        if tool.fingerprint() != fingerprint:
            self.faults.append(f"server {server!r}: the definition of {tool.name!r} is not the one recorded")
        self._newest[server] = version
        key = (server, version, tool.name)
        self._checks[key] = None
        try:
            self._checks[key] = ArgumentCheck(tool.name, server, tool.parameters)
        except (BadToolSchemaError, ToolLimitError) as error:
            self.faults.append(error.what)

    def problem(self, recording: Recording) -> str | None:
        """Why a recording cannot be found under its definition."""
        version = recording.version
        if version == ANY_VERSION and (recording.server, version, recording.tool) not in self._checks:
            version = self._newest.get(recording.server, version)
        key = (recording.server, version, recording.tool)
        if key not in self._checks:
            return "no definition of the tool is recorded"
        check = self._checks[key]
        return None if check is None else check.problem(recording.arguments)


def _faults_of(recording: Recording, definitions: _Definitions) -> Iterator[str]:
    what = f"server {recording.server!r}, {recording.tool} {SECRETS.redact(canonical_arguments(recording.arguments))}"
    problem = definitions.problem(recording)
    if problem is not None:
        yield f"{what}: {problem}"
    if SECRETS.redact(recording.text) != recording.text:
        yield f"{what}: the answer holds what looks like a secret"
    if SECRETS.redact_json(recording.arguments) != recording.arguments:
        yield f"{what}: an argument holds what looks like a secret"


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

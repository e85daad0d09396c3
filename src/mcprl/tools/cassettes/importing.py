"""Make a cassette from recorded conversations, check one, and look up the calls of a log in one."""

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
from mcprl.files import canonical_json
from mcprl.secrets import SECRETS
from mcprl.tools.arguments import JSON_TYPES, ArgumentCheck
from mcprl.tools.cassettes.cassette import ANY_VERSION, Cassette, Recording
from mcprl.tools.cassettes.recordings import ListedTool, RecordedCall, Recordings
from mcprl.tools.catalog import ToolDefinition
from mcprl.tools.names import SEARCHED_CHARS, matches, resolve_arguments

DEFAULT_SERVER = "recorded"

# ---- which calls can be replayed
# --------------------------------------------------------------------------------------

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
# Nouns if they follow a reading verb, as in get_post or list_open_orders. Otherwise, or after "and", they are verbs.
_EITHER = re.compile(
    r"accept|apply|archive|book|build|call|close|comment|commit|copy|fork|import|log|make|open|order|patch|play|post"
    r"|run|schedule|set|share|start|stop|store|tag|transfer|trigger"
)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

# Match only at the beginning: an article about errors is not an error.
_ERRORS = (
    r"(?i)\A\s*(?:❌|✗|⛔|error\b|(?:bad|invalid|missing) arguments?\b|failed (?:to|with)\b"
    r"|(?:failed|failure|fatal|exception|forbidden|denied)\s{0,4}:"
    r"|(?:api|http|internal|server|client|connection|network|timeout|validation|execution|rate limit) error\b"
    r"|traceback \(most recent call last\)|rate limit|too many requests|(?:http )?[45]\d\d (?:client|server) error"
    r"|(?:http )?429\b|request (?:failed|timed out))",
    # The text of an exception: ValueError: …, 'NoneType' object is not iterable
    r"\A\s*(?:[A-Z]\w{0,60}(?:Error|Exception)\s{0,4}:|'\w{1,60}' object (?:is not|has no|does not)\b)",
    r"(?i)\A\s*\{\s*\"(?:error|errors)\"\s*:\s*+(?!null|false|\"\"|\{\s*\}|\[\s*\])",
    r"(?i)\A\s*\{\s*\"(?:is_?error\"\s*:\s*true|success\"\s*:\s*false|ok\"\s*:\s*false|status\"\s*:\s*\"(?:error|fail))",
)


class Verdict(StrEnum):
    """Whether a recorded call can be replayed, and if not, why."""

    REPLAYABLE = "replayable"
    WRITE = "write"
    ERROR = "error"
    UNFIT = "unfit"
    """Its arguments do not match the tool's definition, so a policy could never make the same call."""
    UNKNOWN = "unknown"
    """No server has its tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTool:
    """A tool, its server, and the server version under which the tool was listed.

    KnownTool(server="fmp", version="", definition=ToolDefinition(name="fmp_get_quote", ...))
    """

    server: str
    version: str
    definition: ToolDefinition


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifiedCall:
    """A recorded call and its verdict. `arguments` are renamed to match the tool's schema.

    ClassifiedCall(call=RecordedCall(tool="fmp_get_quote", arguments={"ticker": "AAPL"}, ...), tool=KnownTool(...),
                   arguments={"symbol": "AAPL"}, verdict=Verdict.ERROR)
    """

    call: RecordedCall
    tool: KnownTool | None
    arguments: Mapping[str, Any]
    verdict: Verdict


def reads_by_name(tool: str) -> bool:
    """Return True if the name shows that the tool only reads.

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
    """Return patterns that match the answers of failed calls. Raises BadValueError for an invalid pattern."""
    rules = [re.compile(rule) for rule in _ERRORS]
    for rule in extra:
        try:
            rules.append(re.compile(rule))
        except re.error as error:
            raise BadValueError(f"{rule!r} is not a regular expression: {error}", fix="correct it") from error
    return tuple(rules)


def tells_of_an_error(call: RecordedCall, rules: Iterable[re.Pattern[str]]) -> bool:
    """Return True if the log marks the call as failed or a rule matches its answer."""
    return call.failed or any(rule.search(call.text, 0, SEARCHED_CHARS) for rule in rules)


def classify(
    calls: Iterable[RecordedCall],
    known: Mapping[str, KnownTool],
    aliases: Mapping[str, str],
    errors: Sequence[re.Pattern[str]],
) -> Iterator[ClassifiedCall]:
    """Classify each call. Raises BadToolSchemaError if the definition of a called tool is unusable."""
    checks: dict[str, ArgumentCheck] = {}
    for call in calls:
        tool = known.get(call.tool)
        if tool is None:
            yield ClassifiedCall(call=call, tool=None, arguments=call.arguments, verdict=Verdict.UNKNOWN)
            continue
        if call.tool not in checks:
            checks[call.tool] = ArgumentCheck(call.tool, tool.server, tool.definition.parameters)
        arguments = resolve_arguments(call.arguments, tool.definition.parameters.get("properties", {}), aliases)
        if not tool.definition.read_only:
            verdict = Verdict.WRITE
        elif tells_of_an_error(call, errors):
            verdict = Verdict.ERROR
        else:
            verdict = Verdict.REPLAYABLE if checks[call.tool].problem(arguments) is None else Verdict.UNFIT
        yield ClassifiedCall(call=call, tool=tool, arguments=arguments, verdict=verdict)


# ---- definitions inferred from calls
# ----------------------------------------------------------------------------------

_INFERRED = "Inferred from recorded calls"


def infer_definition(name: str, calls: Sequence[Mapping[str, Any]], aliases: Mapping[str, str]) -> ToolDefinition:
    """Return a definition that all calls match. An argument has the types seen, and is required if every call has it.

    If calls use both an alias and its target, the less frequent name is assumed to be a mistake and dropped.

    infer_definition("quote", [{"symbol": "A"}, {"symbol": "B", "limit": 2}], {}).parameters == {
        "type": "object", "required": ["symbol"],
        "properties": {"symbol": {"type": "string"}, "limit": {"type": "integer"}}}
    """
    mistaken = _mistaken_names(Counter(argument for call in calls for argument in call), aliases)
    renamed = [{aliases[key] if key in mistaken else key: value for key, value in call.items()} for call in calls]
    types: dict[str, set[str]] = {}
    for call in renamed:
        for argument, value in call.items():
            types.setdefault(argument, set()).add(JSON_TYPES[type(value)])
    return _definition(name, types, {argument for argument in types if all(argument in call for call in renamed)})


def is_inferred(definition: ToolDefinition) -> bool:
    """Return True if the definition was inferred here. A listed one replaces it, and a later import extends it."""
    return definition.description.startswith(_INFERRED)


def merged_definitions(one: ToolDefinition, other: ToolDefinition) -> ToolDefinition:
    """Return an inferred definition that the calls of both definitions match."""
    types: dict[str, set[str]] = {}
    for definition in (one, other):
        for argument, schema in cast("dict[str, dict[str, Any]]", definition.parameters["properties"]).items():
            kinds: str | list[str] = schema["type"]
            types.setdefault(argument, set()).update([kinds] if isinstance(kinds, str) else kinds)
    return _definition(one.name, types, set(one.parameters["required"]) & set(other.parameters["required"]))


def _mistaken_names(uses: Mapping[str, int], aliases: Mapping[str, str]) -> set[str]:
    mistaken: set[str] = set()
    for alias, target in aliases.items():
        if alias in uses and target in uses and not {alias, target} & mistaken:
            is_mutual = aliases.get(target) == alias
            mistaken.add(target if is_mutual and uses[alias] > uses[target] else alias)
    return mistaken


def _definition(name: str, types: Mapping[str, set[str]], required: Collection[str]) -> ToolDefinition:
    return ToolDefinition(
        name=name,
        description=f"{_INFERRED}: arguments {', '.join(types) or 'none'}.",
        parameters={
            "type": "object",
            "properties": {argument: {"type": _schema_type(kinds)} for argument, kinds in types.items()},
            "required": [argument for argument in types if argument in required],
        },
    )


def _schema_type(kinds: set[str]) -> str | list[str]:
    # "number" includes integers.
    wide = sorted(kinds - {"integer"} if "number" in kinds else kinds)
    return wide[0] if len(wide) == 1 else wide


# ---- checking a cassette, and looking up the calls of a log
# -----------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayShare:
    """How many calls of a log a cassette answers. `replayable` counts the calls that an import would have recorded.

    ReplayShare(calls=1137, found=891, replayable=889, replayable_found=889, missing=(), lookup_s=(0.00005, ...))
    """

    calls: int
    found: int
    replayable: int
    replayable_found: int
    missing: tuple[ClassifiedCall, ...]
    lookup_s: tuple[float, ...]


def find_faults(cassette: Cassette) -> Iterator[str]:
    """Yield each fault of a cassette as a sentence. If SQLite reports a damaged file, nothing else is checked."""
    try:
        damage = cassette.integrity()
        if damage:
            yield from (f"the file is damaged: {line}" for line in damage)
            return
        checks: dict[tuple[str, str, str], ArgumentCheck | None] = {}
        newest: dict[str, str] = {}
        for server, version, tools in cassette.listings():
            newest[server] = version
            for tool, fingerprint in tools:
                if tool.fingerprint() != fingerprint:
                    yield f"server {server!r}: the definition of {tool.name!r} is not the one recorded"
                checks[server, version, tool.name] = None
                try:
                    checks[server, version, tool.name] = ArgumentCheck(tool.name, server, tool.parameters)
                except (BadToolSchemaError, ToolLimitError) as error:
                    yield error.what
        for recording in cassette.recordings():
            what = (
                f"server {recording.server!r}, {recording.tool} {SECRETS.redact(canonical_json(recording.arguments))}"
            )
            version = recording.version
            if version == ANY_VERSION and (recording.server, version, recording.tool) not in checks:
                version = newest.get(recording.server, version)
            for problem in _problems(recording, checks, (recording.server, version, recording.tool)):
                yield f"{what}: {problem}"
    except CassetteError as error:
        yield error.what


def _problems(
    recording: Recording, checks: Mapping[tuple[str, str, str], ArgumentCheck | None], tool: tuple[str, str, str]
) -> Iterator[str]:
    if tool not in checks:
        yield "no definition of the tool is recorded"
    elif (check := checks[tool]) is not None and (problem := check.problem(recording.arguments)) is not None:
        yield problem
    if SECRETS.redact(recording.text) != recording.text:
        yield "the answer holds what looks like a secret"
    if SECRETS.redact_json(recording.arguments) != recording.arguments:
        yield "an argument holds what looks like a secret"


def replay(
    calls: Iterable[RecordedCall], cassette: Cassette, *, aliases: Mapping[str, str], errors: Sequence[re.Pattern[str]]
) -> ReplayShare:
    """Look up every call of a log in a cassette. Pass the same `aliases` and `errors` as for the import."""
    known = {
        tool.name: KnownTool(server=server, version=version, definition=tool)
        for server, (version, tools) in cassette.tools().items()
        for tool in tools
    }
    found = replayable = 0
    missing: list[ClassifiedCall] = []
    lookup_s: list[float] = []
    for call in classify(calls, known, aliases, errors):
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


# ---- importing
# --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRules:
    """How recorded calls are interpreted. Patterns are globs; a tool belongs to the first server that matches.

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
        """Check the patterns for writes, then the patterns for reads, then the definition's hint, then the name."""
        name = listed.definition.name
        if matches(name, self.writes):
            return False
        if matches(name, self.reads):
            return True
        return reads_by_name(name) if listed.read_only is None else listed.read_only


@dataclass(slots=True, kw_only=True)
class ToolCount:
    """Calls of one tool, counted by verdict. `distinct` counts different calls; `differing` counts those of them that
    got several different answers.

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
    """The result of an import. `unassigned` maps each tool without a server to its number of calls.

    ImportReport(tools=[ToolCount(...)], unassigned={"frob": 3}, aliases_applied=20, redactions=0)
    """

    tools: list[ToolCount]
    unassigned: Mapping[str, int]
    aliases_applied: int
    redactions: int


def import_recordings(
    recordings: Recordings, cassette: Cassette, rules: ImportRules, listed: Mapping[str, ListedTool]
) -> ImportReport:
    """Record the replayable calls and the tools. Definitions in `listed` take precedence over those in the logs."""
    definitions = tool_definitions(recordings, cassette, rules, {**recordings.tools, **listed})
    known: dict[str, KnownTool] = {}
    for name, definition in definitions.items():
        server = rules.server_of(name)
        if server is not None:
            known[name] = KnownTool(server=server, version=ANY_VERSION, definition=definition)
    calls = list(classify(recordings.calls, known, rules.aliases, rules.errors))
    counts = {
        name: ToolCount(
            server=tool.server,
            tool=name,
            is_write=not tool.definition.read_only,
            inferred=is_inferred(tool.definition),
        )
        for name, tool in known.items()
    }
    unassigned = {name: 0 for name in definitions if name not in known}
    for call in calls:
        name = call.call.tool
        if name not in counts:
            unassigned[name] = unassigned.get(name, 0) + 1
            continue
        counts[name].seen += 1
        counts[name].recorded += call.verdict is Verdict.REPLAYABLE
        counts[name].writes += call.verdict is Verdict.WRITE
        counts[name].errors += call.verdict is Verdict.ERROR
        counts[name].unfit += call.verdict is Verdict.UNFIT
    redactions = _record_calls(calls, cassette, counts)
    _record_tools(known.values(), cassette)
    return ImportReport(
        tools=sorted(counts.values(), key=lambda count: (count.server, count.tool)),
        unassigned=unassigned,
        aliases_applied=sum(call.arguments.keys() != call.call.arguments.keys() for call in calls),
        redactions=redactions,
    )


def tool_definitions(
    recordings: Recordings, cassette: Cassette, rules: ImportRules, listed: Mapping[str, ListedTool]
) -> dict[str, ToolDefinition]:
    """Choose one definition per tool: from a list or a prompt, else from an earlier import, else inferred."""
    earlier = {
        (server, tool.name): tool
        for server, version, tools in cassette.listings()
        if version == ANY_VERSION
        for tool, _ in tools
    }
    calls_by_tool: dict[str, list[RecordedCall]] = {}
    for call in recordings.calls:
        calls_by_tool.setdefault(call.tool, []).append(call)
    found: dict[str, ListedTool] = dict(listed)
    for name, calls in calls_by_tool.items():
        if name in found:
            continue
        before = earlier.get((rules.server_of(name) or "", name))
        if before is not None and not is_inferred(before):
            found[name] = ListedTool(definition=before, read_only=before.read_only)
            continue
        # Failed calls may have bad arguments, so use them only if the tool has no successful calls.
        worked = [call.arguments for call in calls if not tells_of_an_error(call, rules.errors)]
        inferred = infer_definition(name, worked or [call.arguments for call in calls], rules.aliases)
        found[name] = ListedTool(definition=inferred if before is None else merged_definitions(before, inferred))
    return {name: replace(tool.definition, read_only=rules.is_read(tool)) for name, tool in found.items()}


def _record_calls(calls: Iterable[ClassifiedCall], cassette: Cassette, counts: Mapping[str, ToolCount]) -> int:
    """Record answers in the order of the logs, so that lookups find the last one. Return the number of redactions."""
    answers: dict[tuple[str, str, str], tuple[Mapping[str, Any], dict[str, None]]] = {}
    redactions = 0
    for call in calls:
        if call.tool is None or call.verdict is not Verdict.REPLAYABLE:
            continue
        arguments, text = SECRETS.redact_json(call.arguments), SECRETS.redact(call.call.text)
        redactions += (arguments != call.arguments) + (text != call.call.text)
        key = (call.tool.server, call.call.tool, canonical_json(arguments))
        _, texts = answers.setdefault(key, (arguments, {}))
        # Move it to the end: different answers are ordered by their last occurrence.
        texts.pop(text, None)
        texts[text] = None
    for (server, tool, _), (arguments, texts) in answers.items():
        counts[tool].distinct += 1
        counts[tool].differing += len(texts) > 1
        kept = cassette.answers(server, ANY_VERSION, tool, arguments)
        # Importing the same files twice changes nothing.
        if not texts.keys() <= set(kept) or kept[-1] != list(texts)[-1]:
            for text in texts:
                cassette.record(server, ANY_VERSION, tool, arguments, text)
    return redactions


def _record_tools(known: Iterable[KnownTool], cassette: Cassette) -> None:
    """Record tool definitions. They extend those of earlier imports; a new definition replaces an old one."""
    servers: dict[str, dict[str, ToolDefinition]] = {}
    for tool in known:
        servers.setdefault(tool.server, {})[tool.definition.name] = tool.definition
    for server, version, definitions in list(cassette.listings()):
        if version == ANY_VERSION and server in servers:
            servers[server] = {**{tool.name: tool for tool, _ in definitions}, **servers[server]}
    for server, tools in servers.items():
        cassette.record_tools(server, ANY_VERSION, tools.values())

"""Makes a cassette from recorded conversations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from mcprl.files import canonical_json
from mcprl.secrets import SECRETS
from mcprl.tools.arguments import JSON_TYPES, ArgumentCheck
from mcprl.tools.cassette import ANY_VERSION, Cassette
from mcprl.tools.catalog import SEARCHED_CHARS, ToolDefinition, resolve_arguments
from mcprl_synthesis.recordings import ListedTool, RecordedCall, Recordings

DEFAULT_SERVER = "recorded"

# ---- which calls can be replayed ----

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
_ERRORS = tuple(
    re.compile(rule)
    for rule in (
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


def tells_of_an_error(call: RecordedCall) -> bool:
    """Return True if the log marks the call as failed or its result looks like an error."""
    return call.failed or any(rule.search(call.text, 0, SEARCHED_CHARS) for rule in _ERRORS)


def classify(
    calls: Iterable[RecordedCall], known: Mapping[str, KnownTool], aliases: Mapping[str, str]
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
        elif tells_of_an_error(call):
            verdict = Verdict.ERROR
        else:
            verdict = Verdict.REPLAYABLE if checks[call.tool].problem(arguments) is None else Verdict.UNFIT
        yield ClassifiedCall(call=call, tool=tool, arguments=arguments, verdict=verdict)


# ---- definitions inferred from calls ----


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
    return ToolDefinition(
        name=name,
        description=f"Inferred from recorded calls: arguments {', '.join(types) or 'none'}.",
        parameters={
            "type": "object",
            "properties": {argument: {"type": _schema_type(kinds)} for argument, kinds in types.items()},
            "required": [argument for argument in types if all(argument in call for call in renamed)],
        },
    )


def _mistaken_names(uses: Mapping[str, int], aliases: Mapping[str, str]) -> set[str]:
    mistaken: set[str] = set()
    for alias, target in aliases.items():
        if alias in uses and target in uses and not {alias, target} & mistaken:
            is_mutual = aliases.get(target) == alias
            mistaken.add(target if is_mutual and uses[alias] > uses[target] else alias)
    return mistaken


def _schema_type(kinds: set[str]) -> str | list[str]:
    # "number" includes integers.
    wide = sorted(kinds - {"integer"} if "number" in kinds else kinds)
    return wide[0] if len(wide) == 1 else wide


# ---- importing
# --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRules:
    """How recorded calls are interpreted. Patterns are globs; a tool belongs to the first server that matches.

    ImportRules(servers=(("fmp", "fmp_*"), ("slack", "*_slack_*")), aliases={"ticker": "symbol"})
    """

    servers: tuple[tuple[str, str], ...] = ((DEFAULT_SERVER, "*"),)
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])

    def server_of(self, tool: str) -> str | None:
        return next((server for server, pattern in self.servers if fnmatchcase(tool, pattern)), None)


def import_recordings(
    recordings: Recordings, cassette: Cassette, rules: ImportRules, listed: Mapping[str, ListedTool]
) -> list[ClassifiedCall]:
    """Record the replayable calls and the tools. Definitions in `listed` take precedence over those in the logs."""
    known: dict[str, KnownTool] = {}
    for name, definition in tool_definitions(recordings, rules, {**recordings.tools, **listed}).items():
        server = rules.server_of(name)
        if server is not None:
            known[name] = KnownTool(server=server, version=ANY_VERSION, definition=definition)
    calls = list(classify(recordings.calls, known, rules.aliases))
    _record_calls(calls, cassette)
    servers: dict[str, list[ToolDefinition]] = {}
    for tool in known.values():
        servers.setdefault(tool.server, []).append(tool.definition)
    for server, tools in servers.items():
        cassette.record_tools(server, ANY_VERSION, tools)
    return calls


def tool_definitions(
    recordings: Recordings, rules: ImportRules, listed: Mapping[str, ListedTool]
) -> dict[str, ToolDefinition]:
    """Choose one definition per tool: from a list or a prompt, else inferred from its calls."""
    calls_by_tool: dict[str, list[RecordedCall]] = {}
    for call in recordings.calls:
        calls_by_tool.setdefault(call.tool, []).append(call)
    found: dict[str, ListedTool] = dict(listed)
    for name, calls in calls_by_tool.items():
        if name not in found:
            # Failed calls may have bad arguments, so use them only if the tool has no successful calls.
            worked = [call.arguments for call in calls if not tells_of_an_error(call)]
            inferred = infer_definition(name, worked or [call.arguments for call in calls], rules.aliases)
            found[name] = ListedTool(definition=inferred)
    return {
        name: replace(tool.definition, read_only=reads_by_name(name) if tool.read_only is None else tool.read_only)
        for name, tool in found.items()
    }


def _record_calls(calls: Iterable[ClassifiedCall], cassette: Cassette) -> None:
    """Record results in the order of the logs, so that lookups find the last one."""
    answers: dict[tuple[str, str, str], tuple[Mapping[str, Any], dict[str, None]]] = {}
    for call in calls:
        if call.tool is None or call.verdict is not Verdict.REPLAYABLE:
            continue
        arguments, text = SECRETS.redact_json(call.arguments), SECRETS.redact(call.call.text)
        key = (call.tool.server, call.call.tool, canonical_json(arguments))
        _, texts = answers.setdefault(key, (arguments, {}))
        # Move it to the end: different answers are ordered by their last occurrence.
        texts.pop(text, None)
        texts[text] = None
    for (server, tool, _), (arguments, texts) in answers.items():
        for text in texts:
            cassette.record(server, ANY_VERSION, tool, arguments, text)

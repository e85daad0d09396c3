"""Which recorded calls may be replayed: those that worked, of tools that change nothing, with arguments that fit.

Logs seldom say whether a tool changes anything, so where nothing better is known the verbs in its name decide.
`fmp_get_quote` and `tavily_search` read; `send_message`, `create_ticket` and every name without a verb that reads count
as writes, as MCP assumes of a tool that says nothing. Running code is no read either: `execute_python` may do anything,
and its answer depends on more than its arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

from mcprl.errors import BadValueError
from mcprl.tools.cassettes.recordings import RecordedCall
from mcprl.tools.definitions import ToolDefinition
from mcprl.tools.stages.aliases import resolve_arguments
from mcprl.tools.stages.arguments import ArgumentCheck
from mcprl.tools.stages.disguise import SEARCHED_CHARS

__all__ = ["KnownTool", "SortedCall", "Verdict", "error_rules", "reads_by_name", "sort_calls", "tells_of_an_error"]

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

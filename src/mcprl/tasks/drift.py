"""Recorded calls that no longer fit the tools: names and arguments drift apart between a dataset and its servers.

Every call is looked at that a row records: in the messages of `prompt`, `messages` and
`extra_info.original_conversation`, in each of the shapes that `mcprl.conversations` knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from mcprl.conversations import WrittenCall, calls_in
from mcprl.tasks.call_checks import CallCheck, Mend, ToolsByName, check_call
from mcprl.tasks.rows import Row

__all__ = ["DriftedCall", "RecordedCall", "alias_settings", "drift_of", "recorded_calls"]

_CONVERSATIONS = (("prompt",), ("messages",), ("extra_info", "original_conversation"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """A call and where it stands; `message` counts from 1 in the conversation that `part` names.

    RecordedCall(row="row 18", part="prompt", message=18, call=WrittenCall(name="polygon_get_news", arguments={…}))
    """

    row: str
    part: str
    message: int
    call: WrittenCall


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftedCall:
    """A recorded call that does not fit the tools, what is wrong with it, and the aliases that would mend it.

    DriftedCall(row="row 4", part="prompt", message=3, tool="fmp_get_quote",
                problems=("has no argument 'ticker'", "lacks the argument 'symbol'"),
                mends=(Mend(server="fmp", setting="argument_aliases", alias="ticker", meant="symbol"),))
    """

    row: str
    part: str
    message: int
    tool: str
    problems: tuple[str, ...]
    mends: tuple[Mend, ...] = ()


def recorded_calls(rows: Iterable[Row]) -> Iterator[RecordedCall]:
    """Every call that the assistant makes in a conversation of a row."""
    for row in rows:
        for path in _CONVERSATIONS:
            for number, message in enumerate(_messages_at(row.value, path), start=1):
                if message.get("role") == "assistant":
                    for call in calls_in(message):
                        yield RecordedCall(row=row.label, part=".".join(path), message=number, call=call)


def drift_of(recorded: Iterable[RecordedCall], tools: ToolsByName) -> Iterator[DriftedCall]:
    """The calls that do not fit the tools, in their order."""
    for place in recorded:
        call = place.call
        if call.problem is not None or call.arguments is None:
            check = CallCheck(problems=(call.problem or "it has no arguments",))
        else:
            check = check_call(call.name, call.arguments, tools)
        if check.problems:
            yield DriftedCall(
                row=place.row,
                part=place.part,
                message=place.message,
                tool=call.name,
                problems=check.problems,
                mends=check.mends,
            )


def alias_settings(drifted: Iterable[DriftedCall]) -> dict[str, dict[str, dict[str, str]]]:
    """The aliases of all drifted calls, by server and setting, as a recipe has them under `servers.settings`.

    Where one name means two things at one server, that which it means more often is kept: it can have one meaning.
    """
    counts = Counter(mend for call in drifted for mend in call.mends)
    settings: dict[str, dict[str, dict[str, str]]] = {}
    for mend, _ in counts.most_common():
        settings.setdefault(mend.server, {}).setdefault(mend.setting, {}).setdefault(mend.alias, mend.meant)
    return settings


def _messages_at(value: Any, path: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for key in path:
        value = cast("dict[str, Any]", value).get(key) if isinstance(value, dict) else None
    if isinstance(value, list):
        for entry in cast("list[Any]", value):
            # What is no message still counts, or the numbers of those after it would be wrong.
            yield cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}

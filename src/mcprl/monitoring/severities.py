"""Verdicts as text for a terminal: how severe by its colour, then what, then what to try."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from mcprl.monitoring.printable import printable
from mcprl.verdicts import Severity, Verdict

__all__ = ["STYLES", "verdict_mark", "verdict_words"]

STYLES = {Severity.OK: "green", Severity.WARN: "yellow", Severity.BAD: "bold red"}


def verdict_mark(verdicts: Sequence[Verdict]) -> Text:
    """The verdicts of a step in a cell: how severe the worst is, its name, and how many others there are."""
    if not verdicts:
        return Text("–")
    worst = verdicts[0]
    if worst.severity is Severity.OK:
        return Text(worst.severity.value, style=STYLES[worst.severity])
    others = f" +{len(verdicts) - 1}" if len(verdicts) > 1 else ""
    return Text(f"{worst.severity.value}: {printable(worst.name)}{others}", style=STYLES[worst.severity])


def verdict_words(verdict: Verdict) -> Text:
    """A verdict in full."""
    words = Text.assemble(
        (f"{verdict.severity.value:4} {verdict.name}: ", STYLES[verdict.severity]), printable(verdict.what)
    )
    return words.append(f". Try: {printable(verdict.fix)}." if verdict.fix else ".")

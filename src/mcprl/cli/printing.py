"""Printing for commands: escaped text, tables, durations, JSON."""

from __future__ import annotations

import json
import shlex
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from mcprl.verdicts import Severity, Verdict

if TYPE_CHECKING:
    from rich.table import Table


def printable(text: str) -> str:
    r"""Escape control characters and invisible characters, because models and tools may send them.

    >>> printable("\x1b[31mred\x1b[0m\r\u200b")
    '\\x1b[31mred\\x1b[0m\\x0d\\u200b'
    """
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(char: str) -> str:
    if char.isprintable() or char in "\n\t" or unicodedata.category(char) == "Zs":
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def words(text: str, style: str = "") -> Text:
    """Return untrusted text as a rich Text, without markup and with control characters escaped."""
    return Text(printable(text), style=style)


def plain_table(*left: str, right: Sequence[str] = ()) -> Table:
    """Make a table without borders: text columns, which may wrap, then number columns, which may not."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for title in left:
        table.add_column(words(title), overflow="fold")
    for title in right:
        table.add_column(words(title), justify="right", no_wrap=True)
    return table


def facts_table(facts: Sequence[tuple[str, str]]) -> Table:
    """Make a table with one name and its value per line."""
    table = plain_table("", "")
    table.show_header = False
    table.columns[0].style, table.columns[0].no_wrap = "dim", True
    for name, value in facts:
        table.add_row(name, words(value))
    return table


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))


STYLES = {Severity.OK: "green", Severity.WARN: "yellow", Severity.BAD: "bold red"}


def verdict_mark(verdicts: Sequence[Verdict]) -> Text:
    """Summarize a step's verdicts for a table cell: severity and name of the worst, and the number of others."""
    if not verdicts:
        return Text("–")
    worst = verdicts[0]
    if worst.severity is Severity.OK:
        return Text(worst.severity.value, style=STYLES[worst.severity])
    others = f" +{len(verdicts) - 1}" if len(verdicts) > 1 else ""
    return Text(f"{worst.severity.value}: {printable(worst.name)}{others}", style=STYLES[worst.severity])


def verdict_text(verdict: Verdict) -> Text:
    """Format a verdict with all its parts."""
    text = Text.assemble(
        (f"{verdict.severity.value:4} {verdict.name}: ", STYLES[verdict.severity]), printable(verdict.what)
    )
    return text.append(f". Try: {printable(verdict.fix)}." if verdict.fix else ".")


def duration(seconds: float) -> str:
    """Format a duration in its two largest units.

    >>> duration(45.2), duration(570), duration(7500), duration(200_000)
    ('45s', '9m30s', '2h05m', '2d07h')
    """
    whole = round(seconds)
    for unit, length_s, smaller, smaller_s in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= length_s:
            return f"{whole // length_s}{unit}{whole % length_s // smaller_s:02d}{smaller}"
    return f"{whole}s"


def try_command(folder: Path, *, engine: str, whole_model: bool) -> str:
    """Return the command that tries the result of a run: an adapter, or a model if all weights were trained.

    >>> try_command(Path("outputs/a"), engine="vllm", whole_model=False)
    'mcprl try outputs/a/config.yaml --adapter outputs/a/adapter'
    """
    if whole_model:
        option = ["--set", f"model.path={folder.absolute() / 'model'}"]
    else:
        option = ["--adapter", str(folder / "adapter")]
    if engine == "skyrl":  # its server can sample only from weights that it saved itself
        option += ["--set", "engine=transformers"]
    return shlex.join(["mcprl", "try", str(folder / "config.yaml"), *option])

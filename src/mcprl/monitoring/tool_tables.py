"""What `mcprl tools` shows: tools, what happened to their calls, one call's answer, and how pinned tools changed.

All words from servers are Text objects, never markup, and pass through `printable`: no tool writes to the terminal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mcprl import errors
from mcprl.monitoring.printable import printable
from mcprl.records import Observation
from mcprl.tools.catalog import Tool
from mcprl.tools.stats import StatsDocument, ToolFigures

__all__ = ["ToolList", "ToolStatsTables", "diff_text", "observation_details"]

_MAX_DESCRIPTION = 200
_GAP = (0, 2, 0, 0)
_INDENT = (0, 0, 0, 2)
_DIFF_STYLES = {"+++": "bold", "---": "bold", "+": "green", "-": "red", "@": "cyan"}


def _words(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)


class ToolList:
    """Tools with their arguments: a line each where that fits the terminal, a paragraph each where it does not.

    `aliases` has the other names of tools: {"who_is": "find_person"}.
    """

    def __init__(self, tools: Iterable[Tool], aliases: Mapping[str, str] | None = None) -> None:
        self._tools = tuple(tools)
        self._aliases = aliases or {}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = self._table()
        yield table if _natural_width(console, table) <= options.max_width else self._paragraphs()

    def _table(self) -> Table:
        columns = ("server", "tool", "arguments", "effects", "description")
        table = Table(*columns, box=None, header_style="bold", pad_edge=False, padding=_GAP)
        for tool in self._tools:
            table.add_row(
                _words(tool.server),
                _words(tool.name),
                _words(", ".join(_arguments(tool))),
                _effects(tool),
                _summary(tool) + self._also(tool),
            )
        return table

    def _paragraphs(self) -> Group:
        parts: list[RenderableType] = []
        for server, tools in groupby(self._tools, key=lambda tool: tool.server):
            parts.append(_words(server, "bold"))
            for tool in tools:
                head = _words(f"{tool.name}({', '.join(_arguments(tool))})")
                effects = _effects(tool)
                parts.append(Padding(head + Text("  ") + effects if effects else head, _INDENT, expand=False))
                body = _summary(tool) + self._also(tool)
                if body:
                    parts.append(Padding(Text.assemble(body, style="dim"), (0, 0, 0, 4), expand=False))
        return Group(*parts)

    def _also(self, tool: Tool) -> Text:
        others = [alias for alias, meant in self._aliases.items() if meant == tool.name]
        return _words(f" Also called {', '.join(others)}.") if others else Text()


def _arguments(tool: Tool) -> list[str]:
    """The names of the arguments, those that may be left out in brackets."""
    required = tool.parameters.get("required", [])
    return [name if name in required else f"[{name}]" for name in tool.parameters.get("properties", {})]


def _effects(tool: Tool) -> Text:
    # A tool without a mark may do anything, and do it twice when called twice: nothing is assumed of it.
    return Text("read-only" if tool.read_only else "idempotent" if tool.idempotent else "", style="green")


def _summary(tool: Tool) -> Text:
    """The first paragraph of the description. Some servers write pages."""
    words = " ".join(tool.description.strip().split("\n\n")[0].split())
    if len(words) > _MAX_DESCRIPTION:
        words = words[: _MAX_DESCRIPTION - 1].rsplit(" ", 1)[0] + "…"
    return _words(words)


@dataclass(frozen=True, slots=True)
class _Column:
    """A figure of every tool; None where a tool has none. `style` is that of figures other than 0."""

    title: str
    value: Callable[[ToolFigures], float | None]
    style: str = ""
    decimals: int = 0
    summed: bool = True

    def cell(self, figures: ToolFigures) -> Text:
        value = self.value(figures)
        return Text("" if value is None else f"{value:,.{self.decimals}f}", style=self.style if value else "")

    def total(self, rows: Sequence[ToolFigures]) -> str:
        return f"{sum(self.value(figures) or 0 for figures in rows):,.0f}" if self.summed else ""


def _failed(figures: ToolFigures) -> int:
    return sum(figures["failures"].values())


def _latency(name: Literal["p50", "p95", "max"]) -> _Column:
    def value(figures: ToolFigures) -> float | None:
        return figures["latency_ms"][name] if figures["latency_ms"] is not None else None

    return _Column(f"{name} ms", value, decimals=1, summed=False)


_OUTCOMES = (
    _Column("calls", lambda f: f["calls"]),
    _Column("ok", lambda f: f["ok"]),
    _Column("policy faults", lambda f: f["policy_faults"]),
    _Column("failed", _failed, style="bold red"),
)
# Shown where they say something: most runs use few of them.
_PARTICULARS = (
    _Column("retries", lambda f: f["retries"], style="yellow"),
    _Column("cached", lambda f: f["cached"]),
    _Column("replayed", lambda f: f["replayed"]),
    _Column("shared", lambda f: f["shared"]),
    _Column("cut", lambda f: f["truncated"]),
)
_LATENCIES = (_latency("p50"), _latency("p95"), _latency("max"))


class ToolStatsTables:
    """The figures of a run: a table of servers, one of tools, and what the failures were.

    Where a terminal is too narrow for all columns of tools, they are spread over several tables.
    """

    def __init__(self, document: StatsDocument) -> None:
        self._servers = document["servers"]
        self._unknown = document.get("unknown_tool_calls", 0)
        self._tools = [
            (server, tool, figures)
            for server, entry in self._servers.items()
            for tool, figures in entry["tools"].items()
        ]
        self._figures = [figures for _, _, figures in self._tools]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._server_table()
        if self._tools:
            for columns in self._spread(console, options.max_width):
                yield Text()
                yield self._tool_table(columns)
        if self._unknown:
            yield Text(f"\n{self._unknown:,} more call{'s' if self._unknown > 1 else ''} named no tool on offer.")
        if any(map(_failed, self._figures)):
            yield Text()
            yield self._failure_table()

    def _server_table(self) -> Table:
        entries = self._servers.values()
        money = [entry["usd"] for entry in entries]
        decimals = 2 if all(usd == round(usd, 2) for usd in money) else 4
        table = _figure_table("server", ["calls made", *(["usd"] if any(money) else []), "restarts", "breaker opened"])
        for name, entry in self._servers.items():
            restarts, openings = entry["restarts"], entry["breaker_openings"]
            table.add_row(
                _words(name),
                f"{entry['calls']:,}",
                *([f"{entry['usd']:,.{decimals}f}"] if any(money) else []),
                Text(f"{restarts:,}", style="yellow" if restarts else ""),
                Text(f"{openings:,}", style="bold red" if openings else ""),
            )
        table.add_row(
            "total",
            f"{sum(entry['calls'] for entry in entries):,}",
            *([f"{sum(money):,.{decimals}f}"] if any(money) else []),
            f"{sum(entry['restarts'] for entry in entries):,}",
            f"{sum(entry['breaker_openings'] for entry in entries):,}",
            style="bold",
        )
        return table

    def _spread(self, console: Console, width: int) -> Iterator[list[_Column]]:
        """The columns for each table of tools: as many groups of them as fit beside the tools' names."""
        particulars = [column for column in _PARTICULARS if any(map(column.value, self._figures))]
        timed = any(figures["latency_ms"] for figures in self._figures)
        # A long name may wrap, down to a third of the line; a number may not.
        wrapped = max(0, _natural_width(console, self._tool_table(())) - width // 3)
        columns: list[_Column] = []
        for group in (_OUTCOMES, particulars, _LATENCIES if timed else ()):
            wider = [*columns, *group]
            if columns and _natural_width(console, self._tool_table(wider)) - wrapped > width:
                yield columns
                columns = list(group)
            else:
                columns = wider
        yield columns

    def _tool_table(self, columns: Sequence[_Column]) -> Table:
        table = _figure_table("tool", [column.title for column in columns])
        for server, rows in groupby(self._tools, key=lambda row: row[0]):
            table.add_row(_words(server, "bold"))
            for _, tool, figures in rows:
                table.add_row(Padding(_words(tool), _INDENT), *(column.cell(figures) for column in columns))
        if any(column.summed for column in columns):
            table.add_row("total", *(column.total(self._figures) for column in columns), style="bold")
        return table

    def _failure_table(self) -> Table:
        table = Table("failed", box=None, header_style="bold", pad_edge=False, padding=_GAP)
        table.add_column("times", justify="right", no_wrap=True)
        table.add_column("error", no_wrap=True)
        table.add_column("meaning", ratio=1)
        for _, tool, figures in self._tools:
            for code, times in figures["failures"].items():
                table.add_row(_words(tool), f"{times:,}", _words(code, "red"), _meaning(code))
        return table


def _figure_table(first: str, titles: Sequence[str]) -> Table:
    """A table with a column of names, which may wrap, and columns of numbers, which never do."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=_GAP)
    table.add_column(first, overflow="fold")
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _natural_width(console: Console, table: Table) -> int:
    """How wide a table is where nothing in it wraps."""
    return Measurement.get(console, console.options.update(width=10_000), table).maximum


def _meaning(code: str) -> str:
    """What an error code stands for: the first sentence of its class."""
    for name in errors.__all__:
        kind = getattr(errors, name)
        if getattr(kind, "code", None) == code:
            return re.split(r"[.:\n]", kind.__doc__ or "", maxsplit=1)[0]
    return ""


def diff_text(lines: Iterable[str]) -> Text:
    """A unified diff with its colours."""
    styled = Text()
    for line in lines:
        style = next((style for mark, style in _DIFF_STYLES.items() if line.startswith(mark)), "")
        styled.append_text(_words(f"{line}\n", style))
    styled.rstrip()
    return styled


def observation_details(seen: Observation) -> Text:
    """Where an answer came from and what it took, in one line."""
    if seen.fault is not None and not seen.latency_s:
        return _words(f"{seen.server or 'no server'} · refused without asking the server", "dim")
    details = [seen.server or "no server", f"{1000 * seen.latency_s:,.0f} ms", seen.source.value]
    details.append(f"{seen.attempts} attempt{'s' if seen.attempts > 1 else ''}")
    if seen.truncated:
        details.append("cut")
    if seen.fault is not None:
        details.append("an error")
    return _words(" · ".join(details), "dim")

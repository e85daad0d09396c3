"""`mcprl tools`: list the tools of a recipe, call one, and count the calls of a run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from mcprl.cli.commands import Commands
from mcprl.cli.options import Overrides, Recipe, parse_pairs, typed_value
from mcprl.cli.printing import plain_table, words

if TYPE_CHECKING:
    from rich.table import Table

    from mcprl.config import ServersConfig
    from mcprl.records import Observation
    from mcprl.tasks.validation import Alias
    from mcprl.tools import Tool, Toolbox
    from mcprl.tools.stats import StatsDocument, ToolFigures

_MAX_DESCRIPTION = 200


def print_tools(console: Console, tools: Iterable[Tool], aliases: Mapping[str, str] | None = None) -> None:
    """Print each server's tools, with their arguments and effects, and a description below.

    `aliases` maps alternative names to names of tools: {"who_is": "find_person"}.
    """
    rows = [_tool_cells(tool, aliases or {}) for tool in tools]
    for server, group in groupby(rows, key=lambda row: row[0].plain):
        console.print(Text(server, style="bold"))
        for _, name, arguments, effects, description in group:
            console.print(Text.assemble("  ", name, "(", arguments, ")", *(("  ", effects) if effects else ())))
            if description:
                description.style = "dim"
                console.print(Padding(description, (0, 0, 0, 4), expand=False))


def _tool_cells(tool: Tool, aliases: Mapping[str, str]) -> tuple[Text, Text, Text, Text, Text]:
    required = tool.parameters.get("required", [])
    arguments = [name if name in required else f"[{name}]" for name in tool.parameters.get("properties", {})]
    effects = "read-only" if tool.read_only else "idempotent" if tool.idempotent else ""
    summary = " ".join(tool.description.strip().split("\n\n")[0].split())  # some servers have very long descriptions
    if len(summary) > _MAX_DESCRIPTION:
        summary = summary[: _MAX_DESCRIPTION - 1].rsplit(" ", 1)[0] + "…"
    others = [alias for alias, meant in aliases.items() if meant == tool.name]
    also = f" Also called {', '.join(others)}." if others else ""
    return (
        words(tool.server),
        words(tool.name),
        words(", ".join(arguments)),
        Text(effects, style="green"),
        words(f"{summary}{also}".strip()),
    )


_Numbers = Mapping[str, float | None]
_COLORS = {"failed": "bold red", "breaker opened": "bold red", "restarts": "yellow"}
_PARTICULARS = {
    "retries": "retries of failed calls",
    "cached": "results from the cache",
    "replayed": "results from a cassette",
    "missing": "unrecorded calls to replayed tools",
    "shared": "results shared with an identical concurrent call",
    "truncated": "truncated results",
}


def print_tool_stats(console: Console, document: StatsDocument) -> None:
    """Print a table of servers, one of tools, and one of retries, cached results and errors by code."""
    servers = document["servers"]
    has_price = any(entry["usd"] for entry in servers.values())
    rows: list[tuple[Text, _Numbers]] = [
        (
            words(server),
            {"calls made": entry["calls"], "usd": entry["usd"] if has_price else None}
            | {"restarts": entry["restarts"], "breaker opened": entry["breaker_openings"]},
        )
        for server, entry in servers.items()
    ]
    console.print(_number_table("server", rows))
    tools = [(server, tool, f) for server, entry in servers.items() for tool, f in entry["tools"].items()]
    rows = []
    for server, group in groupby(tools, key=lambda tool: tool[0]):
        rows += [(words(server, "bold"), {}), *((words(f"  {tool}"), _outcomes(figures)) for _, tool, figures in group)]
    if tools:
        console.print("", _number_table("tool", rows), sep="\n")
    unknown = document.get("unknown_tool_calls", 0)
    if unknown:
        console.print(f"\n{unknown:,} more call{'s' if unknown > 1 else ''} used an unknown tool name.")
    table = plain_table("tool", right=("times",))
    table.add_column("what", overflow="fold")
    for _, tool, figures in tools:
        for name, meaning in _PARTICULARS.items():
            if times := cast("Mapping[str, int]", figures).get(name, 0):
                table.add_row(words(tool), f"{times:,}", meaning)
        for code, times in figures["failures"].items():
            table.add_row(words(tool), f"{times:,}", words(code, "red") + Text(f"  {_meaning(code)}"))
    if table.rows:
        console.print("", table, sep="\n")


def _outcomes(figures: ToolFigures) -> _Numbers:
    latency = figures["latency_ms"]
    return {
        "calls": figures["calls"],
        "ok": figures["ok"],
        "policy faults": figures["policy_faults"],
        "failed": sum(figures["failures"].values()),
        **{f"{name} ms": None if latency is None else latency[name] for name in ("p50", "p95", "max")},
    }


def _number_table(first: str, rows: Sequence[tuple[Text, _Numbers]]) -> Table:
    """Make a table of names, numbers and totals, without empty columns. Latencies have no total."""
    titles = dict.fromkeys(title for _, row in rows for title, value in row.items() if value is not None)
    table = plain_table(first, right=list(titles))
    in_cents = all(round(row.get("usd") or 0, 2) == (row.get("usd") or 0) for _, row in rows)

    def cell(title: str, value: float | None) -> Text:
        decimals = 1 if title.endswith(" ms") else 0 if title != "usd" else 2 if in_cents else 4
        return Text("" if value is None else f"{value:,.{decimals}f}", _COLORS.get(title, "") if value else "")

    for name, row in rows:
        table.add_row(name, *(cell(title, row.get(title)) for title in titles))
    totals = [None if title.endswith(" ms") else sum(row.get(title) or 0 for _, row in rows) for title in titles]
    table.add_row(
        "total", *(cell(title, total).plain for title, total in zip(titles, totals, strict=True)), style="bold"
    )
    return table


def _meaning(code: str) -> str:
    """Return the meaning of an error code: the first sentence of its class's docstring."""
    from mcprl import errors

    for name in errors.__all__:
        kind = getattr(errors, name)
        if getattr(kind, "code", None) == code:
            return re.split(r"[.:\n]", kind.__doc__ or "", maxsplit=1)[0]
    return ""


def observation_details(seen: Observation) -> Text:
    """Format the source, latency and attempts of a result in one line."""
    if seen.fault is not None and not seen.latency_s:
        return words(f"{seen.server or 'no server'} · refused before reaching the server", "dim")
    details = [seen.server or "no server", f"{1000 * seen.latency_s:,.0f} ms", seen.source.value]
    details.append(f"{seen.attempts} attempt{'s' if seen.attempts > 1 else ''}")
    if seen.truncated:
        details.append("truncated")
    if seen.fault is not None:
        details.append("an error")
    return words(" · ".join(details), "dim")


app = Commands("List and call tools.")


@app.command("list")
def list_tools(recipe: Recipe, overrides: Overrides = None) -> None:
    """Start the servers of a recipe and list their tools; [brackets] mark optional arguments."""
    import asyncio

    servers = _load(recipe, overrides)

    async def catalog() -> tuple[Tool, ...]:
        async with _open(servers) as toolbox:
            return tuple(toolbox.catalog)

    print_tools(Console(highlight=False), asyncio.run(catalog()), _aliases(servers))


@app.command("call")
def call_tool(
    recipe: Recipe,
    tool: Annotated[str, typer.Argument(help="Tool to call.", show_default=False)],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Arguments of the tool; a value may be JSON.", show_default=False),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Call a tool as the model would and print the result. Exits with status 1 if the call is refused."""
    import asyncio

    servers = _load(recipe, overrides)
    seen, aliases = asyncio.run(_call(servers, tool, _parse_arguments(arguments or [])))
    _print_observation(seen)
    for alias in aliases:
        line = f"To accept this name, add this to the recipe: servers: {{settings: {{{alias.server}: {{{alias}}}}}}}"
        Console(stderr=True, highlight=False).print(words(line), soft_wrap=True)
    if seen.fault is not None:
        raise typer.Exit(1)


@app.command("stats")
def show_stats(
    run: Annotated[Path, typer.Argument(help="Folder of a run, such as outputs/NAME.", show_default=False)],
) -> None:
    """Print statistics of a run's calls by server and tool: faults, failures, retries, cached results, latencies."""
    from mcprl.tools.stats import read_stats

    print_tool_stats(Console(highlight=False), read_stats(run))


def _load(recipe: Path, overrides: list[str] | None) -> ServersConfig:
    """Load the server settings of a recipe, with a single replica of each server."""
    from mcprl.recipe import load_recipe

    servers = load_recipe(recipe, overrides or []).servers
    single = {name: settings.model_copy(update={"replicas": 1}) for name, settings in servers.settings.items()}
    return servers.model_copy(update={"settings": single})


def _open(servers: ServersConfig, then: str = "listing their tools") -> AbstractAsyncContextManager[Toolbox]:
    from functools import partial

    from mcprl.cli.options import shown_opening
    from mcprl.tools import open_toolbox

    return shown_opening(partial(open_toolbox, servers), then)


def _aliases(servers: ServersConfig) -> dict[str, str]:
    return {alias: tool for settings in servers.settings.values() for alias, tool in settings.tool_aliases.items()}


def _parse_arguments(pairs: list[str]) -> dict[str, str]:
    from mcprl.errors import BadValueError

    texts: dict[str, str] = {}
    for key, text in parse_pairs(pairs):
        if key in texts:
            raise BadValueError(f"the argument {key!r} is given twice", fix="remove one of the two")
        texts[key] = text
    return texts


async def _call(servers: ServersConfig, name: str, texts: dict[str, str]) -> tuple[Observation, tuple[Alias, ...]]:
    """Make a call. Return the observation and, if names in the call were refused, aliases that would fix them."""
    from mcprl.config import ServerSettings
    from mcprl.records import ToolCall
    from mcprl.tasks.validation import check_call
    from mcprl.tools.catalog import resolve_arguments, resolve_tool

    async with _open(servers, then=f"calling {name}") as toolbox:
        catalog = toolbox.catalog
        meant = resolve_tool(name, catalog.names, _aliases(servers))
        arguments: dict[str, Any] = dict(texts)
        if meant in catalog:
            tool = catalog[meant]
            aliases = servers.settings.get(tool.server, ServerSettings()).argument_aliases
            named = resolve_arguments(texts, tool.parameters.get("properties", {}), aliases)
            arguments = {key: typed_value(tool.parameters, key, text) for key, text in named.items()}
        # Lease only this tool, so that per-episode servers start only if it needs one.
        async with toolbox.lease([meant] if meant in catalog else None) as lease:
            seen = await lease.call(ToolCall(name=name, arguments=arguments))
        refused = seen.fault is not None
        return seen, check_call(name, arguments, {t.name: t for t in catalog}).aliases if refused else ()


def _print_observation(seen: Observation) -> None:
    Console(highlight=False).print(words(seen.text, "red" if seen.fault is not None else ""), soft_wrap=True)
    # On stderr, so that a pipe gets only the result.
    Console(stderr=True, highlight=False).print(observation_details(seen), soft_wrap=True)

"""`mcprl tools`: look at the tools of a recipe, call one, pin them, and see what became of a run's calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from mcprl.cli.options import Overrides, Recipe

if TYPE_CHECKING:
    from rich.console import Console

    from mcprl.config import ServersConfig
    from mcprl.records import Observation
    from mcprl.tools import Catalog, Tool, Toolbox, ToolDefinition

    ToolsOfServers = Mapping[str, tuple[str, Sequence[ToolDefinition]]]

__all__ = ["app"]

_VALUE_WORDS = ("$schema", "$defs", "definitions", "properties")

app = typer.Typer(help="Look at tools, call them, pin them.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def tools() -> None:
    """Look at the tools that a recipe's servers offer, call them, pin them."""


@app.command("list")
def list_tools(recipe: Recipe, overrides: Overrides = None) -> None:
    """Start the servers of a recipe and list their tools with their arguments; [brackets] mark optional ones."""
    import asyncio

    servers = _load(recipe, overrides)

    async def catalog() -> Catalog:
        async with _open(servers) as toolbox:
            return toolbox.catalog

    _print_catalog(asyncio.run(catalog()), _aliases(servers))


@app.command("call")
def call_tool(
    recipe: Recipe,
    tool: Annotated[str, typer.Argument(help="Tool to call.", show_default=False)],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Arguments of the tool.", show_default=False),
    ] = None,
    json_arguments: Annotated[str, typer.Option("--json", help="Arguments as one JSON object.")] = "",
    overrides: Overrides = None,
) -> None:
    """Call a tool as a policy would and print what the policy would read. Exits with 1 where the call is refused."""
    import asyncio

    servers = _load(recipe, overrides)
    exact = _parse_object(json_arguments) if json_arguments else {}
    seen = asyncio.run(_call(servers, tool, exact, _parse_pairs(arguments or [])))
    _print_observation(seen)
    if seen.fault is not None:
        raise typer.Exit(1)


@app.command("pin")
def pin_tools(
    recipe: Recipe,
    into: Annotated[
        Path | None,
        typer.Option(
            help="Pin file; default: servers.pins of the recipe, or NAME.pins.json beside the mcpServers file."
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit with 1 where the tools differ.")] = False,
    overrides: Overrides = None,
) -> None:
    """Write down the tools of a recipe's servers, so that a run stops where they are others. Shows what changed."""
    import asyncio

    from rich.console import Console

    from mcprl.tools.pins import write_pins

    servers = _load(recipe, overrides)
    path = _pin_file(servers, into)

    async def listed() -> ToolsOfServers:
        # Compared here and not on the way: the run's own pins would stop the servers from being listed.
        live = servers.model_copy(update={"pins": None, "cassette": None, "cassette_mode": "live"})
        async with _open(live) as toolbox:
            return toolbox.definitions

    found = asyncio.run(listed())
    console = Console(highlight=False)
    same = _print_changes(console, path, found, must_read=check)
    if check:
        raise typer.Exit(0 if same else 1)
    write_pins(path, found)
    _say(console, f"{path} {'is up to date' if same else 'written'}")
    if servers.pins is None or servers.pins.resolve() != path.resolve():
        _say(console, f"To check every run against it, set servers.pins to {path.name} in the recipe.")


@app.command("stats")
def show_stats(
    run: Annotated[Path, typer.Argument(help="Folder of a run, such as outputs/NAME.", show_default=False)],
) -> None:
    """Print what became of a run's calls: by server and tool, faults, failures, retries, cached answers and times."""
    from rich.console import Console

    from mcprl.monitoring.tool_tables import ToolStatsTables
    from mcprl.tools.stats import read_stats

    Console(highlight=False).print(ToolStatsTables(read_stats(run)))


def _load(recipe: Path, overrides: list[str] | None) -> ServersConfig:
    """The servers of a recipe, each once: looking at a tool or calling it needs no replicas and no spares."""
    from mcprl.recipe import load_recipe

    servers = load_recipe(recipe, overrides or []).servers
    single = {
        name: settings.model_copy(update={"replicas": 1, "spares": 0}) for name, settings in servers.settings.items()
    }
    return servers.model_copy(update={"settings": single})


def _open(servers: ServersConfig, then: str = "listing their tools") -> AbstractAsyncContextManager[Toolbox]:
    from functools import partial

    from mcprl.cli.opening import shown_opening
    from mcprl.tools import open_toolbox

    return shown_opening(partial(open_toolbox, servers), then)


def _aliases(servers: ServersConfig) -> dict[str, str]:
    return {alias: tool for settings in servers.settings.values() for alias, tool in settings.tool_aliases.items()}


def _print_catalog(catalog: Catalog, aliases: Mapping[str, str]) -> None:
    from rich.console import Console

    from mcprl.monitoring.tool_tables import ToolList

    Console(highlight=False).print(ToolList(catalog, aliases))


def _parse_object(text: str) -> dict[str, Any]:
    from mcprl.errors import BadValueError

    fix = """write an object, such as '{"name": "Ana"}'"""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadValueError(f"--json is not JSON: {error}", fix=fix) from error
    if not isinstance(value, dict):
        raise BadValueError(f"--json is no object: {text}", fix=fix)
    return cast("dict[str, Any]", value)


def _parse_pairs(pairs: list[str]) -> dict[str, str]:
    from mcprl.errors import BadValueError

    texts: dict[str, str] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not key or not equals:
            raise BadValueError(f"{pair!r} is no argument", fix="write KEY=VALUE, such as name=Ana")
        if key in texts:
            raise BadValueError(f"the argument {key!r} is given twice", fix="give it once")
        texts[key] = text
    return texts


async def _call(servers: ServersConfig, name: str, exact: dict[str, Any], texts: dict[str, str]) -> Observation:
    from mcprl.config import ServerSettings
    from mcprl.records import ToolCall
    from mcprl.tools.stages.aliases import resolve_arguments, resolve_tool

    async with _open(servers, then=f"calling {name}") as toolbox:
        catalog = toolbox.catalog
        meant = resolve_tool(name, catalog.names, _aliases(servers))
        arguments: dict[str, Any] = exact | texts
        if meant in catalog:
            tool = catalog[meant]
            aliases = servers.settings.get(tool.server, ServerSettings()).argument_aliases
            named = resolve_arguments(texts, tool.parameters.get("properties", {}), aliases)
            arguments = exact | {key: _typed(tool, key, text) for key, text in named.items()}
        # Leased alone: a server of each episode's own is started only where this tool needs it.
        async with toolbox.lease([meant] if meant in catalog else None) as lease:
            return await lease.call(ToolCall(name=name, arguments=arguments))


def _typed(tool: Tool, key: str, text: str) -> Any:
    """The text as the JSON value it spells where the tool's schema takes that value, else the text itself."""
    from mcprl.tools.stages.arguments import ArgumentCheck

    try:
        value = json.loads(text)
    except ValueError:
        return text
    if isinstance(value, str):
        return text  # quotes that someone wrote around a text are part of it
    # Only what says which values this one argument takes: the others may still be missing.
    schema = {word: tool.parameters[word] for word in _VALUE_WORDS if word in tool.parameters}
    return value if ArgumentCheck(tool.name, tool.server, schema).problem({key: value}) is None else text


def _print_observation(seen: Observation) -> None:
    from rich.console import Console
    from rich.text import Text

    from mcprl.monitoring.printable import printable
    from mcprl.monitoring.tool_tables import observation_details

    text = Text(printable(seen.text), style="red" if seen.fault is not None else "")
    Console(highlight=False).print(text, soft_wrap=True)
    # On stderr, so that another program can read the answer alone.
    Console(stderr=True, highlight=False).print(observation_details(seen), soft_wrap=True)


def _pin_file(servers: ServersConfig, into: Path | None) -> Path:
    from mcprl.errors import BadValueError

    if servers.file is None:
        raise BadValueError("servers.file names no mcpServers file, so no server can be listed", fix="set servers.file")
    return into or servers.pins or servers.file.with_name(f"{servers.file.stem}.pins.json")


def _print_changes(console: Console, path: Path, found: ToolsOfServers, *, must_read: bool) -> bool:
    """Print server by server how its tools differ from those in the file; True where none does."""
    from mcprl.errors import ConfigFileError
    from mcprl.monitoring.tool_tables import diff_text
    from mcprl.redact import SECRETS
    from mcprl.tools.pins import compare_tools, read_pins

    pinned: Mapping[str, Sequence[ToolDefinition]] = {}
    if path.exists() or must_read:
        try:
            pinned = read_pins(path)
        except ConfigFileError as error:
            if must_read:
                raise
            _say(console, f"The old file cannot be compared: {error.what}.")
    same = True
    for name in dict.fromkeys([*found, *pinned]):
        version, definitions = found.get(name, ("", ()))
        count = f"{len(definitions)} tool{'s' if len(definitions) != 1 else ''}"
        diff = compare_tools(pinned.get(name, ()), definitions)
        if name not in found:
            verdict = "no longer in the recipe"
        elif name not in pinned:
            verdict = f"{count}, not pinned before: {', '.join(tool.name for tool in definitions)}"
        else:
            verdict = f"{count}, as pinned" if diff is None else diff.summary()
        changed = diff is not None or (name in found) != (name in pinned)
        same = same and not changed
        _say(console, f"{name}{f' {version}' if version else ''}: {verdict}", style="yellow" if changed else "")
        if diff is not None and name in found and name in pinned:
            console.print(diff_text(SECRETS.redact("\n".join(diff.lines)).split("\n")), soft_wrap=True)
    return same


def _say(console: Console, text: str, style: str = "") -> None:
    from rich.text import Text

    from mcprl.monitoring.printable import printable

    console.print(Text(printable(text), style=style), soft_wrap=True)

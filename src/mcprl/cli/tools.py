"""`mcprl tools`: look at the tools of a recipe."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mcprl.cli.options import Overrides, Recipe

if TYPE_CHECKING:
    from mcprl.tools import Catalog

__all__ = ["app"]

app = typer.Typer(help="Look at the tools that a recipe's servers offer.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def tools() -> None:
    """Look at the tools that a recipe's servers offer."""


@app.command("list")
def list_tools(recipe: Recipe, overrides: Overrides = None) -> None:
    """Start the servers of a recipe and list their tools with their arguments."""
    from mcprl.recipe import load_recipe
    from mcprl.tools import Toolbox, load_server_specs

    config = load_recipe(recipe, overrides or [])
    specs = load_server_specs(config.servers.file, config.servers.settings)

    async def catalog() -> Catalog:
        with tempfile.TemporaryDirectory(prefix="mcprl-") as logs:
            async with Toolbox(specs, log_dir=Path(logs)) as toolbox:
                return toolbox.catalog

    _print(asyncio.run(catalog()))


def _print(catalog: Catalog) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from mcprl.monitoring.printable import printable

    table = Table("server", "tool", "arguments", "description", box=None, header_style="bold", pad_edge=False)
    for tool in catalog:
        required = tool.parameters.get("required", [])
        names = [name if name in required else f"[{name}]" for name in tool.parameters.get("properties", {})]
        cells = (tool.server, tool.name, ", ".join(names), tool.description)
        # Text objects, never markup: servers write these words.
        table.add_row(*(Text(printable(cell)) for cell in cells))
    Console().print(table)

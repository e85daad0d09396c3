"""`mcprl config`: what the settings mean."""

from __future__ import annotations

from typing import Annotated

import typer

from mcprl.cli.commands import Commands

app = Commands("Look up settings.")


@app.command("explain")
def explain(
    field: Annotated[str, typer.Argument(help="Setting or section, e.g. sampling.temperature; default: all.")] = "",
) -> None:
    """Print what a setting means, its type and its default."""
    from mcprl.errors import UnknownKeyError, did_you_mean
    from mcprl.recipe import settings

    known = list(settings())
    found = [s for s in known if s.path == field or s.path.startswith(f"{field}.") or not field]
    if not found:
        hint = did_you_mean(field, (s.path for s in known))
        raise UnknownKeyError(
            f"there is no setting {field!r}{hint}", fix="run `mcprl config explain` to list all settings"
        )
    for setting in found:
        default = "required" if setting.default is None else f"default {setting.default}"
        typer.echo(f"{setting.path}  ({setting.type}; {default})\n    {setting.description}")

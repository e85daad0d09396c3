"""Arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Overrides", "Recipe"]

Recipe = Annotated[Path, typer.Argument(help="Recipe: the YAML file of a run.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. training.steps=3. May be repeated."),
]

"""`mcprl init`: a new project."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mcprl.scaffold import Project

_COMMENT_COLUMN = 33


def command(
    folder: Annotated[Path, typer.Argument(help="Folder of the project, new or empty.")],
    model: Annotated[
        str | None, typer.Option(help="Model to train: a folder, or a name on the hub; default: Qwen/Qwen3-0.6B.")
    ] = None,
) -> None:
    """Create a project that is ready to train: an MCP server, tasks with solutions, a recipe, a test and a README."""
    from mcprl.scaffold import DEFAULT_MODEL, write_project

    _print_project(write_project(folder, DEFAULT_MODEL if model is None else model))


def _print_project(project: Project) -> None:
    from rich.console import Console
    from rich.text import Text

    from mcprl.cli.printing import plain_table, printable, words
    from mcprl.scaffold import FILES

    console = Console(highlight=False)
    console.print(words(f"Created a project for {project.model} in {project.folder}:\n"), soft_wrap=True)
    files = plain_table("", "")
    files.show_header = False
    for name, purpose in FILES.items():
        files.add_row(Text(f"  {name}", no_wrap=True), Text(purpose, style="dim"))
    console.print(files)
    if project.renderer == "auto" and project.model.startswith("/"):
        console.print(
            "\nFirst, set model.renderer in recipe.yaml: the model's files do not specify its chat format.",
            style="yellow",
        )
    console.print("\nNext:\n")
    for line, purpose in project.next_steps():
        # Do not wrap the lines, so that they can be copied.
        shown = Text(f"  {printable(line)}", style="bold")
        if purpose:
            shown.pad_right(max(0, _COMMENT_COLUMN - len(shown)))
            shown.append(f"  # {purpose}", style="dim")
        console.print(shown, soft_wrap=True)

"""`mcprl init`: creates a new project."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcprl.errors import BadValueError, MissingExtraError

if TYPE_CHECKING:
    from mcprl.scaffold import Project

_COMMENT_COLUMN = 33


def command(
    folder: Annotated[Path, typer.Argument(help="Folder for the project; new or empty.")],
    model: Annotated[
        str | None, typer.Option(help="Model to train: a folder or a Hugging Face name; default: Qwen/Qwen3-0.6B.")
    ] = None,
    servers: Annotated[
        Path | None, typer.Option("--servers", help="mcpServers file that lists the servers to train on.")
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="With --servers: synthesize tasks now; this calls read-only tools.")
    ] = False,
) -> None:
    """Create a project that is ready to train: an MCP server, tasks with solutions, a recipe, a test and a README.

    With --servers, the project uses the servers of that file instead, and tasks that `mcprl tasks synthesize` makes.
    """
    from mcprl.scaffold import DEFAULT_MODEL, write_project

    if yes and servers is None:
        raise BadValueError("--yes needs --servers", fix="add --servers FILE, or remove --yes")
    synthesize = _synthesize() if yes else None
    project = write_project(folder, DEFAULT_MODEL if model is None else model, servers)
    if synthesize is not None:
        synthesize(servers=servers, out=folder / "tasks", hints=folder / "hints.yaml", yes=True)
    _print_project(project)


def _synthesize() -> Callable[..., None]:
    """Return the function behind `mcprl tasks synthesize`, which is in another package."""
    for entry in entry_points(group="mcprl.commands", name="tasks.synthesize"):
        return entry.load()
    raise MissingExtraError("`mcprl tasks synthesize` is not installed", fix="pip install 'mcprl[synthesis]'")


def _print_project(project: Project) -> None:
    from rich.console import Console
    from rich.text import Text

    from mcprl.cli.printing import plain_table, printable, words

    console = Console(highlight=False)
    console.print(words(f"Created a project for {project.model} in {project.folder}:\n"), soft_wrap=True)
    files = plain_table("", "")
    files.show_header = False
    for name, purpose in project.files.items():
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

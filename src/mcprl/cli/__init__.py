"""The `mcprl` command. One file per command, imported only when that command runs, so `--help` is instant.

Other packages add commands through the entry point group `mcprl.commands`: `dashboard = "package.module"` adds the
function `command` of that module, and `"serve.fmp" = "package.module:function"` adds a subcommand.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, cast

import typer

from mcprl import __version__
from mcprl.cli.commands import Commands, Group
from mcprl.errors import Fault, McprlError, MissingExtraError, ResourceLimitError

__all__ = ["app", "main"]

# The extra that installs a library, for commands that the base install cannot run.
EXTRAS = {
    **dict.fromkeys(("jinja2", "renderers", "tokenizers", "transformers"), "chat"),
    **dict.fromkeys(("accelerate", "peft", "safetensors", "torch", "xgrammar"), "torch"),
    **dict.fromkeys(("numpy", "pandas"), "market"),
    **dict.fromkeys(("duckdb", "starlette", "uvicorn"), "dashboard"),
}
EXIT_CODES = {Fault.CONFIGURATION: 2, Fault.INFRASTRUCTURE: 3}

# The commands in the order of `--help`, with their text there. Other help texts are in the command's module.
SECTIONS = {
    "Prepare": {
        "init": (
            "Create a project that is ready to train: an MCP server in Python, tasks, a recipe, a test and a README."
        ),
        "doctor": "Check a recipe end to end (config, servers, tasks, model, sample episodes) and suggest fixes.",
        "plan": "Estimate what a run needs: time, tokens, tool calls, money and disk.",
        "parity": "Compare the probabilities of sampler and learner on a few short episodes.",
    },
    "Train": {
        "sft": "Fine-tune a model on solutions, demonstrations or chats, usually before `train`.",
        "train": "Train a model with a recipe.",
        "resume": "Resume a run from its newest valid checkpoint.",
        "runs": "List runs, or show one.",
        "export": "Export the result of a run for the Hub, with a model card.",
        "dashboard": "Show runs in a browser: curves, health, tools, and every episode.",
    },
    "Evaluate": {
        "eval": "Evaluate a model or an adapter, or compare two evaluations.",
        "try": "Let the model attempt a task and print the conversation.",
        "play": "Attempt a task yourself: see what the model sees, type tool calls, get the reward.",
    },
    "Tasks and tools": {
        "tasks": "Check, create and inspect task files.",
        "tools": "List and call tools.",
        "serve": "Serve tools over stdio, or over HTTP at /mcp.",
    },
    "Reference": {"config": "Look up settings.", "explain": "Explain an error code: causes and fixes."},
}
_KNOWN = tuple(name for section in SECTIONS.values() for name in section)
_FILES = {"try": "try_"}
_PACKAGES = ("dashboard",)  # packages whose commands are installed by the extra of the same name


class _TopLevel(Group):
    """Finds a command by its name, and only then imports its module."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # Typer suggests one of these names after a typo.
        self.commands = cast("Any", dict.fromkeys(self.list_commands(None)))

    def list_commands(self, ctx: Any) -> list[str]:
        return [*_KNOWN, *sorted(_plugins().keys() - set(_KNOWN))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        plugin = _plugins().get(cmd_name)
        if plugin is not None:
            return _command(cmd_name, _load(plugin))
        if cmd_name in _PACKAGES:
            raise MissingExtraError(f"`mcprl {cmd_name}` is not installed", fix=f"pip install 'mcprl[{cmd_name}]'")
        if cmd_name not in self.list_commands(ctx):
            return None
        return _command(cmd_name, import_module(f"mcprl.cli.{_FILES.get(cmd_name, cmd_name)}"))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        others = {name: "" for name in self.list_commands(ctx) if name not in _KNOWN}
        for title, commands in (SECTIONS | {"Other packages": others}).items():
            if commands:
                with formatter.section(title):
                    formatter.write_dl(list(commands.items()))


@cache
def _plugins(group: str = "") -> dict[str, EntryPoint]:
    """Return the commands of other packages by name: subcommands of `group`, or top-level commands."""
    prefix = f"{group}." if group else ""
    found = {entry.name.removeprefix(prefix): entry for entry in _entry_points() if entry.name.startswith(prefix)}
    return {name: entry for name, entry in found.items() if "." not in name}


@cache
def _entry_points() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group="mcprl.commands"))


class _Importing:
    """Turns an error from importing another package's command into a MissingExtraError."""

    def __init__(self, entry: EntryPoint) -> None:
        self._entry = entry

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception) or _library(error) in EXTRAS:
            return
        entry = self._entry
        package = "its package" if entry.dist is None else f"the package {entry.dist.name} {entry.dist.version}"
        raise MissingExtraError(
            f"`mcprl {entry.name.replace('.', ' ')}` ({entry.value}) cannot be imported: {error}",
            fix=f"reinstall or remove {package}; other commands work without it",
        ) from error


def _load(entry: EntryPoint) -> Any:
    with _Importing(entry):
        return entry.load()


def _library(error: Exception) -> str:
    """Return the name of the library that is missing, or "" if the error has another cause."""
    return ((error.name if isinstance(error, ModuleNotFoundError) else None) or "").split(".")[0]


def _command(name: str, module: Any) -> Any:
    """Return the click command of a module: its group `app` plus plugins, or its function `command`."""
    if hasattr(module, "app"):
        command = typer.main.get_group(module.app)
        for below, plugin in sorted(_plugins(name).items()):
            command.commands[below] = cast("Any", partial(_plugged_in, below, plugin))
    else:
        command = _alone(name, module.command)
    command.name = name
    return command


def _plugged_in(name: str, entry: EntryPoint) -> Any:
    return _alone(name, _load(entry))


def _alone(name: str, function: Callable[..., Any]) -> Any:
    """Return the click command of a function."""
    alone = Commands()
    alone.command(name)(function)
    return typer.main.get_command(alone)


app = Commands(
    "Train language models with reinforcement learning to use the tools of MCP servers over many turns.",
    _TopLevel,
)
app.info.name = "mcprl"


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"mcprl {__version__}")
        raise typer.Exit


@app.callback()
def _mcprl(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None: ...


def main() -> None:
    """Run the command. Print an McprlError as one readable line instead of a traceback, then exit with its status."""
    # OpenMP reads this when it loads. Threads that spin while they wait cost a shared CPU several times the work.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        _run()
    except McprlError as error:
        from mcprl.cli.printing import printable

        # Escaped, because an error may quote text from a server.
        print(printable(f"mcprl: {error} (mcprl explain {error.code})"), file=sys.stderr)
        for note in getattr(error, "__notes__", []):
            print(printable(f"  {note}"), file=sys.stderr)
        sys.exit(EXIT_CODES[error.fault])


def _run() -> None:
    """Run the command. Turn a missing library, failed thread start or lack of memory into an McprlError with a fix."""
    try:
        app()
    except RuntimeError as error:
        if "can't start new thread" not in str(error):
            raise
        raise ResourceLimitError(
            "the operating system could not start another thread", fix=ResourceLimitError.FIX
        ) from error
    except MemoryError as error:
        raise ResourceLimitError(
            "the operating system has no memory left for the process", fix=ResourceLimitError.FIX
        ) from error
    except ModuleNotFoundError as error:
        library = _library(error)
        if library not in EXTRAS:
            raise
        raise MissingExtraError(
            f"this command needs {library}, which is not installed",
            fix=f"pip install 'mcprl[{EXTRAS[library]}]'; `mcprl doctor RECIPE` lists everything that a recipe needs",
        ) from error

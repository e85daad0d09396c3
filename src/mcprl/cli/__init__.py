"""The `mcprl` command. One file per command, imported only when that command runs, so `--help` is instant.

Other packages add commands through the entry point group `mcprl.commands`: `dashboard = "package.module"` with a
function `command` in it, or `"serve.fmp" = "package.module:function"` for a command below one of these.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperGroup

from mcprl.cli.printing import printable
from mcprl.errors import Fault, McprlError, MissingExtraError, ResourceLimitError

__all__ = ["app", "main"]

# The extra that brings a library, for commands that the base install cannot run.
EXTRAS = {
    **dict.fromkeys(("jinja2", "renderers", "tokenizers", "transformers"), "chat"),
    **dict.fromkeys(("accelerate", "peft", "safetensors", "torch", "xgrammar"), "torch"),
    **dict.fromkeys(("numpy", "pandas"), "market"),
    **dict.fromkeys(("duckdb", "starlette", "uvicorn"), "dashboard"),
}
EXIT_CODES = {Fault.CONFIGURATION: 2, Fault.INFRASTRUCTURE: 3}

# Commands in the order of `--help`. The text is what the list shows; the rest of the help is in the command's module.
COMMANDS = {
    "init": "Make a project that trains: an MCP server in Python, tasks, a recipe, a test and a README.",
    "doctor": "Check a recipe from its YAML to a sample of its episodes, and say how to fix what is wrong.",
    "train": "Train a model by a recipe.",
    "resume": "Resume a run from its newest valid checkpoint.",
    "try": "Let the model play a task and print the conversation.",
    "play": "Play a task yourself: see what the model sees, type calls, see the reward.",
    "parity": "Compare sampler and learner on a few short episodes.",
    "plan": "Predict what a run takes: time, tokens, calls, money, disk.",
    "eval": "Evaluate a model or an adapter, and compare two evaluations.",
    "dashboard": "Show runs in a browser: curves, health, tools, and every episode.",
    "logs": "List the logs of a run, or print the end of one.",
    "explain": "Explain an error code: causes and fixes.",
    "runs": "List runs, show one, compare several.",
    "tasks": "Check, make and read task files.",
    "serve": "Serve tools over stdio, or over HTTP at /mcp.",
    "tools": "List tools, call them, pin them.",
    "cassette": "Record, read and check cassettes: files of tool calls that replace the servers.",
    "config": "Look up settings.",
}
_FILES = {"try": "try_"}
_PACKAGES = ("dashboard",)  # commands of a package that an extra of the same name installs


class _Commands(TyperGroup):
    """Finds a command by its name and imports its module then. (The types of Typer's own copy of click are private.)"""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*COMMANDS, *sorted(_plugins().keys() - COMMANDS.keys())]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        plugin = _plugins().get(cmd_name)
        if plugin is not None:
            return _command(cmd_name, plugin.load())
        if cmd_name in _PACKAGES:
            raise MissingExtraError(f"`mcprl {cmd_name}` is not installed", fix=f"pip install 'mcprl[{cmd_name}]'")
        if cmd_name not in COMMANDS:
            return None
        return _command(cmd_name, import_module(f"mcprl.cli.{_FILES.get(cmd_name, cmd_name)}"))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS.get(name, "")) for name in self.list_commands(ctx)])


def _plugins(group: str = "") -> dict[str, EntryPoint]:
    """Commands of other packages, by name: those below a group of commands, or those at the top."""
    found = {entry.name: entry for entry in entry_points(group="mcprl.commands")}
    prefix = f"{group}." if group else ""
    return {
        name.removeprefix(prefix): entry
        for name, entry in found.items()
        if name.startswith(prefix) and "." not in name.removeprefix(prefix)
    }


def _command(name: str, module: Any) -> Any:
    """The click command of a module: its group `app`, with what other packages add to it, or its function `command`."""
    if hasattr(module, "app"):
        for below, plugin in sorted(_plugins(name).items()):
            module.app.command(below)(plugin.load())
        command = typer.main.get_group(module.app)
    else:
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        alone.command(name)(module.command)
        command = typer.main.get_command(alone)
    command.name = name
    return command


app = typer.Typer(
    name="mcprl",
    cls=_Commands,
    help="Train language models by reinforcement learning to use tools over many turns; the tools are MCP servers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def _mcprl() -> None:
    """Typer makes a group only of an app with a callback or a command."""


def main() -> None:
    """Run the command; an error of mcprl is one readable sentence and an exit code, not a traceback."""
    # Read when OpenMP loads: threads that spin while they wait cost a shared CPU several times the work.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        _run()
    except McprlError as error:
        # Printable, because an error may quote what a server wrote.
        print(printable(f"mcprl: {error} (mcprl explain {error.code})"), file=sys.stderr)
        for note in getattr(error, "__notes__", []):
            print(printable(f"  {note}"), file=sys.stderr)
        sys.exit(EXIT_CODES[error.fault])


def _run() -> None:
    """The command. A missing library of an extra and a refused thread have a name and a fix, too."""
    try:
        app()
    except RuntimeError as error:
        if "can't start new thread" not in str(error):
            raise
        raise ResourceLimitError("the system refuses to start a thread", fix=ResourceLimitError.FIX) from error
    except MemoryError as error:
        raise ResourceLimitError("the system refuses more memory", fix=ResourceLimitError.FIX) from error
    except ModuleNotFoundError as error:
        library = (error.name or "").split(".")[0]
        if library not in EXTRAS:
            raise
        raise MissingExtraError(
            f"this command needs {library}, which is not installed",
            fix=f"pip install 'mcprl[{EXTRAS[library]}]'; `mcprl doctor RECIPE` names all that a recipe needs",
        ) from error

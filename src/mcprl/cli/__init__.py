"""The `mcprl` command. One file a command; each imports what it needs only when it runs, so that help comes at once."""

from __future__ import annotations

import os
import sys

import typer

from mcprl.cli import (
    cassette,
    config,
    dashboard,
    doctor,
    eval,
    explain,
    init,
    logs,
    parity,
    plan,
    play,
    resume,
    runs,
    serve,
    tasks,
    tools,
    train,
    try_,
)
from mcprl.errors import Fault, McprlError, MissingExtraError, ResourceLimitError
from mcprl.monitoring.printable import printable

__all__ = ["app", "main"]

# The extra that brings a library, for commands that the base install cannot run.
EXTRAS = {
    **dict.fromkeys(("jinja2", "renderers", "tokenizers", "transformers"), "chat"),
    **dict.fromkeys(("accelerate", "peft", "safetensors", "torch", "xgrammar"), "torch"),
    **dict.fromkeys(("numpy", "pandas"), "servers"),
    **dict.fromkeys(("duckdb", "starlette", "uvicorn"), "dashboard"),
}
EXIT_CODES = {Fault.CONFIGURATION: 2, Fault.INFRASTRUCTURE: 3}

app = typer.Typer(
    name="mcprl",
    help="Train language models by reinforcement learning to use tools over many turns; the tools are MCP servers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("init")(init.command)
app.command("doctor")(doctor.command)
app.command("train")(train.command)
app.command("resume")(resume.command)
app.command("try")(try_.command)
app.command("play")(play.command)
app.command("parity")(parity.command)
app.command("plan")(plan.command)
app.command("eval")(eval.command)
app.command("dashboard")(dashboard.command)
app.command("logs")(logs.command)
app.command("explain")(explain.command)
app.add_typer(runs.app, name="runs")
app.add_typer(tasks.app, name="tasks")
app.add_typer(serve.app, name="serve")
app.add_typer(tools.app, name="tools")
app.add_typer(cassette.app, name="cassette")
app.add_typer(config.app, name="config")


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

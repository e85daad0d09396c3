"""`mcprl tasks synthesize`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from mcprl.cli.options import temporary_logs
from mcprl.config import ServerSettings
from mcprl.errors import BadValueError, NoConsentError, did_you_mean

if TYPE_CHECKING:
    from rich.console import Console

    from mcprl_synthesis.world import World

_OURS = {"train.jsonl", "validation.jsonl", "cassette.sqlite", "report.json", "report.md"}
_SQLITE = ("cassette.sqlite-wal", "cassette.sqlite-shm")


class Hints(BaseModel):
    """Hints of the user: values by `tool.argument` or by argument, and settings of servers as in a recipe."""

    model_config = ConfigDict(extra="forbid")

    values: dict[str, list[str | int | float | bool]] = {}
    settings: dict[str, ServerSettings] = {}


def synthesize(
    servers: Annotated[Path, typer.Option("--servers", help="mcpServers file.")],
    out: Annotated[
        Path, typer.Option("--out", help="Folder for the tasks: a new one, or that of an earlier synthesis.")
    ],
    count: Annotated[
        int, typer.Option("--count", min=1, help="Number of tasks, training and validation together.")
    ] = 400,
    seed: Annotated[int, typer.Option("--seed", help="Seed of all random choices.")] = 7,
    yes: Annotated[bool, typer.Option("--yes", help="Call the tools without asking for confirmation.")] = False,
    allow_writes: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-writes",
            metavar="SERVER",
            help="Also call tools of this server that are not read-only. May be repeated.",
        ),
    ] = None,
    hints: Annotated[
        Path | None, typer.Option("--hints", help="YAML file with values of arguments and settings of servers.")
    ] = None,
    cassette: Annotated[
        Path | None, typer.Option("--cassette", help="Cassette for the calls; default: cassette.sqlite in --out.")
    ] = None,
) -> None:
    """Make tasks from any MCP servers, with answers that are proven by execution. No language model is needed.

    Only tools that their server declares read-only are called, unless --allow-writes names the server. All calls are
    recorded, so the same command makes no calls the second time.
    """
    import asyncio

    from rich.console import Console

    from mcprl.tools import load_server_specs

    given = _read_hints(hints)
    specs = load_server_specs(servers, given.settings)
    names = [spec.name for spec in specs]
    for name in allow_writes or ():
        if name not in names:
            raise NoConsentError(
                f"--allow-writes {name}: {servers} has no such server{did_you_mean(name, names)}",
                fix="use the name of a server in the file",
            )
    _require_ours(out)
    out.mkdir(parents=True, exist_ok=True)
    options = {"count": count, "seed": seed, "hints": given.values}
    console = Console(highlight=False)
    asyncio.run(_run(console, specs, out, cassette or out / "cassette.sqlite", allow_writes or [], yes, options))


async def _run(
    console: Console, specs: Any, out: Path, path: Path, allow_writes: list[str], yes: bool, options: dict[str, Any]
) -> None:
    from rich.console import Console

    from mcprl.cli.printing import words
    from mcprl.tools import Cassette
    from mcprl_synthesis.synthesis import synthesize as run
    from mcprl_synthesis.world import World

    with temporary_logs() as logs, Cassette.open(path, writable=True) as cassette:
        async with World(specs, cassette, allow_writes=allow_writes, log_dir=logs) as world:
            _ask(console, world, options["count"], yes)
            with Console(stderr=True, highlight=False).status("exploring …") as status:
                made = await run(world, **options, progress=lambda text: status.update(words(f"{text} …")))
            figures = made.write(out)
    calls, replayed = made.world.cost.calls.total(), made.world.cost.replayed
    for line in (
        f"{figures['tasks']} tasks of {figures['families']} families: {figures['train']} for training, "
        f"{figures['validation']} for validation",
        f"{figures['linked_share']:.0%} pass values between calls, {figures['several_servers_share']:.0%} use "
        f"several servers, {figures['writes_share']:.0%} write; {sum(figures['rejected'].values())} "
        "candidates were rejected",
        f"{calls} calls made, {replayed} replayed; {out / 'report.md'} has the details",
    ):
        console.print(words(line), soft_wrap=True)


def _ask(console: Console, world: World, count: int, yes: bool) -> None:
    """Show which tools will be called and how often, and ask whether they may be."""
    from mcprl.cli.printing import plain_table, words
    from mcprl_synthesis.synthesis import call_limit

    table = plain_table("server", "tool", "calls")
    called = 0
    for tool in world.catalog:
        allowed = world.may_call(tool)
        called += allowed
        calls = f"at most {call_limit(count)}" if allowed else "none: not read-only"
        table.add_row(words(tool.server), words(tool.name), calls)
    console.print(table, "The calls of the tasks are repeated on two fresh servers.", sep="\n")
    if not yes and not (sys.stdin.isatty() and typer.confirm("Call these tools?")):
        raise NoConsentError(
            f"calling {called} tools up to {call_limit(count)} times each needs your consent",
            fix="review the list above, then answer y or pass --yes",
        )


def _read_hints(path: Path | None) -> Hints:
    if path is None:
        return Hints()
    try:
        value: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        return Hints.model_validate(value or {})
    except (OSError, yaml.YAMLError, ValidationError, UnicodeDecodeError) as error:
        problem = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise BadValueError(
            f"--hints {path}: {' '.join(problem.split())}",
            fix=(
                "write `values: {ARGUMENT: [VALUE, …]}` (ARGUMENT or TOOL.ARGUMENT) and, if needed, `settings: "
                "{SERVER: {…}}`"
            ),
        ) from error


def _require_ours(out: Path) -> None:
    """Refuse a folder with files that this command did not write."""
    others = sorted({path.name for path in out.iterdir()} - _OURS - set(_SQLITE)) if out.is_dir() else []
    if others:
        raise BadValueError(
            f"{out} contains {others[0]}, which this command did not write",
            fix="pass a new folder, or that of an earlier synthesis",
        )

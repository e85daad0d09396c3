"""`mcprl tasks synthesize` and `mcprl tasks import`."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from mcprl.cli.options import temporary_logs
from mcprl.config import ServerSettings
from mcprl.episodes.endpoint import EndpointSettings, SettingNames
from mcprl.errors import BadValueError, NoConsentError, did_you_mean

if TYPE_CHECKING:
    from rich.console import Console

    from mcprl.tools import Cassette
    from mcprl_synthesis.world import World
    from mcprl_synthesis.writer import Writer

_FILES = ("train.jsonl", "validation.jsonl")
_OURS = {*_FILES, "cassette.sqlite", "report.json", "report.md", "report.html", "calibration.json", "logs"}
_SQLITE = ("cassette.sqlite-wal", "cassette.sqlite-shm")
_NAMES = SettingNames("the wording model", "--wording-endpoint", "--wording-model", "OPENAI_API_KEY")


class Hints(BaseModel):
    """The user's hints: values by `tool.argument` or by argument, and server settings as in a recipe."""

    model_config = ConfigDict(extra="forbid")

    values: dict[str, list[str | int | float | bool]] = {}
    settings: dict[str, ServerSettings] = {}


Out = Annotated[Path, typer.Option("--out", help="Folder for the tasks: a new one, or that of an earlier synthesis.")]
AllowWrites = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-writes",
        metavar="SERVER",
        help="Also call tools of this server that are not read-only. May be repeated.",
    ),
]


def synthesize(  # noqa: PLR0913 - each is an option of the command line
    servers: Annotated[Path, typer.Option("--servers", help="mcpServers file.")],
    out: Out,
    count: Annotated[
        int, typer.Option("--count", min=1, help="Number of tasks, training and validation together.")
    ] = 400,
    seed: Annotated[int, typer.Option("--seed", help="Seed of all random choices.")] = 7,
    yes: Annotated[bool, typer.Option("--yes", help="Call the tools without asking for confirmation.")] = False,
    allow_writes: AllowWrites = None,
    hints: Annotated[
        Path | None, typer.Option("--hints", help="YAML file with argument values and server settings.")
    ] = None,
    cassette: Annotated[
        Path | None, typer.Option("--cassette", help="Cassette for the calls; default: cassette.sqlite in --out.")
    ] = None,
    distractors: Annotated[
        int, typer.Option("--distractors", min=0, help="Number of tools that each task offers but does not need.")
    ] = 3,
    wording_endpoint: Annotated[
        str | None,
        typer.Option("--wording-endpoint", metavar="URL", help="OpenAI-compatible endpoint that rephrases questions."),
    ] = None,
    wording_model: Annotated[
        str | None, typer.Option("--wording-model", metavar="NAME", help="Model of --wording-endpoint.")
    ] = None,
    calibrated: Annotated[
        Path | None,
        typer.Option("--calibrate", metavar="RECIPE", help="Keep only tasks that the recipe's model solves sometimes."),
    ] = None,
    attempts: Annotated[int, typer.Option("--attempts", min=2, help="Attempts per task with --calibrate.")] = 4,
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
    options: dict[str, Any] = {"count": count, "seed": seed, "hints": given.values, "distractors": distractors}
    console = Console(highlight=False)
    if bool(wording_endpoint) != bool(wording_model):
        raise BadValueError("--wording-endpoint and --wording-model go together", fix="give both, or neither")
    endpoint = (
        EndpointSettings(url=wording_endpoint, model=wording_model) if wording_endpoint and wording_model else None
    )
    path = cassette or out / "cassette.sqlite"
    asyncio.run(_run(console, specs, out, path, allow_writes or [], yes, endpoint, options))
    if calibrated is not None:
        _calibrate(console, calibrated, out, attempts)


def _calibrate(console: Console, recipe: Path, out: Path, attempts: int) -> None:
    import asyncio

    from mcprl.cli.stages import StageConsole
    from mcprl.evaluation.harness import make_request
    from mcprl_synthesis.calibrate import calibrate

    request = make_request(recipe, tasks=out / _FILES[0], episodes=attempts)
    with StageConsole(attempts * sum(1 for name in _FILES for _ in _lines(out / name))) as watcher:
        made = asyncio.run(calibrate(request, out, _FILES, watcher))
    console.print(
        f"kept {made['sometimes']} tasks that were solved in some of {attempts} attempts; {made['always']} were always "
        f"solved, {made['never']} never",
        soft_wrap=True,
    )


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


@asynccontextmanager
async def _writing(endpoint: EndpointSettings | None, cassette: Cassette) -> AsyncGenerator[Writer | None]:
    """Open the client of the wording model, if there is one."""
    from mcprl.episodes.endpoint_runner import make_client
    from mcprl_synthesis.writer import Writer

    if endpoint is None:
        yield None
        return
    async with make_client(endpoint, os.environ, _NAMES) as client:
        yield Writer(client, endpoint.model, cassette)


async def _run(
    console: Console,
    specs: Any,
    out: Path,
    path: Path,
    allow_writes: list[str],
    yes: bool,
    endpoint: EndpointSettings | None,
    options: dict[str, Any],
) -> None:
    from rich.console import Console

    from mcprl.cli.printing import words
    from mcprl.tools import Cassette
    from mcprl_synthesis.synthesis import synthesize as run
    from mcprl_synthesis.world import World

    with temporary_logs() as logs, Cassette.open(path, writable=True) as cassette:
        async with World(specs, cassette, allow_writes=allow_writes, log_dir=logs) as world:
            _ask(console, world, options["count"], yes)
            status = Console(stderr=True, highlight=False).status("exploring …")
            async with _writing(endpoint, cassette) as writer:
                with status:
                    made = await run(
                        world, **options, writer=writer, progress=lambda text: status.update(words(f"{text} …"))
                    )
            figures = made.write(out)
    calls, replayed = made.world.cost.calls.total(), made.world.cost.replayed
    for line in (
        f"{figures['tasks']} tasks of {figures['families']} kinds: {figures['train']} for training, "
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
    for tool in world.catalog:
        calls = f"at most {call_limit(count)}" if world.may_call(tool) else "none: not read-only"
        table.add_row(words(tool.server), words(tool.name), calls)
    console.print(table, "To verify the tasks, their calls are made twice more, on fresh servers.", sep="\n")
    if not yes and not (sys.stdin.isatty() and typer.confirm("Call these tools?")):
        raise NoConsentError(
            f"calling {sum(map(world.may_call, world.catalog))} tools up to {call_limit(count)} times each needs your "
            "consent",
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


def import_recorded(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Recorded conversations: a JSON list of rows, or one per line.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for the project; it must be new or empty.")],
    model: Annotated[
        str | None, typer.Option(help="Model to train: a folder, or a Hugging Face name; default: Qwen/Qwen3-0.6B.")
    ] = None,
) -> None:
    """Create a project from recorded conversations: tasks with proven checks, a cassette, demonstrations, a recipe."""
    from rich.console import Console

    from mcprl.cli.printing import plain_table, words
    from mcprl.scaffold import DEFAULT_MODEL
    from mcprl.secrets import SECRETS
    from mcprl_synthesis.recorded import import_project

    console = Console(highlight=False)
    with Console(stderr=True, highlight=False).status("deriving and proving checks …"):
        project = import_project(files, out, DEFAULT_MODEL if model is None else model)
    figures = project.to_json()
    checks = ", ".join(f"{kind} {number}" for kind, number in figures["checks"].items())
    worlds = plain_table("tool", "answered by")
    for name, world in project.worlds.items():
        worlds.add_row(words(SECRETS.redact(name)), world)
    console.print(worlds, "")
    unreadable = f"{len(project.unreadable)} parts of the files cannot be read; report.md lists them"
    for line in (
        f"{figures['rows']} rows: {figures['usable']} usable, {figures['proven']} with proven checks ({checks})",
        f"{figures['train']} training tasks, {figures['validation']} validation tasks, "
        f"{figures['demonstrations']} demonstrations; {out / 'report.md'} explains each row",
        *([unreadable] if project.unreadable else ()),
        f"next: mcprl doctor {out / 'recipe.yaml'} --fast",
    ):
        console.print(words(SECRETS.redact(line)), soft_wrap=True)

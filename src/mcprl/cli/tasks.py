"""`mcprl tasks`: check, generate and print task files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from mcprl.cli.commands import Commands, Group
from mcprl.cli.options import AsJson
from mcprl.cli.printing import plain_table, words
from mcprl.errors import MissingExtraError

if TYPE_CHECKING:
    from mcprl.config import EpisodesConfig, RewardsConfig, RunConfig
    from mcprl.episodes.demonstrations import Trial
    from mcprl.records import Task
    from mcprl.tasks.validation import Report
    from mcprl.tools import ServerSpec, Tool, Toolbox

_LISTED = 20


def print_report(console: Console, report: Report) -> None:
    """Print figures, problems, drift and unchecked rows, then a verdict in one line."""
    _print_figures(console, report)
    _print_problems(console, report)
    _print_drift(console, report)
    if report.not_checked:
        table = plain_table("not checked", "rows")
        for what, rows in report.not_checked.items():
            table.add_row(_words(what), f"{rows}")
        console.print(table, "")
    recorded = sum(tool.recorded for tool in report.by_tool)
    problems = f"{len(report.problems)} problem{'s' if len(report.problems) != 1 else ''}"
    found = f"{problems}, {len(report.drift)} of {recorded} recorded calls drifted"
    verdict = "no problems" if report.fine else found
    console.print(_words(f"{report.file}: {report.tasks} tasks, {verdict}", "green" if report.fine else "bold red"))


def _print_figures(console: Console, report: Report) -> None:
    levels = plain_table("difficulty", "tasks", "calls needed (mean)", "with a solution")
    for level in report.by_difficulty:
        levels.add_row(level.difficulty, f"{level.tasks}", f"{level.needed_calls:.1f}", f"{level.solved}")
    tools = plain_table("server", "tool", "offered by tasks", "needed by tasks", "recorded calls", "drifted")
    for tool in report.by_tool:
        drifted = _words(f"{tool.drifted}", "yellow" if tool.drifted else "")
        server = _words(tool.server) if tool.server else _words("none", "red")
        tools.add_row(server, _words(tool.tool), f"{tool.offered}", f"{tool.needed}", f"{tool.recorded}", drifted)
    console.print(levels, "", tools, "", sep="\n")


def _print_problems(console: Console, report: Report) -> None:
    """Print the problems. A problem that several tasks share is printed once."""
    alike: dict[tuple[str, str], list[str]] = {}
    for problem in report.problems:
        alike.setdefault((problem.kind, problem.text), []).append(f"{problem.task_id} ({problem.row})")
    if not alike:
        return
    table = plain_table("problem", "what", "tasks", "which")
    for (kind, text), places in list(alike.items())[:_LISTED]:
        table.add_row(_words(kind, "red"), _words(text), f"{len(places)}", _words(_few(places)))
    console.print(table)
    if len(alike) > _LISTED:
        console.print(_words(f"… and {len(alike) - _LISTED} more; --json prints all", "dim"))
    console.print("")


def _print_drift(console: Console, report: Report) -> None:
    """Print drifted calls. Calls that drifted in the same way share one entry with all their places."""
    alike: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for call in report.drift:
        fix = "; ".join(map(str, call.aliases)) or "no alias fixes it"
        places = alike.setdefault((call.tool, ", ".join(call.problems), fix), {})
        row = call.row if call.part == "prompt" else f"{call.row}, {call.part}"
        places.setdefault(f"{row}, message", []).append(f"{call.message}")
    most_first = sorted(alike.items(), key=lambda item: -sum(map(len, item[1].values())))
    for (tool, problems, fix), places in most_first:
        times = sum(map(len, places.values()))
        where = "; ".join(f"{row} {', '.join(messages)}" for row, messages in places.items())
        console.print(_words(tool, "bold") + _words(f" {problems}") + _words(f"  {times} ×", "yellow"))
        console.print(Padding(_words(f"alias: {fix}", "cyan"), (0, 0, 0, 2), expand=False))
        console.print(Padding(_words(where, "dim"), (0, 0, 1, 2), expand=False))
    settings = _alias_yaml(report)
    if settings:
        console.print("For the recipe:", "", _words(settings), sep="\n", soft_wrap=True)


def _alias_yaml(report: Report) -> str:
    import yaml

    from mcprl.tasks.validation import alias_settings

    settings = alias_settings(report.drift)
    if not settings:
        return ""
    return yaml.safe_dump({"servers": {"settings": settings}}, sort_keys=False, default_flow_style=None)


def is_perfect(trial: Trial) -> bool:
    """Return True if a solution gets the full reward and no call is rejected."""
    return trial.reward >= 1.0 and not trial.faults


def print_gold(console: Console, trials: Sequence[Trial], tasks: int) -> None:
    """Print each solution that does not get the full reward, and how many solutions do."""
    wrong = [trial for trial in trials if not is_perfect(trial)]
    if wrong:
        table = plain_table("solution of", "reward", "parts", "faults")
        for trial in wrong:
            parts = ", ".join(f"{name} {value:g}" for name, value in trial.parts.items())
            table.add_row(
                _words(trial.task_id), f"{trial.reward:g}", _words(parts), _words("; ".join(map(str, trial.faults)))
            )
        console.print(table, "")
    unplayed = tasks - len(trials)
    missing = f"; {unplayed} tasks have no solution that can be run" if unplayed else ""
    text = f"{len(trials) - len(wrong)} of {len(trials)} solutions score 1.0{missing}"
    console.print(_words(text, "bold red" if wrong else "green"))


def print_task_list(console: Console, tasks: Iterable[Task]) -> None:
    table = plain_table("task", "difficulty", "needs", "question")
    for task in tasks:
        needs = ", ".join(dict.fromkeys(call.tool for call in task.goal.calls))
        table.add_row(
            _words(task.id), task.difficulty, _words(needs), _words(shorten(_question(task), 100, placeholder="…"))
        )
    console.print(table)


def print_task(console: Console, task: Task) -> None:
    """Print a task with its solution, as YAML with the fields of a task file."""
    import yaml

    from mcprl.tasks.formats import line_of

    line = json.loads(json.dumps(line_of(task)))
    text = yaml.safe_dump(line, sort_keys=False, allow_unicode=True, width=console.width)
    console.print(_words(text.rstrip()), soft_wrap=True)


def _question(task: Task) -> str:
    return " ".join(message["content"] for message in task.prompt if message["role"] == "user")


def _few(places: Iterable[str]) -> str:
    listed = list(places)
    return ", ".join(listed[:3]) + (f", … {len(listed) - 3} more" if len(listed) > 3 else "")


def _words(text: str, style: str = "") -> Text:
    """Return text from a file as a rich Text, with secrets redacted."""
    from mcprl.secrets import SECRETS

    return words(SECRETS.redact(text), style)


_SHIPPED = ("fmp", "polygon", "tavily", "slack", "python")
_WORLD = re.compile(r"market-(\d+)")
# Used if no task names a world. The tools are the same in every world.
_ANY_WORLD = 7

_EXTRAS = {"generate": "market", "import": "synthesis", "synthesize": "synthesis"}


class _Tasks(Group):
    """A command group that names the extra to install for a missing command."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is None and cmd_name in _EXTRAS:
            raise MissingExtraError(
                f"`mcprl tasks {cmd_name}` is not installed", fix=f"pip install 'mcprl[{_EXTRAS[cmd_name]}]'"
            )
        return command


app = Commands("Check, create and inspect task files.", _Tasks)

_TaskFile = Annotated[Path, typer.Argument(metavar="FILE", help="Task file: JSONL, or rows in SkyRL's format.")]


@app.command("validate")
def validate_tasks(
    file: _TaskFile,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            "--against", metavar="FILE", help="File that must not share tasks with the checked one. May be repeated."
        ),
    ] = None,
    servers: Annotated[
        Path | None,
        typer.Option("--servers", help="mcpServers file; default: the offline market servers that mcprl ships."),
    ] = None,
    recipe: Annotated[
        Path | None, typer.Option("--recipe", help="Recipe whose servers, limits and rewards are used for the check.")
    ] = None,
    gold: Annotated[
        bool, typer.Option("--gold", help="Run each task's solution on the servers and print its reward.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a task file for unknown tools, outdated recorded calls, impossible checks, duplicates and leaks.

    Exits with status 1 if problems are found.
    """
    import asyncio

    from mcprl.tasks import read_task_file
    from mcprl.tasks.validation import validate

    config = _load(recipe, servers)
    read = read_task_file(file)
    others = [read_task_file(path) for path in against or ()]
    tools, trials = asyncio.run(_ask_servers(read.tasks, servers, config, gold=gold))
    report = validate(read, tools, against=others, episodes=None if config is None else config.episodes)
    if as_json:
        played = {"gold": [_trial_json(trial) for trial in trials]} if gold else {}
        print(json.dumps(report.to_json() | played, indent=2))
    else:
        console = Console(highlight=False)
        print_report(console, report)
        if gold:
            print_gold(console, trials, len(read.tasks))
    failed = any(not is_perfect(trial) for trial in trials)
    raise typer.Exit(0 if report.fine and not failed else 1)


@app.command("show")
def show_task(
    file: _TaskFile,
    task_id: Annotated[str | None, typer.Argument(metavar="ID", help="Task to print; default: list all.")] = None,
) -> None:
    """Print a task, or list the tasks of a file."""
    from mcprl.cli.options import choose_task
    from mcprl.tasks import load_tasks

    console = Console(highlight=False)
    if task_id is None:
        print_task_list(console, load_tasks(file))
    else:
        print_task(console, choose_task(file, task_id))


@app.command("schema")
def print_schema() -> None:
    """Print the JSON Schema of one line of a task file."""
    from mcprl.tasks.formats import task_schema

    print(json.dumps(task_schema(), indent=2, ensure_ascii=False))


def _load(recipe: Path | None, servers: Path | None) -> RunConfig | None:
    from mcprl.errors import BadValueError
    from mcprl.recipe import load_recipe

    if recipe is not None and servers is not None:
        raise BadValueError("--recipe and --servers both specify servers", fix="use only one of them")
    return None if recipe is None else load_recipe(recipe)


async def _ask_servers(
    tasks: Sequence[Task], servers: Path | None, config: RunConfig | None, *, gold: bool
) -> tuple[tuple[Tool, ...], tuple[Trial, ...]]:
    """Return the servers' tools and, with `gold`, the result of running each solution in the world of its task."""
    from functools import partial

    from mcprl.cli.options import shown_opening
    from mcprl.config import EpisodesConfig, RewardsConfig
    from mcprl.tools import Toolbox, open_toolbox

    tools: tuple[Tool, ...] = ()
    trials: list[Trial] = []
    rewards, episodes = (RewardsConfig(), EpisodesConfig()) if config is None else (config.rewards, config.episodes)
    own = servers is not None or config is not None
    for world, members in _by_world(tasks, own=own).items():
        opens = partial(Toolbox, _specs(servers, world)) if config is None else partial(open_toolbox, config.servers)
        async with shown_opening(opens, "running the solutions" if gold else "listing the tools") as toolbox:
            tools = tuple(toolbox.catalog)
            if not gold:
                break
            trials += await _play(members, toolbox, rewards, episodes)
    return tools, tuple(trials)


async def _play(
    tasks: Sequence[Task], toolbox: Toolbox, rewards: RewardsConfig, episodes: EpisodesConfig
) -> tuple[Trial, ...]:
    """Run the solutions of those tasks that have one and whose tools all exist."""
    from mcprl.cli.options import temporary_logs
    from mcprl.episodes.demonstrations import play_gold
    from mcprl.episodes.environment import require_worlds
    from mcprl.episodes.reward_functions import code_of, open_functions

    playable = [
        task
        for task in tasks
        if task.solution is not None
        and (task.user is None or task.user.function is not None)
        and all(name in toolbox.catalog for name in (*(task.tools or ()), *(state.tool for state in task.goal.state)))
    ]
    require_worlds(playable, toolbox)
    # Reward functions grade how a task was solved; only its own check decides whether a solution is right.
    rewards = rewards.model_copy(update={"functions": {}})
    code = code_of(rewards, playable)
    with temporary_logs() as logs:
        async with open_functions(rewards, toolbox.catalog, logs=logs, code=code) as functions:
            return await play_gold(playable, toolbox, rewards, episodes=episodes, functions=functions)


def _by_world(tasks: Sequence[Task], *, own: bool) -> dict[int, list[Task]]:
    """Group tasks by the seed of their world. A user's own servers have one world and report it themselves."""
    from mcprl.errors import BadValueError

    if own:
        return {_ANY_WORLD: list(tasks)}
    worlds: dict[int, list[Task]] = {}
    for task in tasks:
        named = _WORLD.fullmatch(task.world) if task.world is not None else None
        if task.world is not None and named is None:
            raise BadValueError(
                f"task {task.id!r} needs the world {task.world!r}, which none of mcprl's servers provides",
                fix="use a world named market-SEED, or pass the servers of this world with --servers",
            )
        worlds.setdefault(int(named[1]) if named else _ANY_WORLD, []).append(task)
    return worlds


def _specs(servers: Path | None, world: int) -> Sequence[ServerSpec]:
    from functools import partial

    from mcprl.servers import make_server
    from mcprl.tools import ServerSpec, load_server_specs

    if servers is not None:
        return load_server_specs(servers, {})
    return [ServerSpec(name=name, make=partial(make_server, name, world=world)) for name in _SHIPPED]


def _trial_json(trial: Trial) -> dict[str, Any]:
    return {
        "task_id": trial.task_id,
        "reward": trial.reward,
        "parts": dict(trial.parts),
        "faults": [str(fault) for fault in trial.faults],
    }

"""The tasks of a recipe: whether they can be read, scored and solved with the tools that there are."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mcprl.checks.doctor.examination import Examination, Finding, fine, warning, wrong, wrong_by
from mcprl.config import AlgorithmConfig, RunConfig, ServerSettings
from mcprl.episodes.demonstrations import require_solutions
from mcprl.episodes.environment import require_worlds
from mcprl.episodes.rewards import meets, require_scorable
from mcprl.errors import BadValueError, McprlError, TaskFileError, UnknownToolError
from mcprl.goals import AnyText, Contains, Exactly, ExpectedText, Goal
from mcprl.records import Task
from mcprl.tasks import load_preamble, make_order, read_task_file
from mcprl.tasks.validation import DriftedCall, Problem, ProblemKind, alias_settings, leaks, validate
from mcprl.tools import Toolbox

__all__ = ["check_against_tools", "check_leaks", "check_task_file", "check_worlds", "validation_files"]


_EXAMPLES = 3
# What people call the file that judges what the training file taught.
_JUDGING = ("validation", "valid", "val", "dev", "test", "eval")


async def check_task_file(examination: Examination) -> AsyncIterator[Finding]:
    """Read the tasks and the preamble; see that each task can be scored, and that there are enough for a step."""
    config = examination.config.value
    try:
        examination.preamble.put(load_preamble(config.tasks.preamble))
    except TaskFileError as error:
        yield wrong_by("preamble", error)
    file = read_task_file(config.tasks.train)
    examination.tasks.put(file)
    make_order(file.tasks, config)
    yield fine("tasks", f"{len(file.tasks)} in {file.path.name}")
    try:
        solutions = require_solutions(file.tasks, config)
    except McprlError as error:
        yield wrong_by("warm start", error)
    else:
        if solutions:
            yield fine("warm start", f"{solutions} of {len(file.tasks)} tasks have a solution to imitate")
    if (finding := _learnable_bound(file.tasks, config)) is not None:
        yield finding
    try:
        require_scorable(file.tasks, config.rewards)
    except McprlError as error:
        yield wrong_by("scoring", error)
        return
    rubrics = sum(task.goal.rubric is not None for task in file.tasks)
    if rubrics and config.rewards.judge is None:
        yield warning(
            "scoring",
            f"{rubrics} of {len(file.tasks)} tasks have a rubric that nobody grades",
            fix="set rewards.judge to an endpoint that grades, or take the rubrics out",
        )
    else:
        yield fine("scoring", "every task has something to earn")


def _learnable_bound(tasks: Sequence[Task], config: RunConfig) -> Finding | None:
    """A finding if no batch can have the tokens that an update needs, however long its episodes are."""
    least, episodes = config.algorithm.min_learnable_tokens, config.training.tasks_per_step * config.episodes.group_size
    turns = max(config.episodes.turn_limit(task) * (1 + len(task.follow_ups)) for task in tasks)
    most = episodes * min(turns * config.sampling.max_tokens, config.model.context_tokens)
    if least <= most:
        return None
    return wrong(
        "learnable tokens",
        f"algorithm.min_learnable_tokens is {least:,}, and the {episodes} episodes of a step have at most {most:,}: "
        "every update would be skipped",
        fix=f"lower algorithm.min_learnable_tokens (default {AlgorithmConfig().min_learnable_tokens})",
        code=BadValueError.code,
    )


async def check_leaks(examination: Examination) -> AsyncIterator[Finding]:
    """Tasks that a file for judging has too, and answers that stand in their own question."""
    file = examination.tasks.value
    named = examination.config.value.tasks.validation
    others = validation_files(file.path) if named is None else [named]
    leaked = [
        f"{entry.task.id} {text}" for path in others for entry, text in leaks(file, read_task_file(path))
    ]  # a file for judging that cannot be read is said as it is
    if leaked:
        yield wrong(
            "leaks",
            f"{len(leaked)} of {len(file.tasks)} training tasks are also there to judge by: {_some(leaked)}",
            fix=f"take them out of {file.path.name} or of {others[0].name}; see `mcprl tasks validate "
            f"{_from_here(file.path)} --against {_from_here(others[0])}`",
        )
    elif others:
        yield fine("leaks", f"none of {len(file.tasks)} tasks is in {', '.join(path.name for path in others)}")
    else:
        yield fine(
            "leaks",
            "not looked for: tasks.validation is not set",
        )
    given = [task.id for task in file.tasks if _gives_its_answer(task)]
    if given:
        yield warning(
            "answers in prompts",
            f"{len(given)} of {len(file.tasks)} tasks have their answer in the question, so no tool is needed: "
            f"{_some(given)}",
            fix="ask for something that only a tool can tell, or add needed calls to the task",
        )


def validation_files(train: Path) -> list[Path]:
    """The files beside the training tasks that are named as it is, but for judging: train.jsonl, validation.jsonl."""
    if "train" not in train.stem:
        return []
    named = [train.with_name(train.name.replace("train", word)) for word in _JUDGING]
    return [path for path in named if path.is_file()]


def _gives_its_answer(task: Task) -> bool:
    """Whether the question holds what its answer must hold. Numbers and choices stand in questions for good reasons."""
    answer: ExpectedText | None = task.goal.answer
    if isinstance(answer, Exactly):
        answer = Contains(text=answer.text)
    if answer is None or isinstance(answer, AnyText) or not isinstance(answer, Contains):
        return False
    return any(meets(answer, message["content"]) for message in task.prompt if message["role"] == "user")


async def check_against_tools(examination: Examination) -> AsyncIterator[Finding]:
    """Hold the tasks against the catalog: names, arguments and turns that can never come true, and old recordings."""
    config, file, catalog = examination.config.value, examination.tasks.value, examination.catalog.value
    report = validate(file, catalog, episodes=config.episodes)
    by_kind = {kind: [problem for problem in report.problems if problem.kind is kind] for kind in ProblemKind}
    look = f"`mcprl tasks validate {_from_here(file.path)}` lists them all"
    if unknown := by_kind[ProblemKind.UNKNOWN_TOOL]:
        yield wrong(
            "tasks and tools",
            f"{_tasks(unknown)} of {len(file.tasks)} tasks name a tool that no server lists: {_some(_lines(unknown))}",
            fix=f"correct the name in the task, or add a server that offers it; {look}",
            code=UnknownToolError.code,
        )
    if unreachable := by_kind[ProblemKind.UNREACHABLE]:
        yield wrong(
            "solvable",
            f"{_tasks(unreachable)} of {len(file.tasks)} tasks cannot be solved: {_some(_lines(unreachable))}",
            fix=f"correct the tasks, or raise episodes.max_turns where turns are too few; {look}",
        )
    if twice := by_kind[ProblemKind.DUPLICATE]:
        yield warning(
            "duplicates",
            f"{_tasks(twice)} of {len(file.tasks)} tasks ask what another asks: {_some(_lines(twice))}",
            fix=f"keep one of each; {look}",
        )
    drift = [call for call in report.drift if not _is_mended(call, config.servers.settings)]
    if drift:
        yield _drift(drift)
    if not unknown and not unreachable:
        yield fine("tasks and tools", f"{len(catalog)} tools; every tool, argument and limit of the tasks fits them")


def _drift(drift: Sequence[DriftedCall]) -> Finding:
    examples = [f"{call.row}: {call.tool} {', '.join(call.problems)}" for call in drift]
    settings = [
        f"servers.settings.{server}.{setting}: {{{', '.join(f'{alias}: {meant}' for alias, meant in names.items())}}}"
        for server, aliases in alias_settings(drift).items()
        for setting, names in aliases.items()
    ]
    return warning(
        "recorded calls",
        f"{len(drift)} calls in the dataset's conversations no longer fit the tools: {_some(examples)}",
        fix=f"write {'; '.join(settings)}" if settings else "correct the rows: no alias would mend them",
    )


def _is_mended(call: DriftedCall, settings: Mapping[str, ServerSettings]) -> bool:
    """Whether the recipe's aliases already make the call fit."""

    def has(server: str, setting: str, alias: str, meant: str) -> bool:
        own = settings.get(server, ServerSettings())
        aliases = own.tool_aliases if setting == "tool_aliases" else own.argument_aliases
        return aliases.get(alias) == meant

    return bool(call.aliases) and all(has(one.server, one.setting, one.alias, one.meant) for one in call.aliases)


async def check_worlds(examination: Examination) -> AsyncIterator[Finding]:
    """Whether the servers serve the offline world that the answers of the tasks are true of."""
    tasks = examination.tasks.value.tasks
    worlds = sorted({task.world for task in tasks if task.world is not None})
    for box in examination.toolboxes.value.values():
        require_worlds(list(_tasks_of(box, tasks)), box)
    yield fine("worlds", f"the servers serve {', '.join(worlds)}, as the tasks want" if worlds else "no task needs one")


def _tasks_of(toolbox: Toolbox, tasks: Iterable[Task]) -> Iterator[Task]:
    """The tasks as far as they concern one server's tools."""
    for task in tasks:
        state = tuple(expected for expected in task.goal.state if expected.tool in toolbox.catalog)
        tools = tuple(name for name in task.tools or toolbox.catalog.names if name in toolbox.catalog)
        if tools or state:
            yield replace(task, tools=tools or (state[0].tool,), goal=Goal(answer=AnyText(), state=state))


def _from_here(path: Path) -> str:
    """The path as one would type it."""
    return min(os.path.relpath(path), str(path), key=len)


def _tasks(problems: Sequence[Problem]) -> int:
    return len({problem.task_id for problem in problems})


def _lines(problems: Sequence[Problem]) -> list[str]:
    return [f"{problem.task_id} {problem.text}" for problem in problems]


def _some(lines: Sequence[str]) -> str:
    """The first few, and how many there are besides."""
    more = f"; and {len(lines) - _EXAMPLES} more" if len(lines) > _EXAMPLES else ""
    return "; ".join(lines[:_EXAMPLES]) + more

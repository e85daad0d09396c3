"""Checks of the tasks: whether they can be read, scored, and solved with the available tools."""

from __future__ import annotations

import difflib
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mcprl.checks.doctor.examination import Examination, Finding, fine, skipped, warning, wrong, wrong_by
from mcprl.config import AlgorithmConfig, RunConfig, ServerSettings
from mcprl.conversations import calls_in
from mcprl.episodes.demonstrations import require_solutions
from mcprl.episodes.environment import require_users, require_worlds
from mcprl.episodes.rewards import meets, require_scorable
from mcprl.errors import BadValueError, McprlError, TaskFileError, UnknownToolError, did_you_mean
from mcprl.goals import AnyText, Contains, Exactly, Goal
from mcprl.records import Message, Task
from mcprl.tasks import load_preamble, make_order, read_task_file
from mcprl.tasks.validation import DriftedCall, ProblemKind, alias_settings, drift_of, leaks, validate
from mcprl.tools import Tool, Toolbox

_EXAMPLES = 3
# A tool name: at least two words joined by underscores. The number is how similar a word must be to a tool's name.
_IDENTIFIER, _ALIKE = re.compile(r"\b[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)+\b"), 0.8
# Usual names of validation files.
_JUDGING = ("validation", "valid", "val", "dev", "test", "eval")


async def check_task_file(examination: Examination) -> AsyncIterator[Finding]:
    """Read the tasks and the preamble. Check that each task can be scored, and that there are enough for a step."""
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
        require_users(file.tasks, config.tasks)
    except McprlError as error:
        yield wrong_by("scoring", error)
        return
    rubrics = sum(task.goal.rubric is not None for task in file.tasks)
    if rubrics and config.rewards.judge is None:
        yield warning(
            "scoring",
            f"{rubrics} of {len(file.tasks)} tasks have a rubric, but no judge is configured",
            fix="configure rewards.judge, or remove the rubrics",
        )
    else:
        yield fine("scoring", "every task can earn a reward")


def _learnable_bound(tasks: Sequence[Task], config: RunConfig) -> Finding | None:
    """Return a finding if even the longest episodes give a batch fewer tokens than an update needs."""
    least, episodes = config.algorithm.min_learnable_tokens, config.training.tasks_per_step * config.episodes.group_size
    turns = max(config.episodes.turn_limit(task) * task.max_messages for task in tasks)
    most = episodes * min(turns * config.sampling.max_tokens, config.model.context_tokens)
    if least <= most:
        return None
    return wrong(
        "learnable tokens",
        f"algorithm.min_learnable_tokens is {least:,}, but the {episodes} episodes of a step have at most {most:,} "
        "tokens: every update would be skipped",
        fix=f"lower algorithm.min_learnable_tokens (default {AlgorithmConfig().min_learnable_tokens})",
        code=BadValueError.code,
    )


async def check_leaks(examination: Examination) -> AsyncIterator[Finding]:
    """Find training tasks that are also in a validation file, and tasks whose question contains the answer."""
    file = examination.tasks.value
    named = examination.config.value.tasks.validation
    others = _validation_files(file.path) if named is None else [named]
    leaked = [f"{entry.task.id} {text}" for path in others for entry, text in leaks(file, read_task_file(path))]
    if leaked:
        yield wrong(
            "leaks",
            f"{len(leaked)} of {len(file.tasks)} training tasks are also validation tasks: {_some(leaked)}",
            fix=f"remove them from {file.path.name} or from {others[0].name}; see `mcprl tasks validate "
            f"{_from_here(file.path)} --recipe {_from_here(examination.recipe)} --against {_from_here(others[0])}`",
        )
    elif others:
        yield fine("leaks", f"none of the {len(file.tasks)} tasks is also in {', '.join(path.name for path in others)}")
    else:
        yield skipped("leaks", "tasks.validation is not set")
    given = [task.id for task in file.tasks if _gives_its_answer(task)]
    if given:
        yield warning(
            "answers in prompts",
            f"{len(given)} of {len(file.tasks)} tasks give the answer away in the question, so they need no tools: "
            f"{_some(given)}",
            fix="ask for information that only a tool can provide, or add expected calls to the task",
        )


def _validation_files(train: Path) -> list[Path]:
    """Return the validation files for a training file: for train.jsonl, validation.jsonl or similar in its folder."""
    if "train" not in train.stem:
        return []
    named = [train.with_name(train.name.replace("train", word)) for word in _JUDGING]
    return [path for path in named if path.is_file()]


def _gives_its_answer(task: Task) -> bool:
    """Return True if the question contains the expected answer. Numbers and choices may be there, so ignore them."""
    answer = task.goal.answer
    if not isinstance(answer, Exactly | Contains):
        return False
    expected = Contains(text=answer.text) if isinstance(answer, Exactly) else answer
    return any(meets(expected, message["content"]) for message in task.prompt if message["role"] == "user")


async def check_against_tools(examination: Examination) -> AsyncIterator[Finding]:
    """Compare the tasks with the catalog: unknown tools, goals that cannot be met, and outdated recorded calls."""
    config, file, catalog = examination.config.value, examination.tasks.value, examination.catalog.value
    report = validate(file, catalog, episodes=config.episodes)
    found = {kind: [problem for problem in report.problems if problem.kind is kind] for kind in ProblemKind}
    look = f"; `mcprl tasks validate {_from_here(file.path)} --recipe {_from_here(examination.recipe)}` lists them all"

    def said(kind: ProblemKind, what: str) -> str:
        problems, total = found[kind], len(file.tasks)
        some = _some([f"{problem.task_id} {problem.text}" for problem in problems])
        return f"{len({problem.task_id for problem in problems})} of {total} tasks {what}: {some}"

    if found[ProblemKind.UNKNOWN_TOOL]:
        yield wrong(
            "tasks and tools",
            said(ProblemKind.UNKNOWN_TOOL, "use a tool that no server offers"),
            fix=f"correct the name in the task, or add a server that offers it{look}",
            code=UnknownToolError.code,
        )
    if found[ProblemKind.UNREACHABLE]:
        yield wrong(
            "solvable",
            said(ProblemKind.UNREACHABLE, "cannot be solved"),
            fix="correct the tasks; if they need more turns, raise max_turns of the task or episodes.max_turns" + look,
        )
    if found[ProblemKind.DUPLICATE]:
        duplicates = said(ProblemKind.DUPLICATE, "ask the same question as another task")
        yield warning("duplicates", duplicates, fix=f"keep one task for each question{look}")
    drift = [call for call in report.drift if not _is_fixed(call, config.servers.settings)]
    if drift:
        yield _drift(drift)
    if not found[ProblemKind.UNKNOWN_TOOL] and not found[ProblemKind.UNREACHABLE]:
        yield fine("tasks and tools", f"{len(catalog)} tools; all names, arguments and limits in the tasks match")


async def check_preamble(examination: Examination) -> AsyncIterator[Finding]:
    """Compare the calls that the preamble shows to the policy with the available tools."""
    messages, servers = examination.preamble.value, examination.config.value.servers
    tools = {tool.name: tool for tool in examination.catalog.value}
    shown = [
        (f"message {number}", "", number, call)
        for number, message in enumerate(messages, start=1)
        if message["role"] == "assistant"
        for call in calls_in(message)
    ]
    drift = [call for call in drift_of(shown, tools) if not _is_fixed(call, servers.settings)]
    if drift:
        examples = [f"{call.row}: {call.tool}: {', '.join(call.problems)}" for call in drift]
        yield wrong(
            "preamble",
            f"{len(drift)} of the {len(shown)} calls in tasks.preamble do not match the tools: {_some(examples)}",
            fix="correct these calls, because the policy imitates them",
            code=UnknownToolError.code if any(call.tool not in tools for call in drift) else "",
        )
    elif shown:
        yield fine("preamble", f"its {len(shown)} calls match the tools")
    tasks = examination.tasks.value.tasks if examination.tasks.there else ()
    if misnamed := _misnamed([*messages, *(message for task in tasks for message in task.prompt)], tools):
        examples = [f"{word!r}{did_you_mean(word, tools)}" for word in misnamed]
        yield warning(
            "names in prompts",
            f"the preamble or a prompt mentions a tool that no server offers: {_some(examples)}",
            fix="use the name that the server lists",
        )


def _misnamed(messages: Iterable[Message], tools: Mapping[str, Tool]) -> list[str]:
    """Return words that look like a tool's name but name neither a tool nor an argument, in order of first use."""
    known = {*tools, *(name for tool in tools.values() for name in tool.parameters.get("properties", {}))}
    said = dict.fromkeys(word for message in messages for word in _IDENTIFIER.findall(message["content"]))
    return [word for word in said if word not in known and difflib.get_close_matches(word, tools, 1, _ALIKE)]


def _drift(drift: Sequence[DriftedCall]) -> Finding:
    examples = [f"{call.row}: {call.tool} {', '.join(call.problems)}" for call in drift]
    settings = [
        f"servers.settings.{server}.{setting}: {{{', '.join(f'{alias}: {meant}' for alias, meant in names.items())}}}"
        for server, aliases in alias_settings(drift).items()
        for setting, names in aliases.items()
    ]
    ways = [f"set {'; '.join(settings)}"] if settings else []
    if without := sum(not call.aliases for call in drift):
        ways.append(f"correct the {without} calls that no alias can fix")
    return warning(
        "recorded calls",
        f"{len(drift)} calls in the dataset's conversations no longer match the tools: {_some(examples)}",
        fix="; ".join(ways),
    )


def _is_fixed(call: DriftedCall, settings: Mapping[str, ServerSettings]) -> bool:
    """Return True if the recipe's aliases already fix the call."""

    def has(server: str, setting: str, alias: str, meant: str) -> bool:
        own = settings.get(server, ServerSettings())
        aliases = own.tool_aliases if setting == "tool_aliases" else own.argument_aliases
        return aliases.get(alias) == meant

    return bool(call.aliases) and all(has(one.server, one.setting, one.alias, one.meant) for one in call.aliases)


async def check_isolation(examination: Examination) -> AsyncIterator[Finding]:
    """Check that no task's goal reads state from a server that all episodes share."""
    config, tasks = examination.config.value, examination.tasks.value.tasks
    tools = {tool.name: tool for tool in examination.catalog.value}
    kept = Counter(
        server
        for task in tasks
        for server in {tools[state.tool].server for state in task.goal.state if state.tool in tools}
    )
    episodic = {tool.server for tool in tools.values() if tool.episodic}
    settings = config.servers.settings
    shared = [n for n in kept if n not in episodic and settings.get(n, ServerSettings()).isolation == "shared"]
    for name in shared:
        yield warning(
            "isolation",
            f"{kept[name]} of {len(tasks)} tasks read their `state` from server {name}, which all episodes share: "
            "each episode sees what the others wrote",
            fix=f"set servers.settings.{name}.isolation to per_episode, so that each episode gets a fresh server, or "
            "make the server keep state per episode",
        )
    if kept and not shared:
        yield fine("isolation", "no episode sees what another one writes")


async def check_worlds(examination: Examination) -> AsyncIterator[Finding]:
    """Check that the servers provide the offline world that the tasks were generated for."""
    tasks = examination.tasks.value.tasks
    worlds = sorted({task.world for task in tasks if task.world is not None})
    for box in examination.toolboxes.value.values():
        require_worlds(list(_tasks_of(box, tasks)), box)
    yield fine(
        "worlds",
        f"the servers provide {', '.join(worlds)}, as the tasks require"
        if worlds
        else "no task requires an offline world",
    )


def _tasks_of(toolbox: Toolbox, tasks: Iterable[Task]) -> Iterator[Task]:
    """Yield the tasks, each with only the tools of one server."""
    for task in tasks:
        state = tuple(expected for expected in task.goal.state if expected.tool in toolbox.catalog)
        tools = tuple(name for name in task.tools or toolbox.catalog.names if name in toolbox.catalog)
        if tools or state:
            yield replace(task, tools=tools or (state[0].tool,), goal=Goal(answer=AnyText(), state=state))


def _from_here(path: Path) -> str:
    """Return the path relative to the current folder, if that is shorter."""
    return min(os.path.relpath(path), str(path), key=len)


def _some(lines: Sequence[str]) -> str:
    """Join the first few lines, and add how many more there are."""
    more = f"; and {len(lines) - _EXAMPLES} more" if len(lines) > _EXAMPLES else ""
    return "; ".join(lines[:_EXAMPLES]) + more

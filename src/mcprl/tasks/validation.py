"""What is wrong with a task file, said before a step is spent on it: a pure function of files and a list of tools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from mcprl.config import EpisodesConfig
from mcprl.records import Difficulty, Task
from mcprl.suggestions import did_you_mean
from mcprl.tasks.call_checks import OfferedTool, ToolsByName
from mcprl.tasks.drift import DriftedCall, RecordedCall, alias_settings, drift_of, recorded_calls
from mcprl.tasks.files import TaskEntry, TaskFile
from mcprl.tasks.leaks import duplicates, leaks
from mcprl.tasks.reachability import unreachable_checks

__all__ = ["DifficultyFigures", "Problem", "ProblemKind", "Report", "ToolFigures", "validate"]


class ProblemKind(StrEnum):
    UNKNOWN_TOOL = "unknown tool"
    UNREACHABLE = "unreachable"
    DUPLICATE = "duplicate"
    LEAK = "leak"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something wrong with one task.

    Problem(kind=ProblemKind.UNKNOWN_TOOL, row="row 3", task_id="d03",
            text="needs 'tavily_filter', which no server lists (did you mean 'tavily_search'?)")
    """

    kind: ProblemKind
    row: str
    task_id: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFigures:
    """How often a tool occurs: `offered` and `needed` count tasks, `recorded` and `drifted` calls.

    ToolFigures(server="fmp", tool="fmp_get_quote", offered=94, needed=31, recorded=120, drifted=13)
    ToolFigures(server="", tool="tavily_filter", …)     # no server lists it
    """

    server: str
    tool: str
    offered: int
    needed: int
    recorded: int
    drifted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DifficultyFigures:
    """The tasks of a difficulty. DifficultyFigures(difficulty="easy", tasks=26, needed_calls=2.3, solved=0)

    `needed_calls` is the mean of the calls that a task needs, `solved` counts the tasks that bring a solution.
    """

    difficulty: Difficulty
    tasks: int
    needed_calls: float
    solved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that was found out about a file. `not_checked` counts rows by what they ask for and no goal can check.

    Report(file="train.json", tasks=94, problems=(…), drift=(DriftedCall(…), …),
           not_checked={"reward_spec.ground_truth.success_criteria.reasoning_quality_threshold": 94}, …)
    """

    file: str
    tasks: int
    problems: tuple[Problem, ...]
    drift: tuple[DriftedCall, ...]
    not_checked: Mapping[str, int]
    by_tool: tuple[ToolFigures, ...]
    by_difficulty: tuple[DifficultyFigures, ...]

    @property
    def fine(self) -> bool:
        """Whether nothing is wrong. What nobody checks is not wrong, but it is said."""
        return not self.problems and not self.drift

    def to_json(self) -> dict[str, Any]:
        """The whole report for another program, with the aliases that would mend the drift."""
        return {**asdict(self), "fine": self.fine, "aliases": alias_settings(self.drift)}


def validate(
    file: TaskFile,
    tools: Iterable[OfferedTool],
    *,
    against: Sequence[TaskFile] = (),
    episodes: EpisodesConfig | None = None,
) -> Report:
    """Hold a task file against the tools there are, and against other files that must not share its tasks.

    `episodes` says how many turns each may take; left out, it is that of a recipe that says nothing.
    """
    by_name = {tool.name: tool for tool in tools}
    recorded = list(recorded_calls(entry.row for entry in file.entries))
    drift = tuple(drift_of(recorded, by_name))
    return Report(
        file=file.path.name,
        tasks=len(file.entries),
        problems=tuple(_problems(file, by_name, against, episodes or EpisodesConfig())),
        drift=drift,
        not_checked=dict(Counter(what for entry in file.entries for what in dict.fromkeys(entry.not_checked))),
        by_tool=_figures_by_tool(file.tasks, by_name, recorded, drift),
        by_difficulty=_figures_by_difficulty(file.tasks),
    )


def _problems(
    file: TaskFile, tools: ToolsByName, against: Sequence[TaskFile], episodes: EpisodesConfig
) -> Iterator[Problem]:
    for entry in file.entries:
        for text in _unknown_tools(entry.task, tools):
            yield _problem(ProblemKind.UNKNOWN_TOOL, entry, text)
        limit = episodes.turn_limit(entry.task)
        for text in dict.fromkeys(unreachable_checks(entry.task, tools, limit)):
            yield _problem(ProblemKind.UNREACHABLE, entry, text)
    for entry, text in duplicates(file.entries):
        yield _problem(ProblemKind.DUPLICATE, entry, text)
    for other in against:
        for entry, text in leaks(file, other):
            yield _problem(ProblemKind.LEAK, entry, text)


def _problem(kind: ProblemKind, entry: TaskEntry, text: str) -> Problem:
    return Problem(kind=kind, row=entry.row.label, task_id=entry.task.id, text=text)


def _unknown_tools(task: Task, tools: ToolsByName) -> Iterator[str]:
    solution = task.solution.calls if task.solution is not None else ()
    named = [
        *((name, "offers") for name in task.tools or ()),
        *((call.tool, "needs") for call in task.goal.calls),
        *((state.tool, "has its state told by") for state in task.goal.state),
        *((call.name, "is solved with") for call in solution),
    ]
    for name, verb in dict.fromkeys(named):
        if name not in tools:
            yield f"{verb} {name!r}, which no server lists{did_you_mean(name, tools)}"


def _needed(task: Task) -> set[str]:
    return {call.tool for call in task.goal.calls}


def _figures_by_tool(
    tasks: Sequence[Task], tools: ToolsByName, recorded: Sequence[RecordedCall], drift: Sequence[DriftedCall]
) -> tuple[ToolFigures, ...]:
    offered = Counter(name for task in tasks for name in set(tools if task.tools is None else task.tools))
    needed = Counter(name for task in tasks for name in _needed(task))
    calls = Counter(place.call.name for place in recorded)
    drifted = Counter(call.tool for call in drift)
    named = [*tools, *sorted({*offered, *needed, *calls} - set(tools))]
    return tuple(
        ToolFigures(
            server=tools[name].server if name in tools else "",
            tool=name,
            offered=offered[name],
            needed=needed[name],
            recorded=calls[name],
            drifted=drifted[name],
        )
        for name in named
    )


def _figures_by_difficulty(tasks: Sequence[Task]) -> tuple[DifficultyFigures, ...]:
    figures: list[DifficultyFigures] = []
    for difficulty in Difficulty:
        members = [task for task in tasks if task.difficulty is difficulty]
        needed = [max(len(task.goal.calls), task.goal.min_calls) for task in members]
        if members:
            figures.append(
                DifficultyFigures(
                    difficulty=difficulty,
                    tasks=len(members),
                    needed_calls=sum(needed) / len(needed),
                    solved=sum(task.solution is not None for task in members),
                )
            )
    return tuple(figures)

"""Finds problems in a task file before a run starts. It needs only task files and a list of tools."""

from __future__ import annotations

import difflib
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Literal, Protocol, cast

from mcprl.bounds import why_no_pattern
from mcprl.config import EpisodesConfig
from mcprl.conversations import WrittenCall, calls_in
from mcprl.errors import did_you_mean
from mcprl.files import canonical_json
from mcprl.goals import ExpectedText, HasAll, HasFields, HasNumber, Matches, MeetsSome
from mcprl.records import Difficulty, Task
from mcprl.tasks.files import Row, TaskEntry, TaskFile
from mcprl.tasks.formats import line_of


class OfferedTool(Protocol):
    """A tool of a server. `parameters` is the JSON Schema of its arguments."""

    @property
    def name(self) -> str: ...
    @property
    def server(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, Any]: ...


ToolsByName = Mapping[str, OfferedTool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """An alias for `servers.settings` in a recipe.

    Alias(server="fmp", setting="argument_aliases", alias="ticker", meant="symbol")
    """

    server: str
    setting: Literal["tool_aliases", "argument_aliases"]
    alias: str
    meant: str

    def __str__(self) -> str:
        return f"{self.setting}: {{{self.alias}: {self.meant}}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCheck:
    """The problems of a call, and the aliases that would fix all of them, if there are any.

    CallCheck(problems=("has no argument 'ticker'", "is missing the argument 'symbol'"), aliases=(Alias(…),))
    """

    problems: tuple[str, ...] = ()
    aliases: tuple[Alias, ...] = ()


def check_call(name: str, arguments: Mapping[str, Any], tools: ToolsByName, *, partial: bool = False) -> CallCheck:
    """Check a call against the tools. With `partial`, required arguments may be missing, as in a goal's calls."""
    if name in tools:
        return _check_arguments(tools[name], arguments, partial=partial)
    problem = f"no server lists it{did_you_mean(name, tools)}"
    # Among the tools with similar names, prefer the first that accepts these arguments.
    for close in difflib.get_close_matches(name, list(tools), n=3):
        inside = _check_arguments(tools[close], arguments, partial=partial)
        if not inside.problems or inside.aliases:
            alias = Alias(server=tools[close].server, setting="tool_aliases", alias=name, meant=close)
            return CallCheck(problems=(problem,), aliases=(alias, *inside.aliases))
    return CallCheck(problems=(problem,))


def _check_arguments(tool: OfferedTool, arguments: Mapping[str, Any], *, partial: bool) -> CallCheck:
    properties = cast("Mapping[str, Any]", tool.parameters.get("properties", {}))
    required = cast("Sequence[str]", () if partial else tool.parameters.get("required", ()))
    missing = [name for name in required if name not in arguments]
    takes_others = tool.parameters.get("additionalProperties", False) is not False
    unknown = [name for name in arguments if name not in properties and not takes_others]
    problems = [f"has no argument {name!r}" for name in unknown] + [
        f"is missing the argument {name!r}" for name in missing
    ]
    free = {name: properties[name] for name in properties if name not in arguments}
    meant = _pair({name: arguments[name] for name in unknown}, free, missing)
    if len(meant) < len(unknown) or not set(missing) <= set(meant.values()):
        return CallCheck(problems=tuple(problems))
    aliases = tuple(
        Alias(server=tool.server, setting="argument_aliases", alias=alias, meant=name) for alias, name in meant.items()
    )
    return CallCheck(problems=tuple(problems), aliases=aliases)


def _pair(unknown: Mapping[str, Any], free: Mapping[str, Any], missing: Sequence[str]) -> dict[str, str]:
    """Match each unknown argument to the unused parameter with the most similar name, or to the only unused one."""
    meant: dict[str, str] = {}
    for name, value in unknown.items():
        left = [other for other in free if other not in meant.values() and _fits(value, free[other])]
        close = difflib.get_close_matches(name, left, n=1)
        if close:
            meant[name] = close[0]
    strangers = [name for name in unknown if name not in meant]
    wanted = [name for name in missing if name not in meant.values()]
    if len(strangers) == len(wanted) == 1 and _fits(unknown[strangers[0]], free.get(wanted[0], {})):
        meant[strangers[0]] = wanted[0]
    return meant


_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int, float),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def _fits(value: Any, schema: Any) -> bool:
    """Return True if a value has the type that the schema names, or if the schema names no type."""
    named: Any = cast("Mapping[str, Any]", schema).get("type") if isinstance(schema, Mapping) else None
    names = cast("list[Any]", named) if isinstance(named, list) else [named]
    known = [_TYPES[name] for name in names if isinstance(name, str) and name in _TYPES]
    return not known or any(isinstance(value, kinds) for kinds in known)


_CONVERSATIONS = (("prompt",), ("messages",), ("extra_info", "original_conversation"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftedCall:
    """A recorded call that does not match the tools. `message` is its message's 1-based index in conversation `part`.

    DriftedCall(row="row 4", part="prompt", message=3, tool="fmp_get_quote",
                problems=("has no argument 'ticker'", "is missing the argument 'symbol'"),
                aliases=(Alias(server="fmp", setting="argument_aliases", alias="ticker", meant="symbol"),))
    """

    row: str
    part: str
    message: int
    tool: str
    problems: tuple[str, ...]
    aliases: tuple[Alias, ...] = ()


RecordedCall = tuple[str, str, int, WrittenCall]  # row, part, message and call, as in DriftedCall


def recorded_calls(rows: Iterable[Row]) -> Iterator[RecordedCall]:
    """Yield every call of the assistant messages in the rows' conversations."""
    for row in rows:
        for path in _CONVERSATIONS:
            for number, message in enumerate(_messages_at(row.value, path), start=1):
                if message.get("role") == "assistant":
                    for call in calls_in(message):
                        yield row.label, ".".join(path), number, call


def drift_of(recorded: Iterable[RecordedCall], tools: ToolsByName) -> Iterator[DriftedCall]:
    """Yield the calls that do not match the tools, in order."""
    for row, part, message, call in recorded:
        if call.problem is not None or call.arguments is None:
            check = CallCheck(problems=(call.problem or "it has no arguments",))
        else:
            check = check_call(call.name, call.arguments, tools)
        if check.problems:
            yield DriftedCall(
                row=row, part=part, message=message, tool=call.name, problems=check.problems, aliases=check.aliases
            )


def alias_settings(drifted: Iterable[DriftedCall]) -> dict[str, dict[str, dict[str, str]]]:
    """Collect the aliases of all drifted calls by server and setting, as in `servers.settings` of a recipe.

    If a name would need two meanings on one server, the more frequent meaning is used.
    """
    counts = Counter(alias for call in drifted for alias in call.aliases)
    settings: dict[str, dict[str, dict[str, str]]] = {}
    for found, _ in counts.most_common():
        settings.setdefault(found.server, {}).setdefault(found.setting, {}).setdefault(found.alias, found.meant)
    return settings


def _messages_at(value: Any, path: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for key in path:
        value = cast("dict[str, Any]", value).get(key) if isinstance(value, dict) else None
    if isinstance(value, list):
        for entry in cast("list[Any]", value):
            # Also yield something for an entry that is not a message, so that later messages keep their numbers.
            yield cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}


# More decimals than people write for a price, a ratio or a percentage.
_DECIMALS = 4
_SIGNIFICANT = 6


def unreachable_checks(task: Task, tools: ToolsByName, turns: int) -> Iterator[str]:
    """Yield a sentence for each check of the task that cannot succeed within `turns`. Unknown tools are skipped."""
    yield from _calls(task, tools)
    yield from _turns(task, turns)
    if task.goal.answer is not None:
        yield from (f"its answer {problem}" for problem in _impossible(task.goal.answer))
    for state in task.goal.state:
        if state.tool in tools:
            for problem in check_call(state.tool, state.arguments, tools).problems:
                yield f"its state is checked with {state.tool}, which {_of_tool(problem)}"
    for text in task.goal.texts_of_state:
        yield from (f"the expected text of its state {problem}" for problem in _impossible(text))


def _calls(task: Task, tools: ToolsByName) -> Iterator[str]:
    needed = [(call.tool, call.arguments) for call in (*task.goal.calls, *task.goal.writes)]
    solved = [(call.name, call.arguments) for part in task.solutions for call in part.calls]
    offered = {name for follow_up in task.follow_ups for name in follow_up.tools} | set(task.tools or ())
    for who, calls, partial in (("it", needed, True), ("its solution", solved, False)):
        for name, arguments in calls:
            if task.tools is not None and name not in offered:
                yield f"{who} needs {name}, which is not one of the task's tools"
            elif name in tools:
                for problem in check_call(name, arguments, tools, partial=partial).problems:
                    yield f"{who} needs {name}, which {_of_tool(problem)}"


def _of_tool(problem: str) -> str:
    return problem.replace("is missing the argument", "is called without")


def _turns(task: Task, turns: int) -> Iterator[str]:
    # A turn may have several calls; the answer is a turn of its own.
    needs_calls = bool(task.goal.calls) or task.goal.min_calls > 0
    if needs_calls and task.goal.answer is not None and turns < 2:
        yield "it needs one turn for calls and one for the answer, but its limit is 1 turn"
    solved = max((len(part.calls) + 1 for part in task.solutions), default=0)
    if solved > turns:
        yield f"its solution takes {solved} turns, one per call and one for the answer, but its limit is {turns}"


def _impossible(text: ExpectedText) -> Iterator[str]:
    match text:
        case Matches():
            problem = why_no_pattern(text.pattern)
            if problem is not None:
                yield f"cannot match anything: {problem}"
        case HasNumber():
            rounded = _as_written(text.value)
            if not abs(rounded - text.value) <= text.tolerance:
                yield (
                    f"must be within {text.tolerance:g} of {text.value!r}, but even the rounded value {rounded!r} is "
                    "not: raise the tolerance"
                )
        case HasAll():
            both = [word for word in text.members if word.casefold() in {other.casefold() for other in text.none_of}]
            if both:
                yield f"is required both to contain and not to contain {both[0]!r}"
        case MeetsSome():
            for member in text.of:
                yield from _impossible(member)
        case HasFields():
            for member in text.fields.values():
                yield from _impossible(member)
        case _:
            pass


def _as_written(value: float) -> float:
    """Round a value as people write it: to 4 decimals or 6 significant digits, whichever is more precise."""
    if value == 0 or not math.isfinite(value):
        return value
    magnitude = math.floor(math.log10(abs(value)))
    return round(value, max(_DECIMALS, _SIGNIFICANT - 1 - magnitude))


_DASHES = re.compile(r"[‐-―−﹘﹣-]")
_QUOTES = re.compile(r"[‘’‚‛“”„‟\"'`]")
_CHECKED = (
    "answer",
    "calls",
    "in_any_order",
    "min_calls",
    "state",
    "writes",
    "rubric",
    "check",
    "solution",
    "follow_ups",
)


def normalised_question(task: Task) -> str:
    """Normalize the user's text: ignore case, spacing, and the kinds of dashes and quotes."""
    said = [*task.prompt, *(message for follow_up in task.follow_ups for message in follow_up.messages)]
    told = [] if task.user is None else [task.user.instructions or f"{task.user.function} {task.metadata}"]
    text = "\n".join([*(message["content"] for message in said if message["role"] == "user"), *told])
    plain = unicodedata.normalize("NFKC", _DASHES.sub("-", text)).casefold()
    return " ".join(_QUOTES.sub("'", plain).split()).rstrip(".!? ")


def duplicates(entries: Sequence[TaskEntry]) -> Iterator[tuple[TaskEntry, str]]:
    """Yield entries that ask the same question as an earlier entry, with a sentence that names that entry."""
    first: dict[str, TaskEntry] = {}
    for entry in entries:
        other = first.setdefault(normalised_question(entry.task), entry)
        if other is not entry:
            yield entry, f"asks the same question as {other.task.id} ({other.row.label})"


def leaks(file: TaskFile, other: TaskFile) -> Iterator[tuple[TaskEntry, str]]:
    """Yield entries of `file` that are also in `other`: with the same question, or the same goal and solution. Ids
    are not compared."""
    questions = {normalised_question(entry.task): entry for entry in other.entries}
    solutions = {key: entry for entry in other.entries if (key := _goal_and_solution(entry.task)) is not None}
    for entry in file.entries:
        question = questions.get(normalised_question(entry.task))
        solution = solutions.get(_goal_and_solution(entry.task) or "")
        if question is not None:
            yield entry, f"asks the same question as {question.task.id} ({other.path.name}, {question.row.label})"
        elif solution is not None:
            yield (
                entry,
                f"has the same goal and solution as {solution.task.id} ({other.path.name}, {solution.row.label})",
            )


def _goal_and_solution(task: Task) -> str | None:
    # Without a solution, different tasks may have the same goal, because many questions need the same tools.
    if task.solution is None:
        return None
    line = line_of(task)
    return canonical_json({name: line[name] for name in _CHECKED if name in line})


class ProblemKind(StrEnum):
    UNKNOWN_TOOL = "unknown tool"
    UNREACHABLE = "unreachable"
    DUPLICATE = "duplicate"
    LEAK = "leak"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem with one task.

    Problem(kind=ProblemKind.UNKNOWN_TOOL, row="row 3", task_id="d03",
            text="needs 'tavily_filter', which no server lists (did you mean 'tavily_search'?)")
    """

    kind: ProblemKind
    row: str
    task_id: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFigures:
    """How often a tool is used. `offered` and `needed` count tasks; `recorded` and `drifted` count calls.

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
    """The tasks of one difficulty. DifficultyFigures(difficulty="easy", tasks=26, needed_calls=2.3, solved=0)

    `needed_calls` is the mean number of calls that a task needs; `solved` is the number of tasks with a solution.
    """

    difficulty: Difficulty
    tasks: int
    needed_calls: float
    solved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The report on a task file. `not_checked` maps each requirement that no goal can check to its number of rows.

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
        """Return whether there are no problems. Requirements that are not checked do not count as problems."""
        return not self.problems and not self.drift

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON, including the aliases that would fix the drift."""
        return {**asdict(self), "fine": self.fine, "aliases": alias_settings(self.drift)}


def validate(
    file: TaskFile,
    tools: Iterable[OfferedTool],
    *,
    against: Sequence[TaskFile] = (),
    episodes: EpisodesConfig | None = None,
) -> Report:
    """Check a task file against the available tools, and against other files that must not share its tasks.

    `episodes` sets the turn limits; None means the defaults.
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
    solution = [call for part in task.solutions for call in part.calls]
    later = [name for follow_up in task.follow_ups for name in follow_up.tools]
    named = [
        *((name, "offers") for name in (*(task.tools or ()), *later)),
        *((call.name, "is set up with") for call in task.setup),
        *((call.tool, "needs") for call in (*task.goal.calls, *task.goal.writes)),
        *((state.tool, "checks its state with") for state in task.goal.state),
        *((call.name, "is solved with") for call in solution),
    ]
    for name, verb in dict.fromkeys(named):
        if name not in tools:
            yield f"{verb} {name!r}, which no server lists{did_you_mean(name, tools)}"


def _figures_by_tool(
    tasks: Sequence[Task], tools: ToolsByName, recorded: Sequence[RecordedCall], drift: Sequence[DriftedCall]
) -> tuple[ToolFigures, ...]:
    offered = Counter(
        name
        for task in tasks
        for name in {*(tools if task.tools is None else task.tools), *(n for f in task.follow_ups for n in f.tools)}
    )
    needed = Counter(name for task in tasks for name in {call.tool for call in (*task.goal.calls, *task.goal.writes)})
    calls = Counter(call.name for *_, call in recorded)
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

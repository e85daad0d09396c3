"""The two formats of a task file: mcprl's own JSON lines, and SkyRL's rows.

`docs/schemas/task.json` is generated from mcprl's own format:

{"id": "meet-ana", "prompt": "It is 09:30 at Ana's office. What time is that in Asia/Tokyo?",
 "answer": "23:30", "calls": [{"tool": "find_person", "arguments": {"name": "Ana"}}],
 "tools": ["find_person", "convert_time"], "difficulty": "medium"}
"""

from __future__ import annotations

import hashlib
import itertools
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from mcprl.bounds import usable_pattern
from mcprl.conversations import text_of
from mcprl.errors import did_you_mean
from mcprl.files import canonical_json
from mcprl.goals import (
    AnyText,
    Contains,
    Exactly,
    ExpectedCall,
    ExpectedCheck,
    ExpectedState,
    ExpectedText,
    ExpectedWrite,
    Goal,
    HasAll,
    HasDate,
    HasFields,
    HasNumber,
    Matches,
    MeetsSome,
    Unit,
)
from mcprl.records import Difficulty, FollowUp, Message, SimulatedUser, Solution, Task, ToolCall

_DIGEST_CHARACTERS = 10
_OPENING_ROLES = ("system", "user")


class _Part(BaseModel):
    # Keep unknown fields, so that they can be reported as not checked.
    model_config = ConfigDict(extra="allow", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        # Files exported from tables have null for empty fields.
        if not isinstance(value, dict):
            return value
        return {name: field for name, field in cast("dict[str, Any]", value).items() if field is not None}


class _Criteria(_Part):
    expected_tools: list[str] = Field(default_factory=list[str])
    must_use_tools: list[str] = Field(default_factory=list[str])
    min_tool_calls: int = Field(default=0, ge=0)


class _Truth(_Part):
    expected_tools: list[str] = Field(default_factory=list[str])
    tool_sequence: list[str] = Field(default_factory=list[str])
    success_criteria: _Criteria = Field(default_factory=_Criteria)


class _RewardSpec(_Part):
    method: str | None = None
    ground_truth: Any = None


class _Metadata(_Part):
    task_id: str | int | None = None
    complexity: str | None = None
    tools_available: list[str] | None = None

    @field_validator("complexity")
    @classmethod
    def _is_known(cls, value: str | None) -> str | None:
        if value is not None and value.casefold() not in set(Difficulty):
            raise ValueError(f"{value!r} is not one of {', '.join(Difficulty)}")
        return value


class _ExtraInfo(_Metadata):
    task_metadata: _Metadata = Field(default_factory=_Metadata)


class _SkyrlRow(_Part):
    prompt: list[Message]
    reward_spec: _RewardSpec = Field(default_factory=_RewardSpec)
    extra_info: _ExtraInfo = Field(default_factory=_ExtraInfo)
    task_metadata: _Metadata = Field(default_factory=_Metadata)

    @field_validator("prompt", mode="before")
    @classmethod
    def _opening(cls, value: object) -> list[Message]:
        if isinstance(value, str):
            return [{"role": "user", "content": value}]
        if not isinstance(value, list):
            raise ValueError("it is neither a string nor a list of messages")
        return list(_opening_of(cast("list[object]", value)))


class _TruthRow(BaseModel):
    """Wraps a row's ground truth, so that its validation errors have the full path."""

    reward_spec: _TruthSpec


class _TruthSpec(BaseModel):
    ground_truth: _Truth


def is_skyrl_row(value: object) -> bool:
    """Return True if an entry is a SkyRL row: it has fields that mcprl's own format does not have."""
    return isinstance(value, dict) and not {"env_class", "reward_spec"}.isdisjoint(cast("dict[str, Any]", value))


def task_of_row(value: object) -> tuple[Task, tuple[str, ...]]:
    """Return the task of a row, and the row's requirements that a goal cannot check.

    Raises pydantic's ValidationError if the row does not follow SkyRL's format.
    """
    row = _SkyrlRow.model_validate(value)
    goal, not_checked = _goal_of(row.reward_spec)
    metadata = (row.task_metadata, row.extra_info, row.extra_info.task_metadata)
    task_id = next((str(part.task_id) for part in metadata if part.task_id not in {None, ""}), None)
    complexity = next((part.complexity for part in metadata if part.complexity is not None), Difficulty.MEDIUM)
    tools = row.extra_info.tools_available
    task = Task(
        id=task_id or f"q-{digest([message['content'] for message in row.prompt])}",
        prompt=tuple(row.prompt),
        goal=goal,
        tools=None if tools is None else tuple(dict.fromkeys(tools)),
        difficulty=Difficulty(complexity.casefold()),
    )
    return task, tuple(not_checked)


def digest(value: object) -> str:
    """Return a short hash of a JSON value, the same on every machine."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:_DIGEST_CHARACTERS]


def _opening_of(messages: Sequence[object]) -> Iterator[Message]:
    asked = False
    for number, value in enumerate(messages):
        message = cast("Mapping[str, Any]", value if isinstance(value, Mapping) else {})
        role: Any = message.get("role")
        if role == "assistant":
            break
        if role not in _OPENING_ROLES:
            raise ValueError(
                f"message {number + 1} has role {role!r}, but only system and user messages may come before the first "
                "assistant message"
            )
        asked = asked or role == "user"
        yield {"role": role, "content": text_of(message)}
    if not asked:
        raise ValueError("there is no user message before the first assistant message")


def _goal_of(spec: _RewardSpec) -> tuple[Goal, list[str]]:
    not_checked = [f"reward_spec.method: {spec.method}"] if spec.method not in {None, "rule"} else []
    not_checked += _demands("reward_spec", spec)
    given: Any = spec.ground_truth
    if not isinstance(given, dict):
        missing = "reward_spec.ground_truth" if given else "reward_spec.ground_truth is missing"
        return Goal(answer=AnyText()), [*not_checked, missing]
    checked = _TruthRow.model_validate({"reward_spec": {"ground_truth": cast("dict[str, Any]", given)}})
    truth = checked.reward_spec.ground_truth
    criteria = truth.success_criteria
    not_checked += _demands("reward_spec.ground_truth", truth)
    not_checked += _demands("reward_spec.ground_truth.success_criteria", criteria)
    expected = list(dict.fromkeys([*truth.expected_tools, *criteria.expected_tools, *criteria.must_use_tools]))
    if truth.tool_sequence:
        beyond = [name for name in expected if name not in truth.tool_sequence]
        not_checked += [
            f"reward_spec.ground_truth.expected_tools: {name}, which is not in tool_sequence" for name in beyond
        ]
    goal = Goal(
        answer=AnyText(),
        calls=tuple(ExpectedCall(tool=name) for name in truth.tool_sequence or expected),
        in_any_order=not truth.tool_sequence,
        min_calls=criteria.min_tool_calls,
    )
    return goal, not_checked


def _demands(place: str, part: BaseModel) -> list[str]:
    """Return the fields that a goal cannot express. Empty or false fields require nothing, so they are left out."""
    return [f"{place}.{name}" for name, value in (part.model_extra or {}).items() if value not in (None, False, [], {})]


class _Line(BaseModel):
    # Strict: "3" is not accepted as a number, nor 1 as true.
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


_Words = Annotated[str, Field(pattern=r"\S")]


class AnyLine(_Line):
    """The text must not be empty."""

    any: Literal[True]


class ContainsLine(_Line):
    """The text must contain this text as whole words, ignoring case. A plain string means the same."""

    contains: _Words


class ExactlyLine(_Line):
    """The text must be this text, ignoring case and surrounding spaces."""

    exactly: _Words


class NumberLine(_Line):
    """The text must contain a number within `tolerance` of this one, and at most `at_most` numbers in total.

    With a unit, only quantities that can be converted to it count.
    """

    number: float = Field(description="The correct number.")
    tolerance: float = Field(default=0.0, ge=0, description="Maximum accepted difference.")
    at_most: int | None = Field(
        default=4, ge=1, description="Maximum number of different numbers in the text; null: no limit."
    )
    unit: Unit | None = Field(default=None, description="Unit of the number; null: only the number is compared.")


class DateLine(_Line):
    """The text must contain a date within `tolerance_days` of this one, and at most `at_most` dates in total."""

    date: str = Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$", description="The correct date, such as 2025-11-14.")
    tolerance_days: int = Field(default=0, ge=0, description="Maximum accepted difference, in days.")
    at_most: int | None = Field(
        default=4, ge=1, description="Maximum number of different dates in the text; null: no limit."
    )

    @field_validator("date")
    @classmethod
    def _exists(cls, value: str) -> str:
        try:
            date.fromisoformat(value)
        except ValueError as error:
            raise ValueError(f"there is no such day: {error}") from error
        return value


class FieldsLine(_Line):
    """The text must contain a JSON object whose fields meet these checks. A dotted name is a nested field."""

    fields: dict[str, _TextLine] = Field(min_length=1, description="Checks, keyed by a field such as offices.0.city.")


class AllLine(_Line):
    """The text must contain each word of `all`, and no word of `none_of`."""

    all: list[_Words] = Field(min_length=1, description="Words that the text must contain.")
    none_of: list[_Words] = Field(default_factory=list[str], description="Words that the text must not contain.")


class MatchesLine(_Line):
    """The text must match this regular expression (Rust syntax, without look-around and backreferences)."""

    matches: str = Field(min_length=1)

    _compiles = field_validator("matches")(usable_pattern)


class SomeLine(_Line):
    """The text must meet at least `at_least` of these checks; without `at_least`, all of them."""

    of: list[_TextLine] = Field(min_length=1, description="Checks, each a string or an object.")
    at_least: int | None = Field(default=None, ge=1, description="How many checks must pass; null: all.")

    @model_validator(mode="after")
    def _can_be_met(self) -> SomeLine:
        if self.at_least is not None and self.at_least > len(self.of):
            raise ValueError(f"at_least is {self.at_least}, but there are only {len(self.of)} checks")
        return self


# Tags are in angle brackets to distinguish them from field names in the location of an error.
_SHAPES = {"any", "contains", "exactly", "number", "date", "all", "matches", "of", "fields"}


def _shape_of(value: object) -> str | None:
    if isinstance(value, str):
        return "<text>"
    keys = cast("Mapping[object, object]", value) if isinstance(value, Mapping) else ()
    return next((f"<{key}>" for key in keys if key in _SHAPES), None)


_TextLine = Annotated[
    Annotated[_Words, Tag("<text>")]
    | Annotated[AnyLine, Tag("<any>")]
    | Annotated[ContainsLine, Tag("<contains>")]
    | Annotated[ExactlyLine, Tag("<exactly>")]
    | Annotated[NumberLine, Tag("<number>")]
    | Annotated[AllLine, Tag("<all>")]
    | Annotated[MatchesLine, Tag("<matches>")]
    | Annotated[SomeLine, Tag("<of>")]
    | Annotated[DateLine, Tag("<date>")]
    | Annotated[FieldsLine, Tag("<fields>")],
    Discriminator(
        _shape_of,
        custom_error_type="no_such_text",
        custom_error_message=(
            "write a string, or an object with one of the keys any, contains, exactly, number, date, all, "
            "matches, of, fields"
        ),
    ),
]


class CallLine(_Line):
    """A call that the task requires. Arguments that are not listed may have any value."""

    tool: _Words
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])


_CallSet = Annotated[list[CallLine], Field(min_length=2, max_length=6)]
_Calls = Annotated[
    Annotated[CallLine, Tag("<call>")] | Annotated[_CallSet, Tag("<set>")],
    Discriminator(lambda value: "<set>" if isinstance(value, list) else "<call>"),
]


class StateLine(_Line):
    """What must be true after the episode: this tool is called, and its result must meet all of `texts`."""

    tool: _Words
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])
    texts: list[_TextLine] = Field(min_length=1)


class WriteLine(_Line):
    """A call that must have succeeded, with these arguments, and with text arguments that meet all of their checks."""

    tool: _Words
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])
    texts: dict[str, list[_TextLine]] = Field(
        default_factory=dict[str, list[Any]], description="Checks of text arguments, keyed by argument name."
    )


_Reference = Annotated[str, Field(pattern=r"^.+\.py:[A-Za-z_][A-Za-z0-9_]*$")]


class CheckLine(_Line):
    """Your own function that returns how much of the task was solved, from 0 to 1."""

    function: _Reference = Field(description="The function, such as checks.py:name, relative to the task file.")
    probes: list[_Words] = Field(
        default_factory=list[str], description="Tools that the function may call on the episode's servers."
    )


def _as_check(check: object) -> object:
    return {"function": check} if isinstance(check, str) else check


class SolutionCallLine(_Line):
    """One call of a solution, with all its arguments."""

    name: _Words
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])


class SolutionLine(_Line):
    """A known solution of the task: one call per turn, then the answer."""

    calls: list[SolutionCallLine] = Field(default_factory=list[SolutionCallLine])
    answer: str


_Messages = Annotated[list[Message], Field(min_length=1)]
# Fields that only benchmarks set, in Python; task files do not have them.
_PYTHON_ONLY = {"calls_in_order", "must_fit"}


def _as_messages(prompt: object) -> object:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


class FollowUpLine(_Line):
    """A further user message, sent after the policy has answered the previous one. A plain string is a `prompt`."""

    prompt: Annotated[_Messages, BeforeValidator(_as_messages, json_schema_input_type=str | _Messages)] = Field(
        description="The user's message, or a list of messages."
    )
    tools: list[_Words] = Field(
        default_factory=list[str], description="Tools to add from now on; their schemas are appended to the message."
    )
    solution: SolutionLine | None = Field(
        default=None, description="The part of the solution after this message; default: the last answer again."
    )


class UserLine(_Line):
    """A simulated user, who replies to each answer: a Python function, or a model (`tasks.user` in the recipe)."""

    function: _Reference | None = Field(
        default=None, description="The function, such as users.py:name, relative to the task file."
    )
    instructions: _Words | None = Field(default=None, description="For a model: who the user is and what they want.")
    max_messages: int = Field(default=4, ge=1, description="Maximum number of replies by the user.")

    @model_validator(mode="after")
    def _is_one_of_both(self) -> UserLine:
        if (self.function is None) == (self.instructions is None):
            raise ValueError("give the user either a function or instructions")
        return self


def _as_follow_up(follow_up: object) -> object:
    return {"prompt": follow_up} if isinstance(follow_up, str) else follow_up


class TaskLine(_Line):
    """One task: one line of a task file."""

    id: str = Field(min_length=1, description="Name of the task, unique in the file.")
    prompt: Annotated[_Messages, BeforeValidator(_as_messages, json_schema_input_type=str | _Messages)] = Field(
        description="The user's message, or a list of messages."
    )
    answer: _TextLine | None = Field(default=None, description="How the final answer is checked.")
    calls: list[_Calls] = Field(
        default_factory=list[Any],
        description="Calls that the task requires, in this order; those in a nested list may be made in any order.",
    )
    in_any_order: bool = Field(default=False, description="Whether `calls` may be made in any order.")
    min_calls: int = Field(default=0, ge=0, description="Number of calls that must succeed in total.")
    state: list[StateLine] = Field(
        default_factory=list[StateLine], description="Conditions that must hold after the episode."
    )
    writes: list[WriteLine] = Field(
        default_factory=list[WriteLine], description="Required write calls, with checks of their text arguments."
    )
    rubric: _Words | None = Field(default=None, description="Instructions for the judge: what makes an answer good.")
    check: Annotated[CheckLine, BeforeValidator(_as_check, json_schema_input_type=_Reference | CheckLine)] | None = (
        Field(default=None, description="Your own check: a Python function, such as checks.py:name.")
    )
    setup: list[CallLine] = Field(
        default_factory=list[CallLine], description="Calls to make on the servers before the first turn."
    )
    follow_ups: list[
        Annotated[FollowUpLine, BeforeValidator(_as_follow_up, json_schema_input_type=_Words | FollowUpLine)]
    ] = Field(default_factory=list[Any], description="Further user messages, each sent after an answer.")
    user: Annotated[UserLine, BeforeValidator(_as_check, json_schema_input_type=_Reference | UserLine)] | None = Field(
        default=None, description="A simulated user instead of follow_ups: a function, or instructions for a model."
    )
    tools: list[str] | None = Field(default=None, description="Tools to offer; default: all tools of the servers.")
    difficulty: Difficulty = Field(default=Difficulty.MEDIUM, strict=False, description="easy, medium or hard.")
    max_turns: int | None = Field(default=None, ge=1, description="Maximum turns; default: depends on the difficulty.")
    world: _Words | None = Field(
        default=None, description="Offline world for which the answers are correct, such as market-7."
    )
    solution: SolutionLine | None = Field(
        default=None, description="A solution, used to check the task and as an example to imitate."
    )
    metadata: dict[str, Any] = Field(
        default_factory=dict[str, Any], description="Additional data for reward functions."
    )

    @model_validator(mode="after")
    def _checks_something(self) -> TaskLine:
        if self.in_any_order and any(isinstance(call, list) for call in self.calls):
            raise ValueError("in_any_order applies to all calls: remove it, or the nested lists in calls")
        if self.follow_ups and self.user is not None:
            raise ValueError("the user's messages can come from follow_ups or from user, but not from both")
        if self.solution is None and any(follow_up.solution is not None for follow_up in self.follow_ups):
            raise ValueError("a follow-up has a solution, but the task's own prompt has none")
        others = (self.answer, self.calls, self.min_calls, self.state, self.writes, self.rubric, self.check)
        if not any(others):
            raise ValueError(
                "the task checks nothing, so any episode would succeed: add an answer, calls, state, writes, a rubric "
                'or a check ("answer": {"any": true} accepts any answer)'
            )
        return self


def task_of(value: object, folder: Path = Path()) -> Task:
    """Convert a decoded line to a task. Raises pydantic's ValidationError; see `first_problem`.

    The files of checks and simulated users are relative to `folder`.
    """
    line = TaskLine.model_validate(value)
    own, sets = line.check, [call if isinstance(call, list) else [call] for call in line.calls]
    user = line.user
    return Task(
        id=line.id,
        prompt=tuple(line.prompt),
        goal=Goal(
            answer=None if line.answer is None else _text_of(line.answer),
            calls=tuple(ExpectedCall(tool=call.tool, arguments=call.arguments) for each in sets for call in each),
            call_sets=tuple(map(len, sets)) if any(isinstance(call, list) for call in line.calls) else (),
            in_any_order=line.in_any_order,
            min_calls=line.min_calls,
            state=tuple(
                ExpectedState(tool=state.tool, arguments=state.arguments, texts=tuple(map(_text_of, state.texts)))
                for state in line.state
            ),
            writes=tuple(
                ExpectedWrite(
                    tool=write.tool,
                    arguments=write.arguments,
                    texts={name: tuple(map(_text_of, texts)) for name, texts in write.texts.items()},
                )
                for write in line.writes
            ),
            rubric=line.rubric,
            check=None if own is None else ExpectedCheck(function=str(folder / own.function), probes=tuple(own.probes)),
        ),
        tools=None if line.tools is None else tuple(line.tools),
        difficulty=line.difficulty,
        max_turns=line.max_turns,
        world=line.world,
        solution=_solution_of(line.solution),
        setup=tuple(ToolCall(name=call.tool, arguments=call.arguments) for call in line.setup),
        follow_ups=tuple(
            FollowUp(messages=tuple(f.prompt), tools=tuple(f.tools), solution=_solution_of(f.solution))
            for f in line.follow_ups
        ),
        user=None if user is None else _user_of(user, folder),
        metadata=line.metadata,
    )


def _user_of(user: UserLine, folder: Path) -> SimulatedUser:
    function = None if user.function is None else str(folder / user.function)
    return SimulatedUser(function=function, instructions=user.instructions, max_messages=user.max_messages)


def line_of(task: Task) -> dict[str, Any]:
    """Convert a task to a line without default values: task_of(line_of(task)) == task.

    Raises pydantic's ValidationError for a task that cannot be written, such as one that checks nothing.
    """
    goal = task.goal
    value: dict[str, Any] = {
        "id": task.id,
        "prompt": _prompt_line(task.prompt),
        "answer": None if goal.answer is None else _text_line(goal.answer),
        "calls": _call_lines(goal),
        "in_any_order": goal.in_any_order,
        "min_calls": goal.min_calls,
        "state": [
            {"tool": s.tool, "arguments": dict(s.arguments), "texts": [_text_line(text) for text in s.texts]}
            for s in goal.state
        ],
        "writes": [
            {
                "tool": write.tool,
                "arguments": dict(write.arguments),
                "texts": {name: list(map(_text_line, texts)) for name, texts in write.texts.items()},
            }
            for write in goal.writes
        ],
        "rubric": goal.rubric,
        "check": None if goal.check is None else _check_line(goal.check),
        "tools": None if task.tools is None else list(task.tools),
        "difficulty": task.difficulty,
        "max_turns": task.max_turns,
        "world": task.world,
        "solution": None if task.solution is None else _solution_line(task.solution),
        "setup": [{"tool": call.name, "arguments": dict(call.arguments)} for call in task.setup],
        "follow_ups": list(map(_follow_up_line, task.follow_ups)),
        "user": None if task.user is None else _user_line(task.user),
        "metadata": dict(task.metadata),
    }
    # Copy these fields so that validation rejects them; otherwise the task would be written without them.
    set_fields = {f.name: getattr(task, f.name) for f in fields(task) if getattr(task, f.name) != f.default}
    value |= {name: entry for name, entry in set_fields.items() if name in _PYTHON_ONLY}
    TaskLine.model_validate(value)
    defaults = {name: field.get_default(call_default_factory=True) for name, field in TaskLine.model_fields.items()}
    return {name: entry for name, entry in value.items() if name in {"id", "prompt"} or entry != defaults[name]}


def task_schema() -> dict[str, Any]:
    """Return the JSON Schema of a line. It does not check regular expressions, duplicate keys or empty goals."""
    schema = TaskLine.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "mcprl task"}


# Pydantic's error types, each with what was expected.
_WANTED = {
    "string_type": "a string",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
# The fields of the nested objects in a task, by the field that holds the object.
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "": tuple(TaskLine.model_fields),
    "prompt": tuple(Message.__annotations__),
    "calls": tuple(CallLine.model_fields),
    "solution.calls": tuple(SolutionCallLine.model_fields),
    "state": tuple(StateLine.model_fields),
    "writes": tuple(WriteLine.model_fields),
    "check": tuple(CheckLine.model_fields),
    "setup": tuple(CallLine.model_fields),
    "follow_ups": tuple(FollowUpLine.model_fields),
    "user": tuple(UserLine.model_fields),
    "solution": tuple(SolutionLine.model_fields),
    "answer": (*sorted(_SHAPES), "tolerance", "tolerance_days", "unit", "at_most", "none_of", "at_least"),
}


def first_problem(error: ValidationError) -> str:
    """Return the first unknown field, or else the first problem: `calls.1.tool: this field is missing`."""
    found = sorted(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")[0]
    parts = [str(part) for part in found["loc"] if not (str(part).startswith("<") and str(part).endswith(">"))]
    message = found["msg"].removeprefix("Value error, ")
    if found["type"] == "extra_forbidden":
        names = [part for part in parts[:-1] if not part.isdigit()]
        fields = _FIELDS.get(".".join(names[-2:])) or _FIELDS.get(names[-1], ())
        known = f" (it may have {', '.join(fields)})" if 0 < len(fields) < 6 else ""
        message = f"unknown field{did_you_mean(parts[-1], fields) or known}"
    elif found["type"] == "missing":
        message = "this field is missing"
    elif found["type"] in _WANTED:
        message = f"{reprlib.repr(found['input'])} is not {_WANTED[found['type']]}"
    return ": ".join([".".join(parts), message] if parts else [message])


def _text_of(line: str | BaseModel) -> ExpectedText:
    match line:
        case str():
            return Contains(text=line)
        case ContainsLine():
            return Contains(text=line.contains)
        case ExactlyLine():
            return Exactly(text=line.exactly)
        case NumberLine():
            return HasNumber(value=line.number, tolerance=line.tolerance, at_most=line.at_most, unit=line.unit)
        case DateLine():
            return HasDate(date=line.date, tolerance_days=line.tolerance_days, at_most=line.at_most)
        case FieldsLine():
            return HasFields(fields={name: _text_of(each) for name, each in line.fields.items()})
        case AllLine():
            return HasAll(members=tuple(line.all), none_of=tuple(line.none_of))
        case MatchesLine():
            return Matches(pattern=line.matches)
        case SomeLine():
            return MeetsSome(of=tuple(map(_text_of, line.of)), at_least=line.at_least)
        case _:
            return AnyText()


def _text_line(text: ExpectedText) -> str | dict[str, Any]:
    match text:
        case AnyText():
            return {"any": True}
        case Contains():
            return text.text
        case Exactly():
            return {"exactly": text.text}
        case HasNumber():
            tolerance = {"tolerance": text.tolerance} if text.tolerance else {}
            unit = {} if text.unit is None else {"unit": text.unit}
            most = {"at_most": text.at_most} if text.at_most != 4 else {}
            return {"number": text.value, **tolerance, **most, **unit}
        case HasDate():
            tolerance = {"tolerance_days": text.tolerance_days} if text.tolerance_days else {}
            return {"date": text.date, **tolerance, **({"at_most": text.at_most} if text.at_most != 4 else {})}
        case HasFields():
            return {"fields": {name: _text_line(each) for name, each in text.fields.items()}}
        case HasAll():
            return {"all": list(text.members), **({"none_of": list(text.none_of)} if text.none_of else {})}
        case Matches():
            return {"matches": text.pattern}
        case MeetsSome():
            least = {} if text.at_least is None else {"at_least": text.at_least}
            return {"of": list(map(_text_line, text.of)), **least}


def _call_lines(goal: Goal) -> list[Any]:
    lines = iter([{"tool": call.tool, "arguments": dict(call.arguments)} for call in goal.calls])
    sets = [list(itertools.islice(lines, size)) for size in goal.call_sets or (1,) * len(goal.calls)]
    return [each[0] if len(each) == 1 else each for each in sets]


def _check_line(check: ExpectedCheck) -> str | dict[str, Any]:
    return {"function": check.function, "probes": list(check.probes)} if check.probes else check.function


def _follow_up_line(follow_up: FollowUp) -> str | dict[str, Any]:
    line: dict[str, Any] = {"prompt": _prompt_line(follow_up.messages)}
    if follow_up.tools:
        line["tools"] = list(follow_up.tools)
    if follow_up.solution is not None:
        line["solution"] = _solution_line(follow_up.solution)
    if follow_up.described:
        line["described"] = True  # refused, since only benchmarks set it
    return line["prompt"] if line.keys() == {"prompt"} and isinstance(line["prompt"], str) else line


def _user_line(user: SimulatedUser) -> dict[str, Any]:
    line = {"function": user.function, "instructions": user.instructions, "max_messages": user.max_messages}
    return {name: value for name, value in line.items() if value is not None}


def _solution_of(line: SolutionLine | None) -> Solution | None:
    if line is None:
        return None
    calls = tuple(ToolCall(name=call.name, arguments=call.arguments) for call in line.calls)
    return Solution(calls=calls, answer=line.answer)


def _solution_line(solution: Solution) -> dict[str, Any]:
    calls = [{"name": call.name, "arguments": dict(call.arguments)} for call in solution.calls]
    return {"calls": calls, "answer": solution.answer}


def _prompt_line(prompt: tuple[Message, ...]) -> str | list[Message]:
    if len(prompt) == 1 and prompt[0].keys() == {"role", "content"} and prompt[0]["role"] == "user":
        return prompt[0]["content"]
    return list(prompt)

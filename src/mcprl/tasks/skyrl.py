"""Rows in SkyRL's format, as tasks: `prompt`, `env_class`, `reward_spec`, `extra_info`, `task_metadata`.

The prompt is what stands before the first assistant message: the rest of a recorded conversation is what someone else
did. The goal comes from `reward_spec.ground_truth`:

    tool_sequence                        these calls, in this order
    expected_tools, must_use_tools       these calls, in any order (where there is no sequence)
    success_criteria.min_tool_calls      how many calls must have worked
    (always)                             any answer that is not empty

All else in `reward_spec` that asks for something is given back by name, because nobody will check it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from mcprl.canonical import canonical_json
from mcprl.conversations import text_of
from mcprl.goals import AnyText, ExpectedCall, Goal
from mcprl.records import Difficulty, Message, Task

__all__ = ["digest", "is_skyrl_row", "task_of_row"]

_DIGEST_CHARACTERS = 10
_OPENING_ROLES = ("system", "user")


def _none_as_empty(value: object) -> object:
    # Files that were written from tables have null where a row has nothing.
    return [] if value is None else value


def _no_object_as_empty(value: object) -> object:
    return {} if value is None else value


_Names = Annotated[list[str], BeforeValidator(_none_as_empty)]


class _Part(BaseModel):
    # What is not listed is kept, to be named as not checked.
    model_config = ConfigDict(extra="allow", strict=True)


class _Criteria(_Part):
    expected_tools: _Names = Field(default_factory=list[str])
    must_use_tools: _Names = Field(default_factory=list[str])
    min_tool_calls: int | None = Field(default=None, ge=0)


class _Truth(_Part):
    expected_tools: _Names = Field(default_factory=list[str])
    tool_sequence: _Names = Field(default_factory=list[str])
    success_criteria: Annotated[_Criteria, BeforeValidator(_no_object_as_empty)] = Field(default_factory=_Criteria)


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
            raise ValueError(f"{value!r} is none of {', '.join(Difficulty)}")
        return value


class _ExtraInfo(_Metadata):
    task_metadata: Annotated[_Metadata, BeforeValidator(_no_object_as_empty)] = Field(default_factory=_Metadata)


class _SkyrlRow(_Part):
    prompt: list[Message]
    reward_spec: Annotated[_RewardSpec, BeforeValidator(_no_object_as_empty)] = Field(default_factory=_RewardSpec)
    extra_info: Annotated[_ExtraInfo, BeforeValidator(_no_object_as_empty)] = Field(default_factory=_ExtraInfo)
    task_metadata: Annotated[_Metadata, BeforeValidator(_no_object_as_empty)] = Field(default_factory=_Metadata)

    @field_validator("prompt", mode="before")
    @classmethod
    def _opening(cls, value: object) -> list[Message]:
        if isinstance(value, str):
            return [{"role": "user", "content": value}]
        if not isinstance(value, list):
            raise ValueError("is neither a text nor a list of messages")
        return list(_opening_of(cast("list[object]", value)))


class _TruthRow(BaseModel):
    """Gives the errors in a ground truth their whole place."""

    reward_spec: _TruthSpec


class _TruthSpec(BaseModel):
    ground_truth: _Truth


def is_skyrl_row(value: object) -> bool:
    """Whether an entry of a task file is a row of SkyRL's: no task of mcprl's own form has these fields."""
    return isinstance(value, dict) and not {"env_class", "reward_spec"}.isdisjoint(cast("dict[str, Any]", value))


def task_of_row(value: object) -> tuple[Task, tuple[str, ...]]:
    """The task of a row, and the fields that ask for something which it cannot check.

    Raises pydantic's ValidationError where the row is not what SkyRL's format says.
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
    """A few characters that stand for a JSON value, the same on every machine."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:_DIGEST_CHARACTERS]


def _opening_of(messages: Sequence[object]) -> Iterator[Message]:
    asked = False
    for number, value in enumerate(messages):
        message = cast("Mapping[str, Any]", value if isinstance(value, Mapping) else {})
        role: Any = message.get("role")
        if role == "assistant":
            break
        if role not in _OPENING_ROLES:
            raise ValueError(f"message {number + 1} is of {role!r}, where only system and user may come first")
        asked = asked or role == "user"
        yield {"role": role, "content": text_of(message)}
    if not asked:
        raise ValueError("no message of the user stands before the first of the assistant")


def _goal_of(spec: _RewardSpec) -> tuple[Goal, list[str]]:
    not_checked = [f"reward_spec.method: {spec.method}"] if spec.method not in {None, "rule"} else []
    not_checked += _demands("reward_spec", spec)
    given: Any = spec.ground_truth
    if not isinstance(given, dict):
        missing = "reward_spec.ground_truth" if given else "reward_spec.ground_truth: there is none"
        return Goal(answer=AnyText()), [*not_checked, missing]
    checked = _TruthRow.model_validate({"reward_spec": {"ground_truth": cast("dict[str, Any]", given)}})
    truth = checked.reward_spec.ground_truth
    criteria = truth.success_criteria
    not_checked += _demands("reward_spec.ground_truth", truth)
    not_checked += _demands("reward_spec.ground_truth.success_criteria", criteria)
    expected = list(dict.fromkeys([*truth.expected_tools, *criteria.expected_tools, *criteria.must_use_tools]))
    if truth.tool_sequence:
        beyond = [name for name in expected if name not in truth.tool_sequence]
        not_checked += [f"reward_spec.ground_truth.expected_tools: {name}, not in tool_sequence" for name in beyond]
    goal = Goal(
        answer=AnyText(),
        calls=tuple(ExpectedCall(tool=name) for name in truth.tool_sequence or expected),
        in_any_order=not truth.tool_sequence,
        min_calls=criteria.min_tool_calls or 0,
    )
    return goal, not_checked


def _demands(place: str, part: BaseModel) -> list[str]:
    """The fields that no goal can say. One that is empty, or false, asks for nothing."""
    return [f"{place}.{name}" for name, value in (part.model_extra or {}).items() if value not in (None, False, [], {})]

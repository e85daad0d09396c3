"""Task files: one JSON object a line, checked field by field, errors with file and line.

    {"id": "meet-ana", "prompt": "It is 09:30 at Ana's office. What time is that in Asia/Tokyo?",
     "answer": "23:30", "calls": [{"tool": "find_person", "arguments": {"name": "Ana"}}],
     "tools": ["find_person", "convert_time"], "difficulty": "medium"}

`prompt` is the user's words, or a list of messages. `tools` left out means every tool that the servers offer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from mcprl.errors import TaskFileError
from mcprl.records import Difficulty, ExpectedCall, Goal, Message, Task

__all__ = ["load_preamble", "load_tasks"]


def _as_messages(prompt: object) -> object:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


class _CallLine(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])


class _TaskLine(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: str = Field(min_length=1)
    prompt: Annotated[list[Message], BeforeValidator(_as_messages)] = Field(min_length=1)
    answer: str | None = None
    calls: list[_CallLine] = Field(default_factory=list[_CallLine])
    tools: list[str] | None = None
    difficulty: Difficulty = Difficulty.MEDIUM
    max_turns: int | None = Field(default=None, ge=1)


def load_tasks(path: Path) -> tuple[Task, ...]:
    """All tasks of a file, in its order. Raises TaskFileError at the first line that is no task."""
    tasks: dict[str, Task] = {}
    # Not splitlines: it also splits at U+2028 and others that may stand inside a JSON text.
    for number, line in enumerate(_read(path).split("\n"), start=1):
        if not line.strip():
            continue
        task = _parse_line(line, f"{path}:{number}")
        if task.id in tasks:
            raise TaskFileError(f"{path}:{number}: a second task has the id {task.id!r}", fix="give it another id")
        tasks[task.id] = task
    if not tasks:
        raise TaskFileError(f"{path} holds no task", fix="write one JSON object a line")
    return tuple(tasks.values())


def load_preamble(path: Path | None) -> tuple[Message, ...]:
    """The messages that stand before each task's own: a JSON list of chat messages."""
    if path is None:
        return ()
    try:
        return tuple(TypeAdapter(list[Message]).validate_json(_read(path)))
    except ValidationError as error:
        raise TaskFileError(
            f"{path}: {_first_problem(error)}", fix='write a JSON list of {"role": …, "content": …} objects'
        ) from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise TaskFileError(f"cannot read {path}: {reason}", fix="correct the path in the recipe") from error


def _parse_line(line: str, place: str) -> Task:
    try:
        parsed = _TaskLine.model_validate(json.loads(line))
    except json.JSONDecodeError as error:
        raise TaskFileError(f"{place}: not JSON ({error.msg})", fix="write one JSON object a line") from error
    except ValidationError as error:
        raise TaskFileError(f"{place}: {_first_problem(error)}", fix="correct that field") from error
    except (RecursionError, ValueError) as error:
        # Python's decoder gives up on absurd nesting and on numbers of thousands of digits.
        raise TaskFileError(f"{place}: too deeply nested, or a number too long", fix="correct that line") from error
    return Task(
        id=parsed.id,
        prompt=tuple(parsed.prompt),
        goal=Goal(
            answer=parsed.answer,
            calls=tuple(ExpectedCall(tool=c.tool, arguments=c.arguments) for c in parsed.calls),
        ),
        tools=tuple(parsed.tools) if parsed.tools is not None else None,
        difficulty=parsed.difficulty,
        max_turns=parsed.max_turns,
    )


def _first_problem(error: ValidationError) -> str:
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    return f"{field}: {first['msg']}" if field else first["msg"]

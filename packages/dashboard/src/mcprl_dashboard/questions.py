"""What the address of a request asks for: numbers, choices, the filter over episodes. All of it is checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast, get_args

from mcprl_dashboard.answers import Refusal

__all__ = ["Filter", "Order", "Page", "SortColumn", "choice", "number", "whole"]


SortColumn = Literal["step", "reward", "turns", "tokens", "duration_s", "task_id"]
Outcome = Literal["solved", "failed"]
Order = Literal["asc", "desc"]
_MAX_LIMIT = 500
_MAX_SEARCH = 1000
_MAX_WHOLE = 2**53

C = TypeVar("C", bound=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which episodes are asked for. What is None or empty filters nothing.

    Filter(q="timeout", tool="get_quote", outcome="failed", step_from=100)
    """

    q: str = ""
    task: str | None = None
    tool: str | None = None
    stop: str | None = None
    outcome: Outcome | None = None
    fault: bool = False
    step_from: int | None = None
    step_to: int | None = None
    reward_min: float | None = None
    reward_max: float | None = None

    @classmethod
    def of(cls, asked: Mapping[str, str]) -> Filter:
        """The filter of an address. Raises Refusal where it makes no sense."""
        q = asked.get("q", "")
        if len(q) > _MAX_SEARCH:
            raise _bad("q", f"is longer than {_MAX_SEARCH} characters")
        return cls(
            q=q,
            task=asked.get("task") or None,
            tool=asked.get("tool") or None,
            stop=asked.get("stop") or None,
            outcome=choice(asked, "outcome", get_args(Outcome)),
            fault=choice(asked, "fault", ("0", "1")) == "1",
            step_from=whole(asked, "step_from"),
            step_to=whole(asked, "step_to"),
            reward_min=number(asked, "reward_min"),
            reward_max=number(asked, "reward_max"),
        )

    @property
    def needs_turns(self) -> bool:
        """Whether it asks for what only the turns of an episode tell."""
        return bool(self.q) or self.tool is not None or self.fault

    def condition(self) -> tuple[str, dict[str, Any]]:
        """As SQL with named parameters; no text of the question is ever part of the SQL."""
        named = {
            "q": ("contains(text, lower($q))", self.q or None),
            "task": ("task_id = $task", self.task),
            "tool": ("list_contains(tools, $tool)", self.tool),
            "stop": ("stop = $stop", self.stop),
            "solved": ("solved = $solved", None if self.outcome is None else self.outcome == "solved"),
            "step_from": ("step >= $step_from", self.step_from),
            "step_to": ("step <= $step_to", self.step_to),
            "reward_min": ("reward >= $reward_min", self.reward_min),
            "reward_max": ("reward <= $reward_max", self.reward_max),
        }
        used = {name: part for name, part in named.items() if part[1] is not None}
        clauses = [clause for clause, _ in used.values()] + (["faults > 0"] if self.fault else [])
        return " AND ".join(clauses) or "true", {name: value for name, (_, value) in used.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Which part of the episodes found, in which order. Page(sort="reward", order="desc", offset=50, limit=50)"""

    sort: SortColumn = "step"
    order: Order = "desc"
    offset: int = 0
    limit: int = 50

    @classmethod
    def of(cls, asked: Mapping[str, str]) -> Page:
        sort: SortColumn = choice(asked, "sort", get_args(SortColumn)) or "step"
        return cls(
            sort=sort,
            order=choice(asked, "order", get_args(Order)) or ("asc" if sort == "task_id" else "desc"),
            offset=whole(asked, "offset") or 0,
            limit=min(_MAX_LIMIT, whole(asked, "limit") or 50),
        )

    def clause(self) -> str:
        """As SQL. Both words are among those above, so they can stand in it."""
        return f"ORDER BY {self.sort} {self.order} NULLS LAST, step DESC, task_id, member"


def choice(asked: Mapping[str, str], name: str, known: Sequence[C]) -> C | None:
    """One of some words, None where it is not asked for."""
    value = asked.get(name)
    if not value:
        return None
    if value not in known:
        raise _bad(name, f"is none of {', '.join(known)}")
    return cast("C", value)


def whole(asked: Mapping[str, str], name: str) -> int | None:
    """A whole number from 0 on."""
    value = asked.get(name)
    if not value:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= 16 and int(value) <= _MAX_WHOLE):
        raise _bad(name, "is no whole number")
    return int(value)


def number(asked: Mapping[str, str], name: str) -> float | None:
    value = asked.get(name)
    if not value:
        return None
    try:
        found = float(value)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise _bad(name, "is no number")
    return found


def _bad(name: str, problem: str) -> Refusal:
    return Refusal(400, "bad-question", f"{name} {problem}", f"correct {name}, or leave it out")

"""How success is checked: what must be answered, which calls it takes, and what must be true of the world afterwards.

A goal only says what is wanted. `mcprl.episodes.rewards` judges it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "AnyText",
    "Contains",
    "Exactly",
    "ExpectedCall",
    "ExpectedState",
    "ExpectedText",
    "Goal",
    "HasAll",
    "HasNumber",
    "Matches",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyText:
    """Any answer that is not empty will do: for tasks that only say which tools are needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contains:
    """This text must stand in the answer, as words of its own and whatever the case."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exactly:
    """The whole answer must be this text, surrounding spaces and case aside."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HasNumber:
    """A number within `tolerance` of `value` must stand in the answer, among at most `at_most` numbers in all.

    A list of guesses is no answer; hence the limit. None lifts it.

    HasNumber(value=213.88, tolerance=0.005) accepts "It closed at $213.88."
    """

    value: float
    tolerance: float = 0.0
    at_most: int | None = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class HasAll:
    """Each of `members` must stand in the answer as a word of its own, and none of `none_of`.

    HasAll(members=("VLKN", "ORBT"), none_of=("HALE", "NIMB"))
    """

    members: tuple[str, ...]
    none_of: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    """The regular expression must be found in the answer."""

    pattern: str


ExpectedText = AnyText | Contains | Exactly | HasNumber | HasAll | Matches
"""How a text is judged: the policy's final answer, or what a tool says about the world afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedCall:
    """A call that solving a task needs. Arguments not listed here are free."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedState:
    """What must be true of the world when the episode is over: `tool` is asked, and its text must meet all of `texts`.

    The environment makes this call, not the policy; the tool need not be among those on offer.

    ExpectedState(tool="get_slack_channel_history", arguments={"channel_id": "C0TRADING", "limit": 1},
                  texts=(Contains(text="VLKN"), HasNumber(value=213.88, tolerance=0.005, at_most=None)))
    """

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    texts: tuple[ExpectedText, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """How success is checked. What is left out is not checked, and is no part of the reward.

    `calls` are needed in this order unless `in_any_order`; `min_calls` is how many calls must have worked in all;
    `rubric` is what a judge is told, where the run has one.
    """

    answer: ExpectedText | None = None
    calls: tuple[ExpectedCall, ...] = ()
    in_any_order: bool = False
    min_calls: int = 0
    state: tuple[ExpectedState, ...] = ()
    rubric: str | None = None

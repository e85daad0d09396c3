"""How success is checked: the expected answer, the calls it takes, and the state of the world afterwards.

A goal is only a description. `mcprl.episodes.rewards` scores it.
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
    "ExpectedWrite",
    "Goal",
    "HasAll",
    "HasNumber",
    "Matches",
    "MeetsSome",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyText:
    """Accepts any answer that is not empty: for tasks that check calls only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contains:
    """The answer must contain this text as whole words, in any case."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exactly:
    """The whole answer must be this text, ignoring surrounding spaces and case."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HasNumber:
    """The answer must contain a number within `tolerance` of `value`, and at most `at_most` different numbers.

    The limit (None: no limit) rules out lists of guesses.

    HasNumber(value=213.88, tolerance=0.005) accepts "It closed at $213.88."
    """

    value: float
    tolerance: float = 0.0
    at_most: int | None = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class HasAll:
    """The answer must contain each of `members` as a whole word, and none of `none_of`.

    HasAll(members=("VLKN", "ORBT"), none_of=("HALE", "NIMB"))
    """

    members: tuple[str, ...]
    none_of: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    """The answer must match this regular expression somewhere."""

    pattern: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeetsSome:
    """The answer must meet at least `at_least` of these expectations; None: all of them.

    MeetsSome(of=(Contains(text="VLKN"), HasNumber(value=213.88, tolerance=0.005), HasNumber(value=1.4)), at_least=2)
    """

    of: tuple[ExpectedText, ...]
    at_least: int | None = None


ExpectedText = AnyText | Contains | Exactly | HasNumber | HasAll | Matches | MeetsSome
"""How a text is checked: the final answer, or the answer of a tool that reports the state of the world."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedCall:
    """A call that the task needs. Arguments not listed here may have any value."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedState:
    """What must be true after the episode: `tool` is called, and its text must meet all of `texts`.

    The environment makes this call; the tool need not be offered to the policy.

    ExpectedState(tool="get_slack_channel_history", arguments={"channel_id": "C0TRADING", "limit": 1},
                  texts=(Contains(text="VLKN"), HasNumber(value=213.88, tolerance=0.005, at_most=None)))
    """

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    texts: tuple[ExpectedText, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedWrite:
    """A successful call that must have been made: with these arguments, and with texts that meet these expectations.

    For worlds whose state cannot be read afterwards, such as recorded ones.

    ExpectedWrite(tool="send_slack_message", arguments={"channel": "trading"},
                  texts={"message": (Contains(text="VLKN"), HasNumber(value=213.88, tolerance=0.005))})
    """

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    texts: Mapping[str, tuple[ExpectedText, ...]] = field(default_factory=dict[str, "tuple[ExpectedText, ...]"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """How success is checked. Fields that are left out are not checked and not part of the reward.

    `calls` are needed in this order unless `in_any_order`; `min_calls` is how many calls must succeed in total;
    `state` and `writes` are one part of the reward; `rubric` is the instruction for a judge, if the run has one.
    """

    answer: ExpectedText | None = None
    calls: tuple[ExpectedCall, ...] = ()
    in_any_order: bool = False
    min_calls: int = 0
    state: tuple[ExpectedState, ...] = ()
    writes: tuple[ExpectedWrite, ...] = ()
    rubric: str | None = None

    @property
    def texts_of_state(self) -> tuple[ExpectedText, ...]:
        """Every expectation about a text in `state` and `writes`."""
        written = (text for write in self.writes for texts in write.texts.values() for text in texts)
        return (*(text for state in self.state for text in state.texts), *written)

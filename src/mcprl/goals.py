"""Goals: the expected answer of a task, the calls that it needs, and the state of the servers afterwards.

A goal is only data. `mcprl.episodes.rewards` scores episodes against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = [
    "AnyText",
    "Contains",
    "Exactly",
    "ExpectedCall",
    "ExpectedCheck",
    "ExpectedState",
    "ExpectedText",
    "ExpectedWrite",
    "Goal",
    "HasAll",
    "HasDate",
    "HasFields",
    "HasNumber",
    "Matches",
    "MeetsSome",
    "Unit",
]

# fmt: off
Unit = Literal[
    "mm", "cm", "m", "km", "inch", "ft", "mi", "mg", "g", "kg", "t", "oz", "lb", "ms", "s", "min", "h", "d",
    "B", "KB", "MB", "GB", "TB", "°C", "°F", "%",
]
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyText:
    """Accepts any answer that is not empty. For tasks that check only calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contains:
    """The answer must contain this text as whole words, ignoring case."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exactly:
    """The answer must be this text, ignoring case and surrounding spaces."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HasNumber:
    """The answer must contain a number within `tolerance` of `value`, and at most `at_most` different numbers.

    `at_most` (None: no limit) rejects lists of guesses. With a unit, only quantities that can be converted to it count.

    HasNumber(value=213.88, tolerance=0.005) accepts "It closed at $213.88."
    HasNumber(value=5, tolerance=0.01, unit="km") accepts "It is 5,000 metres away."
    """

    value: float
    tolerance: float = 0.0
    at_most: int | None = 4
    unit: Unit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HasDate:
    """The answer must contain a date within `tolerance_days` of `date`, and at most `at_most` different dates.

    HasDate(date="2025-11-14") accepts "On November 14, 2025."
    """

    date: str
    tolerance_days: int = 0
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HasFields:
    """The answer must contain a JSON object whose fields meet these expectations. A dotted name is a nested field.

    HasFields(fields={"city": Exactly(text="Lima"), "offices.0.floor": HasNumber(value=3)})
    """

    fields: Mapping[str, ExpectedText]


ExpectedText = AnyText | Contains | Exactly | HasNumber | HasDate | HasAll | Matches | MeetsSome | HasFields
"""A check of a text: the final answer, or the result of a tool that reports state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedCall:
    """A call that the task needs. Arguments not listed here may have any value."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedState:
    """What must be true after the episode: the result of calling `tool` meets all of `texts`.

    mcprl makes this call; the policy does not need access to the tool.

    ExpectedState(tool="get_slack_channel_history", arguments={"channel_id": "C0TRADING", "limit": 1},
                  texts=(Contains(text="VLKN"), HasNumber(value=213.88, tolerance=0.005, at_most=None)))
    """

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    texts: tuple[ExpectedText, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedWrite:
    """A call that must have succeeded, with these arguments, and with text arguments that meet these expectations.

    For servers whose state cannot be read afterwards, such as recorded ones.

    ExpectedWrite(tool="send_slack_message", arguments={"channel": "trading"},
                  texts={"message": (Contains(text="VLKN"), HasNumber(value=213.88, tolerance=0.005))})
    """

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    texts: Mapping[str, tuple[ExpectedText, ...]] = field(default_factory=dict[str, "tuple[ExpectedText, ...]"])


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedCheck:
    """The user's function that returns how much of the task was solved, from 0 to 1. It may call tools in `probes`.

    ExpectedCheck(function="/home/ana/checks.py:ticket_closed", probes=("list_tickets",))
    """

    function: str
    probes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a successful episode must do. Fields that are left out are not checked and not part of the reward.

    `calls` are required in this order, unless `in_any_order` is set. `call_sets` divides them into sets of these sizes:
    sets are required in order, the calls of a set in any order. (1, 2) is the first call, then the other two.
    `min_calls` is the number of calls that must succeed in total. `state` and `writes` together are one part of the
    reward. `rubric` is the instruction for a judge, if the run has one. `check` is a function in Python.
    """

    answer: ExpectedText | None = None
    calls: tuple[ExpectedCall, ...] = ()
    in_any_order: bool = False
    call_sets: tuple[int, ...] = ()
    min_calls: int = 0
    state: tuple[ExpectedState, ...] = ()
    writes: tuple[ExpectedWrite, ...] = ()
    rubric: str | None = None
    check: ExpectedCheck | None = None

    @property
    def texts_of_state(self) -> tuple[ExpectedText, ...]:
        """Return every expectation in `state` and `writes`."""
        written = (text for write in self.writes for texts in write.texts.values() for text in texts)
        return (*(text for state in self.state for text in state.texts), *written)

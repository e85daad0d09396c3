"""A draft is a task without its wording and its distractors; a family makes drafts of one kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from typing import Any, TypeVar

from mcprl.goals import ExpectedCall, ExpectedState, ExpectedText, Goal, HasAll, HasNumber
from mcprl.records import Difficulty, Solution, ToolCall
from mcprl_market.world import Market, Workspace
from mcprl_market.world.draws import Draws
from mcprl_market.world.facts import Bar, Channel, Company, Quote, Statement

__all__ = ["Draft", "Family", "Material", "Step", "asked", "choice", "posted", "posting", "python", "split_material"]


T = TypeVar("T")

_HELD_OUT = 5  # one of so many goes to validation
_WEEKS = 30
_RANKS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """One split's share of the world, and the stream of randomness that draws from it.

    `rooms` are all channels, for tasks that differ by their company; `channels` are the split's own. A week is its
    first and its last trading day; a rank is a place in the list of gainers or losers, from 1.
    """

    market: Market
    workspace: Workspace
    companies: tuple[Company, ...]
    channels: tuple[Channel, ...]
    weeks: tuple[tuple[date, date], ...]
    ranks: tuple[int, ...]
    draws: Draws

    @property
    def rooms(self) -> tuple[Channel, ...]:
        return self.workspace.channels()

    def one(self, options: Sequence[T]) -> T:
        return self.draws.choice(options)

    def company(self) -> Company:
        return self.draws.choice(self.companies)

    def several(self, count: int) -> tuple[Company, ...]:
        return tuple(self.draws.some(self.companies, count))

    def room(self) -> Channel:
        return self.draws.choice(self.rooms)

    def quote(self, company: Company) -> Quote:
        quote = self.market.quote(company.symbol)
        assert quote is not None  # every company of the world is traded
        return quote

    def statements(self, company: Company) -> tuple[Statement, ...]:
        """The annual ones, newest first."""
        statements = self.market.statements(company.symbol)
        assert statements is not None
        return statements

    def bars(self, company: Company, days: tuple[date, date]) -> tuple[Bar, ...]:
        bars = self.market.bars(company.symbol, *days)
        assert bars is not None
        return bars

    def drawing(self, draws: Draws) -> Material:
        """The same share under another stream."""
        return replace(self, draws=draws)


def split_material(market: Market, workspace: Workspace, seed: int) -> tuple[Material, Material]:
    """The shares of training and of validation: four fifths and one fifth of everything, nothing in both."""
    draws = Draws(seed, "tasks", "split", market.name)
    companies = _deal(market.companies, draws)
    channels = _deal(workspace.channels(), draws)
    weeks = _deal(_trading_weeks(market), draws)
    ranks = _deal(range(1, _RANKS + 1), draws)
    train, validation = (
        Material(
            market=market,
            workspace=workspace,
            companies=companies[side],
            channels=channels[side],
            weeks=weeks[side],
            ranks=ranks[side],
            draws=draws,
        )
        for side in (0, 1)
    )
    return train, validation


def _deal(things: Sequence[T], draws: Draws) -> tuple[tuple[T, ...], tuple[T, ...]]:
    shuffled = draws.shuffled(things)
    held_out = max(2, round(len(things) / _HELD_OUT))
    return tuple(shuffled[held_out:]), tuple(shuffled[:held_out])


def _trading_weeks(market: Market) -> tuple[tuple[date, date], ...]:
    """The last full weeks before the present one, each by its first and last trading day."""
    monday = market.today - timedelta(days=market.today.weekday())
    weeks: list[tuple[date, date]] = []
    for back in range(1, _WEEKS + 1):
        start = monday - timedelta(weeks=back)
        bars = market.bars(market.companies[0].symbol, start, start + timedelta(days=4)) or ()
        if len(bars) >= 4:
            weeks.append((bars[0].start.date(), bars[-1].start.date()))
    return tuple(weeks)


# On top of half a unit of the last digit asked for: one who rounds 0.125 up or down is right either way.
_SLACK = 0.01

_MESSAGES_SHOWN = 1
# One of them is in the line above the message, which says how many messages are shown.
_NUMBERS_IN_A_POST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call of a solution: the arguments that matter, which the goal expects, and those that are free.

    Step(tool="polygon_get_news", matters={"ticker": "VLKN"}, free={"limit": _MESSAGES_SHOWN})
    """

    tool: str
    matters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    free: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a family found to ask. `entities` tell it from all other drafts of the family; `slots` fill its wording.

    Draft(
        entities=("VLKN",),
        slots={"name": "Valkenor Systems Inc.", "symbol": "VLKN"},
        steps=(Step(tool="fmp_get_quote", matters={"symbol": "VLKN"}),),
        answer=HasNumber(value=213.88, tolerance=0.00505),
        says="VLKN trades at $213.88.",             # the solution's own answer
        state=(),
        in_any_order=False,                         # whether the steps' order is free
        also=(),                                    # tools of a branch that this world does not take
    )
    """

    entities: tuple[str, ...]
    slots: Mapping[str, str]
    steps: Sequence[Step]
    answer: ExpectedText | None
    says: str
    state: tuple[ExpectedState, ...] = ()
    in_any_order: bool = False
    also: tuple[str, ...] = ()

    @property
    def is_clear(self) -> bool:
        """Whether nobody meets the goal by chance: a state is read from a text that says how many messages it shows."""
        numbers = [text for state in self.state for text in state.texts if isinstance(text, HasNumber)]
        return all(abs(number.value - _MESSAGES_SHOWN) > number.tolerance for number in numbers)

    @property
    def goal(self) -> Goal:
        return Goal(
            answer=self.answer,
            calls=tuple(ExpectedCall(tool=step.tool, arguments=dict(step.matters)) for step in self.steps),
            in_any_order=self.in_any_order,
            state=self.state,
        )

    @property
    def solution(self) -> Solution:
        calls = (ToolCall(name=step.tool, arguments={**step.matters, **step.free}) for step in self.steps)
        return Solution(calls=tuple(calls), answer=self.says)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One kind of task. `draw` gives None where what it drew makes no clear question; it is then asked again.

    Wordings are templates such as "What does {symbol} trade at?". Those of `held_out` appear in validation only.
    """

    name: str
    difficulty: Difficulty
    wordings: tuple[str, ...]
    held_out: tuple[str, ...]
    draw: Callable[[Material], Draft | None]


def asked(value: float, decimals: int = 2, *, at_most: int | None = 4) -> HasNumber:
    """The number, as right as someone is who rounds it to so many decimals."""
    unit = 10.0**-decimals
    tolerance = round(unit * (0.5 + _SLACK), decimals + 4)
    return HasNumber(value=round(value, decimals + 4), tolerance=tolerance, at_most=at_most)


def choice(right: str, candidates: Iterable[str]) -> HasAll:
    """The right one of several words, and none of the others: a list of guesses is no answer."""
    return HasAll(members=(right,), none_of=tuple(sorted({other for other in candidates if other != right})))


def python(*expressions: str, given: str = "") -> Step:
    """A run of Python that prints expressions to two decimals, after the lines that say what is given.

    The code is free: only what comes out of it counts.
    """
    lines = [given] if given else []
    return Step(
        tool="execute_python",
        free={"code": "\n".join([*lines, *(f'print(f"{{{expression}:.2f}}")' for expression in expressions)])},
    )


def posting(channel: Channel, message: str) -> Step:
    """A post. Its channel is checked by the state afterwards, because a channel goes by a name and by an id."""
    return Step(tool="send_slack_message", free={"channel": channel.name, "message": message})


def posted(channel: Channel, value: float, decimals: int, *words: str, instead_of: Sequence[str] = ()) -> ExpectedState:
    """The newest message of the channel has the number and the words, and none of those that it must not name."""
    number = asked(value, decimals, at_most=_NUMBERS_IN_A_POST)
    named = (HasAll(members=words, none_of=tuple(instead_of)),) if words else ()
    return ExpectedState(
        tool="get_slack_channel_history",
        arguments={"channel_id": channel.id, "limit": _MESSAGES_SHOWN},
        texts=(*named, number),
    )

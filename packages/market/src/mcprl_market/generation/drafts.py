"""The building blocks of families: the part of the world that a split may use, drafts of tasks, and parts of drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any, TypeVar

import yaml

from mcprl.goals import ExpectedCall, ExpectedState, ExpectedText, Goal, HasAll, HasNumber
from mcprl.records import Difficulty, Solution, ToolCall
from mcprl_market.world import Market, Workspace
from mcprl_market.world.draws import Draws
from mcprl_market.world.facts import Bar, Channel, Company, Period, Quote, Statement

T = TypeVar("T")
Days = tuple[date, date]

EASY, MEDIUM, HARD = Difficulty.EASY, Difficulty.MEDIUM, Difficulty.HARD
SIDES = ("gainer", "loser")
OF_BAR: tuple[tuple[str, Callable[[Bar], float]], ...] = (
    ("closing price", lambda bar: bar.close),
    ("opening price", lambda bar: bar.open),
    ("high", lambda bar: bar.high),
    ("low", lambda bar: bar.low),
)

_QUESTIONS: Mapping[str, Sequence[str]] = yaml.safe_load(Path(__file__).with_name("questions.yaml").read_text("utf-8"))
_VALIDATION_SHARE = 5  # one in five goes to validation
_WEEKS = 30
_RANKS = 10
# Added to half a unit of the last requested digit: 0.125 may be rounded up or down.
_SLACK = 0.01
_MESSAGES_SHOWN = 1
# Includes one number in the line above the message, which says how many messages are shown.
_NUMBERS_IN_A_POST = 5


@dataclass(frozen=True, slots=True)
class Material:
    """The part of the world that one split may use, and the random stream that draws from it.

    `rooms` are all channels, for tasks split by company or rank; `channels` are only those of the split. A week is
    given by its first and its last trading day. A rank is a position in the list of gainers or losers, from 1.
    """

    market: Market
    workspace: Workspace
    companies: tuple[Company, ...]
    channels: tuple[Channel, ...]
    weeks: tuple[Days, ...]
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

    def quote(self, company: Company | str) -> Quote:
        return self.market.quotes[company if isinstance(company, str) else company.symbol]

    def statements(self, company: Company | Quote, period: Period = Period.ANNUAL) -> Sequence[Statement]:
        """Return the statements of a company, newest first."""
        return self.market.reports(company.symbol, period)

    def bars(self, company: Company, days: Days) -> tuple[Bar, ...]:
        bars = self.market.bars(company.symbol, *days)
        assert bars is not None  # every company of the world is traded
        return bars

    def closes(self, company: Company, days: Days) -> list[float]:
        return [bar.close for bar in self.bars(company, days)]

    def movers(self, side: str, count: int) -> tuple[Quote, ...]:
        return self.market.gainers(count) if side == "gainer" else self.market.losers(count)

    def mover(self, side: str, rank: int) -> Quote | None:
        """Return the stock at a 1-based rank in the list, or None if the list is shorter."""
        movers = self.movers(side, rank)
        return movers[-1] if len(movers) == rank else None

    def drawing(self, draws: Draws) -> Material:
        """Return the same material with another random stream."""
        return replace(self, draws=draws)


def split_material(market: Market, workspace: Workspace, seed: int) -> tuple[Material, Material]:
    """Split the world into four fifths for training and one fifth for validation, without overlap."""
    draws = Draws(seed, "tasks", "split", market.name)
    companies, channels = _split(market.companies, draws), _split(workspace.channels(), draws)
    weeks, ranks = _split(_trading_weeks(market), draws), _split(range(1, _RANKS + 1), draws)
    train, validation = (
        Material(market, workspace, *parts, draws) for parts in zip(companies, channels, weeks, ranks, strict=True)
    )
    return train, validation


def _split(things: Sequence[T], draws: Draws) -> tuple[tuple[T, ...], tuple[T, ...]]:
    shuffled = draws.shuffled(things)
    held_out = max(2, round(len(things) / _VALIDATION_SHARE))
    return tuple(shuffled[held_out:]), tuple(shuffled[:held_out])


def _trading_weeks(market: Market) -> tuple[Days, ...]:
    """Return the last full weeks before the current one, each as its first and last trading day."""
    monday = market.today - timedelta(days=market.today.weekday())
    weeks: list[Days] = []
    for back in range(1, _WEEKS + 1):
        start = monday - timedelta(weeks=back)
        bars = market.bars(market.companies[0].symbol, start, start + timedelta(days=4)) or ()
        if len(bars) >= 4:
            weeks.append((bars[0].start.date(), bars[-1].start.date()))
    return tuple(weeks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call of a solution. The goal expects the arguments in `matters`; those in `free` may have any value.

    Step(tool="polygon_get_news", matters={"ticker": "VLKN"}, free={"limit": 1})
    """

    tool: str
    matters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    free: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Draft:
    """A task without its wording and distractors. `entities` identify it in its family; `slots` fill the wording.

    Draft(
        entities=("VLKN",),
        slots={"name": "Valkenor Systems Inc.", "symbol": "VLKN"},
        steps=(Step(tool="fmp_get_quote", matters={"symbol": "VLKN"}),),
        answer=HasNumber(value=213.88, tolerance=0.00505),
        says="VLKN trades at $213.88.",             # the answer of the solution
        state=(),
        in_any_order=False,                         # whether the steps may be in any order
        also=(),                                    # tools of a branch that is not taken in this world
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
        """False if the message count, which the checked text always contains, would pass as an expected number."""
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
    """One kind of task. `draw` returns None if it drew an unclear question, and is then called again.

    Wordings are templates such as "What does {symbol} trade at?". Those in `held_out` are used only in validation.
    """

    name: str
    difficulty: Difficulty
    wordings: tuple[str, ...]
    held_out: tuple[str, ...]
    draw: Callable[[Material], Draft | None]


def family(difficulty: Difficulty) -> Callable[[Callable[[Material], Draft | None]], Family]:
    """Return a decorator that turns a function that draws drafts into a Family, whose last wording is held out."""

    def made(draw: Callable[[Material], Draft | None]) -> Family:
        name = draw.__name__.replace("_", "-")
        *wordings, held_out = _QUESTIONS[name]
        return Family(name=name, difficulty=difficulty, wordings=tuple(wordings), held_out=(held_out,), draw=draw)

    return made


def named(company: Company, other: Company | None = None, /, **slots: str) -> dict[str, str]:
    """Return slots with the name and symbol of one or two companies."""
    others = {} if other is None else {"other_name": other.name, "other": other.symbol}
    return {"name": company.name, "symbol": company.symbol, **others, **slots}


def span(days: Days) -> dict[str, str]:
    """Return slots with the first and the last day."""
    return {"start": days[0].isoformat(), "end": days[1].isoformat()}


def asked(value: float, decimals: int = 2, *, at_most: int | None = 4) -> HasNumber:
    """Return a check that expects the number, rounded to this many decimals."""
    unit = 10.0**-decimals
    tolerance = round(unit * (0.5 + _SLACK), decimals + 4)
    return HasNumber(value=round(value, decimals + 4), tolerance=tolerance, at_most=at_most)


def choice(right: str, candidates: Iterable[str]) -> HasAll:
    """Return a check for the right word without the other candidates, so that a list of guesses is not accepted."""
    return HasAll(members=(right,), none_of=tuple(sorted({other for other in candidates if other != right})))


def call(tool: str, free: Mapping[str, Any] | None = None, **matters: str) -> Step:
    """Make a step from its tool and arguments: call("polygon_get_news", ticker="VLKN", free={"limit": 1})"""
    return Step(tool=tool, matters=matters, free=free or {})


def bars_step(company: Company, days: Days) -> Step:
    """Make a step that gets the daily bars of a range of days."""
    start, end = (day.isoformat() for day in days)
    return call("polygon_get_aggs", ticker=company.symbol, start_date=start, end_date=end)


def movers_step(side: str, count: int) -> Step:
    """Make a step that lists gainers or losers. The length of the list is free, because a longer list also works."""
    return call(f"fmp_get_market_{side}s", free={"limit": count})


def python(*expressions: str, given: str = "") -> Step:
    """Make a step that runs `given`, then prints the expressions to two decimals. The goal accepts any code."""
    lines = [given] if given else []
    lines += [f'print(f"{{{expression}:.2f}}")' for expression in expressions]
    return call("execute_python", free={"code": "\n".join(lines)})


def posting(channel: Channel, message: str) -> Step:
    """Make a step that posts. Its channel is free, as it can be given by name or by id; the state check covers it."""
    return call("send_slack_message", free={"channel": channel.name, "message": message})


def posted(channel: Channel, value: float, *words: str, instead_of: Sequence[str] = ()) -> ExpectedState:
    """Return a check that the channel's newest message has the number and the words, and no word of `instead_of`."""
    number = asked(value, at_most=_NUMBERS_IN_A_POST)
    texts = (HasAll(members=words, none_of=tuple(instead_of)),) if words else ()
    return ExpectedState(
        tool="get_slack_channel_history",
        arguments={"channel_id": channel.id, "limit": _MESSAGES_SHOWN},
        texts=(*texts, number),
    )


def stored(key: str, value: float) -> ExpectedState:
    """Return a check that the number is stored under the key."""
    texts = (asked(value, at_most=None),)
    return ExpectedState(tool="get_execution_context", arguments={"context_key": key}, texts=texts)

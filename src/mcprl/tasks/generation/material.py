"""What tasks are made from: a share of the world's companies, channels, weeks and ranks for each split.

Training and validation draw from shares that have nothing in common, so a task of one never asks for what a task of
the other asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import TypeVar

from mcprl.world import Market, Workspace
from mcprl.world.draws import Draws
from mcprl.world.facts import Bar, Channel, Company, Quote, Statement

__all__ = ["Material", "split_material"]

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

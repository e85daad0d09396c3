"""Worlds for tests: a few seeds, companies of theirs, and a digest of all that a world states."""

from __future__ import annotations

import hashlib
import sys

from hypothesis import strategies as st

from mcprl_market.world import Market, open_market, open_workspace
from mcprl_market.world.facts import Frequency

SEEDS = (0, 7, -3, 2**63)

TABLES = {
    "bars": "symbol, day",
    "statements": "symbol, period, ended",
    "articles": "id",
    "mentions": "symbol, article",
    "pages": "rowid",
}


def markets() -> st.SearchStrategy[Market]:
    return st.sampled_from(SEEDS).map(open_market)


@st.composite
def companies(draw):
    """A market and one of its companies."""
    market = draw(markets())
    return market, draw(st.sampled_from(market.companies))


def cents(amount: float) -> int:
    """Exactly how many cents an amount is; anything finer fails."""
    whole = round(amount * 100)
    assert amount == whole / 100
    return whole


def world_digest(seed: int) -> str:
    """A digest of the companies, the tables, some minutes and the chat of a world."""
    market, workspace = open_market(seed), open_workspace(seed)
    digest = hashlib.sha256()
    for table, order in TABLES.items():
        for row in market.database.rows(f"SELECT * FROM {table} ORDER BY {order}"):
            digest.update(repr(row).encode())
    for company in market.companies:
        digest.update(repr(company).encode())
        for bar in market.bars(company.symbol, market.today, market.today, Frequency.MINUTE):
            digest.update(repr((bar.start.isoformat(), bar.open, bar.high, bar.low, bar.close, bar.volume)).encode())
    for channel in workspace.channels():
        digest.update(repr((channel, workspace.history(channel.id, 99))).encode())
    return digest.hexdigest()


if __name__ == "__main__":
    print(world_digest(int(sys.argv[1])))

"""The best pairing of needed and made calls, compared with all pairings."""

from __future__ import annotations

from itertools import combinations, pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcprl.episodes.rewards import pair_in_any_order, pair_in_order
from processor_time import least_s


@st.composite
def gain_tables(draw):
    """Up to 4 needed and 5 made calls; small gains, so that there are ties."""
    made = draw(st.integers(0, 5))
    gain = st.none() | st.integers(1, 6)
    return draw(st.lists(st.lists(gain, min_size=made, max_size=made), min_size=1, max_size=4))


def worth(table, pairs) -> int:
    gains = [table[i][j] for i, j in pairs]
    assert None not in gains
    return sum(gains)


def every_pairing(table, *, in_order: bool):
    needed, made = range(len(table)), range(len(table[0]))
    for size in range(min(len(needed), len(made)) + 1):
        for rows in combinations(needed, size):
            for columns in combinations(made, size) if in_order else permutations(made, size):
                pairs = list(zip(rows, columns, strict=True))
                if all(table[i][j] is not None for i, j in pairs):
                    yield pairs


@given(gain_tables())
def test_in_order_no_pairing_is_worth_more(table):
    pairs = pair_in_order(table)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(pairs))
    assert worth(table, pairs) == max(worth(table, p) for p in every_pairing(table, in_order=True))


@given(gain_tables())
def test_in_any_order_no_pairing_is_worth_more_and_no_call_counts_twice(table):
    pairs = pair_in_any_order(table)
    assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs)
    assert worth(table, pairs) == max(worth(table, p) for p in every_pairing(table, in_order=False))


@pytest.mark.parametrize("pair", [pair_in_order, pair_in_any_order])
@pytest.mark.parametrize("table", [[], [[], []], [[None, None]]])
def test_if_nothing_fits_nothing_is_paired(pair, table):
    assert pair(table) == []


@pytest.mark.parametrize("pair", [pair_in_order, pair_in_any_order])
@pytest.mark.usefixtures("untraced")
def test_hundreds_of_calls_are_paired_in_a_moment(pair):
    table = [[1 + (7 * i + 13 * j) % 11 for j in range(300)] for i in range(20)]
    assert len(pair(table)) == 20
    assert least_s(lambda: pair(table)) < 2.0

"""The best pairing of needed and made calls, compared with all pairings."""

from __future__ import annotations

from itertools import combinations, pairwise, permutations, product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from staged_episodes import call, made_turn

from mcprl.config import RewardsConfig
from mcprl.episodes.rewards import pair_in_any_order, pair_in_order, pair_in_sets, score
from mcprl.goals import ExpectedCall, Goal
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
@example([[None, 3, 2], [1, None, None], [3, 2, None]])  # it is best to leave the second call out
def test_in_any_order_no_pairing_is_worth_more_and_no_call_counts_twice(table):
    pairs = pair_in_any_order(table)
    assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs)
    assert worth(table, pairs) == max(worth(table, p) for p in every_pairing(table, in_order=False))


@given(gain_tables(), st.data())
def test_in_sets_no_pairing_is_worth_more_that_keeps_the_order_of_the_sets(table, data):
    ends = sorted({len(table), *data.draw(st.sets(st.integers(1, len(table))))})
    sizes = [end - start for start, end in pairwise([0, *ends])]
    set_of = [number for number, size in enumerate(sizes) for _ in range(size)]

    def keeps_order(pairs) -> bool:
        return all(one[1] < other[1] for one, other in product(pairs, pairs) if set_of[one[0]] < set_of[other[0]])

    pairs = pair_in_sets(table, sizes)
    assert keeps_order(pairs)
    assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs)
    assert worth(table, pairs) == max(worth(table, p) for p in every_pairing(table, in_order=False) if keeps_order(p))


@pytest.mark.parametrize(("made", "share"), [("abcd", 1.0), ("acbd", 1.0), ("bacd", 0.75), ("adbc", 0.75), ("d", 0.25)])
def test_calls_of_a_set_may_come_in_any_order_and_no_others(made, share):
    goal = Goal(calls=tuple(ExpectedCall(tool=name) for name in "abcd"), call_sets=(1, 2, 1))
    turns = [made_turn((call(name), True)) for name in made]
    assert score(goal, turns, None, None, weights=RewardsConfig())["calls"] == share


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

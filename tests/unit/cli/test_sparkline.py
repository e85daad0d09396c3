"""A course in one line of blocks: never wider than asked, whatever the figures are."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcprl.cli.printing import duration, sparkline

BLOCKS = "▁▂▃▄▅▆▇█"


def test_the_lowest_and_the_highest_value_have_the_lowest_and_the_highest_block():
    assert sparkline([0.0, 0.5, 1.0], 8) == "▁▅█"
    assert sparkline([3.0, 3.0], 8) == "▄▄"
    assert sparkline([], 8) == ""


def test_more_values_than_columns_are_averaged_with_their_neighbours():
    assert sparkline([0.0, 0.0, 1.0, 1.0], 2) == "▁█"


def test_what_is_no_number_is_crossed_out_and_does_not_flatten_the_rest():
    assert sparkline([0.0, math.nan, 1.0, math.inf], 8) == "▁×█×"
    assert sparkline([math.nan], 8) == "×"


@given(st.lists(st.floats(), max_size=60), st.integers(min_value=-2, max_value=40))
def test_a_sparkline_has_a_character_for_each_value_up_to_its_width(values, width):
    line = sparkline(values, width)
    assert len(line) == min(max(width, 0), len(values))
    assert set(line) <= {*BLOCKS, "×"}
    if width >= len(values) and values and all(map(math.isfinite, values)):
        heights = [BLOCKS.index(block) for block in line]
        assert all(heights[i] <= heights[j] for i in range(len(values)) for j in range(i) if values[i] < values[j])


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0s"), (59.6, "1m00s"), (570, "9m30s"), (3600, "1h00m"), (7512, "2h05m"), (9e4, "1d01h")]
)
def test_a_duration_has_its_two_largest_units(seconds, words):
    assert duration(seconds) == words

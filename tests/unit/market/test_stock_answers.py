"""How figures are written in the texts of the servers of market data, and which symbols can be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.server.mcpserver.exceptions import ToolError

from mcprl_market.making import checked_symbol, money, percent, shortened, whole


@pytest.mark.parametrize(
    ("amount", "text"),
    [(213.88, "$213.88"), (173.5, "$173.50"), (3, "$3.00"), (0.0685, "$0.0685"), (1234567.891, "$1234567.891"),
     (-0.24, "$-0.24"), (-0.00001, "$0.00"), (0.0, "$0.00"), (100.0, "$100.00"), (0.5700000000000001, "$0.57")],
)  # fmt: skip
def test_money_has_between_two_and_four_decimals(amount, text):
    assert money(amount) == text


@given(st.decimals(min_value=-(10**9), max_value=10**9, places=4, allow_nan=False))
def test_a_figure_of_up_to_four_decimals_is_read_back_as_it_was(amount):
    assert float(money(float(amount)).removeprefix("$")) == float(amount)
    assert float(percent(float(amount)).removesuffix("%")) == float(amount)


def test_whole_numbers_are_grouped():
    assert whole(3194468904000) == "3,194,468,904,000"


@pytest.mark.parametrize(
    ("text", "symbol"),
    [("aapl", "AAPL"), (" BRK.B ", "BRK.B"), ("^gspc", "^GSPC"), ("X:BTCUSD", "X:BTCUSD"), ("3", "3")],
)
def test_a_symbol_is_written_in_capitals(text, symbol):
    assert checked_symbol(text) == symbol


@pytest.mark.parametrize(
    "text", ["", " ", "A B", "A,B", "..", "../A", "A/B", "A?x=1", "A#", "é", "A" * 21, "-A", "A\n B"]
)
def test_a_bad_symbol_is_refused_in_a_sentence(text):
    with pytest.raises(ToolError, match="is not a ticker symbol"):
        checked_symbol(text)


def test_a_long_description_is_cut_and_shows_it():
    assert shortened(" a\n b ") == "a b"
    assert shortened("x" * 300) == "x" * 300
    assert shortened("x" * 301) == "x" * 300 + "..."

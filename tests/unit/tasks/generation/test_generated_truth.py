"""The answers of generated tasks against an oracle: the prompt is read, the raw cents are looked up, numpy computes."""

from __future__ import annotations

import re
from datetime import date
from fractions import Fraction

import numpy as np
import pytest
from split_leaks import WORLD, family_of, words_of

from mcprl_market.generation import generate
from mcprl_market.world import open_market

MARKET = open_market(WORLD)
TODAY = MARKET.today.isoformat()
SYMBOLS = {company.symbol for company in MARKET.companies}


def symbols(text):
    """The tickers in the order of the text, each once."""
    return list(dict.fromkeys(word for word in re.findall(r"[A-Z]+", text) if word in SYMBOLS))


def cents(symbol, column, start, end):
    days = MARKET.daily(symbol, date.fromisoformat(start), date.fromisoformat(end))
    return [getattr(prices, column) for _, prices in days]


def price(symbol):
    return Fraction(cents(symbol, "close", TODAY, TODAY)[0], 100)


def last_close(symbol):
    return Fraction(cents(symbol, "close", "2000-01-01", TODAY)[-2], 100)


def change(symbol):
    return (price(symbol) / last_close(symbol) - 1) * 100


def figures(symbol, *columns):
    """Of the last two fiscal years, newest first."""
    return [tuple(getattr(report, column) for column in columns) for report in MARKET.reports(symbol)[:2]]


def closes(symbol, days):
    return np.array(cents(symbol, "close", *days)) / 100


def market_cap(symbol):
    return price(symbol) * MARKET.company(symbol).shares


def growth(symbol):
    (new,), (old,) = figures(symbol, "revenue")
    return (Fraction(new, old) - 1) * 100


def week_return(symbol, days):
    series = closes(symbol, days)
    return (series[-1] / series[0] - 1) * 100


def days_in(text):
    return re.findall(r"\d{4}-\d{2}-\d{2}", text)[:2]


def first_and_second(text):
    """`{symbol} … {other}`, except where the wording names the other one first."""
    found = symbols(text)
    return found[::-1] if text.startswith("Take the price of") else found


def price_gap(text):
    one, other = map(price, first_and_second(text))
    return (one - other) / other * 100


def portfolio(text):
    return sum(int(count) * price(symbol) for count, symbol in re.findall(r"(\d+) shares of ([A-Z]+)", text))


def price_target(text):
    close = last_close(symbols(text)[0])
    return (int(re.search(r"\$(\d+)", text)[1]) - close) / close * 100


def net_margin(text):
    (income, revenue), _ = figures(symbols(text)[0], "net_income", "revenue")
    return Fraction(income, revenue) * 100


def value_to_sales(text):
    (symbol,) = symbols(text)
    return market_cap(symbol) / figures(symbol, "revenue")[0][0]


def volatility(text):
    series = closes(symbols(text)[0], days_in(text))
    return np.std(100 * np.diff(series) / series[:-1], ddof=1)


def correlation(text):
    return np.corrcoef(*(closes(symbol, days_in(text)) for symbol in symbols(text)))[0, 1]


def compound(text):
    rate = re.search(r"([\d.]+)%", text)[1]
    amount = re.search(r"\$(\d+)|(\d+) dollars", text)
    years = re.search(r"(\d+) years", text)[1]
    return int(amount[1] or amount[2]) * (1 + Fraction(rate) / 100) ** int(years)


def movers_average(text):
    count = int(re.search(r"\d+", text)[0])
    changes = sorted((float(change(symbol)) for symbol in SYMBOLS), reverse="gainer" in text)
    # The list shows changes to two decimals, and those are averaged.
    return np.mean([round(value, 2) for value in changes[:count]])


ORACLES = {
    "price": lambda text: price(symbols(text)[0]),
    "change-percent": lambda text: change(symbols(text)[0]),
    "previous-close": lambda text: last_close(symbols(text)[0]),
    "post-price": lambda text: price(symbols(text)[0]),
    "post-change": lambda text: change(symbols(text)[0]),
    "keep-price": lambda text: price(symbols(text)[0]),
    "price-if-open": lambda text: price(symbols(text)[0]),
    "price-gap": price_gap,
    "price-target": price_target,
    "larger-value": lambda text: max(map(market_cap, symbols(text))),
    "net-margin": net_margin,
    "week-average": lambda text: np.mean(closes(symbols(text)[0], days_in(text))),
    "week-return": lambda text: week_return(symbols(text)[0], days_in(text)),
    "week-volume": lambda text: sum(cents(symbols(text)[0], "volume", *days_in(text))),
    "largest-rise": lambda text: np.max(np.diff(closes(symbols(text)[0], days_in(text)))),
    "movers-average": movers_average,
    "compound": compound,
    "portfolio": portfolio,
    "growth-duel": lambda text: max(map(growth, symbols(text))),
    "best-week": lambda text: max(week_return(symbol, days_in(text)) for symbol in symbols(text)),
    "value-to-sales": value_to_sales,
    "volatility": volatility,
    "correlation": correlation,
}


@pytest.fixture(scope="module")
def tasks():
    train, validation = generate(WORLD)
    return (*train, *validation)


@pytest.mark.parametrize("family", ORACLES)
def test_answers_are_what_an_oracle_computes_from_the_prompt(tasks, family):
    asked = [task for task in tasks if family_of(task) == family]
    assert len(asked) >= 8
    for task in asked:
        assert abs(float(ORACLES[family](words_of(task))) - task.goal.answer.value) <= task.goal.answer.tolerance, (
            task.id
        )

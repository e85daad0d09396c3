"""What a run may spend: exact to the cent and to the call, and refused before it is spent."""
# R15

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcprl.config import BudgetSettings
from mcprl.errors import BudgetExceededError, ConfigurationError
from mcprl.tools.limits import Budget


def calls_made(settings: BudgetSettings, *, at_most: int = 1000) -> int:
    budget = Budget("fmp", settings)
    for made in range(at_most):
        try:
            budget.spend()
        except BudgetExceededError:
            assert budget.calls == made
            return made
    return at_most


@pytest.mark.parametrize("calls", [0, 1, 7])
def test_exactly_the_calls_allowed_are_made(calls):
    assert calls_made(BudgetSettings(calls=calls)) == calls


@pytest.mark.parametrize(
    ("usd", "price", "calls"), [(0.3, 0.1, 3), (0.29, 0.1, 2), (1.0, 0.01, 100), (0.7, 0.07, 10), (0.0, 0.01, 0)]
)
def test_money_is_counted_as_it_is_written(usd, price, calls):
    assert calls_made(BudgetSettings(usd=usd, usd_per_call=price)) == calls


def test_the_limit_reached_first_counts():
    assert calls_made(BudgetSettings(calls=2, usd=1.0, usd_per_call=0.1)) == 2
    assert calls_made(BudgetSettings(calls=20, usd=1.0, usd_per_call=0.1)) == 10


def test_calls_before_a_resume_count_too():
    budget = Budget("fmp", BudgetSettings(calls=5, usd=0.4, usd_per_call=0.1), earlier_calls=3)
    budget.spend()
    with pytest.raises(BudgetExceededError, match=r"used 0\.4 of 0\.4 USD"):
        budget.spend()
    assert budget.calls == 1


def test_without_limits_nothing_is_refused():
    assert calls_made(BudgetSettings()) == 1000
    assert calls_made(BudgetSettings(usd_per_call=5.0)) == 1000


def test_a_refused_call_is_not_counted_and_stays_refused():
    budget = Budget("fmp", BudgetSettings(usd=0.3, usd_per_call=0.1))
    for _ in range(3):
        budget.spend()
    for _ in range(2):
        with pytest.raises(BudgetExceededError):
            budget.spend()
    assert (budget.calls, budget.usd) == (3, 0.3)


@pytest.mark.parametrize(
    ("settings", "spent", "setting"),
    [
        (BudgetSettings(calls=1), "1 of 1 calls", "servers.settings.fmp.budget.calls"),
        (
            BudgetSettings(usd=0.0000015, usd_per_call=0.000001),
            "0.000001 of 0.0000015 USD",
            "servers.settings.fmp.budget.usd",
        ),
    ],
)
def test_the_error_says_what_was_spent_and_which_setting_to_raise(settings, spent, setting):
    budget = Budget("fmp", settings)
    budget.spend()
    with pytest.raises(BudgetExceededError) as caught:
        budget.spend()
    assert isinstance(caught.value, ConfigurationError)
    assert "'fmp'" in caught.value.what
    assert spent in caught.value.what
    assert f"raise {setting}," in caught.value.fix


@pytest.mark.parametrize("setting", ["calls", "usd"])
def test_a_raised_budget_allows_the_call_that_was_refused(setting):
    enough = {"calls": 2, "usd": 0.2, "usd_per_call": 0.1}
    assert calls_made(BudgetSettings(**enough | {setting: enough[setting] / 2})) == 1
    assert calls_made(BudgetSettings(**enough)) == 2


def test_a_call_that_was_not_made_gives_back_what_it_cost_and_no_more():
    budget = Budget("fmp", BudgetSettings(calls=2, usd=0.2, usd_per_call=0.1))
    budget.spend()
    budget.spend()
    budget.refund()
    assert (budget.calls, budget.usd) == (1, 0.1)
    budget.spend()
    with pytest.raises(BudgetExceededError):
        budget.spend()


CENTS = st.integers(0, 400)


@given(usd_cents=CENTS, price_cents=st.integers(1, 50), calls=st.none() | st.integers(0, 500))
def test_the_number_of_calls_is_the_largest_that_fits_both_limits(usd_cents, price_cents, calls):
    settings = BudgetSettings(calls=calls, usd=usd_cents / 100, usd_per_call=price_cents / 100)
    affordable = Fraction(usd_cents, price_cents).__floor__()
    assert calls_made(settings) == (affordable if calls is None else min(calls, affordable))

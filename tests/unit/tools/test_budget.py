"""What a run may spend: exact to the cent and to the call, and refused before it is spent."""
# R15

import pytest
from hypothesis import example, given
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


LIMITS = st.none() | st.integers(0, 400)


@given(calls=LIMITS, usd_cents=LIMITS, price_cents=st.integers(1, 50))
@example(calls=None, usd_cents=None, price_cents=50)
@example(calls=0, usd_cents=None, price_cents=1)
@example(calls=None, usd_cents=0, price_cents=1)
@example(calls=None, usd_cents=30, price_cents=10)
@example(calls=None, usd_cents=29, price_cents=10)
@example(calls=None, usd_cents=70, price_cents=7)
@example(calls=2, usd_cents=100, price_cents=10)
@example(calls=20, usd_cents=100, price_cents=10)
def test_the_number_of_calls_is_the_largest_that_fits_both_limits(calls, usd_cents, price_cents):
    usd = None if usd_cents is None else usd_cents / 100
    limits = [calls, None if usd_cents is None else usd_cents // price_cents]
    wanted = min([limit for limit in limits if limit is not None], default=1000)
    assert calls_made(BudgetSettings(calls=calls, usd=usd, usd_per_call=price_cents / 100)) == wanted


def test_calls_before_a_resume_count_too():
    budget = Budget("fmp", BudgetSettings(calls=5, usd=0.4, usd_per_call=0.1), earlier_calls=3)
    budget.spend()
    with pytest.raises(BudgetExceededError, match=r"used 0\.4 of 0\.4 USD"):
        budget.spend()
    assert budget.calls == 1


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

"""Errors in results: the ones in disguise, the honest ones, and whose fault they are."""
# R15

import pytest
from pydantic import ValidationError

from mcprl.config import ErrorRule
from mcprl.errors import Fault
from mcprl.tools.catalog import SEARCHED_CHARS, recognise
from processor_time import least_s

RULES = (
    ErrorRule(match="(?i)rate limit|upstream", fault="infrastructure"),
    ErrorRule(match=r'"error"\s*:\s*"'),
)


@pytest.mark.parametrize(
    ("text", "is_error", "fault"),
    [
        ('{"price": 3}', False, None),
        ('{"error": "no such symbol"}', False, Fault.POLICY),
        ('{"error": "Rate Limit reached"}', False, Fault.INFRASTRUCTURE),
        ("upstream timed out", True, Fault.INFRASTRUCTURE),
        ("no such file", True, Fault.POLICY),
        ("", False, None),
        ("", True, Fault.POLICY),
    ],
)
def test_the_first_rule_that_matches_decides_whatever_the_server_says(text, is_error, fault):
    assert recognise(text, is_error, RULES) is fault


def test_the_order_of_the_rules_counts():
    assert recognise('{"error": "rate limit"}', False, tuple(reversed(RULES))) is Fault.POLICY


@pytest.mark.parametrize(("is_error", "fault"), [(True, Fault.POLICY), (False, None)])
def test_without_rules_the_servers_word_counts(is_error, fault):
    assert recognise('{"error": "rate limit"}', is_error, ()) is fault


def test_a_rule_sees_the_beginning_of_a_long_result_and_no_more():
    last_seen = "x" * (SEARCHED_CHARS - len("upstream")) + "upstream"
    assert recognise(last_seen + "y" * 100_000, False, RULES) is Fault.INFRASTRUCTURE
    assert recognise("x" + last_seen, False, RULES) is None


@pytest.mark.parametrize("match", [r"\w+\s*: error", "^(a+)+$"])
def test_a_rule_that_backtracking_would_search_forever_does_not_hold_up_the_run(match):
    rules = [ErrorRule(match=match)]
    assert recognise("a" * 2000 + "!" + "a" * 65_536, False, rules) is None
    assert least_s(lambda: recognise("a" * 2000 + "!" + "a" * 65_536, False, rules)) < 5.0


def test_a_rule_that_cannot_be_searched_in_linear_time_is_refused_with_the_reason():
    with pytest.raises(ValidationError, match="look-around"):
        ErrorRule(match="(?!ok)error")

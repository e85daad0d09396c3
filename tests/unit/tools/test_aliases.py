"""Other names of tools and arguments: what they mean, and that nothing the policy wrote is ever lost."""
# R17

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcprl.tools.catalog import resolve_arguments, resolve_tool

BOTH_WAYS = {"ticker": "symbol", "symbol": "ticker"}

NAMES = st.sampled_from(["code", "python_code", "source", "symbol", "ticker"])
ARGUMENTS = st.dictionaries(NAMES, st.integers())
PROPERTIES = st.frozensets(NAMES)
ALIASES = st.dictionaries(NAMES, NAMES)


def test_an_alias_means_its_tool():
    assert resolve_tool("run_python", {"execute_python"}, {"run_python": "execute_python"}) == "execute_python"


def test_a_tool_that_is_offered_is_not_taken_for_an_alias():
    offered = {"run_python", "execute_python"}
    assert resolve_tool("run_python", offered, {"run_python": "execute_python"}) == "run_python"


@pytest.mark.parametrize("aliases", [{}, {"run_python": "execute_python"}, {"other": "search"}])
def test_a_name_that_means_no_offered_tool_comes_back_as_it_is(aliases):
    assert resolve_tool("run_python", {"search"}, aliases) == "run_python"


@pytest.mark.parametrize(("wrote", "known"), [("ticker", "symbol"), ("symbol", "ticker")])
def test_aliases_in_both_directions_serve_both_kinds_of_tool(wrote, known):
    assert resolve_arguments({wrote: "AAPL", "limit": 5}, {known, "limit"}, BOTH_WAYS) == {known: "AAPL", "limit": 5}


@pytest.mark.parametrize("known", ["symbol", "ticker"])
def test_the_right_name_is_left_alone(known):
    assert resolve_arguments({known: "AAPL"}, {known}, BOTH_WAYS) == {known: "AAPL"}


def test_both_names_given_stay_for_the_check_to_explain():
    given_both = {"ticker": "AAPL", "symbol": "MSFT"}
    assert resolve_arguments(given_both, {"symbol"}, BOTH_WAYS) == given_both


def test_two_aliases_of_one_argument_stay_for_the_check_to_explain():
    given_both = {"python_code": "1", "source": "2"}
    assert resolve_arguments(given_both, {"code"}, {"python_code": "code", "source": "code"}) == given_both


def test_aliases_do_not_chain():
    assert resolve_arguments({"a": 1}, {"c"}, {"a": "b", "b": "c"}) == {"a": 1}


def test_the_order_of_arguments_is_kept():
    resolved = resolve_arguments({"z": 1, "ticker": 2, "a": 3}, {"a", "symbol", "z"}, BOTH_WAYS)
    assert list(resolved) == ["z", "symbol", "a"]


@given(ARGUMENTS, PROPERTIES, ALIASES)
def test_every_value_survives_in_its_place_under_its_name_or_the_one_meant(arguments, properties, aliases):
    resolved = resolve_arguments(arguments, properties, aliases)
    assert list(resolved.values()) == list(arguments.values())
    for before, after in zip(arguments, resolved, strict=True):
        assert after == before or (before not in properties and after in properties and aliases[before] == after)


@given(ARGUMENTS, PROPERTIES, ALIASES)
def test_an_alias_that_is_alone_in_meaning_an_argument_is_resolved(arguments, properties, aliases):
    resolved = resolve_arguments(arguments, properties, aliases)
    for name in arguments:
        meant = aliases.get(name)
        rivals = [other for other in arguments if other == meant or (aliases.get(other) == meant and other != name)]
        if meant in properties and name not in properties and not rivals:
            assert resolved[meant] == arguments[name]


@given(ARGUMENTS, PROPERTIES, ALIASES)
def test_resolving_again_changes_nothing_and_the_policys_own_record_is_untouched(arguments, properties, aliases):
    written = dict(arguments)
    resolved = resolve_arguments(arguments, properties, aliases)
    assert arguments == written
    assert resolve_arguments(resolved, properties, aliases) == resolved
    resolved["new"] = 1
    assert "new" not in arguments

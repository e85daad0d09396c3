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


PYTHON = {"run_python": "execute_python"}


@pytest.mark.parametrize(
    ("offered", "aliases", "meant"),
    [
        ({"execute_python"}, PYTHON, "execute_python"),
        ({"run_python", "execute_python"}, PYTHON, "run_python"),
        ({"search"}, {}, "run_python"),
        ({"search"}, PYTHON, "run_python"),
        ({"search"}, {"other": "search"}, "run_python"),
    ],
)
def test_an_alias_means_its_tool_unless_the_name_itself_is_offered_or_neither_is(offered, aliases, meant):
    assert resolve_tool("run_python", offered, aliases) == meant


@pytest.mark.parametrize(
    ("wrote", "known", "aliases", "resolved"),
    [
        ({"ticker": "AAPL", "limit": 5}, {"symbol", "limit"}, BOTH_WAYS, {"symbol": "AAPL", "limit": 5}),
        ({"symbol": "AAPL", "limit": 5}, {"ticker", "limit"}, BOTH_WAYS, {"ticker": "AAPL", "limit": 5}),
        ({"symbol": "AAPL"}, {"symbol"}, BOTH_WAYS, {"symbol": "AAPL"}),
        ({"ticker": "AAPL"}, {"ticker"}, BOTH_WAYS, {"ticker": "AAPL"}),
        ({"z": 1, "ticker": 2, "a": 3}, {"a", "symbol", "z"}, BOTH_WAYS, {"z": 1, "symbol": 2, "a": 3}),
        # What is ambiguous stays for the check to explain.
        ({"ticker": "AAPL", "symbol": "MSFT"}, {"symbol"}, BOTH_WAYS, {"ticker": "AAPL", "symbol": "MSFT"}),
        ({"a": "1", "b": "2"}, {"code"}, {"a": "code", "b": "code"}, {"a": "1", "b": "2"}),
        # Aliases do not chain.
        ({"a": 1}, {"c"}, {"a": "b", "b": "c"}, {"a": 1}),
    ],
)
def test_an_argument_goes_under_the_name_it_means_in_its_place(wrote, known, aliases, resolved):
    assert list(resolve_arguments(wrote, known, aliases).items()) == list(resolved.items())


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

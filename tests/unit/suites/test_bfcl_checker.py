"""The checker of BFCL without `eval`: the same verdicts as the official one, on answers and on damaged answers.

The official checker evaluates Python texts. Here it is given only texts of the wheel itself and our changes to them.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("bfcl_eval", reason="needs the wheel: pip install --no-deps bfcl-eval==2026.3.23 mpmath")

from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

from mcprl.errors import Fault
from mcprl.records import FinishReason, Observation, ToolCall, Turn
from mcprl_suites.bfcl.suite import Failure, MadeCall, calls_before_offer, check, gold_calls, made_calls, read_call
from mcprl_suites.bfcl.wheel import CATEGORIES, entries, entry_of

ENTRIES = [entry for category in CATEGORIES for entry in entries(category).values()]
OFFICIAL = {
    "multi_turn:empty_turn_model_response": Failure.NO_CALL,
    "multi_turn:instance_state_mismatch": Failure.WRONG_STATE,
    "multi_turn:execution_response_mismatch": Failure.MISSING_RESULT,
}
MUTATED = 240


def written(call):
    """A call as the official checker reads it."""
    return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"


def ours(entry, calls):
    return check(entry, [[[MadeCall(call=call) for call in made]] if made else [] for made in calls])


def official(entry, calls, run):
    """The official verdict. It keeps worlds by the name of the model, so each run has a name of its own."""
    decoded = [[[written(call) for call in made]] if made else [] for made in calls]
    gold = [[written(call) for call in made] for made in gold_calls(entry)]
    row = {"id": entry.id, "initial_config": entry.config, "involved_classes": list(entry.simulators)}
    verdict = multi_turn_checker(decoded, gold, row, entry.category, run)
    return None if verdict["valid"] else OFFICIAL[verdict["error_type"]]


def changed_value(value):
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value + "x"
        case list() if value:
            return value[1:]
        case _:
            return value


def mutated(calls, draw):
    """Gold calls with one dropped, one argument changed, one made twice, one of another message put in, or none."""
    changed = [list(made) for made in calls]
    places = [(i, j) for i, made in enumerate(changed) for j in range(len(made))]
    i, j = draw.choice(places)
    call = changed[i][j]
    kind = draw.choice(["drop", "argument", "twice", "elsewhere", "none"])
    match kind:
        case "drop":
            del changed[i][j]
        case "argument" if call.arguments:
            name = draw.choice(sorted(call.arguments))
            arguments = {**call.arguments, name: changed_value(call.arguments[name])}
            changed[i][j] = ToolCall(name=call.name, arguments=arguments)
        case "elsewhere":
            changed[draw.randrange(len(changed))].append(call)
        case "none":
            changed = [[] for _ in changed]
        case _:
            changed[i].insert(j, call)
    return kind, changed


@pytest.mark.slow
def test_every_official_answer_is_right_for_both_checkers():
    differing = [e.id for e in ENTRIES if (ours(e, gold_calls(e)), official(e, gold_calls(e), "gold")) != (None, None)]
    assert differing == []
    assert len(ENTRIES) == 800


def test_without_calls_both_checkers_find_nothing_solved():
    none = {e.id: [[] for _ in e.messages] for e in ENTRIES}
    assert Counter(ours(e, none[e.id]) for e in ENTRIES) == {Failure.NO_CALL: 800}
    assert Counter(official(e, none[e.id], "none") for e in ENTRIES) == {Failure.NO_CALL: 800}


def test_damaged_answers_get_the_official_verdict():
    draw = random.Random(5)
    verdicts = Counter()
    for number in range(MUTATED):
        entry = draw.choice(ENTRIES)
        kind, calls = mutated(gold_calls(entry), draw)
        verdict = ours(entry, calls)
        assert verdict == official(entry, calls, f"mutated-{number}"), (entry.id, kind)
        verdicts[verdict] += 1
    # Every kind of verdict was met, so agreeing on all of them says something.
    assert set(verdicts) == {None, *OFFICIAL.values()}


def test_a_conversation_that_was_broken_off_is_unfinished():
    entry = entry_of("multi_turn_base_0")
    assert ours(entry, gold_calls(entry)[:-1]) is Failure.UNFINISHED


def observed(call, **changes):
    return Observation(**{"tool": call.name, "server": "bfcl", "text": "{}", "latency_s": 0.1, **changes})


def turn(*pairs):
    return Turn(
        text="",
        sampled_ids=(),
        finish=FinishReason.STOP,
        weights_version=0,
        calls=tuple(call for call, _ in pairs),
        observations=tuple(seen for _, seen in pairs),
    )


def test_only_calls_that_reached_a_simulator_are_made_again():
    entry = entry_of("multi_turn_base_0")
    cd = ToolCall(name="cd", arguments={"folder": "document"})
    wrong = ToolCall(name="cd", arguments={"folder": 3})
    unknown = ToolCall(name="fly", arguments={})
    garbled = ToolCall(name="", arguments={}, problem="no JSON")
    refused = {"fault": Fault.POLICY, "text": "no"}
    made = made_calls(
        [
            turn((cd, observed(cd)), (wrong, observed(wrong, **refused))),
            turn((unknown, observed(unknown, server=None, **refused))),
            turn((garbled, observed(garbled, server=None, **refused))),
            turn(),
            turn(),
        ]
    )
    assert [[[(m.call.name, m.refusal) for m in step] for step in steps] for steps in made] == [
        [[("cd", None), ("cd", "no")], [("fly", "no")], [], []],
        [[]],
    ]
    assert check(entry, [*made, [], []]) is Failure.WRONG_STATE


def test_answers_without_names_of_arguments_are_read_by_their_order():
    assert read_call("sort('a.txt')") == ToolCall(name="sort", arguments={"file_name": "a.txt"})
    assert read_call("mv(source='a', destination='b')").arguments == {"source": "a", "destination": "b"}


@pytest.mark.parametrize("text", ["__import__('os').system('ls')", "cd(folder=open('x'))", "1 + 1", "cd(**x)", "cd("])
def test_anything_but_a_call_with_literals_is_refused(text):
    with pytest.raises(ValueError, match=r".*"):
        read_call(text)


literals = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["folder", "name", "value"]), literals))
def test_a_written_call_is_read_back_as_it_was(arguments):
    call = ToolCall(name="cd", arguments=arguments)
    assert read_call(written(call)) == call


def test_one_answer_calls_a_function_before_it_is_announced():
    early = {e.id: calls_before_offer(e, gold_calls(e)) for e in ENTRIES}
    assert {task: names for task, names in early.items() if names} == {"multi_turn_miss_func_49": {"tail"}}

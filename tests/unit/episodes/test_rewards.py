"""Each part of the reward, and the alignment of calls against every alignment there is."""
# R19

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from staged_episodes import call, made_turn

from mcprl.config import RewardsConfig
from mcprl.episodes.rewards import score, weigh
from mcprl.records import ExpectedCall, Goal, StopReason

names = st.sampled_from(["a", "b", "c"])
arguments = st.dictionaries(st.sampled_from(["x", "y"]), st.integers(0, 2), max_size=2)
expected_calls = st.lists(st.builds(lambda n, a: ExpectedCall(tool=n, arguments=a), names, arguments), max_size=4)
made_calls = st.lists(st.builds(lambda n, a: call(n, **a), names, arguments), max_size=5)


def parts(goal: Goal, *turns, answer: str | None = None, stop: StopReason | None = None) -> dict[str, float]:
    return score(goal, turns, answer, stop)


def every_alignment(expected, made):
    """(calls, arguments) of every way to pair expected with made calls of the same tool, in order."""
    for size in range(min(len(expected), len(made)) + 1):
        for wanted in combinations(expected, size):
            for given_calls in combinations(made, size):
                pairs = list(zip(wanted, given_calls, strict=True))
                if all(w.tool == g.name for w, g in pairs):
                    shares = [
                        sum(g.arguments.get(k, object()) == v for k, v in w.arguments.items()) / len(w.arguments)
                        if w.arguments
                        else 1.0
                        for w, g in pairs
                    ]
                    yield float(size), sum(shares)


@given(expected_calls.filter(bool), made_calls)
@settings(deadline=None)
def test_calls_and_arguments_are_those_of_the_best_of_all_alignments(expected, made):
    found = parts(Goal(calls=tuple(expected)), made_turn(*((c, True) for c in made)))
    pair = (found["calls"] * len(expected), found["arguments"] * len(expected))
    possible = list(every_alignment(expected, made))
    assert sum(pair) == pytest.approx(max(sum(p) for p in possible))
    assert any(pair == pytest.approx(p) for p in possible)


@given(expected_calls, st.lists(made_calls, max_size=4))
@settings(deadline=None)
def test_how_calls_are_spread_over_turns_does_not_matter(expected, spread):
    goal = Goal(calls=tuple(expected))
    turns = [made_turn(*((c, True) for c in calls)) for calls in spread]
    together = made_turn(*((c, True) for calls in spread for c in calls))
    assert parts(goal, *turns) == parts(goal, together)


@given(expected_calls, made_calls, made_calls)
@settings(deadline=None)
def test_more_calls_never_come_to_less(expected, made, more):
    goal = Goal(calls=tuple(expected))
    few, many = (parts(goal, made_turn(*((c, True) for c in calls))) for calls in (made, made + more))
    assert many["calls"] + many["arguments"] >= few["calls"] + few["arguments"] - 1e-12


def test_a_goal_without_calls_asks_for_none():
    found = parts(Goal(), made_turn((call("a"), True)))
    assert (found["calls"], found["arguments"]) == (1.0, 1.0)


def test_calls_out_of_order_count_once():
    goal = Goal(calls=(ExpectedCall(tool="a"), ExpectedCall(tool="b")))
    assert parts(goal, made_turn((call("b"), True), (call("a"), True)))["calls"] == 0.5


def test_the_better_of_two_calls_of_one_tool_is_the_one_that_counts():
    goal = Goal(calls=(ExpectedCall(tool="a", arguments={"x": 1, "y": 2}),))
    found = parts(goal, made_turn((call("a", x=0), True), (call("a", x=1, y=2), True), (call("a", x=1), True)))
    assert (found["calls"], found["arguments"]) == (1.0, 1.0)


def test_arguments_not_asked_for_are_free_and_missing_ones_are_not_right():
    goal = Goal(calls=(ExpectedCall(tool="a", arguments={"x": None, "y": 2}),))
    assert parts(goal, made_turn((call("a", y=2, z=9), True)))["arguments"] == 0.5


def test_a_call_that_failed_counts_against_and_not_for():
    goal = Goal(calls=(ExpectedCall(tool="a"),))
    found = parts(goal, made_turn((call("a"), False), (call("a"), False)))
    assert (found["calls"], found["arguments"], found["invalid_call"]) == (0.0, 0.0, 2.0)


@pytest.mark.parametrize(
    ("expected", "given", "right"),
    [
        ("23:30", "It is 23:30 in Tokyo.", True),
        ("23:30", "23:30", True),
        ("3:30", "It is 23:30.", False),
        ("23:3", "It is 23:30.", False),
        ("America/Lima", "america/lima!", True),
        ("Lima", "Limassol", False),
        ("a.c", "abc", False),
        ("C++", "We use C++.", True),
        ("Zürich", "in ZÜRICH", True),
        ("5", "It is 3.5.", False),
        ("30", "It is 23:30.", False),
        ("23:30", "", False),
        (None, "anything", True),
        (None, "", False),
    ],
)
def test_the_answer_must_stand_in_the_text_as_a_word_of_its_own(expected, given, right):
    found = parts(Goal(answer=expected), answer=given, stop=StopReason.ANSWERED)
    assert found["answer"] == float(right)


def test_without_a_final_turn_there_is_no_answer():
    assert parts(Goal(answer=None), made_turn((call("a"), True)))["answer"] == 0.0


@pytest.mark.parametrize("stop", [None, *StopReason])
def test_only_an_end_without_an_answer_is_unanswered(stop):
    assert parts(Goal(), stop=stop)["unanswered"] == float(stop not in (None, StopReason.ANSWERED))


def test_the_reward_is_the_sum_of_the_parts_by_their_weights_and_faults_are_taken_off():
    weights = RewardsConfig(answer=3.0, calls=0.5, arguments=0.25, invalid_call=0.125, unanswered=2.0)
    found = {"answer": 1.0, "calls": 0.5, "arguments": 1.0, "invalid_call": 2.0, "unanswered": 1.0}
    assert weigh(found, weights) == 3.0 + 0.25 + 0.25 - 0.25 - 2.0

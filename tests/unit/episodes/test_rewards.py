"""Each part of the reward, the pairing of calls, and the weighted result."""
# R19

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from staged_episodes import call, made_turn

from mcprl.config import RewardsConfig
from mcprl.episodes.rewards import score, succeeded, weigh
from mcprl.errors import BadValueError
from mcprl.goals import AnyText, Contains, ExpectedCall, ExpectedState, ExpectedWrite, Goal, HasAll
from mcprl.records import StopReason

WEIGHTS = RewardsConfig()
STATE = (ExpectedState(tool="look"),)
TWO = (ExpectedCall(tool="a", arguments={"x": 1}), ExpectedCall(tool="b", arguments={"y": 2, "z": 3}))

names = st.sampled_from(["a", "b", "c"])
arguments = st.dictionaries(st.sampled_from(["x", "y"]), st.integers(0, 2), max_size=2)
expected_calls = st.lists(st.builds(lambda n, a: ExpectedCall(tool=n, arguments=a), names, arguments), max_size=4)
made_calls = st.lists(st.builds(lambda n, a: call(n, **a), names, arguments), max_size=5)
weights_drawn = st.builds(
    RewardsConfig,
    **{name: st.floats(0.01, 3) for name in ("answer", "state", "calls", "arguments", "efficiency")},
)


def parts(goal: Goal, *turns, answer: str | None = None, stop: StopReason | None = None, **known) -> dict[str, float]:
    return score(goal, turns, answer, stop, **({"weights": WEIGHTS} | known))


def worked(*calls):
    return made_turn(*((made, True) for made in calls))


def every_pairing(expected, made, *, in_any_order: bool):
    """(calls, right arguments) of every way to pair expected with made calls of the same tool."""
    for size in range(min(len(expected), len(made)) + 1):
        for wanted in combinations(expected, size):
            for given_calls in permutations(made, size) if in_any_order else combinations(made, size):
                pairs = list(zip(wanted, given_calls, strict=True))
                if all(w.tool == g.name for w, g in pairs):
                    yield size, sum(g.arguments.get(k) == v for w, g in pairs for k, v in w.arguments.items())


@given(expected_calls.filter(bool), made_calls, weights_drawn, st.booleans())
def test_no_pairing_of_calls_would_bring_a_higher_reward(expected, made, weights, in_any_order):
    goal = Goal(calls=tuple(expected), in_any_order=in_any_order)
    found = parts(goal, worked(*made), weights=weights)
    wanted = sum(len(e.arguments) for e in expected)
    thrift = min(1.0, len(expected) / len(made)) if made else 0.0
    rewards = []
    for calls, right in every_pairing(expected, made, in_any_order=in_any_order):
        possible = {"calls": calls / len(expected), "efficiency": calls / len(expected) * thrift}
        if wanted:
            possible["arguments"] = right / wanted
        rewards.append(weigh(possible | {"invalid_call": 0.0, "unanswered": 0.0}, weights))
    assert weigh(found, weights) == pytest.approx(max(rewards), abs=1e-9)


@pytest.mark.parametrize(
    ("weights", "calls", "right"),
    [({"calls": 1.0, "arguments": 0.1}, 2 / 3, 0.0), ({"calls": 0.1, "arguments": 1.0}, 1 / 3, 1.0)],
)
def test_the_weights_decide_between_pairings_that_are_each_better_in_one_part(weights, calls, right):
    goal = Goal(calls=(ExpectedCall(tool="a", arguments={"x": 1}), ExpectedCall(tool="b"), ExpectedCall(tool="c")))
    turn = worked(call("b"), call("c"), call("a", x=1))
    found = parts(goal, turn, weights=RewardsConfig(efficiency=0, **weights))
    assert (found["calls"], found["arguments"]) == (pytest.approx(calls), right)


def test_parts_without_weight_are_measured_all_the_same():
    found = parts(Goal(calls=TWO), worked(call("a", x=1)), weights=RewardsConfig(calls=0, arguments=0, efficiency=0))
    assert (found["calls"], found["arguments"], found["efficiency"]) == (0.5, 1 / 3, 0.5)


@given(expected_calls, st.lists(made_calls, max_size=4))
def test_how_calls_are_spread_over_turns_does_not_matter(expected, spread):
    goal = Goal(calls=tuple(expected))
    assert parts(goal, *(worked(*calls) for calls in spread)) == parts(goal, worked(*(c for cs in spread for c in cs)))


@given(expected_calls.filter(bool), made_calls, made_calls, st.booleans())
def test_more_calls_never_come_to_less_but_for_efficiency(expected, made, more, in_any_order):
    goal = Goal(calls=tuple(expected), in_any_order=in_any_order)
    weights = RewardsConfig(efficiency=0)
    few, many = (weigh(parts(goal, worked(*calls), weights=weights), weights) for calls in (made, made + more))
    assert many >= few - 1e-9


def test_only_what_the_goal_checks_is_a_part():
    counts = {"invalid_call", "unanswered"}
    assert set(parts(Goal(answer=Contains(text="a")))) == {"answer"} | counts
    assert set(parts(Goal(state=STATE))) == {"state"} | counts
    assert set(parts(Goal(calls=TWO))) == {"calls", "arguments", "efficiency"} | counts
    assert set(parts(Goal(calls=(ExpectedCall(tool="a"),)))) == {"calls", "efficiency"} | counts
    assert set(parts(Goal(min_calls=2))) == {"calls", "efficiency"} | counts
    assert set(parts(Goal(rubric="Polite."), graded={"rubric": 0.5})) == {"rubric"} | counts
    assert set(parts(Goal(rubric="Polite."))) == counts


def test_calls_out_of_order_count_once_if_the_order_matters_and_fully_if_it_does_not():
    turn = worked(call("b", y=2, z=3), call("a", x=1))
    in_order, in_any = (parts(Goal(calls=TWO, in_any_order=free), turn) for free in (False, True))
    assert (in_order["calls"], in_order["arguments"]) == (0.5, 2 / 3)
    assert (in_any["calls"], in_any["arguments"]) == (1.0, 1.0)


def test_the_better_of_two_calls_of_one_tool_is_the_one_that_counts():
    goal = Goal(calls=(ExpectedCall(tool="a", arguments={"x": 1, "y": 2}),))
    found = parts(goal, worked(call("a", x=0), call("a", x=1, y=2), call("a", x=1)))
    assert (found["calls"], found["arguments"]) == (1.0, 1.0)


def test_arguments_not_asked_for_are_free_and_missing_ones_are_not_right():
    goal = Goal(calls=(ExpectedCall(tool="a", arguments={"x": None, "y": 2}),))
    assert parts(goal, worked(call("a", y=2, z=9)))["arguments"] == 0.5


@pytest.mark.parametrize(
    ("wanted", "given", "same"),
    [
        ("VLKN", " vlkn\n", True),
        ("VLKN", "VLK", False),
        (5, 5.0, True),
        (5, 5.5, False),
        (5, "5", False),
        (1, True, False),
        (True, 1, False),
        (True, True, True),
        (False, 0, False),
        (None, None, True),
        (None, 0, False),
        ([1, "A"], [1.0, "a "], True),
        ([1, 2], [2, 1], False),
        ([1], [1, 1], False),
        ([1], [True], False),
        ({"s": "A", "n": [1]}, {"n": [1.0], "s": "a"}, True),
        ({"s": "A"}, {"s": "A", "t": 1}, False),
        ([1], {"0": 1}, False),
        ("a", ["a"], False),
    ],
)
def test_arguments_are_compared_as_a_reasonable_reader_would(wanted, given, same):
    goal = Goal(calls=(ExpectedCall(tool="a", arguments={"x": wanted}),))
    assert parts(goal, worked(call("a", x=given)))["arguments"] == float(same)


def test_a_call_that_failed_counts_against_and_not_for():
    goal = Goal(calls=(ExpectedCall(tool="a"),))
    found = parts(goal, made_turn((call("a"), False), (call("a"), False)))
    assert (found["calls"], found["efficiency"], found["invalid_call"]) == (0.0, 0.0, 2.0)


def test_the_tool_that_answered_counts_if_the_policy_used_an_alias():
    turn = worked(call("alias"))
    turn = replace(turn, observations=(replace(turn.observations[0], tool="a"),))
    assert parts(Goal(calls=(ExpectedCall(tool="a"),)), turn)["calls"] == 1.0


def test_an_argument_given_by_its_alias_is_correct():
    goal = Goal(calls=(ExpectedCall(tool="a", arguments={"symbol": "X"}),))
    turn = worked(call("a", ticker="X"))
    assert parts(goal, turn)["arguments"] == 0.0
    turn = replace(turn, observations=(replace(turn.observations[0], arguments={"symbol": "X"}),))
    assert parts(goal, turn)["arguments"] == 1.0


@pytest.mark.parametrize(("made", "efficiency"), [(0, 0.0), (1, 0.5), (2, 1.0), (3, 2 / 3), (4, 0.5), (20, 0.1)])
def test_calls_beyond_those_needed_cost_efficiency(made, efficiency):
    goal = Goal(calls=(ExpectedCall(tool="a"), ExpectedCall(tool="a")))
    assert parts(goal, worked(*[call("a")] * made))["efficiency"] == pytest.approx(efficiency)


def test_failed_calls_cost_efficiency_too():
    goal = Goal(calls=(ExpectedCall(tool="a"),))
    assert parts(goal, made_turn((call("a"), False), (call("a"), True)))["efficiency"] == 0.5


def test_too_few_calls_in_all_scale_the_share_of_calls():
    goal = Goal(calls=(ExpectedCall(tool="a"),), min_calls=4)
    assert parts(goal, worked(call("a")))["calls"] == 0.25
    enough = parts(goal, worked(*[call("a")] * 4))
    assert (enough["calls"], enough["efficiency"]) == (1.0, 1.0)
    assert parts(Goal(min_calls=2), worked(call("x")))["calls"] == 0.5
    assert parts(Goal(min_calls=2), made_turn((call("x"), False), (call("x"), True)))["calls"] == 0.5


@given(expected_calls.filter(bool), made_calls, st.integers(0, 3), st.booleans())
def test_an_injected_failure_counts_neither_for_the_policy_nor_against_it(expected, made, where, in_any_order):
    goal = Goal(calls=tuple(expected), in_any_order=in_any_order, min_calls=2)
    turns = [worked(made_call) for made_call in made]
    injected = made_turn(*((call(e.tool, **e.arguments), None) for e in expected))
    assert parts(goal, *turns[:where], injected, *turns[where:]) == parts(goal, *turns)


def test_without_a_final_turn_there_is_no_answer():
    assert parts(Goal(answer=AnyText()), worked(call("a")))["answer"] == 0.0


@pytest.mark.parametrize("blank", ["", " \n"])
def test_a_blank_answer_meets_nothing_not_even_a_check_for_what_must_not_be_said(blank):
    goal = Goal(answer=HasAll(members=(), none_of=("HALE",)))
    assert parts(goal, answer=blank, stop=StopReason.ANSWERED)["answer"] == 0.0
    assert parts(goal, answer="Nothing.", stop=StopReason.ANSWERED)["answer"] == 1.0


def test_an_answer_that_anybody_could_give_is_worth_no_more_than_what_was_done():
    def answer_of(*turns, goal: dict, **known) -> float:
        return parts(Goal(answer=AnyText(), **goal), *turns, answer="x", stop=StopReason.ANSWERED, **known)["answer"]

    assert answer_of(goal={}) == 1.0
    assert answer_of(goal={"calls": TWO}) == 0.0
    assert answer_of(worked(call("a")), goal={"calls": TWO}) == 0.5
    assert answer_of(worked(call("a"), call("b")), goal={"calls": TWO}) == 1.0
    assert answer_of(worked(call("a"), call("b")), goal={"calls": TWO, "state": STATE}, state=0.25) == 0.25
    assert answer_of(goal={"rubric": "Polite."}, graded={"rubric": 0.3}) == 0.3


@pytest.mark.parametrize("stop", [None, *StopReason])
def test_only_an_end_without_an_answer_is_unanswered(stop):
    assert parts(Goal(), stop=stop)["unanswered"] == float(stop not in (None, StopReason.ANSWERED))


def test_the_reward_is_the_weighted_mean_of_the_parts_there_are_and_faults_are_taken_off():
    weights = RewardsConfig(answer=3.0, state=9.0, calls=0.5, arguments=0.5, penalty=0.125)
    found = {"answer": 1.0, "calls": 0.5, "arguments": 0.0, "invalid_call": 2.0, "unanswered": 1.0}
    assert weigh(found, weights) == (3.0 + 0.25) / 4.0 - 0.375


full_goals = st.builds(
    Goal,
    answer=st.sampled_from([None, Contains(text="42")]),
    calls=expected_calls.map(tuple),
    in_any_order=st.booleans(),
    state=st.sampled_from([(), STATE]),
    rubric=st.sampled_from([None, "Polite."]),
).filter(lambda goal: goal.answer or goal.calls or goal.state or goal.rubric)


@given(full_goals, weights_drawn)
def test_a_perfect_episode_is_worth_exactly_one_and_an_idle_one_exactly_nothing(goal, weights):
    calls = [call(e.tool, **e.arguments) for e in goal.calls]
    perfect = parts(
        goal,
        worked(*calls),
        answer="It is 42.",
        stop=StopReason.ANSWERED,
        state=1.0,
        graded={"rubric": 1.0},
        weights=weights,
    )
    idle = parts(
        goal, made_turn(), answer="", stop=StopReason.ANSWERED, state=0.0, graded={"rubric": 0.0}, weights=weights
    )
    assert weigh(perfect, weights) == 1.0
    assert weigh(idle, weights) == 0.0
    assert succeeded(perfect)
    assert not succeeded(idle)


@given(full_goals, made_calls, st.floats(0, 1), st.floats(0, 1), weights_drawn)
def test_no_reward_is_outside_the_bounds(goal, made, state, grade, weights):
    turn = made_turn(*((c, n % 2 == 0) for n, c in enumerate(made)))
    found = parts(
        goal,
        turn,
        answer="42",
        stop=StopReason.ANSWERED,
        state=state,
        graded={} if grade is None else {"rubric": grade},
        weights=weights,
    )
    assert -1.0 <= weigh(found, weights) <= 1.0
    assert all(0.0 <= found[name] <= 1.0 for name in found if name not in ("invalid_call", "unanswered"))


def test_many_faults_are_clipped():
    found = {"answer": 0.0, "invalid_call": 1000.0, "unanswered": 1.0}
    assert weigh(found, WEIGHTS) == -1.0


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ({"answer": 1.0, "state": 1.0}, r"the goal checks only parts with weight 0 \(answer, state\)"),
        ({}, "the goal checks nothing"),
    ],
)
def test_a_goal_that_nothing_can_be_gained_from_is_an_error_and_no_division_by_zero(found, why):
    with pytest.raises(BadValueError, match=why):
        weigh(found | {"invalid_call": 0.0, "unanswered": 0.0}, RewardsConfig(answer=0, state=0))


@pytest.mark.parametrize(
    ("found", "success"),
    [
        ({"answer": 1.0, "calls": 0.0}, True),
        ({"answer": 0.0, "calls": 1.0}, False),
        ({"answer": 1.0, "state": 0.5}, False),
        ({"answer": 1.0, "state": 1.0, "rubric": 0.5}, True),
        ({"rubric": 0.4}, False),
        ({"calls": 1.0, "arguments": 0.5}, True),
        ({"calls": 0.5}, False),
        ({"invalid_call": 0.0}, False),
    ],
)
def test_success_is_what_came_out_or_else_every_needed_call(found, success):
    assert succeeded(found) is success


@pytest.mark.parametrize(
    ("made", "share"),
    [
        ([], 0.0),
        ([call("post", channel="general", text="VLKN rose")], 1.0),
        ([call("post", channel="General", text="x"), call("post", channel="general", text="vlkn")], 1.0),
        ([call("post", channel="random", text="VLKN rose")], 0.0),
        ([call("post", channel="general", text="x")], 0.0),
        ([call("post", channel="general")], 0.0),
        ([call("say", channel="general", text="VLKN rose")], 0.0),
    ],
)
def test_a_write_counts_as_state_if_a_call_that_worked_has_its_arguments_and_texts(made, share):
    write = ExpectedWrite(tool="post", arguments={"channel": "general"}, texts={"text": (Contains(text="VLKN"),)})
    assert parts(Goal(writes=(write,)), worked(*made))["state"] == share
    refused = made_turn(*((each, False) for each in made))
    assert parts(Goal(writes=(write,)), refused)["state"] == 0.0


def test_states_and_writes_share_one_part():
    goal = Goal(state=STATE, writes=(ExpectedWrite(tool="post"), ExpectedWrite(tool="pin")))
    assert parts(goal, worked(call("post")), state=1.0)["state"] == pytest.approx(2 / 3)

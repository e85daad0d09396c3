"""Every failed episode has exactly one named reason, and it is the one to mend first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_evaluations import a_call, make_trajectory, said
from mcprl.evaluation.outcomes import (
    UNKNOWN_TOOL,
    CallFate,
    EpisodeOutcome,
    FailureKind,
    Judged,
    TaskSuite,
    failure_of,
    outcome_of,
)
from mcprl.goals import Contains, ExpectedCall, Goal
from mcprl.records import StopReason, Task

FIND = ExpectedCall(tool="find", arguments={"name": "Ana"})
GOAL = Goal(answer=Contains(text="Lima"), calls=(FIND,))
TASK = Task(id="t", prompt=({"role": "user", "content": "?"},), goal=GOAL)


@pytest.mark.parametrize(
    ("turns", "stop", "parts", "kind"),
    [
        ([said("bla")], StopReason.CUT_BY_LENGTH, {}, "cut by length"),
        ([said("", a_call("find"))], StopReason.CONTEXT_LIMIT, {}, "context limit"),
        ([said("", a_call("find"))], StopReason.DEADLINE, {}, "deadline"),
        ([said("", a_call("find"))], StopReason.TURN_LIMIT, {}, "turn limit"),
        ([said("", a_call("find", "refused"))], StopReason.TURN_LIMIT, {}, "invalid calls only"),
        ([said("", a_call("find", "failed"))], StopReason.TURN_LIMIT, {}, "tool error never recovered"),
        ([said("", a_call("fnd", "unknown")), said("Rome")], StopReason.ANSWERED, {}, "invalid calls only"),
        ([said("", a_call("", "malformed")), said("Rome")], StopReason.ANSWERED, {}, "invalid calls only"),
        ([said("", a_call("find", "failed")), said("Rome")], StopReason.ANSWERED, {}, "tool error never recovered"),
        ([said("", a_call("find", "injected")), said("Rome")], StopReason.ANSWERED, {}, "tool error never recovered"),
        ([said("Rome")], StopReason.ANSWERED, {}, "no call made"),
        ([said("", a_call("find")), said(" ")], StopReason.ANSWERED, {}, "empty answer"),
        ([said("", a_call("other")), said("Rome")], StopReason.ANSWERED, {"calls": 0.0}, "wrong tool"),
        (
            [said("", a_call("other", "failed")), said("", a_call("find")), said("Rome")],
            StopReason.ANSWERED,
            {"calls": 1.0, "arguments": 1.0, "answer": 0.0},
            "wrong answer",
        ),
        ([said("", a_call("find")), said("Rome")], StopReason.ANSWERED, {"calls": 0.5}, "needed call missing"),
        ([said("", a_call("find")), said("Rome")], StopReason.ANSWERED, {"arguments": 0.0}, "wrong arguments"),
        ([said("", a_call("find")), said("Rome")], StopReason.ANSWERED, {"state": 0.5}, "wrong state"),
        ([said("", a_call("find")), said("Rome")], StopReason.ANSWERED, {"answer": 0.0}, "wrong answer"),
        ([said("", a_call("find")), said("Rome")], StopReason.ANSWERED, {"rubric": 0.2}, "low grade"),
    ],
)
def test_a_failed_episode_is_named_by_what_went_wrong_first(turns, stop, parts, kind):
    assert failure_of(GOAL, make_trajectory(*turns, stop=stop, parts=parts)).value == kind


@given(
    st.lists(
        st.lists(st.sampled_from(["worked", "refused", "unknown", "malformed", "failed", "injected"]), max_size=3),
        max_size=4,
    ),
    st.sampled_from(StopReason),
    st.dictionaries(st.sampled_from(["answer", "state", "calls", "arguments", "rubric"]), st.floats(0, 1)),
    st.sampled_from(["", "Lima"]),
)
def test_whatever_happened_there_is_exactly_one_reason(fates, stop, parts, answer):
    turns = [said("", *(a_call("find", fate) for fate in of_turn)) for of_turn in fates]
    found = failure_of(GOAL, make_trajectory(*turns, said(answer), stop=stop, parts=parts))
    assert found in FailureKind


def test_an_episode_is_reduced_to_what_is_counted():
    calls = [a_call(name, fate) for name, fate in (("find", "worked"), ("find", "refused"), ("oops", "unknown"))]
    outcome = outcome_of(TASK, make_trajectory(said("", *calls), said("Rome"), member=3), Judged(success=False))
    assert (outcome.member, outcome.turns, outcome.prompt_tokens, outcome.sampled_tokens) == (3, 2, 2, 1)
    assert [call.fate for call in outcome.calls] == [CallFate.WORKED, CallFate.INVALID, CallFate.INVALID]
    # Names that a policy makes up are counted together.
    assert [call.tool for call in outcome.calls] == ["find", "find", UNKNOWN_TOOL]
    assert outcome.failure == "wrong answer"


def test_a_suite_that_knows_better_names_the_failure_itself():
    judged = Judged(success=False, failure="wrong state of the cart")
    assert outcome_of(TASK, make_trajectory(said("Rome")), judged).failure == "wrong state of the cart"


def test_a_failure_without_a_reason_cannot_be_made():
    good = outcome_of(TASK, make_trajectory(said("Lima"), parts={"answer": 1.0}), Judged(success=True))
    assert good.failure is None
    fields = {name: getattr(good, name) for name in EpisodeOutcome.__dataclass_fields__}
    with pytest.raises(ValueError, match="a failure must have a reason"):
        EpisodeOutcome(**{**fields, "success": False})


async def test_a_task_file_is_judged_by_what_its_goals_check():
    suite = TaskSuite("mine", [TASK])
    assert (await suite.judge(TASK, make_trajectory(parts={"answer": 1.0}))).success
    assert not (await suite.judge(TASK, make_trajectory(parts={"answer": 0.0}))).success
    assert suite.category(TASK) == "medium"

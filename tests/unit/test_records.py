"""The records refuse what could not have happened: a trajectory, a group or a batch that exists is whole."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcprl.config import AlgorithmConfig
from mcprl.goals import Goal
from mcprl.learning.algorithms import learnable_tokens, make_batch
from mcprl.records import (
    Batch,
    FinishReason,
    FollowUp,
    Group,
    Readings,
    SimulatedUser,
    Solution,
    StopReason,
    Task,
    Trajectory,
    Turn,
)

TASK = Task(id="greet", prompt=({"role": "user", "content": "Hi"},), goal=Goal(answer="Hello"))

# The eight tokens of Trajectory's docstring.
EXAMPLE = Trajectory(
    task_id="greet",
    step=0,
    member=0,
    attempt=0,
    temperature=1.0,
    token_ids=(1, 4093, 198, 31, 9, 77, 2, 198),
    sampled=(False, False, False, False, False, True, True, False),
    forced=(False,) * 8,
    fixed=(False,) * 8,
    logprobs=(0.0, 0.0, 0.0, 0.0, 0.0, -0.69, -0.05, 0.0),
    turn_index=(-1, -1, -1, -1, -1, 0, 0, -1),
    weights_version=(-1, -1, -1, -1, -1, 3, 3, -1),
    turns=(Turn(text="Hello", sampled_ids=(77, 2), finish=FinishReason.STOP, weights_version=3),),
    stop=StopReason.ANSWERED,
    reward=1.0,
    reward_parts={"answer": 1.0},
)
COLUMNS = ("token_ids", "sampled", "forced", "fixed", "logprobs", "turn_index", "weights_version")


def trajectory(**changes: object) -> Trajectory:
    return dataclasses.replace(EXAMPLE, **changes)


def group(*rewards: float, task: Task = TASK) -> Group:
    members = enumerate(rewards)
    return Group(task=task, trajectories=tuple(trajectory(task_id=task.id, member=m, reward=r) for m, r in members))


def test_the_example_of_a_trajectory_is_one_and_its_two_sampled_tokens_carry_loss():
    assert learnable_tokens(EXAMPLE, "exact") == (False,) * 5 + (True, True, False)


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("change", [lambda c: c[:-1], lambda c: (*c, c[-1])], ids=["shorter", "longer"])
def test_columns_of_different_length_are_refused(column, change):
    with pytest.raises(ValueError, match="its columns have different lengths"):
        trajectory(**{column: change(getattr(EXAMPLE, column))})


@pytest.mark.parametrize("logprob", [0.01, math.inf, -math.inf, math.nan])
def test_a_sampled_token_needs_a_finite_logprob_of_at_most_zero(logprob):
    with pytest.raises(ValueError, match="is not a valid logprob"):
        trajectory(logprobs=(*EXAMPLE.logprobs[:5], logprob, -0.05, 0.0))


tokens = st.tuples(st.booleans(), st.booleans(), st.booleans(), st.floats(max_value=0.0, allow_infinity=False))


@given(st.lists(tokens, max_size=30))
@example([(True, False, False, 0.0)])  # a token that was certain
@example([(False, True, False, 0.0)])
@example([(False, False, True, 0.0)])
@example([(False, False, False, -0.1)])
@example([(False, False, False, math.nan)])
def test_a_trajectory_is_valid_only_if_context_tokens_are_not_forced_fixed_or_likely(tokens):
    size = len(tokens)
    changes = {
        "token_ids": (5,) * size,
        "sampled": tuple(s for s, _, _, _ in tokens),
        "forced": tuple(f for _, f, _, _ in tokens),
        "fixed": tuple(x for _, _, x, _ in tokens),
        "logprobs": tuple(p for _, _, _, p in tokens),
        "turn_index": (0,) * size,
        "weights_version": (0,) * size,
    }
    if all(s or not (f or x or p) for s, f, x, p in tokens):
        assert trajectory(**changes).sampled == changes["sampled"]
    else:
        with pytest.raises(ValueError, match="marked as sampled"):
            trajectory(**changes)


def test_records_cannot_be_changed():
    for record in (TASK, EXAMPLE, group(0.0, 1.0)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, dataclasses.fields(record)[0].name, "other")


@pytest.mark.parametrize("rewards", [(), (1.0,)])
def test_a_group_of_fewer_than_two_is_refused(rewards):
    with pytest.raises(ValueError, match="needs at least 2"):
        group(*rewards)


@given(st.lists(st.integers(0, 5), min_size=2, max_size=6))
def test_a_group_holds_each_member_once_and_in_order(members):
    trajectories = tuple(trajectory(member=member) for member in members)
    if members == sorted(set(members)):
        assert Group(task=TASK, trajectories=trajectories).trajectories == trajectories
    else:
        with pytest.raises(ValueError, match="duplicated or not sorted"):
            Group(task=TASK, trajectories=trajectories)


def test_a_group_refuses_a_trajectory_of_another_task():
    with pytest.raises(ValueError, match="of another task"):
        Group(task=TASK, trajectories=(trajectory(), trajectory(member=1, task_id="other")))


@pytest.mark.parametrize("column", ["advantages", "learnable"])
@pytest.mark.parametrize("lengths", [(), (8,), (8, 7), (8, 9), (8, 8, 8)])
def test_a_batch_needs_one_advantage_and_one_mask_a_token_of_each_trajectory(column, lengths):
    columns = {"advantages": ((0.0,) * 8,) * 2, "learnable": ((False,) * 8,) * 2}
    columns[column] = tuple(columns[column][0][:1] * length for length in lengths)
    with pytest.raises(ValueError, match="one advantage and one mask for each token"):
        Batch(step=0, groups=(group(0.0, 1.0),), **columns)


READINGS = ("logprobs", "reference_logprobs", "values")


@pytest.mark.parametrize("name", ["returns", *READINGS])
@pytest.mark.parametrize("lengths", [(), (8,), (8, 7), (9, 8)])
def test_what_was_read_of_a_batch_has_one_number_per_token_of_each_trajectory(name, lengths):
    def batch(columns: tuple[tuple[float, ...], ...]) -> Batch:
        changes = {name: columns} if name == "returns" else {"readings": Readings(**{name: columns})}
        empty = {"learnable": ((False,) * 8,) * 2, "advantages": ((0.0,) * 8,) * 2}
        return Batch(step=0, groups=(group(0.0, 1.0),), **empty, **changes)

    assert batch(((0.0,) * 8,) * 2).trajectories
    with pytest.raises(ValueError, match="does not have returns and readings for each of its trajectories"):
        batch(tuple((0.0,) * length for length in lengths))


def played_by_an_endpoint(**changes: object) -> Trajectory:
    return trajectory(**dict.fromkeys(COLUMNS, ()), endpoint_tokens=(40, 7), **changes)


def test_an_episode_without_token_ids_counts_what_the_endpoint_counted_and_is_never_trained_on():
    assert EXAMPLE.token_counts == (6, 2)
    assert played_by_an_endpoint().token_counts == (40, 7)
    with pytest.raises(ValueError, match="it came from an endpoint, which returned no token ids"):
        trajectory(endpoint_tokens=(40, 7))
    members = (played_by_an_endpoint(), played_by_an_endpoint(member=1))
    with pytest.raises(ValueError, match="cannot be trained on"):
        Batch(step=0, groups=(Group(task=TASK, trajectories=members),), learnable=((), ()), advantages=((), ()))
    columns = {"learnable": ((False,) * 8,) * 2, "advantages": ((0.0,) * 8,) * 2}
    with pytest.raises(ValueError, match="cannot be trained on"):
        Batch(step=0, groups=(group(0.0, 1.0),), **columns, demonstrations=(EXAMPLE, played_by_an_endpoint()))


@st.composite
def forks(draw) -> tuple[tuple[int, int], ...]:
    """Of a trajectory of 8 tokens: in order, each after an earlier token or at the beginning."""
    places = draw(st.lists(st.integers(1, 7), unique=True).map(sorted))
    return tuple((place, draw(st.integers(-1, place - 1))) for place in places)


@given(forks())
def test_a_branch_is_the_way_back_from_a_token_that_no_other_continues(forks):
    parents = [dict(forks).get(place, place - 1) for place in range(8)]
    expected = []
    for last in sorted({*range(8)} - {*parents}):
        branch = [last]
        while parents[branch[0]] >= 0:
            branch.insert(0, parents[branch[0]])
        expected.append(tuple(branch))
    assert trajectory(forks=forks).branches == tuple(expected)


@pytest.mark.parametrize("forks", [((8, 3),), ((3, 3),), ((3, 4),), ((3, -2),), ((5, 2), (5, 1)), ((5, 2), (4, 1))])
def test_forks_that_are_not_in_order_are_refused(forks):
    with pytest.raises(ValueError, match="its forks are not in order"):
        trajectory(forks=forks)


def test_a_task_has_a_solution_per_user_message_and_at_most_as_many_messages_as_its_user_sends():
    assert (TASK.solutions, TASK.max_messages) == ((), 1)
    first, third = Solution(calls=(), answer="Hello"), Solution(calls=(), answer="Bye")
    further = tuple(FollowUp(messages=TASK.prompt, solution=solution) for solution in (None, third, None))
    task = dataclasses.replace(TASK, solution=first, follow_ups=further)
    assert (task.solutions, task.max_messages) == ((first, first, third, third), 4)
    assert dataclasses.replace(TASK, follow_ups=further).solutions == ()
    assert dataclasses.replace(TASK, user=SimulatedUser(function="users.py:me", max_messages=2)).max_messages == 3


def test_a_turn_was_sampled_under_the_latest_grammar_that_began_before_it():
    changed = trajectory(grammar="a", later_grammars=((1, "b"), (3, "c")))
    assert [changed.grammar_of(turn) for turn in range(5)] == ["a", "b", "b", "c", "c"]


masks = st.lists(st.booleans(), min_size=8, max_size=8).map(tuple)


@given(masks, masks)
def test_no_token_that_the_policy_did_not_sample_ever_carries_loss(first, second):
    columns = {"learnable": (first, second), "advantages": ((0.0,) * 8,) * 2}
    if all(s for mask in (first, second) for m, s in zip(mask, EXAMPLE.sampled, strict=True) if m):
        assert Batch(step=0, groups=(group(0.0, 1.0),), **columns).learnable == (first, second)
    else:
        with pytest.raises(ValueError, match="was not sampled is marked learnable"):
            Batch(step=0, groups=(group(0.0, 1.0),), **columns)


def test_a_batch_counts_its_trajectories_over_the_groups_in_order():
    other = dataclasses.replace(TASK, id="part")
    groups = (group(1.0, 0.0), group(0.5, 0.5, task=other))
    batch = Batch(step=0, groups=groups, learnable=((False,) * 8,) * 4, advantages=((0.0,) * 8,) * 4)
    assert [(t.task_id, t.member) for t in batch.trajectories] == [("greet", 0), ("greet", 1), ("part", 0), ("part", 1)]


def test_the_advantages_in_the_documentation_of_a_batch_are_those_of_the_code():
    batch = make_batch(0, (group(1.0, 0.0), group(0.5, 0.5)), AlgorithmConfig())
    rounded = [tuple(round(value, 2) for value in row) for row in batch.advantages]
    assert rounded[0] == (0.0,) * 5 + (0.71, 0.71, 0.0)
    assert rounded[1] == (0.0,) * 5 + (-0.71, -0.71, 0.0)
    assert set(rounded[2] + rounded[3]) == {0.0}

"""Batches with a critic: what a step is, what it earned, how an episode ends; against a recursion written out here."""
# R3

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_episodes import make_episode, make_group

from mcprl.config import AlgorithmConfig, CriticConfig
from mcprl.learning.algorithms import make_batch
from mcprl.records import Batch, Readings, StopReason, Trajectory

GAMMA, LAM = 0.9, 0.8


def by_hand(rewards: list[float], values: list[float]) -> list[float]:
    advantages = [0.0] * (len(rewards) + 1)
    for s in reversed(range(len(rewards))):
        next_value = values[s + 1] if s + 1 < len(rewards) else 0.0
        advantages[s] = rewards[s] + GAMMA * next_value - values[s] + GAMMA * LAM * advantages[s + 1]
    return advantages[:-1]


def value_at(place: int) -> float:
    return 0.1 * place - 0.3


def made(*episodes: Trajectory, step: str = "token", **options: Any) -> Batch:
    critic = CriticConfig(gamma=GAMMA, lam=LAM, step=step)
    readings = Readings(values=tuple(tuple(map(value_at, range(len(e.token_ids)))) for e in episodes))
    return make_batch(0, [make_group(*episodes)], AlgorithmConfig(advantages="gae", critic=critic, **options), readings)


OTHER = make_episode("cs")


def test_each_learnable_token_is_a_step_and_a_turns_reward_stands_on_its_last_one():
    batch = made(make_episode("cssf|ccsfs", (0.5, 1.0)), OTHER)
    places = [1, 2, 6, 8]
    wanted = by_hand([0.0, 0.5, 0.0, 1.0], [value_at(p) for p in places])
    assert [batch.returns[0][p] for p in places] == pytest.approx(
        [a + value_at(p) for a, p in zip(wanted, places, strict=True)]
    )
    rest = set(range(9)) - set(places)
    assert {batch.advantages[0][p] for p in rest} == {batch.returns[0][p] for p in rest} == {0.0}


def test_a_turn_is_a_step_with_the_value_of_its_first_learnable_token():
    batch = made(make_episode("cfss|ccsfs", (0.5, 1.0)), OTHER, step="turn")
    first, second = by_hand([0.5, 1.0], [value_at(2), value_at(6)])
    assert batch.advantages[0][2] == batch.advantages[0][3] != batch.advantages[0][6] == batch.advantages[0][8]
    first, second = first + value_at(2), second + value_at(6)
    assert batch.returns[0] == pytest.approx((0, 0, first, first, 0, 0, second, 0, second))


@pytest.mark.parametrize("step", ["token", "turn"])
def test_the_reward_of_a_turn_without_learnable_tokens_goes_to_the_step_before_it(step):
    silent = made(make_episode("cs|cf|cs", (0.25, 0.5, 1.0)), OTHER, step=step)
    joined = made(make_episode("cs|cf|cs", (0.75, 0.0, 1.0)), OTHER, step=step)
    assert silent.advantages == joined.advantages
    assert silent.returns == joined.returns


@pytest.mark.parametrize("step", ["token", "turn"])
def test_a_reward_before_the_first_learnable_token_belongs_to_no_choice(step):
    dropped = made(make_episode("cf|cs", (9.0, 1.0)), OTHER, step=step)
    assert dropped.advantages == made(make_episode("cf|cs", (0.0, 1.0)), OTHER, step=step).advantages


@pytest.mark.parametrize("stop", list(StopReason))
def test_an_episode_that_ran_into_a_limit_is_as_complete_as_one_that_answered(stop):
    batch = made(make_episode("css", (1.0,), stop=stop), OTHER)
    values = [value_at(1), value_at(2)]
    raw = [earned - value for earned, value in zip(batch.returns[0][1:], values, strict=True)]
    assert raw == pytest.approx(by_hand([0.0, 1.0], values))


DEFAULTS = AlgorithmConfig(advantages="gae")


numbers = st.floats(-2.0, 2.0)


def first_advantages(*episodes: Trajectory, values: list[float]) -> list[float]:
    """Of the first sampled token, under the default settings and before they are normalized over the batch; `values`
    are those of the first tokens, then constant."""
    columns = tuple(tuple([*values, *[values[-1]] * len(e.token_ids)][: len(e.token_ids)]) for e in episodes)
    batch = make_batch(0, [make_group(*episodes)], DEFAULTS, Readings(values=columns))
    return [earned[1] - column[1] for earned, column in zip(batch.returns, columns, strict=True)]


@given(
    st.lists(numbers, min_size=2, max_size=6),
    st.integers(1, 40),
    st.integers(1, 40),
    st.sampled_from([stop for stop in StopReason if stop is not StopReason.ANSWERED]),
)
def test_stalling_into_a_limit_is_never_better_than_a_wrong_answer(values, answer_tokens, turn_tokens, stop):
    wrong = make_episode("c" + "s" * answer_tokens, (0.0,))
    stalled = make_episode("|".join(["c" + "s" * turn_tokens] * 4), (0.0,) * 4, stop=stop)
    of_wrong, of_stalled = first_advantages(wrong, stalled, values=values)
    assert of_stalled <= of_wrong + 1e-9


def test_the_first_token_of_a_long_turn_has_the_whole_advantage():
    [good, bad] = first_advantages(
        make_episode("c" + "s" * 400, (1.0,)), make_episode("c" + "s" * 400, (0.0,)), values=[0.0, 0.4]
    )
    assert (good, bad) == pytest.approx((0.6, -0.4))


def test_an_episode_without_learnable_tokens_has_no_advantages():
    batch = made(make_episode("cff", (1.0,)), OTHER)
    assert batch.advantages[0] == batch.returns[0] == (0.0, 0.0, 0.0)


def test_turns_that_do_not_add_up_to_the_reward_are_refused():
    with pytest.raises(ValueError, match=r"episode 1 of task task: .* turns add up to 1, but its reward is 3"):
        made(OTHER, make_episode("cs", (1.0,), reward=3.0))


turns = st.lists(st.tuples(st.text("csf", min_size=1, max_size=4), st.floats(-1.0, 1.0)), min_size=1, max_size=5)


@given(turns)
def test_a_critic_of_whole_turns_gives_the_return_of_the_turns_rewards(turns):
    kinds, rewards = "|".join(kind for kind, _ in turns), [reward for _, reward in turns]
    episode = make_episode(kinds, rewards)
    critic = CriticConfig(gamma=1.0, lam=1.0, step="turn")
    readings = Readings(values=((0.7,) * len(episode.token_ids), (0.7,) * 2))
    config = AlgorithmConfig(advantages="gae", critic=critic)
    batch = make_batch(0, [make_group(episode, OTHER)], config, readings)
    for earned, learns, turn in zip(batch.returns[0], batch.learnable[0], episode.turn_index, strict=True):
        # A turn without learnable tokens stands behind the last that had some: its reward is still to come there.
        assert earned == pytest.approx(math.fsum(rewards[turn:]) if learns else 0.0, abs=1e-9)


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("in_the_turn", [True, False])
def test_a_reward_that_is_no_number_reaches_every_learnable_token_before_it(reward, in_the_turn):
    batch = made(make_episode("css|cs", (0.0, reward if in_the_turn else 0.0), reward=reward), OTHER)
    assert not any(
        math.isfinite(column[0][place]) for column in (batch.returns, batch.advantages) for place in (1, 2, 4)
    )
    assert math.isfinite(batch.returns[1][1])


def test_readings_that_a_critic_needs_are_named_where_they_are_missing():
    with pytest.raises(ValueError, match=r"did not provide values that this objective needs: values$"):
        make_batch(0, [make_group(OTHER, OTHER)], DEFAULTS, Readings())

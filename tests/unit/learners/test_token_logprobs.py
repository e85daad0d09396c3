"""The learner's logprobs against whole logits of one trajectory at a time."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_trajectories import make_trajectory, naive_logprobs, randomise_adapter

from mcprl.algorithms import learnable_tokens
from mcprl.learners.policy import token_logprobs
from mcprl.learners.rows import Rows, make_rows
from mcprl.records import Trajectory

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def adapted_policy(tiny_model):
    from made_trajectories import make_config

    from mcprl.learners.policy import load_policy

    config = make_config()
    policy = load_policy(config.model, config.learner, seed=1, device=CPU)
    randomise_adapter(policy)
    return policy


def unheld_rows(made: list[Trajectory]) -> Rows:
    advantages = [[0.0] * len(t.token_ids) for t in made]
    return make_rows(made, [learnable_tokens(t, "exact") for t in made], advantages, None, CPU)


shapes = st.lists(
    st.tuples(st.text(alphabet="csf", max_size=10).map(lambda rest: "c" + rest), st.sampled_from([0.3, 0.7, 1.0, 1.6])),
    min_size=1,
    max_size=4,
).filter(lambda made: any("s" in kinds for kinds, _ in made))


@given(shapes, st.integers(0, 2**31))
@settings(max_examples=12, deadline=None)
def test_ragged_rows_of_mixed_temperatures_score_as_if_each_stood_alone(adapted_policy, shapes, seed):
    generator = torch.Generator().manual_seed(seed)
    made = [
        make_trajectory(torch.randint(0, 151_936, (len(kinds),), generator=generator).tolist(), kinds, temperature=t)
        for kinds, t in shapes
    ]
    rows = unheld_rows(made)
    with torch.no_grad():
        scored = token_logprobs(adapted_policy, rows).tolist()
    wanted = [
        logprob
        for t in made
        for logprob, learnable in zip(naive_logprobs(adapted_policy, t), learnable_tokens(t, "exact"), strict=True)
        if learnable
    ]
    assert scored == pytest.approx(wanted, abs=1e-5)


def test_a_longer_neighbour_changes_nothing(adapted_policy):
    short, long = make_trajectory([5, 6, 7], "css"), make_trajectory(list(range(20, 60)), "c" * 30 + "s" * 10)
    with torch.no_grad():
        alone = token_logprobs(adapted_policy, unheld_rows([short]))
        beside = token_logprobs(adapted_policy, unheld_rows([short, long]))
    assert beside[:2].tolist() == pytest.approx(alone.tolist(), abs=1e-6)


def test_rows_with_nothing_to_learn_score_nothing(adapted_policy):
    rows = unheld_rows([make_trajectory([5, 6], "cc")])
    assert token_logprobs(adapted_policy, rows).shape == (0,)

"""The learner's logprobs against whole logits of one trajectory at a time."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_trajectories import make_config, make_trajectory, naive_logprobs, plain_pack, randomise_adapter
from torch import Tensor

from mcprl.learning.algorithms import learnable_tokens
from mcprl.learning.models import load_policy
from mcprl.learning.packing import Policy
from mcprl.records import Trajectory

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def adapted_policy(tiny_model):
    policy = load_policy(make_config(), CPU)
    randomise_adapter(policy)
    return policy


def scores(policy: Policy, made: list[Trajectory], *, tree: bool) -> Tensor:
    pack, _ = plain_pack(made, [learnable_tokens(t, "exact") for t in made], tree=tree)
    with torch.no_grad():
        return policy(pack).logprob_N


shapes = st.lists(
    st.tuples(st.text(alphabet="csf", max_size=10).map(lambda rest: "c" + rest), st.sampled_from([0.3, 0.7, 1.0, 1.6])),
    min_size=1,
    max_size=4,
).filter(lambda made: any("s" in kinds for kinds, _ in made))


@given(shapes, st.integers(0, 2**31), st.booleans())
@settings(max_examples=16)
def test_ragged_trajectories_of_mixed_temperatures_score_as_if_each_stood_alone(adapted_policy, shapes, seed, tree):
    generator = torch.Generator().manual_seed(seed)
    made = [
        make_trajectory(torch.randint(0, 151_936, (len(kinds),), generator=generator).tolist(), kinds, temperature=t)
        for kinds, t in shapes
    ]
    scored = scores(adapted_policy, made, tree=tree).tolist()
    wanted = [
        logprob
        for t in made
        for logprob, learnable in zip(naive_logprobs(adapted_policy, t), learnable_tokens(t, "exact"), strict=True)
        if learnable
    ]
    assert scored == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("tree", [True, False])
def test_a_longer_neighbour_changes_nothing(adapted_policy, tree):
    short, long = make_trajectory([5, 6, 7], "css"), make_trajectory(list(range(20, 60)), "c" * 30 + "s" * 10)
    alone = scores(adapted_policy, [short], tree=tree)
    beside = scores(adapted_policy, [short, long], tree=tree)
    assert beside[:2].tolist() == pytest.approx(alone.tolist(), abs=1e-6)


@pytest.mark.parametrize("tree", [True, False])
def test_a_trajectory_with_nothing_to_learn_scores_nothing(adapted_policy, tree):
    assert scores(adapted_policy, [make_trajectory([5, 6], "cc")], tree=tree).shape == (0,)

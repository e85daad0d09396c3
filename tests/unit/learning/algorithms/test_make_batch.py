"""From groups to a batch: whose advantage stands on which token."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_episodes import make_episode, make_group

from mcprl.config import AlgorithmConfig
from mcprl.errors import UserCodeError
from mcprl.learning.algorithms import make_batch
from mcprl.learning.algorithms.batches import require_sound_advantages
from mcprl.records import Group

kinds = st.text(alphabet="csfx", min_size=1, max_size=12)
LEARNABLE = {"exact": "sx", "text": "s", "none": "sfx"}


def group_of(name: str, members: list[tuple[str, float]]) -> Group:
    return make_group(*[make_episode(kinds, (reward,)) for kinds, reward in members], name=name)


members = st.lists(st.tuples(kinds, st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.0])), min_size=2, max_size=5)


OWN = "def own(reward_G):\n    "


def own(tmp_path, body: str) -> AlgorithmConfig:
    (tmp_path / "mine.py").write_text(OWN + body + "\n")
    return AlgorithmConfig(advantages=f"{tmp_path}/mine.py:own", masks="text")


def test_the_users_advantages_stand_on_the_learnable_tokens_of_each_episode(tmp_path):
    algorithm = own(tmp_path, "return reward_G - reward_G.median()")
    require_sound_advantages(algorithm)
    groups = [group_of("a", [("csfx", 1.0), ("ss", 0.0), ("s", 0.5)]), group_of("b", [("s", 2.0), ("cs", 2.0)])]
    assert make_batch(0, groups, algorithm).advantages == ((0, 0.5, 0, 0), (-0.5, -0.5), (0,), (0,), (0, 0))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return 0.0", "returned float for 2 rewards"),
        ("return reward_G.mean()", r"returned a tensor of shape \(\) for 2 rewards"),
        ("return reward_G / (reward_G - reward_G)", r"not finite for the rewards \[0\.0, 1\.0\]"),
        ("return undefined", r"mine\.py:2: NameError"),
        ("import torch\n    return torch.rand_like(reward_G)", "returns different numbers if called again"),
        ("return (reward_G - reward_G.mean()) / reward_G.std()", r"not finite for the rewards \[0\.5, 0\.5, 0\.5\]"),
    ],
)
def test_advantages_that_cannot_train_are_refused_by_name(tmp_path, body, said):
    with pytest.raises(UserCodeError, match=said):
        require_sound_advantages(own(tmp_path, body))


@given(st.lists(members, min_size=1, max_size=4), st.sampled_from(sorted(LEARNABLE)))
def test_each_learnable_token_bears_its_episodes_advantage_and_every_other_token_none(specs, masks):
    groups = [group_of(f"task-{i}", spec) for i, spec in enumerate(specs)]
    batch = make_batch(7, groups, AlgorithmConfig(masks=masks))
    assert (batch.step, batch.groups) == (7, tuple(groups))
    rows = iter(zip(batch.advantages, batch.learnable, strict=True))
    for spec in specs:
        rewards = [reward for _, reward in spec]
        spread = statistics.stdev(rewards)
        for kinds, reward in spec:
            wanted = (reward - statistics.fmean(rewards)) / (spread + 1e-6) if len(set(rewards)) > 1 else 0.0
            advantages, learnable = next(rows)
            assert learnable == tuple(kind in LEARNABLE[masks] for kind in kinds)
            for advantage, kind in zip(advantages, kinds, strict=True):
                is_learnable = kind in LEARNABLE[masks]
                assert advantage == (pytest.approx(wanted, rel=1e-9, abs=1e-12) if is_learnable else 0.0)
    assert next(rows, None) is None

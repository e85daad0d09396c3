"""A loss in the user's own file: it trains as ours do, and one that cannot train is refused before a step."""

from __future__ import annotations

import pytest
import torch
from small_models import save_small_model, small_batch, small_config, small_learner

from mcprl.config import AlgorithmConfig
from mcprl.errors import UserCodeError
from mcprl.learning.algorithms.objective import require_sound_loss

GSPO = """
from mcprl.learning.algorithms.losses import gspo_loss

def same_as_gspo(logprob_N, old_logprob_N, advantage_N, sequence_N, *, clip_low, clip_high):
    return gspo_loss(logprob_N, old_logprob_N, advantage_N, sequence_N, clip_low=clip_low, clip_high=clip_high)
"""
HEAD = "import torch\n\ndef own(logprob_N, old_logprob_N, advantage_N, sequence_N, *, clip_low, clip_high):\n    "


def written(tmp_path, text, name="own") -> str:
    (tmp_path / "losses.py").write_text(text)
    return f"{tmp_path}/losses.py:{name}"


async def test_the_users_loss_makes_the_same_update_as_ours(tmp_path):
    model = save_small_model(tmp_path)
    weights = []
    for loss in ("gspo", written(tmp_path, GSPO, "same_as_gspo"), "ppo"):
        config = small_config(model, algorithm={"loss": loss})
        learner = small_learner(config, tmp_path / loss.rpartition(":")[2])
        await learner.update(small_batch(config))
        weights.append({name: p.detach().clone() for name, p in learner.policy.model.named_parameters()})
    ours, theirs, other = weights
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert any(not torch.equal(ours[name], other[name]) for name in ours)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return -(logprob_N * advantage_N).mean()", r"returned a tensor of shape \(\) for 5 tokens"),
        ("return 0.0", "returned float for 5 tokens"),
        ("return -advantage_N", "has no gradient"),
        ("return torch.log(logprob_N - logprob_N) * advantage_N", "is not finite for ratios"),
        ("return -(logprob_N - logprob_N.mean()) * advantage_N", "separate packs cannot be added up"),
        ("return undefined", r"losses\.py:4: NameError"),
    ],
)
def test_a_loss_that_cannot_train_is_refused_by_name(tmp_path, body, said):
    algorithm = AlgorithmConfig(loss=written(tmp_path, HEAD + body + "\n"))
    with pytest.raises(UserCodeError, match=said):
        require_sound_loss(algorithm)


def test_a_learner_with_a_wrong_loss_is_not_opened(tmp_path):
    config = small_config(save_small_model(tmp_path), algorithm={"loss": written(tmp_path, HEAD + "return 0.0\n")})
    with pytest.raises(UserCodeError):
        small_learner(config, tmp_path / "weights")

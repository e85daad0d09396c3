"""A trajectory with branches: each sampled token is learned from once, with the gradient of its own conversation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_trajectories import make_config, make_groups, make_trajectory
from small_models import save_small_model

from mcprl.config import AlgorithmConfig, ModelConfig
from mcprl.learning.algorithms import learnable_tokens, make_batch
from mcprl.learning.models import load_policy
from mcprl.learning.packing import Packer, Replayer, check_alignment, make_examples
from mcprl.records import Trajectory
from mcprl.runs.trajectories import decode_trajectory, encode_trajectory, read_trajectories, write_trajectories

CPU = torch.device("cpu")


@st.composite
def forked(draw: st.DrawFn) -> Trajectory:
    """A random tree: stretches of tokens, each after any earlier token or none. Tokens often repeat."""
    kinds, forks = "c" + draw(st.text("ccs", min_size=1, max_size=40)), list[tuple[int, int]]()
    for _ in range(draw(st.integers(0, 6))):
        after = draw(st.integers(-1, len(kinds) - 1))
        if after == len(kinds) - 1:
            continue
        forks.append((len(kinds), after))
        kinds += ("c" if after < 0 else "") + draw(st.text("ccs", min_size=1, max_size=20))
    ids = draw(st.lists(st.integers(3, 6), min_size=len(kinds), max_size=len(kinds)))
    return replace(make_trajectory(ids, kinds), forks=tuple(forks))


def parents(trajectory: Trajectory) -> list[int]:
    found = [place - 1 for place in range(len(trajectory.token_ids))]
    for place, after in trajectory.forks:
        found[place] = after
    return found


@given(forked())
def test_branches_are_the_paths_to_the_tokens_that_nothing_follows(trajectory):
    before, leaves = parents(trajectory), set(range(len(trajectory.token_ids)))
    leaves -= set(before)
    true: set[tuple[int, ...]] = set()
    for leaf in leaves:
        path = [leaf]
        while before[path[0]] >= 0:
            path.insert(0, before[path[0]])
        true.add(tuple(path))
    assert len(trajectory.branches) == len(true)
    assert set(trajectory.branches) == true


@given(st.lists(forked(), min_size=2, max_size=4), st.booleans())
def test_each_sampled_token_is_scored_once_after_the_tokens_of_its_conversation(made, share_prefix):
    batch = make_batch(0, make_groups(made), AlgorithmConfig())
    examples = make_examples(batch)
    packer = Packer(Replayer(None), CPU, tokens=120, share_prefix=share_prefix)
    seen = 0
    for chosen in packer.divide(examples):
        own = [examples[i] for i in chosen]
        pack = packer.pack(own)
        assert check_alignment(pack, own) == 1.0
        id_X, before = pack.layout.token_id_BT.flatten(), iter(pack.before_N.tolist())
        for example in own:
            t = example.trajectory
            for place in example.position_N.tolist():
                assert id_X[next(before)] == t.token_ids[parents(t)[place]]
                seen += 1
    assert seen == sum(sum(t.sampled) for t in batch.trajectories)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("model"), "qwen3", layers=2)


def rewritten_history(seed: int) -> Trajectory:
    """A prompt of 30 tokens and a turn; then the turn is continued, edited in the middle, and a sub-agent starts."""
    generator = torch.Generator().manual_seed(seed)
    kinds = "c" * 30 + "s" * 12 + "c" * 20 + "s" * 9 + "c" * 5 + "s" * 7 + "s" * 6 + "c" * 18 + "s" * 5
    ids = torch.randint(3, 67, (len(kinds),), generator=generator).tolist()
    forks = ((71, 36), (83, 29), (89, -1))
    return replace(make_trajectory(ids, kinds, temperature=0.8), forks=forks)


@pytest.mark.parametrize("share_prefix", [True, False])
def test_the_gradient_is_that_of_the_branches_computed_separately(share_prefix, model, record_property):
    made = [rewritten_history(seed) for seed in (1, 2)]
    config = make_config(share_prefix=share_prefix, tuning="full")
    path = ModelConfig(path=str(model), renderer="chatml", dtype="float32")
    policy = load_policy(config.model_copy(update={"model": path}), CPU).double()
    examples = make_examples(make_batch(0, make_groups(made), AlgorithmConfig()))
    weight_T = torch.randn(2, len(made[0].token_ids), generator=torch.Generator().manual_seed(3)).double()

    def gradient(loss: torch.Tensor) -> torch.Tensor:
        policy.zero_grad()
        loss.backward()
        return torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])

    pack = Packer(Replayer(None), CPU, tokens=4096, share_prefix=share_prefix).pack(examples)
    weight_N = torch.cat([weight_T[i][e.position_N] for i, e in enumerate(examples)])
    together = gradient((policy(pack).logprob_N * weight_N).sum())

    loss, counted = torch.zeros(()), 0
    for i, trajectory in enumerate(made):
        left = {place for place, learn in enumerate(learnable_tokens(trajectory, "exact")) if learn}
        for branch in trajectory.branches:
            ids = torch.tensor([[trajectory.token_ids[place] for place in branch]])
            logit_TV = policy.model(input_ids=ids, use_cache=False).logits[0].float()
            logprob_TV = torch.log_softmax(logit_TV / trajectory.temperature, dim=-1)
            for at, place in enumerate(branch):
                if place in left:
                    left.remove(place)
                    counted += 1
                    loss = loss + logprob_TV[at - 1, trajectory.token_ids[place]] * weight_T[i, place]
        assert not left
    apart = gradient(loss)
    difference = float((together - apart).norm() / apart.norm())
    record_property("branches_gradient_relative_difference", difference)
    print(f"share_prefix={share_prefix}: {difference:.2e} over {counted} tokens")
    assert counted == sum(sum(t.sampled) for t in made)
    assert difference <= 1e-6


def test_forks_survive_the_journal_and_parquet(tmp_path):
    made = [rewritten_history(1), replace(make_trajectory([1, 2, 3], "ccs"), member=1)]
    assert [decode_trajectory(encode_trajectory(t)) for t in made] == made
    write_trajectories(tmp_path / "t.parquet", made)
    assert read_trajectories(tmp_path / "t.parquet") == made


def test_forks_that_are_not_in_order_are_refused():
    plain = make_trajectory([1, 2, 3, 4], "ccsc")
    for forks in (((2, 2),), ((1, -2),), ((4, 1),), ((3, 0), (2, 0))):
        with pytest.raises(ValueError, match="forks"):
            replace(plain, forks=forks)

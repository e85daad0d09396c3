"""How examples are divided into packs: by a budget of tokens, evenly over the processes."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_trajectories import make_trajectory
from small_models import save_small_model, small_batch, small_config, small_learner

from mcprl.learning.attention import lay_out_rows, lay_out_tree
from mcprl.learning.packing import Example, Packer, Replayer, plain_examples

CPU = torch.device("cpu")
PREAMBLE = tuple(range(10, 30))


def examples_of(lengths: list[tuple[int, int]]) -> list[Example]:
    """Conversations of some tasks, by (task, number of own tokens). Those of a task share 20 tokens and 20 more."""
    made = [
        make_trajectory(
            [
                *PREAMBLE,
                *range(100 * task + 100, 100 * task + 120),
                *range(1000 * (member + 1), 1000 * (member + 1) + own),
            ],
            "c" * 40 + "s" * own,
            member=member,
        )
        for member, (task, own) in enumerate(lengths)
    ]
    return plain_examples(made, [t.sampled for t in made])


def size_of(examples: list[Example], *, share_prefix: bool) -> int:
    """The tokens that go through the model, padding included."""
    lay_out = lay_out_tree if share_prefix else lay_out_rows
    return lay_out([e.trajectory.token_ids for e in examples], CPU).token_id_BT.numel()


LENGTHS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60)), min_size=1, max_size=24)


@given(LENGTHS, st.integers(1, 400), st.booleans(), st.integers(1, 5))
def test_packs_hold_each_example_once_and_no_more_tokens_than_allowed(lengths, tokens, share_prefix, processes):
    examples = examples_of(lengths)
    packs = Packer(Replayer(None), CPU, tokens=tokens, share_prefix=share_prefix).divide(examples, processes)
    assert sorted(i for pack in packs for i in pack) == list(range(len(examples)))
    for pack in packs:
        assert len(pack) == 1 or size_of([examples[i] for i in pack], share_prefix=share_prefix) <= tokens


@given(LENGTHS, st.integers(40, 400), st.integers(2, 5))
def test_several_processes_never_get_fewer_packs_and_similar_ones_follow_one_another(lengths, tokens, processes):
    examples = examples_of(lengths)
    packer = Packer(Replayer(None), CPU, tokens=tokens, share_prefix=True)
    alone, packs = packer.divide(examples), packer.divide(examples, processes)
    rounds = -(-len(alone) // processes)
    assert len(packs) >= min(rounds * processes, len(examples))
    sizes = [size_of([examples[i] for i in pack], share_prefix=True) for pack in packs]
    assert sizes == sorted(sizes, reverse=True)


def test_no_process_is_idle_if_smaller_packs_give_it_work():
    examples = examples_of([(0, 50)] * 6)
    packer = Packer(Replayer(None), CPU, tokens=40 + 4 * 50, share_prefix=True)
    assert [len(pack) for pack in packer.divide(examples)] == [4, 2]
    assert [len(pack) for pack in packer.divide(examples, processes=2)] == [4, 2]
    assert [len(pack) for pack in packer.divide(examples, processes=3)] == [2, 2, 2]


class TestOutOfMemory:
    """A forward pass of too many tokens raises, as CUDA does."""

    @pytest.fixture
    def model(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return save_small_model(tmp_path_factory.mktemp("model"))

    async def test_a_minibatch_that_does_not_fit_is_repeated_with_packs_of_half_the_size(self, model, tmp_path, caplog):
        config = small_config(model, algorithm={"minibatches": 1})
        whole, cramped = (small_learner(config, tmp_path / name) for name in ("whole", "cramped"))
        cramped._packer.tokens = 70

        def refuse(module, args, kwargs):
            if torch.is_grad_enabled() and kwargs["input_ids"].numel() > 40:
                raise torch.OutOfMemoryError("CUDA out of memory")

        cramped.policy.trunk.register_forward_pre_hook(refuse, with_kwargs=True)
        expected = await whole.update(small_batch(config))
        with caplog.at_level(logging.WARNING):
            update = await cramped.update(small_batch(config))
        assert update.metrics["pack_splits"] == 1.0
        assert "pack_splits" not in expected.metrics
        assert "a pack of 70 tokens does not fit into memory" in caplog.text
        assert cramped._packer.tokens == 35
        assert update.metrics["loss"] == pytest.approx(expected.metrics["loss"], abs=1e-6)
        assert update.metrics["grad_norm"] == pytest.approx(expected.metrics["grad_norm"], rel=1e-5)

    async def test_a_pack_that_does_not_fit_at_half_the_size_either_ends_the_update(self, model, tmp_path):
        config = small_config(model, algorithm={"minibatches": 1})
        learner = small_learner(config, tmp_path)

        def refuse(*_):
            raise torch.OutOfMemoryError("CUDA out of memory")

        learner.policy.trunk.register_forward_pre_hook(refuse)
        with pytest.raises(torch.OutOfMemoryError):
            await learner.update(small_batch(config))

"""How examples are divided into packs: by a budget of tokens, evenly over the processes."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from made_trajectories import make_trajectory

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

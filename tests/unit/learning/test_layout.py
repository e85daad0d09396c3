"""Layouts for a forward pass: a tree holds each shared prefix once, and every token sees what it saw by itself."""
# R11

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from mcprl.learning import attention as layout_module
from mcprl.learning.attention import Layout, Tree, lay_out_rows, lay_out_tree, tree_mask

CPU = torch.device("cpu")
LONGEST = 60

Sequences = list[tuple[int, ...]]


@st.composite
def families(draw: st.DrawFn) -> Sequences:
    """Sequences that grow out of one another: duplicates, prefixes of one another, branches of branches, new roots."""
    grown: Sequences = []
    for _ in range(draw(st.integers(1, 8))):
        stem = draw(st.sampled_from(grown)) if grown and draw(st.booleans()) else ()
        kept = stem[: draw(st.integers(0, len(stem)))]
        tail = draw(st.lists(st.integers(0, 2), min_size=0 if kept else 1, max_size=LONGEST - len(kept)))
        grown.append((*kept, *tail))
    return draw(st.permutations(grown))


def laid_out(sequences: Sequences, shortest_shared: int) -> Layout:
    with patch.object(layout_module, "MIN_SHARED_TOKENS", shortest_shared):
        return lay_out_tree(sequences, CPU)


def tree_of(layout: Layout) -> Tree:
    assert layout.tree is not None
    return layout.tree


def dense_mask(tree: Tree) -> torch.Tensor:
    place_T = torch.arange(tree.nodes[-1].stop)
    none = torch.tensor(0)
    return tree_mask(tree, CPU)(none, none, place_T[:, None], place_T[None, :])


def seen_by_path(tree: Tree, node: int, place: int) -> list[int]:
    """The places a token sees as attention split by nodes reads them: the nodes above, and its own up to itself."""
    above = [p for other in tree.paths[node][:-1] for p in range(tree.nodes[other].start, tree.nodes[other].stop)]
    return above + list(range(tree.nodes[node].start, place + 1))


shortest = st.sampled_from([1, 3, 16])


@given(families(), shortest)
@example([(1,) * 5, (1,) * 5, (1,) * 5 + (2,)], 16)
def test_each_sequence_is_read_back_through_its_places(sequences, shortest_shared):
    layout = laid_out(sequences, shortest_shared)
    assert layout.position_BT is not None
    for ids, place_T in zip(sequences, layout.places, strict=True):
        assert tuple(layout.token_id_BT.flatten()[place_T].tolist()) == ids
        assert layout.position_BT.flatten()[place_T].tolist() == list(range(len(ids)))


@given(families(), shortest)
def test_a_token_sees_its_own_earlier_tokens_and_nothing_else(sequences, shortest_shared):
    layout = laid_out(sequences, shortest_shared)
    tree, mask_TT = tree_of(layout), dense_mask(tree_of(layout))
    used: set[int] = set()
    for ids, place_T in zip(sequences, layout.places, strict=True):
        places: list[int] = place_T.tolist()
        used.update(places)
        for position in range(len(ids)):
            place = places[position]
            earlier = places[: position + 1]
            assert seen_by_path(tree, int(tree.node_T[place]), place) == earlier
            assert mask_TT[place].nonzero().flatten().tolist() == sorted(earlier)
    assert used == set(range(layout.token_id_BT.numel())), "a packed token belongs to no sequence"


@given(families(), shortest)
def test_the_nodes_above_a_node_spell_what_comes_before_it(sequences, shortest_shared):
    layout = laid_out(sequences, shortest_shared)
    tree, ids_T = tree_of(layout), layout.token_id_BT.flatten().tolist()
    assert [node.start for node in tree.nodes] == [0, *(node.stop for node in tree.nodes[:-1])]
    assert tree.node_T.tolist() == [i for i, node in enumerate(tree.nodes) for _ in range(node.start, node.stop)]
    for number, (node, path) in enumerate(zip(tree.nodes, tree.paths, strict=True)):
        assert node.parent < number
        assert path[-1] == number
        assert tree.sees_XX[number].nonzero().flatten().tolist() == sorted(path)
        spelled = tuple(t for other in path for t in ids_T[tree.nodes[other].start : tree.nodes[other].stop])
        assert any(spelled == ids[: len(spelled)] for ids in sequences)


@given(families(), shortest)
@example([(1,) * 5, (1,) * 5, (1,) * 5 + (2,)], 16)
def test_a_tree_is_never_larger_than_rows_and_keeps_duplicates_once(sequences, shortest_shared):
    layout = laid_out(sequences, shortest_shared)
    assert layout.token_id_BT.numel() <= lay_out_rows(sequences, CPU).token_id_BT.numel()
    once = laid_out(sorted(set(sequences)), shortest_shared)
    assert layout.token_id_BT.numel() == once.token_id_BT.numel()


@given(families())
def test_where_every_prefix_is_shared_a_tree_has_a_token_for_each_different_prefix(sequences):
    prefixes = {ids[:stop] for ids in sequences for stop in range(1, len(ids) + 1)}
    assert laid_out(sequences, 1).token_id_BT.numel() == len(prefixes)


@given(families())
def test_a_row_holds_its_sequence_and_padding_behind_it(sequences):
    layout = lay_out_rows(sequences, CPU)
    longest = max(map(len, sequences))
    assert layout.token_id_BT.shape == (len(sequences), longest)
    assert layout.tree is None
    assert layout.position_BT is None
    for row, (ids, place_T) in enumerate(zip(sequences, layout.places, strict=True)):
        assert place_T.tolist() == [row * longest + position for position in range(len(ids))]
        assert layout.token_id_BT[row].tolist() == [*ids, *([0] * (longest - len(ids)))]


def test_a_prompt_and_its_turns_are_laid_out_once_for_all_members():
    prompt, turn = tuple(range(100, 140)), tuple(range(200, 220))
    members: Sequence[tuple[int, ...]] = [(*prompt, *turn, 1, 2, 3), (*prompt, *turn, 4), (*prompt, 5, 6)]
    tree = tree_of(lay_out_tree(members, CPU))
    lengths_and_parents = [(node.stop - node.start, node.parent) for node in tree.nodes]
    assert lengths_and_parents == [(40, -1), (20, 0), (3, 1), (1, 1), (2, 0)]

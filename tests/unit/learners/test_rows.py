"""Packing: what stands where in the tensors, against a loop that packs nothing."""
# R8

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_trajectories import make_trajectory

from mcprl.algorithms import learnable_tokens
from mcprl.errors import AlignmentError
from mcprl.learners.rows import Rows, check_alignment, make_rows
from mcprl.records import Trajectory

CPU = torch.device("cpu")


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    """A trajectory that begins with context, as every conversation does."""
    kinds = "c" + draw(st.text(alphabet="csf", max_size=12))
    ids = draw(st.lists(st.integers(0, 151_935), min_size=len(kinds), max_size=len(kinds)))
    logprobs = [draw(st.floats(-9.0, 0.0, width=32)) if kind != "c" else 0.0 for kind in kinds]
    return make_trajectory(ids, kinds, logprobs=logprobs, temperature=draw(st.sampled_from([0.5, 0.75, 1.0])))


ragged = st.lists(trajectories(), min_size=1, max_size=5)
with_learnable = ragged.filter(lambda made: any(any(mask) for mask in exact(made)))


def exact(made: list[Trajectory]) -> list[tuple[bool, ...]]:
    return [learnable_tokens(t, "exact") for t in made]


def packed(made: list[Trajectory]) -> Rows:
    return make_rows(made, exact(made), marked(made), None, CPU)


def marked(made: list[Trajectory]) -> list[list[float]]:
    """An advantage that tells every token of every trajectory apart."""
    return [[float(100 * row + place) for place in range(len(t.token_ids))] for row, t in enumerate(made)]


@given(ragged)
def test_the_columns_are_those_of_a_naive_loop(made):
    rows = packed(made)
    wanted = [
        (row, place, t.token_ids[place], t.temperature, t.logprobs[place], float(100 * row + place))
        for row, t in enumerate(made)
        for place in range(len(t.token_ids))
        if t.sampled[place] and not t.forced[place]
    ]
    columns = (rows.row_N, rows.position_N, rows.target_id_N, rows.temperature_N, rows.sampled_logprob_N)
    assert list(zip(*(c.tolist() for c in (*columns, rows.advantage_N)), strict=True)) == wanted


@given(ragged, st.data())
def test_only_the_tokens_of_the_mask_are_scored(made, data):
    learnable = [tuple(s and data.draw(st.booleans()) for s in t.sampled) for t in made]
    rows = make_rows(made, learnable, marked(made), None, CPU)
    wanted = [(row, place) for row, mask in enumerate(learnable) for place, chosen in enumerate(mask) if chosen]
    assert list(zip(rows.row_N.tolist(), rows.position_N.tolist(), strict=True)) == wanted
    assert check_alignment(rows, made, learnable) == 1.0


@given(ragged)
def test_the_model_is_fed_each_trajectory_whole_and_zeros_after_it(made):
    fed_BT = packed(made).token_id_BT
    assert fed_BT.shape == (len(made), max(len(t.token_ids) for t in made))
    for fed_T, t in zip(fed_BT.tolist(), made, strict=True):
        assert tuple(fed_T[: len(t.token_ids)]) == t.token_ids
        assert not any(fed_T[len(t.token_ids) :])


@given(ragged)
def test_the_tokens_to_score_are_the_tokens_that_the_sampler_returned(made):
    assert check_alignment(packed(made), made, exact(made)) == 1.0


@given(with_learnable, st.data())
def test_one_altered_id_in_the_packed_tensor_is_found(made, data):
    rows = packed(made)
    n = data.draw(st.integers(0, len(rows.row_N) - 1))
    rows.token_id_BT[rows.row_N[n], rows.position_N[n]] += 1
    with pytest.raises(AlignmentError, match=r"E-LEARN-001 only \d+\.\d\d% of the tokens"):
        check_alignment(rows, made, exact(made))


@given(with_learnable, st.data())
def test_one_altered_id_in_a_turn_is_found(made, data):
    rows = packed(made)
    n = data.draw(st.integers(0, len(rows.row_N) - 1))
    row, place = int(rows.row_N[n]), int(rows.position_N[n])
    victim = made[row]
    index = victim.turn_index[place]
    within = place - victim.turn_index.index(index)
    ids = list(victim.turns[index].sampled_ids)
    ids[within] += 1
    turns = [*victim.turns]
    turns[index] = replace(turns[index], sampled_ids=tuple(ids))
    altered = [*made[:row], replace(victim, turns=tuple(turns)), *made[row + 1 :]]
    with pytest.raises(AlignmentError, match="E-LEARN-001"):
        check_alignment(rows, altered, exact(altered))


@pytest.mark.parametrize("returned", [(7,), (7, 8, 9)])
def test_a_turn_with_more_or_fewer_ids_than_are_marked_as_sampled_is_refused(returned):
    made = make_trajectory([1, 7, 8], "css")
    turn = replace(made.turns[0], sampled_ids=returned)
    with pytest.raises(AlignmentError, match=f"2 tokens are marked as sampled, the sampler returned {len(returned)}"):
        check_alignment(packed([made]), [replace(made, turns=(turn,))], exact([made]))


def test_rows_of_other_trajectories_are_refused():
    few, many = make_trajectory([1, 7], "cs"), make_trajectory([1, 7, 8], "css")
    with pytest.raises(AlignmentError, match=r"only 0\.00%"):
        check_alignment(packed([few]), [many], exact([many]))


def test_a_sampled_token_with_nothing_before_it_is_refused():
    # Nothing predicts the first token of a sequence; index −1 would silently score it at the end of the row.
    with pytest.raises(AlignmentError, match="nothing stands before it"):
        packed([make_trajectory([7, 8], "ss")])

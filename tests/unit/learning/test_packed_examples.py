"""Examples and packs: what stands where in the tensors, against a loop that packs nothing."""
# R8

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_trajectories import batch_of, make_trajectory, plain_pack

from mcprl.errors import AlignmentError
from mcprl.learning.algorithms import learnable_tokens
from mcprl.learning.attention import lay_out_rows, lay_out_tree
from mcprl.learning.packing import (
    Example,
    Pack,
    check_alignment,
    first_non_finite,
    make_examples,
    make_pack,
    plain_examples,
)
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


def packed(made: list[Trajectory], *, tree: bool) -> tuple[Pack, list[Example]]:
    return plain_pack(made, exact(made), tree=tree)


def marked(made: list[Trajectory]) -> tuple[tuple[float, ...], ...]:
    """An advantage that tells every token of every trajectory apart."""
    return tuple(tuple(float(100 * row + place) for place in range(len(t.token_ids))) for row, t in enumerate(made))


@pytest.mark.slow
@given(ragged, st.booleans())
def test_the_columns_are_those_of_a_naive_loop(made, tree):
    batch = batch_of([*made, made[0]])
    made = list(batch.trajectories)
    batch = replace(batch, advantages=marked(made))
    examples = make_examples(batch)
    layout = (lay_out_tree if tree else lay_out_rows)([t.token_ids for t in made], CPU)
    pack = make_pack(examples, layout, None, CPU)
    wanted = [
        (row, t.token_ids[place - 1], t.token_ids[place], t.temperature, t.logprobs[place], float(100 * row + place))
        for row, t in enumerate(made)
        for place in range(len(t.token_ids))
        if t.sampled[place] and not t.forced[place]
    ]
    before_N = layout.token_id_BT.flatten()[pack.before_N]
    columns = (pack.sequence_N, before_N, pack.targets.token_id_N, pack.targets.temperature_N)
    own = (pack.columns.sampled_logprob_N, pack.columns.advantage_N)
    assert list(zip(*(c.tolist() for c in (*columns, *own)), strict=True)) == wanted
    assert torch.equal(pack.columns.old_logprob_N, pack.columns.sampled_logprob_N)
    assert pack.columns.carries_loss_N.all()


@given(ragged)
def test_tokens_that_carry_no_loss_are_scored_where_the_policy_had_a_choice(made):
    batch = batch_of([*made, made[0]])
    nothing = tuple((False,) * len(mask) for mask in batch.learnable)
    examples = make_examples(replace(batch, learnable=nothing))
    assert [example.scored for example in examples] == exact(list(batch.trajectories))
    assert [example.learnable_tokens for example in examples] == [0] * len(examples)


@given(ragged, st.data(), st.booleans())
def test_only_the_tokens_of_the_mask_are_scored(made, data, tree):
    scored = [tuple(s and data.draw(st.booleans()) for s in t.sampled) for t in made]
    pack, examples = plain_pack(made, scored, tree=tree)
    wanted = [(row, place) for row, mask in enumerate(scored) for place, chosen in enumerate(mask) if chosen]
    found = [(row, place) for row, example in enumerate(examples) for place in example.position_N.tolist()]
    assert found == wanted
    assert pack.sequence_N.tolist() == [row for row, _ in wanted]
    assert check_alignment(pack, examples) == 1.0


@given(with_learnable, st.data(), st.booleans())
def test_one_altered_id_in_the_packed_tensor_is_found(made, data, tree):
    pack, examples = packed(made, tree=tree)
    n = data.draw(st.integers(0, len(pack.sequence_N) - 1))
    pack.targets.token_id_N[n] += 1
    with pytest.raises(AlignmentError, match=r"E-LEARN-001 only \d+\.\d\d% of the scored tokens"):
        check_alignment(pack, examples)


@given(with_learnable, st.data(), st.booleans())
def test_one_altered_id_in_a_turn_is_found(made, data, tree):
    pack, examples = packed(made, tree=tree)
    n = data.draw(st.integers(0, len(pack.sequence_N) - 1))
    row = int(pack.sequence_N[n])
    place = int(torch.cat([example.position_N for example in examples])[n])
    victim = made[row]
    index = victim.turn_index[place]
    within = place - victim.turn_index.index(index)
    ids = list(victim.turns[index].sampled_ids)
    ids[within] += 1
    turns = [*victim.turns]
    turns[index] = replace(turns[index], sampled_ids=tuple(ids))
    altered = [*made[:row], replace(victim, turns=tuple(turns)), *made[row + 1 :]]
    with pytest.raises(AlignmentError, match="E-LEARN-001"):
        check_alignment(pack, plain_examples(altered, exact(altered)))


@pytest.mark.parametrize("returned", [(7,), (7, 8, 9)])
def test_a_turn_with_more_or_fewer_ids_than_are_marked_as_sampled_is_refused(returned):
    made = make_trajectory([1, 7, 8], "css")
    turn = replace(made.turns[0], sampled_ids=returned)
    with pytest.raises(
        AlignmentError, match=f"2 tokens are marked as sampled, but the sampler returned {len(returned)}"
    ):
        check_alignment(packed([made], tree=True)[0], plain_examples([replace(made, turns=(turn,))], exact([made])))


def test_a_pack_of_other_trajectories_is_refused():
    few, many = make_trajectory([1, 7], "cs"), make_trajectory([1, 7, 8], "css")
    with pytest.raises(AlignmentError, match=r"only 0\.00%"):
        check_alignment(packed([few], tree=True)[0], plain_examples([many], exact([many])))


def test_a_sampled_token_with_nothing_before_it_is_refused():
    # Nothing predicts the first token of a sequence; index −1 would silently score it at the end of the row.
    with pytest.raises(AlignmentError, match="there are no earlier tokens to predict it from"):
        packed([make_trajectory([7, 8], "ss")], tree=True)


def test_a_number_that_is_none_is_found_with_the_episodes_that_have_it():
    batch = batch_of(*[[make_trajectory([1, 7, 8], "css", reward=r) for r in (0.0, 1.0)]] * 2)
    assert first_non_finite(make_examples(batch)) is None
    spoilt = (*batch.advantages[:3], (0.0, float("nan"), 1.0))
    found = first_non_finite(make_examples(replace(batch, advantages=spoilt)))
    assert found == "the advantage is not a finite number in episode 1 of task task-1 in step 0"

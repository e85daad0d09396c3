"""Turns that were sampled under a grammar, on a model with a real vocabulary: replay, scores, and updates."""
# R7, R8

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from made_trajectories import batch_of, gradient_of, make_trajectory, naive_logprobs, randomise_adapter

from mcprl.errors import AlignmentError, InadmissibleTokenError
from mcprl.grammar.masks import Grammars
from mcprl.learning.algorithms import learnable_tokens
from mcprl.learning.packing import Replayer
from mcprl.records import Trajectory

PATTERN = r'<tool_call>\n\{"name": "(find_person|convert_time)", "arguments": \{"n": [0-9]{1,3}\}\}'
TAG = json.dumps({"type": "structural_tag", "format": {"type": "regex", "pattern": PATTERN}})
STOP = (151645, 151643)  # <|im_end|>, <|endoftext|>
TEMPERATURE = 0.8


@pytest.fixture(scope="module")
def grammars(tiny_model: Any, tokenizer: Any) -> Grammars:
    return Grammars(tokenizer, tiny_model.config.vocab_size)


@torch.no_grad()
def sample(model: Any, grammars: Grammars, *, turns: int, seed: int, reward: float, limit: int = 40) -> Trajectory:
    """Turns sampled one token at a time, from a softmax over the admissible logits alone, with a line between them."""
    generator = torch.Generator().manual_seed(seed)
    ids, kinds, logprobs = [9, 8, 7], "ccc", [0.0] * 3
    for _ in range(turns):
        matcher = grammars.start(TAG, STOP)
        begin = len(ids)
        while not matcher.ended and len(ids) - begin < limit:
            row = matcher.admissible().tolist()
            allowed = [32 * w + bit for w, word in enumerate(row) if word for bit in range(32) if word >> bit & 1]
            logit_V = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
            logprob_A = torch.log_softmax(logit_V[allowed] / TEMPERATURE, dim=0)
            chosen = int(torch.multinomial(logprob_A.exp(), 1, generator=generator))
            ids.append(allowed[chosen])
            kinds += "f" if len(allowed) == 1 else "s"
            logprobs.append(float(logprob_A[chosen]))
            matcher.accept(allowed[chosen])
        fixed = grammars.replay(TAG, STOP, ids[begin:]).fixed
        kinds = kinds[:begin] + "".join("x" if f else k for f, k in zip(fixed, kinds[begin:], strict=True))
        ids, kinds, logprobs = [*ids, 198], kinds + "c", [*logprobs, 0.0]
    return make_trajectory(
        ids, kinds, reward=reward, temperature=TEMPERATURE, logprobs=logprobs, grammar=TAG, stop_token_ids=STOP
    )


def unheld(model: Any) -> Trajectory:
    made = make_trajectory([3, 500, 501, 4, 502], "cssss", reward=0.3, temperature=TEMPERATURE)
    scored = naive_logprobs(model, made)
    return replace(made, logprobs=(0.0, *scored[1:]))


@pytest.fixture(scope="module")
def held(tiny_model: Any, grammars: Grammars) -> list[Trajectory]:
    """Two turns; one; and one that the limit cut."""
    return [
        sample(tiny_model, grammars, turns=2, seed=0, reward=1.0),
        sample(tiny_model, grammars, turns=1, seed=1, reward=0.0),
        sample(tiny_model, grammars, turns=1, seed=2, reward=0.5, limit=9),
    ]


@pytest.mark.slow
def test_what_was_sampled_is_what_the_grammar_says_and_has_tokens_of_every_kind(held, tokenizer):
    turns = [tokenizer.decode(turn.sampled_ids[:-1]) for turn in (*held[0].turns, *held[1].turns)]
    assert len(turns) == 3
    assert all(re.fullmatch(PATTERN, text) for text in turns)
    forced, fixed = sum(sum(t.forced) for t in held), sum(sum(t.fixed) for t in held)
    assert forced > 0
    assert fixed > 0
    assert sum(sum(t.sampled) for t in held) > forced + fixed


async def test_every_sampled_token_scores_what_it_had_when_it_was_sampled(held, grammars, tiny_model, make_learner):
    mixed = [held[0], unheld(tiny_model), held[2], held[1]]
    for tokens in (1, 8192):
        scored = await make_learner(grammars=grammars, tokens_per_pack=tokens).score(mixed)
        for trajectory, column in zip(mixed, scored, strict=True):
            assert column == pytest.approx(trajectory.logprobs, abs=1e-5)
            for logprob, sampled, forced in zip(column, trajectory.sampled, trajectory.forced, strict=True):
                assert (sampled and not forced) or logprob == 0.0


async def test_scores_are_those_of_the_policy_as_it_is_and_change_nothing(held, grammars, make_learner):
    learner = make_learner(grammars=grammars)
    randomise_adapter(learner.policy)
    scored = await learner.score(held)
    assert max(abs(a - b) for a, b in zip(scored[0], held[0].logprobs, strict=True)) > 1e-3
    assert await learner.score(held) == scored
    assert all(p.grad is None for p in learner.policy.parameters())
    assert await learner.score([]) == ()


def test_under_a_grammar_a_batch_that_was_just_sampled_has_ratio_one(held, grammars, make_learner):
    metrics = make_learner(grammars=grammars)._update(batch_of(held)).metrics
    assert metrics["parity_logprob_max_abs_error"] <= 1e-5
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert 0.0 < metrics["replay_s"] < metrics["update_s"]
    assert metrics["learnable_share"] == pytest.approx(1.0 - metrics["forced_share"])
    assert 0.0 < metrics["forced_share"] < 1.0
    assert 0.0 < metrics["fixed_text_share"] < 1.0


def test_forced_tokens_add_to_the_denominator_and_to_nothing_else(held, grammars, make_learner):
    exact, none, text = (batch_of(held, masks=masks) for masks in ("exact", "none", "text"))
    gradient = {
        name: gradient_of(make_learner(grammars=grammars), b)[1] for name, b in (("exact", exact), ("none", none))
    }
    tokens = {name: sum(map(sum, b.learnable)) for name, b in (("exact", exact), ("none", none), ("text", text))}
    assert tokens["text"] < tokens["exact"] < tokens["none"]
    torch.testing.assert_close(
        gradient["exact"] * tokens["exact"], gradient["none"] * tokens["none"], rtol=1e-4, atol=1e-6
    )
    other = gradient_of(make_learner(grammars=grammars), text)[1] * tokens["text"]
    whole = gradient["exact"] * tokens["exact"]
    assert float((other - whole).norm() / whole.norm()) > 1e-3


@pytest.mark.parametrize("column", ["forced", "fixed"])
def test_a_recorded_mask_that_the_replay_does_not_find_is_refused(held, grammars, make_learner, column):
    learner = make_learner(grammars=grammars)
    victim = held[0]
    place = max(place for place, marked in enumerate(getattr(victim, column)) if marked)
    altered = replace(victim, **{column: tuple(m and i != place for i, m in enumerate(getattr(victim, column)))})
    said = rf"E-LEARN-001 episode 0 of task task-0, turn \d: .* recorded as {column}"
    with pytest.raises(AlignmentError, match=said):
        learner._update(batch_of([altered, held[1]]))
    assert not learner._folder.exists()


def test_a_token_that_the_grammar_does_not_admit_is_refused(held, grammars, make_learner):
    turn = held[1].turns[0]
    altered = replace(held[1], turns=(replace(turn, sampled_ids=(0, *turn.sampled_ids[1:])),))
    with pytest.raises(InadmissibleTokenError, match="E-SAMP-002"):
        make_learner(grammars=grammars)._update(batch_of([held[0], altered]))


async def test_a_learner_without_grammars_refuses_a_turn_that_was_held_to_one(held, tiny_model, make_learner):
    learner = make_learner()
    for mixed in ([held[0], unheld(tiny_model)], [unheld(tiny_model), held[0]]):
        with pytest.raises(AlignmentError, match="was sampled under a grammar, but the learner has no"):
            learner._update(batch_of(mixed))
        with pytest.raises(AlignmentError, match="was sampled under a grammar"):
            await learner.score(mixed)


def test_each_turn_is_replayed_from_the_beginning_and_each_row_belongs_to_its_token(held, grammars, tiny_model):
    mixed = [unheld(tiny_model), held[0]]
    learnable = [(False, True, False, True, False), learnable_tokens(held[0], "exact")]
    replayer = Replayer(grammars)
    admissible_NW = replayer.admissible(mixed, learnable)
    assert replayer.spent_s > 0.0
    assert admissible_NW[:2].eq(-1).all()
    wanted = []
    for turn in held[0].turns:
        matcher = grammars.start(TAG, STOP)
        for token in turn.sampled_ids:
            word_W = matcher.admissible()
            if sum((word & 0xFFFFFFFF).bit_count() for word in word_W.tolist()) > 1:
                wanted.append(word_W)
            matcher.accept(token)
    assert torch.equal(admissible_NW[2:], torch.stack(wanted))


def test_where_nothing_was_held_there_is_nothing_to_replay(tiny_model):
    replayer = Replayer(None)
    made = unheld(tiny_model)
    assert replayer.admissible([made], [made.sampled]) is None
    assert replayer.spent_s == 0.0

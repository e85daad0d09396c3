"""Under a grammar, the learner's gradient is the gradient of the expected reward: shown on a language written in full.

A grammar makes the sampler draw from q(t|s) = π(t|s) / Z(s) over the admissible tokens A(s), where Z(s) is the sum of π
over A(s). What is to be raised is the reward expected of q, so the score of a token is

    ∇ log q(t|s) = ∇ log π(t|s) − ∇ log Z(s)

A learner that scores the token with the policy's own softmax drops the last term, and on average over q that term is
all there is: E[∇ log q] = 0, so E[∇ log π] = ∇ log Z. Each token then adds reward × ∇ log Z(s): where rewards are
positive, the policy is taught to obey a grammar that holds it anyway, and no number of samples makes it go away.

Here the language has 58 turns. The true gradient is autograd's through the sum over all of them. Against it stands the
mean of 40,000 sampled turns through the learner's own code: replay, packs, logprobs, loss. Each coordinate's error is
measured in its standard errors (z); the bound makes a false alarm in any of them a matter of one seed in a thousand.
"""
# R7

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist

import pytest
import torch
from made_trajectories import plain_pack
from torch import Tensor
from toy_language import (
    END,
    NEVER,
    TAG,
    VOCABULARY,
    Ids,
    ToyModel,
    admissible,
    as_trajectory,
    choices_N,
    draw,
    every_turn,
    make_grammars,
    reward,
)

from mcprl.grammar.masks import Grammars
from mcprl.learning.algorithms import Masks, clipped_policy_loss, learnable_tokens
from mcprl.learning.packing import Pack, Policy, Replayer
from mcprl.records import Trajectory

TURNS = 40_000
SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return make_grammars()


def flat(gradients: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients]).double()


def true_gradient_P(policy: ToyModel, reward_of: Callable[[Ids], float] = reward) -> Tensor:
    """∇ Σ q(turn) · reward(turn), over every turn of the language."""
    expected = sum(choices_N(policy, turn).sum().exp() * reward_of(turn) for turn in every_turn())
    return flat(torch.autograd.grad(expected, tuple(policy.parameters())))


def gradients_of_turns(
    policy: ToyModel,
    grammars: Grammars,
    *,
    masks: Masks = "exact",
    reward_of: Callable[[Ids], float] = reward,
    change: Callable[[ToyModel, Pack], Pack] = lambda _, pack: pack,
) -> dict[Ids, Tensor]:
    """What the learner takes from each turn: minus the gradient of its loss, summed over its tokens.

    No baseline, and the reward itself as the advantage: then the mean over turns is the gradient and no multiple of it.
    """
    turns = every_turn()
    made = [as_trajectory(policy, grammars, turn) for turn in turns]
    learnable = [learnable_tokens(t, masks) for t in made]
    advantages = [[reward_of(turn)] * len(t.token_ids) for turn, t in zip(turns, made, strict=True)]
    admissible_NW = Replayer(grammars).admissible(made, learnable)
    pack = change(policy, pack_of(made, learnable, advantages, admissible_NW))
    columns = pack.columns
    loss_N = clipped_policy_loss(
        logprobs_N(policy, pack), columns.old_logprob_N, columns.advantage_N, clip_low=0.2, clip_high=0.2
    )
    parameters = tuple(policy.parameters())
    return {
        turn: -flat(torch.autograd.grad(loss_N[pack.sequence_N == row].sum(), parameters, retain_graph=True))
        for row, turn in enumerate(turns)
    }


def pack_of(
    made: Sequence[Trajectory],
    learnable: Sequence[tuple[bool, ...]],
    advantages: Sequence[Sequence[float]],
    admissible_NW: Tensor,
) -> Pack:
    """Padded rows: the toy model has no attention that could be split."""
    pack, _ = plain_pack(made, learnable, admissible_NW=admissible_NW, tree=False)

    def column(values: Sequence[Sequence[float]]) -> Tensor:
        pairs = zip(values, learnable, strict=True)
        return torch.tensor([v for row, mask in pairs for v, own in zip(row, mask, strict=True) if own])

    columns = replace(pack.columns, old_logprob_N=column([t.logprobs for t in made]), advantage_N=column(advantages))
    return replace(pack, columns=columns)


def logprobs_N(policy: ToyModel, pack: Pack) -> Tensor:
    """The learner's own code on the toy model."""
    return Policy(policy, critic=False, entropy_gradient=False)(pack).logprob_N


def admitting(pack: Pack, admissible_NW: Tensor | None) -> Pack:
    return replace(pack, targets=pack.targets._replace(admissible_NW=admissible_NW))


def largest_z(drawn: Mapping[Ids, int], gradients: Mapping[Ids, Tensor], true_P: Tensor) -> tuple[float, float]:
    """The worst coordinate's error in standard errors, and the bound that one true gradient in a thousand exceeds."""
    count = sum(drawn.values())
    weight_S = torch.tensor([drawn[turn] / count for turn in drawn], dtype=torch.float64)
    gradient_SP = torch.stack([gradients[turn] for turn in drawn])
    mean_P = weight_S @ gradient_SP
    variance_P = weight_S @ (gradient_SP - mean_P).square() * count / (count - 1)
    # Float32 rounds at about 1e-7; without a floor a coordinate that never varies would be judged by its rounding.
    error_P = (variance_P / count).sqrt().clamp_min(1e-6)
    bound = NormalDist().inv_cdf(1.0 - 0.001 / (2 * len(true_P)))
    return float(((mean_P - true_P) / error_P).abs().max()), bound


def expectation_P(policy: ToyModel, gradients: Mapping[Ids, Tensor]) -> Tensor:
    """The mean over infinitely many sampled turns."""
    with torch.no_grad():
        return torch.stack([choices_N(policy, turn).sum().exp() * gradients[turn] for turn in every_turn()]).sum(0)


def test_the_grammar_admits_at_every_place_what_the_texts_of_the_language_admit(grammars):
    assert len(every_turn()) == 58
    for turn in every_turn():
        replay = grammars.replay(TAG, (END,), turn)
        sets = [admissible(turn[:place]) for place in range(len(turn))]
        for (word,), tokens in zip(replay.admissible.tolist(), sets, strict=True):
            assert {i for i in range(len(VOCABULARY)) if word >> i & 1} == set(tokens)
        assert replay.forced == tuple(len(tokens) == 1 for tokens in sets)


@pytest.mark.parametrize("seed", SEEDS)
def test_sampled_under_a_grammar_the_gradient_is_that_of_the_expected_reward(grammars, seed, record_property):
    policy = ToyModel(seed)
    gradients, true_P = gradients_of_turns(policy, grammars), true_gradient_P(policy)
    z, bound = largest_z(draw(policy, TURNS, seed), gradients, true_P)
    record_property("largest_z", z)
    assert z <= bound
    # And without the noise of sampling:
    assert float((expectation_P(policy, gradients) - true_P).norm() / true_P.norm()) <= 1e-5


def at_ratio_one(policy: ToyModel, pack: Pack) -> Pack:
    return replace(pack, columns=replace(pack.columns, old_logprob_N=logprobs_N(policy, pack).detach()))


def without_the_grammar(_policy: ToyModel, pack: Pack) -> Pack:
    """The score is that of π, and the ratio Z(s) instead of 1."""
    return admitting(pack, None)


def without_renormalisation(policy: ToyModel, pack: Pack) -> Pack:
    """The same with the ratio set right: what is left is the lack of ∇ log Z alone."""
    return at_ratio_one(policy, admitting(pack, None))


def with_a_token_too_many(policy: ToyModel, pack: Pack) -> Pack:
    return at_ratio_one(policy, admitting(pack, pack.targets.admissible_NW | 1 << NEVER))


def with_a_token_too_few(policy: ToyModel, pack: Pack) -> Pack:
    greeting = VOCABULARY.index("hi")
    dropped_NW = (pack.targets.token_id_N[:, None] != greeting).int() << greeting
    return at_ratio_one(policy, admitting(pack, pack.targets.admissible_NW & ~dropped_NW))


def with_the_mask_of_the_token_before(_policy: ToyModel, pack: Pack) -> Pack:
    return admitting(pack, pack.targets.admissible_NW.roll(1, dims=0))


FAULTS = [
    without_the_grammar,
    without_renormalisation,
    with_a_token_too_many,
    with_a_token_too_few,
    with_the_mask_of_the_token_before,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_learner_that_renormalises_wrongly_or_not_at_all_is_found_out(grammars, fault, record_property):
    seed = SEEDS[0]
    policy = ToyModel(seed)
    gradients, true_P = gradients_of_turns(policy, grammars, change=fault), true_gradient_P(policy)
    z, bound = largest_z(draw(policy, TURNS, seed), gradients, true_P)
    record_property("largest_z", z)
    record_property("bias", float((expectation_P(policy, gradients) - true_P).norm() / true_P.norm()))
    assert z > 2 * bound


def test_without_renormalisation_the_policy_moves_though_every_turn_is_worth_the_same(grammars):
    def one(_turn: Ids) -> float:
        return 1.0

    policy = ToyModel(0)
    right = gradients_of_turns(policy, grammars, reward_of=one)
    wrong = gradients_of_turns(policy, grammars, reward_of=one, change=without_renormalisation)
    assert true_gradient_P(policy, one).abs().max() <= 1e-6
    assert expectation_P(policy, right).abs().max() <= 1e-6
    assert expectation_P(policy, wrong).abs().max() >= 0.1


def test_leaving_forced_tokens_out_changes_nothing_and_leaving_fixed_text_out_does(grammars, record_property):
    policy = ToyModel(SEEDS[0])
    exact, none, text = (gradients_of_turns(policy, grammars, masks=masks) for masks in ("exact", "none", "text"))
    for turn in every_turn():
        torch.testing.assert_close(exact[turn], none[turn], rtol=1e-5, atol=1e-6)  # the order of a sum differs, no more
    true_P = true_gradient_P(policy)
    bias = float((expectation_P(policy, text) - true_P).norm() / true_P.norm())
    record_property("bias_of_leaving_fixed_text_out", bias)
    assert bias >= 1e-3  # a hundred times what rounding does to the exact one


def test_the_heads_rows_of_tokens_that_were_never_admissible_get_no_gradient_at_all(grammars):
    policy = ToyModel(0)
    made = [as_trajectory(policy, grammars, turn) for turn in every_turn()]
    learnable = [t.sampled for t in made]
    advantages = [[t.reward] * len(t.token_ids) for t in made]
    pack = pack_of(made, learnable, advantages, Replayer(grammars).admissible(made, learnable))
    logprob_N = logprobs_N(policy, pack)
    (logprob_N * pack.columns.advantage_N).sum().backward()
    assert policy.head.weight.grad[NEVER].eq(0.0).all()
    forced_N = torch.tensor([f for t in made for f, s in zip(t.forced, t.sampled, strict=True) if s])
    assert logprob_N[forced_N].eq(0.0).all()
    assert logprob_N.isfinite().all()


def test_a_token_gives_the_head_gradient_in_the_rows_that_were_admissible_and_in_no_other(grammars):
    policy = ToyModel(0)
    for turn in every_turn():
        made = as_trajectory(policy, grammars, turn)
        admissible_NW = Replayer(grammars).admissible([made], [made.sampled])
        pack = pack_of([made], [made.sampled], [[1.0] * len(made.token_ids)], admissible_NW)
        for place, logprob in enumerate(logprobs_N(policy, pack)):
            (gradient_VD,) = torch.autograd.grad(logprob, policy.head.weight, retain_graph=True)
            allowed = admissible(turn[:place])
            touched = set(gradient_VD.ne(0.0).any(dim=1).nonzero().flatten().tolist())
            assert touched == (set(allowed) if len(allowed) > 1 else set())

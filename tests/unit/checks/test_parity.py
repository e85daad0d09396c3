"""Parity: a real model samples under masks, each fault is planted between sampler and learner, and is found by name."""
# R8, R12

from __future__ import annotations

import copy
import itertools
import json
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from mcprl.checks.parity import ParityReport, check_parity, pick_tasks
from mcprl.errors import NonFiniteError
from mcprl.goals import Goal
from mcprl.learning.algorithms import parity_metrics
from mcprl.records import FinishReason, StopReason, Task, Trajectory, Turn
from mcprl.verdicts import Severity

TEMPERATURE = 0.7
PROMPTS = (
    "The capital of Peru is called",
    "Once upon a time there was",
    "An hour has sixty minutes and",
    "In Lima it is",
)
PROMPT_TOKENS = 4
TURN_TOKENS = 16


@dataclass(frozen=True)
class Played:
    """Trajectories that a model sampled, which tokens were admissible at each place, and what models say of them."""

    tokenizer: Any
    model: Any
    trajectories: list[Trajectory]
    admissible_BTV: torch.Tensor

    def logits(self, model: Any) -> torch.Tensor:
        """What a learner computes: one pass over whole conversations."""
        with torch.inference_mode():
            return model(input_ids=torch.tensor([t.token_ids for t in self.trajectories])).logits.float()

    def scores(
        self, logit_BTV: torch.Tensor, *, temperature: float = TEMPERATURE, masked: bool = True
    ) -> list[list[float]]:
        """Logprobs of the sampled tokens; 0 elsewhere."""
        logit_BTV = logit_BTV[:, :-1] / temperature
        if masked:
            logit_BTV = logit_BTV.masked_fill(~self.admissible_BTV[:, 1:], -torch.inf)
        id_BT = torch.tensor([t.token_ids for t in self.trajectories])
        logprob_BT = torch.log_softmax(logit_BTV, dim=-1).gather(2, id_BT[:, 1:, None]).squeeze(2)
        own_BT = torch.tensor([t.sampled for t in self.trajectories])
        return (torch.nn.functional.pad(logprob_BT, (1, 0)) * own_BT).nan_to_num(0.0).tolist()

    def recorded_as(self, columns: list[list[float]]) -> list[Trajectory]:
        """The same trajectories from a sampler that reports these logprobs."""
        pairs = zip(self.trajectories, columns, strict=True)
        return [replace(t, logprobs=tuple(min(score, 0.0) for score in column)) for t, column in pairs]


@pytest.fixture(scope="module")
def played(smollm2) -> Played:
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    rows, admissible_BTV = play(model, tokenizer)
    made = [make_trajectory(prompt, row) for prompt, row in zip(PROMPTS, rows, strict=True)]
    return Played(tokenizer, model, made, admissible_BTV)


@pytest.fixture(scope="module")
def learner(played) -> torch.Tensor:
    """The logits of a learner in float32."""
    return played.logits(played.model)


@pytest.fixture(scope="module")
def rounded(played) -> torch.Tensor:
    """The logits of a learner in bfloat16."""
    return played.logits(copy.deepcopy(played.model).to(torch.bfloat16))


@pytest.fixture(scope="module")
def other_weights(played) -> torch.Tensor:
    """The logits of a learner whose weights are each a tenth off."""
    other = copy.deepcopy(played.model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1 + 0.1 * torch.randn(parameter.shape, generator=generator))
    return played.logits(other)


@torch.inference_mode()
def play(model, tokenizer) -> tuple[list[list[tuple[int, bool, bool, float, int]]], torch.Tensor]:
    """Two turns a prompt, token by token. Every fifth token is forced, those after it are half of the vocabulary."""
    generator = torch.Generator().manual_seed(3)
    shape = (len(PROMPTS), model.config.vocab_size)
    prompts = [tokenizer.encode(prompt)[:PROMPT_TOKENS] for prompt in PROMPTS]
    tool = [tokenizer.encode("\nThe tool says: 42.\n")] * len(PROMPTS)
    rows: list[list[tuple[int, bool, bool, float, int]]] = [[] for _ in PROMPTS]
    masks: list[torch.Tensor] = []
    unseen: list[list[int]] = [[] for _ in PROMPTS]
    cache = None
    for turn, context in enumerate((prompts, tool)):
        for row, before, new in zip(rows, unseen, context, strict=True):
            row.extend((token, False, False, 0.0, -1) for token in new)
            before.extend(new)
        masks.extend([torch.ones(shape, dtype=torch.bool)] * len(context[0]))
        for place in range(TURN_TOKENS):
            output = model(input_ids=torch.tensor(unseen), past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            forced = place % 5 == 0
            admissible_BV = torch.rand(shape, generator=generator) < (0.5 if place > 5 else 1.0)
            if forced:
                admissible_BV = torch.zeros(shape, dtype=torch.bool)
                admissible_BV.scatter_(1, torch.randint(shape[1], (shape[0], 1), generator=generator), True)
            logit_BV = (output.logits[:, -1] / TEMPERATURE).masked_fill(~admissible_BV, -torch.inf)
            logprob_BV = torch.log_softmax(logit_BV, dim=-1)
            unseen = torch.multinomial(logprob_BV.exp(), 1, generator=generator).tolist()
            for row, (token,), logprob_V in zip(rows, unseen, logprob_BV, strict=True):
                row.append((token, True, forced, float(logprob_V[token]), turn))
            masks.append(admissible_BV)
    return rows, torch.stack(masks, dim=1)


def make_trajectory(prompt: str, columns: list[tuple[int, bool, bool, float, int]]) -> Trajectory:
    ids, sampled, forced, logprobs, turn_index = (tuple(column) for column in zip(*columns, strict=True))
    turns = [
        tuple(token for token, of_turn in zip(ids, turn_index, strict=True) if of_turn == turn)
        for turn in range(max(turn_index) + 1)
    ]
    return Trajectory(
        task_id=prompt,
        step=0,
        member=0,
        attempt=0,
        temperature=TEMPERATURE,
        token_ids=ids,
        sampled=sampled,
        forced=forced,
        fixed=(False,) * len(ids),
        logprobs=logprobs,
        turn_index=turn_index,
        weights_version=tuple(0 if own else -1 for own in sampled),
        turns=tuple(Turn(text="", sampled_ids=t, finish=FinishReason.STOP, weights_version=0) for t in turns),
        stop=StopReason.ANSWERED,
        reward=0.0,
        reward_parts={},
    )


def check(trajectories, scores, *, dtype="float32", max_error=1e9, **options) -> ParityReport:
    return check_parity(trajectories, scores, dtype=dtype, max_error=max_error, **options)


def test_a_learner_that_scores_what_was_sampled_is_exact(played, learner, record_property):
    report = check(played.trajectories, played.scores(learner), max_error=1e-3)
    record_property("logprob_max_abs_error", report.figures.logprob_max_abs_error)
    assert report.verdict.severity is Severity.OK
    assert report.verdict.what == "exact: sampler and learner agree on every token"
    assert (report.prompts, report.turns, report.tokens) == (4, 8, 4 * 2 * TURN_TOKENS)
    assert report.forced_tokens == 4 * 2 * 4
    assert report.alignment == 1.0
    assert report.figures.ratio_mean == pytest.approx(1.0, abs=1e-4)


def test_a_sampler_that_ignores_the_temperature_is_named(played, learner):
    at_1 = played.scores(learner, temperature=1.0)
    report = check(played.recorded_as(at_1), played.scores(learner), scores_at_1=at_1)
    assert report.verdict.severity is Severity.BAD
    assert "ignore the temperature" in report.verdict.what
    assert "processed_logprobs" in report.verdict.fix


@pytest.mark.slow
def test_a_sampler_that_ignores_the_temperature_is_named_in_bfloat16_too(played, learner, rounded):
    at_1 = played.scores(learner, temperature=1.0)
    report = check(
        played.recorded_as(at_1),
        played.scores(rounded),
        dtype="bfloat16",
        scores_at_1=played.scores(rounded, temperature=1.0),
    )
    assert "ignore the temperature" in report.verdict.what


def test_a_learner_that_does_not_replay_the_grammar_is_named(played, learner):
    scores = played.scores(learner, masked=False)
    report = check(played.trajectories, scores)
    assert report.verdict.severity is Severity.BAD
    assert report.verdict.what.startswith("the learner does not replay the grammar")


def test_a_sampler_that_ignores_the_grammar_is_named(played, learner):
    unmasked = played.recorded_as(played.scores(learner, masked=False))
    report = check(unmasked, played.scores(learner))
    assert report.verdict.severity is Severity.BAD
    assert report.verdict.what.startswith("the sampler's logprobs ignore the grammar")


def test_a_grammar_that_both_ignore_is_named_although_they_agree(played, learner):
    unmasked = played.scores(learner, masked=False)
    report = check(played.recorded_as(unmasked), unmasked)
    assert report.figures.exact
    assert report.verdict.severity is Severity.BAD


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_different_weights_are_not_taken_for_rounding_or_temperature(played, other_weights, dtype):
    at_1 = played.scores(other_weights, temperature=1.0)
    report = check(played.trajectories, played.scores(other_weights), dtype=dtype, scores_at_1=at_1)
    assert report.verdict.severity is Severity.BAD
    assert "they have different weights or contexts" in report.verdict.what


def test_shifted_tokens_are_reported_as_a_fault_of_mcprl(played, learner):
    first, *others = played.trajectories
    moved = replace(first, token_ids=(*first.token_ids[1:], first.token_ids[0]))
    report = check([moved, *others], played.scores(learner))
    assert 0.7 < report.alignment < 1.0
    assert report.verdict.severity is Severity.BAD
    assert f"only {report.alignment:.2%} of the tokens" in report.verdict.what
    assert "bug in mcprl" in report.verdict.fix


def test_a_token_missing_from_the_trajectory_lowers_alignment(played, learner):
    first = played.trajectories[0]
    longer = replace(first.turns[-1], sampled_ids=(*first.turns[-1].sampled_ids, 5))
    report = check([replace(first, turns=(first.turns[0], longer))], played.scores(learner)[:1])
    assert report.alignment == pytest.approx(32 / 33)


def test_rounding_is_usual_in_bfloat16_and_not_in_float32(played, rounded, record_property):
    scores = played.scores(rounded)
    at_1 = played.scores(rounded, temperature=1.0)
    usual = check(played.trajectories, scores, dtype="bfloat16", scores_at_1=at_1)
    record_property("bfloat16_logprob_mean_abs_error", usual.figures.logprob_mean_abs_error)
    record_property("bfloat16_outside_share", usual.figures.outside_share)
    assert usual.verdict.severity is Severity.WARN
    assert "usual in bfloat16" in usual.verdict.what
    unusual = check(played.trajectories, scores, scores_at_1=at_1)
    assert unusual.verdict.severity is Severity.WARN
    assert "the sampler or the learner seems to compute in lower precision than float32" in unusual.verdict.what


def test_the_verdict_says_if_training_would_stop(played, rounded):
    scores = played.scores(rounded)
    report = check(played.trajectories, scores, dtype="bfloat16", max_error=1e-3)
    assert report.verdict.severity is Severity.BAD
    assert "usual in bfloat16" in report.verdict.what
    assert "training would stop" in report.verdict.what
    assert report.verdict.what.endswith("above learner.max_parity_error (0.001)")
    assert report.verdict.fix.startswith("raise learner.max_parity_error or set model.dtype to float32")


def test_if_only_the_limit_is_too_strict_the_fix_is_to_raise_it(played, learner):
    report = check(played.trajectories, played.scores(learner), max_error=1e-9)
    assert report.verdict.severity is Severity.BAD
    assert report.verdict.fix == "raise learner.max_parity_error"


def test_raising_the_limit_is_never_the_fix_for_a_real_fault(played, other_weights):
    report = check(played.trajectories, played.scores(other_weights), max_error=1e-3)
    assert "training would stop" in report.verdict.what
    assert "max_parity_error" not in report.verdict.fix
    assert "raise" not in report.verdict.fix


def test_the_worst_tokens_are_named_with_their_place_and_text(played, learner):
    scores = played.scores(learner)
    trajectory = played.trajectories[2]
    place = [i for i, turn in enumerate(trajectory.turn_index) if turn == 1][7]
    scores[2][place] -= 2.0
    worst = check(played.trajectories, scores, decode=played.tokenizer.decode).worst
    assert len(worst) == 5
    assert (worst[0].task_id, worst[0].turn, worst[0].token) == (PROMPTS[2], 1, 7)
    assert worst[0].text == played.tokenizer.decode([trajectory.token_ids[place]])
    assert worst[0].sampled_logprob == trajectory.logprobs[place]
    assert worst[0].difference == pytest.approx(-2.0, abs=1e-4)
    sizes = [abs(token.difference) for token in worst]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("broken", [float("nan"), -float("inf")])
def test_a_logprob_that_is_not_finite_is_an_error_with_its_place(played, learner, broken):
    scores = played.scores(learner)
    place = played.trajectories[1].sampled.index(True)
    scores[1][place] = broken
    with pytest.raises(NonFiniteError, match=f"token 0 in turn 0 of task {PROMPTS[1]}") as caught:
        check(played.trajectories, scores)
    assert "model.dtype" not in caught.value.fix  # it is float32 already


def test_a_report_is_json(played, learner):
    report = check(played.trajectories, played.scores(learner))
    read = json.loads(json.dumps(report.to_json()))
    assert read["verdict"]["severity"] == "ok"
    assert read["logprob_max_abs_error"] == report.figures.logprob_max_abs_error
    assert read["worst"][0]["task_id"] in PROMPTS


LOGPROBS = st.floats(min_value=-30.0, max_value=0.0)


@given(st.lists(st.tuples(LOGPROBS, LOGPROBS), min_size=1, max_size=30))
def test_figures_are_those_that_an_update_reports(pairs):
    columns = [(1, False, False, 0.0, -1), *((2, True, False, sampled, 0) for sampled, _ in pairs)]
    found = check([make_trajectory("made", columns)], [[0.0, *(score for _, score in pairs)]])
    sampled_N, learner_N = torch.tensor(pairs, dtype=torch.float64).unbind(1)
    expected = parity_metrics(learner_N, sampled_N)
    got = {f"parity_{name}": value for name, value in found.to_json().items()}
    for name, value in expected.items():
        assert got[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name


def test_a_huge_difference_still_gives_finite_figures():
    columns = [(1, False, False, 0.0, -1), (2, True, False, -2000.0, 0)]
    report = check([make_trajectory("made", columns)], [[0.0, -1.0]])
    assert report.figures.logprob_max_abs_error == 1999.0
    assert report.verdict.severity is Severity.BAD


def test_no_token_to_compare_is_refused():
    with pytest.raises(ValueError, match="no sampled token"):
        check([], [])


@given(st.integers(1, 40), st.integers(1, 60), st.integers(0, 1000))
def test_tasks_are_picked_evenly_and_by_the_seed_alone(there, number, seed):
    tasks = [Task(id=f"t{n}", prompt=({"role": "user", "content": "?"},), goal=Goal()) for n in range(there)]
    picked = [task.id for task in pick_tasks(tasks, number, seed)]
    assert picked == [task.id for task in pick_tasks(tasks, number, seed)]
    times = Counter({task.id: 0 for task in tasks})
    times.update(picked)
    assert len(picked) == number
    assert max(times.values()) - min(times.values()) <= 1


def test_tasks_come_from_all_over_a_file_that_is_sorted():
    tasks = [Task(id=f"{n}", prompt=({"role": "user", "content": "?"},), goal=Goal()) for n in range(100)]
    starts = set()
    for seed in range(5):
        places = [int(task.id) for task in pick_tasks(tasks, 4, seed)]
        assert [(b - a) % 100 for a, b in itertools.pairwise(places)] == [25, 25, 25]
        starts.add(places[0])
    assert len(starts) > 1

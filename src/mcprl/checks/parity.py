"""Checks that sampler and learner give the same tokens the same probability, before training starts.

A policy gradient compares two logprobs of each sampled token: the sampler's, recorded when the token was sampled, and
the learner's. Before any update both have the same policy, so every ratio must be 1. `check_parity` compares the two;
`run_parity` samples a few episodes for that.

A verdict names a cause only if the figures prove it. If a token is the only admissible one and its logprob is not 0,
one side ignores the grammar. If the two agree at temperature 1, the sampler ignores the temperature. Other differences
are judged by their size.
"""

from __future__ import annotations

import asyncio
import math
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from heapq import nlargest
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from mcprl.concurrency import run_all
from mcprl.config import RewardsConfig, RunConfig
from mcprl.errors import NonFiniteError
from mcprl.goals import AnyText, Goal
from mcprl.progress import Watcher
from mcprl.records import Task, Trajectory
from mcprl.seeds import derive_seed
from mcprl.verdicts import Severity, Verdict

if TYPE_CHECKING:
    from mcprl.episodes.stage import Stage
    from mcprl.learning import Learner

Dtype = Literal["float32", "bfloat16"]
Scores = Sequence[Sequence[float]]

# In nats. Two float32 engines differ by a tenth of these; any real fault is orders of magnitude larger.
EXACT_MEAN = 5e-5
EXACT_MAX = 1e-3
# Differences that bfloat16 rounding explains, with a margin: SmolLM2 has means of 0.01 to 0.06, shares of 5% to 14%.
ROUNDING_MEAN = 0.1
ROUNDING_OUTSIDE = 0.3
# A difference this large is rare in bfloat16. It occurs among 100,000 tokens, and with mixtures of experts.
OUTLIER = 2.0
_RATIO_BAND = (0.9, 1.1)
# If only one token is admissible, its logprob is 0 in any number format.
_FORCED_TOLERANCE = 1e-3
# Far above every threshold, and its exponential is still finite.
_LARGEST_LOG_RATIO = 50.0
_WORST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredToken:
    """A sampled token and its two logprobs. `turn`, and `token` within it, count from 0; `text` is empty if unknown.

    ScoredToken(task_id="zone-of-ana", turn=1, token=4, id=47110, text=" Lima", forced=False,
                sampled_logprob=-0.31, learner_logprob=-0.35)
    """

    task_id: str
    turn: int
    token: int
    id: int
    text: str
    forced: bool
    sampled_logprob: float
    learner_logprob: float

    @property
    def difference(self) -> float:
        return self.learner_logprob - self.sampled_logprob


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityFigures:
    """The differences between two logprobs of the same tokens, in nats, and the ratios ρ that follow.

    `kl` is the mean of k3 = ρ − 1 − log ρ. `outside_share` is the fraction of ratios outside [0.9, 1.1]. Example:
    two tokens, of which one is twice as likely under the learner as under the sampler:

    ParityFigures(logprob_mean_abs_error=0.35, logprob_max_abs_error=0.69, ratio_mean=1.5, ratio_mean_abs_error=0.5,
                  kl=0.15, outside_share=0.5)
    """

    logprob_mean_abs_error: float
    logprob_max_abs_error: float
    ratio_mean: float
    ratio_mean_abs_error: float
    kl: float
    outside_share: float

    @classmethod
    def of(cls, tokens: Sequence[ScoredToken]) -> ParityFigures:
        differences = [token.difference for token in tokens]
        log_ratios = [min(difference, _LARGEST_LOG_RATIO) for difference in differences]
        ratios = [math.exp(log_ratio) for log_ratio in log_ratios]
        low, high = _RATIO_BAND
        return cls(
            logprob_mean_abs_error=fmean(map(abs, differences)),
            logprob_max_abs_error=max(map(abs, differences)),
            ratio_mean=fmean(ratios),
            ratio_mean_abs_error=fmean(abs(math.expm1(log_ratio)) for log_ratio in log_ratios),
            kl=fmean(math.expm1(log_ratio) - log_ratio for log_ratio in log_ratios),
            outside_share=fmean(not low <= ratio <= high for ratio in ratios),
        )

    @property
    def exact(self) -> bool:
        return self.logprob_mean_abs_error <= EXACT_MEAN and self.logprob_max_abs_error <= EXACT_MAX

    @property
    def like_rounding(self) -> bool:
        return self.logprob_mean_abs_error <= ROUNDING_MEAN and self.outside_share <= ROUNDING_OUTSIDE


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityReport:
    """The differences between sampler and learner over all sampled tokens, the worst tokens, and a verdict.

    ParityReport(dtype="float32", prompts=16, turns=29, tokens=1034, forced_tokens=62, alignment=1.0,
                 figures=ParityFigures(logprob_mean_abs_error=3.1e-06, …), worst=(ScoredToken(…), …),
                 verdict=Verdict(severity=Severity.OK, …))

    `alignment` is the fraction of the scored tokens that equal the tokens the sampler returned.
    """

    dtype: Dtype
    prompts: int
    turns: int
    tokens: int
    forced_tokens: int
    alignment: float
    figures: ParityFigures
    worst: tuple[ScoredToken, ...]
    verdict: Verdict

    def to_json(self) -> dict[str, Any]:
        """Return the whole report as JSON."""
        report = asdict(self)
        return {**report.pop("figures"), **report}


def check_parity(
    trajectories: Sequence[Trajectory],
    scores: Scores,
    *,
    dtype: Dtype,
    max_error: float,
    decode: Callable[[Sequence[int]], str] | None = None,
    scores_at_1: Scores | None = None,
) -> ParityReport:
    """Compare the learner's logprobs of sampled tokens with those that the sampler recorded.

    `scores` has a list per trajectory, with an entry per token, as TorchLearner.score returns it. `max_error` is the
    setting learner.max_parity_error: training stops if the mean error is above it. `scores_at_1` are the learner's
    logprobs at temperature 1; they show whether the sampler ignores the temperature.
    """
    tokens = list(_tokens(trajectories, scores, dtype))
    if not tokens:
        raise ValueError("there are no sampled tokens to compare")
    forced = [token for token in tokens if token.forced]
    figures, alignment = ParityFigures.of(tokens), _alignment(trajectories)
    at_1 = None if scores_at_1 is None else ParityFigures.of(list(_tokens(trajectories, scores_at_1, dtype)))
    verdict = _cause(forced, figures, at_1, alignment) or _by_size(figures, dtype)
    worst = nlargest(_WORST, tokens, key=lambda token: abs(token.difference))
    return ParityReport(
        dtype=dtype,
        prompts=len(trajectories),
        turns=sum(len(t.turns) for t in trajectories),
        tokens=len(tokens),
        forced_tokens=len(forced),
        alignment=alignment,
        figures=figures,
        worst=tuple(replace(token, text=decode([token.id])) for token in worst) if decode else tuple(worst),
        verdict=_against_limit(verdict, figures.logprob_mean_abs_error, max_error),
    )


def _tokens(trajectories: Sequence[Trajectory], scores: Scores, dtype: Dtype) -> Iterator[ScoredToken]:
    """Yield the sampled tokens of all trajectories."""
    for trajectory, column in zip(trajectories, scores, strict=True):
        in_turn = Counter[int]()
        for place, score in enumerate(column):
            if not trajectory.sampled[place]:
                continue
            turn = trajectory.turn_index[place]
            if not math.isfinite(score):
                raise NonFiniteError(
                    f"the learner's logprob of token {in_turn[turn]} in turn {turn} of task {trajectory.task_id} "
                    f"is {score}",
                    fix="download or copy the complete model again"
                    + ("" if dtype == "float32" else ", or set model.dtype to float32"),
                )
            yield ScoredToken(
                task_id=trajectory.task_id,
                turn=turn,
                token=in_turn[turn],
                id=trajectory.token_ids[place],
                text="",
                forced=trajectory.forced[place],
                sampled_logprob=trajectory.logprobs[place],
                learner_logprob=score,
            )
            in_turn[turn] += 1


def _alignment(trajectories: Sequence[Trajectory]) -> float:
    """Return the fraction of tokens marked as sampled that equal the sampler's tokens at the same position."""
    same = total = 0
    for trajectory in trajectories:
        scored = [token for token, own in zip(trajectory.token_ids, trajectory.sampled, strict=True) if own]
        returned = [token for turn in trajectory.turns for token in turn.sampled_ids]
        same += sum(a == b for a, b in zip(scored, returned, strict=False))
        total += max(len(scored), len(returned))
    return same / total


def _cause(
    forced: Sequence[ScoredToken], figures: ParityFigures, at_1: ParityFigures | None, alignment: float
) -> Verdict | None:
    """Return a verdict if the figures prove a cause. `at_1` compares with the learner's logprobs at temperature 1."""
    at_temperature_1 = at_1 is not None and (at_1.exact or (at_1.like_rounding and not figures.like_rounding))
    if alignment < 1.0:
        what = f"only {alignment:.2%} of the tokens that the learner scored match the sampled tokens"
        fix = "report this bug in mcprl, with the recipe"
    elif any(token.sampled_logprob < -_FORCED_TOLERANCE for token in forced):
        what = "the sampler's logprobs ignore the grammar: tokens that the grammar forces do not have logprob 0"
        fix = "use a sampler that reports logprobs after the grammar's mask (vLLM: processed_logprobs)"
    elif any(token.learner_logprob < -_FORCED_TOLERANCE for token in forced):
        what = "the learner does not replay the grammar: tokens that the grammar forces do not have logprob 0"
        fix = "report this bug in mcprl, with the recipe; until it is fixed, set sampling.constrain to off"
    elif not figures.exact and at_temperature_1:
        what = "the sampler's logprobs ignore the temperature: they agree with the learner's at temperature 1"
        fix = "use temperature 1, or a sampler that reports logprobs at its temperature (vLLM: processed_logprobs)"
    else:
        return None
    return Verdict(severity=Severity.BAD, what=what, fix=fix)


def _by_size(figures: ParityFigures, dtype: Dtype) -> Verdict:
    if figures.exact:
        return Verdict(severity=Severity.OK, what="exact: sampler and learner agree on every token", fix="")
    if not figures.like_rounding:
        return Verdict(
            severity=Severity.BAD,
            what=f"sampler and learner disagree by {figures.logprob_mean_abs_error:.2g} nats per token: this is more "
            "than rounding error, so they have different weights or contexts",
            fix="check that both load the current weights of model.path; look at the worst tokens to see where the "
            "difference starts",
        )
    if dtype == "float32":
        what = "close but not exact: the sampler or the learner seems to compute in lower precision than float32"
        fix = "check that both compute in float32 and, on a GPU, that neither uses TF32"
    else:
        what = "close, as usual in bfloat16: ratios start near 1, not at exactly 1"
        fix = "set model.dtype to float32 if you need exact ratios and have the memory"
    return Verdict(severity=Severity.WARN, what=what, fix=fix)


def _against_limit(verdict: Verdict, mean: float, max_error: float) -> Verdict:
    """Add to the verdict whether training would stop."""
    if mean <= max_error:
        return verdict
    what = (
        f"{verdict.what}; training would stop, since tokens differ by {mean:.2g} nats on average, above "
        f"learner.max_parity_error ({max_error:g})"
    )
    fix = verdict.fix
    if verdict.severity is not Severity.BAD:
        fix = " or ".join(filter(None, ["raise learner.max_parity_error", verdict.fix]))
    return Verdict(severity=Severity.BAD, what=what, fix=fix)


def pick_tasks(tasks: Sequence[Task], number: int, seed: int) -> list[Task]:
    """Pick `number` evenly spaced tasks. The seed chooses the first; tasks repeat if there are too few."""
    start = random.Random(derive_seed(seed, "parity")).randrange(len(tasks))
    return [tasks[(start + place * len(tasks) // number) % len(tasks)] for place in range(number)]


async def run_parity(config: RunConfig, tasks: Sequence[Task], watcher: Watcher, *, prompts: int = 16) -> ParityReport:
    """Run some tasks with the recipe's servers and sampler, score the sampled tokens with the learner, and compare.

    Episodes end after two turns, enough to include an observation and the turn after it. They get no reward, so no
    judge is needed.
    """
    from mcprl.episodes.stage import open_stage
    from mcprl.learning import open_learner

    config = config.model_copy(update={"rewards": RewardsConfig()})
    picked = pick_tasks(tasks, prompts, config.seed)
    short = [replace(task, max_turns=2, goal=Goal(answer=AnyText())) for task in picked]
    with tempfile.TemporaryDirectory(prefix="mcprl-parity-") as folder:
        async with AsyncExitStack() as stack:
            stage = await stack.enter_async_context(open_stage(config, short, watcher, logs=Path(folder) / "logs"))
            watcher.stage(f"running {prompts} episodes")
            trajectories = await _play(config, short, stage, watcher)
            if stage.engine is None:
                await stack.aclose()  # ensures that sampler and learner are not in memory at the same time
            watcher.stage("loading the learner")
            learner = await stack.enter_async_context(
                open_learner(config, folder=Path(folder) / "weights", grammars=stage.grammars, engine=stage.engine)
            )
            return await measure_parity(config, trajectories, learner, watcher, decode=stage.chat.decode)


async def measure_parity(
    config: RunConfig,
    trajectories: Sequence[Trajectory],
    learner: Learner,
    watcher: Watcher,
    *,
    decode: Callable[[Sequence[int]], str],
) -> ParityReport:
    """Score episodes with the learner before any update, and compare. If useful, repeat at temperature 1."""
    watcher.stage("scoring the sampled tokens")
    report = partial(
        check_parity,
        trajectories,
        await learner.score(trajectories),
        dtype=config.model.dtype,
        max_error=config.learner.max_parity_error,
        decode=decode,
    )
    found = report()
    if not found.figures.exact and config.sampling.temperature != 1.0:
        watcher.stage("scoring the sampled tokens again at temperature 1")
        found = report(scores_at_1=await learner.score([replace(t, temperature=1.0) for t in trajectories]))
    return found


async def _play(config: RunConfig, tasks: Sequence[Task], stage: Stage, watcher: Watcher) -> tuple[Trajectory, ...]:
    places = asyncio.Semaphore(config.episodes.max_concurrent)
    members = Counter[str]()

    async def play(task: Task, member: int) -> Trajectory:
        async with places:
            trajectory = await stage.runner.run(task, step=0, member=member, attempt=0)
        watcher.episode_finished(0, trajectory)
        return trajectory

    episodes: list[tuple[Task, int]] = []
    for task in tasks:
        episodes.append((task, members[task.id]))
        members[task.id] += 1
    return await run_all(play(task, member) for task, member in episodes)

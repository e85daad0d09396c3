"""Do sampler and learner give the same tokens the same probability? Asked before a step is spent.

A policy gradient compares two logprobs of each sampled token: the sampler's, recorded when it drew the token, and the
learner's. Before any update both are the same policy, so every ratio must be 1. `check_parity` compares what was
sampled with what the learner says of it; `run_parity` has a few episodes sampled for that.
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
from typing import Any

from mcprl.checks.parity_verdict import Dtype, Evidence, ParityFigures, judge_parity
from mcprl.concurrency import run_all
from mcprl.config import RewardsConfig, RunConfig
from mcprl.episodes.stage import Stage, open_stage
from mcprl.errors import NonFiniteError
from mcprl.goals import AnyText, Goal
from mcprl.learning import Learner, open_learner
from mcprl.progress import Watcher
from mcprl.records import Task, Trajectory
from mcprl.seeds import derive_seed
from mcprl.verdicts import Verdict

__all__ = ["ParityReport", "ScoredToken", "check_parity", "measure_parity", "pick_tasks", "run_parity"]


Scores = Sequence[Sequence[float]]

_WORST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredToken:
    """A sampled token and its two logprobs. `turn`, and `token` in it, count from 0; `text` may be unknown and empty.

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
class ParityReport:
    """How far sampler and learner differ over all sampled tokens, the tokens where most, and what that means.

    ParityReport(dtype="float32", prompts=16, turns=29, tokens=1034, forced_tokens=62, alignment=1.0,
                 figures=ParityFigures(logprob_mean_abs_error=3.1e-06, …), worst=(ScoredToken(…), …),
                 verdict=Verdict(severity=Severity.OK, …))

    `alignment` is the share of the scored tokens that are the tokens which the sampler returned.
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
        """The whole report for another program."""
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
    """Hold the learner's logprobs of sampled tokens against those that the sampler recorded.

    `scores` has a column for each trajectory, with an entry for each of its tokens, as TorchLearner.score gives it.
    `max_error` is the setting learner.max_parity_error: training stops if the mean is above it. `scores_at_1` are the
    learner's logprobs at temperature 1: with them, a sampler that leaves the temperature out can be told from other
    faults.
    """
    tokens = list(_tokens(trajectories, scores))
    if not tokens:
        raise ValueError("there is no sampled token to compare")
    forced = [token for token in tokens if token.forced]
    at_1 = None
    if scores_at_1 is not None:
        at_1 = ParityFigures.of([token.difference for token in _tokens(trajectories, scores_at_1)])
    evidence = Evidence(
        dtype=dtype,
        max_error=max_error,
        alignment=_alignment(trajectories),
        figures=ParityFigures.of([token.difference for token in tokens]),
        at_temperature_1=at_1,
        forced_by_sampler=min((token.sampled_logprob for token in forced), default=0.0),
        forced_by_learner=min((token.learner_logprob for token in forced), default=0.0),
    )
    worst = nlargest(_WORST, tokens, key=lambda token: abs(token.difference))
    return ParityReport(
        dtype=dtype,
        prompts=len(trajectories),
        turns=sum(len(t.turns) for t in trajectories),
        tokens=len(tokens),
        forced_tokens=len(forced),
        alignment=evidence.alignment,
        figures=evidence.figures,
        worst=tuple(replace(token, text=decode([token.id])) for token in worst) if decode else tuple(worst),
        verdict=judge_parity(evidence),
    )


def _tokens(trajectories: Sequence[Trajectory], scores: Scores) -> Iterator[ScoredToken]:
    """The sampled tokens of all trajectories."""
    for trajectory, column in zip(trajectories, scores, strict=True):
        in_turn = Counter[int]()
        for place, score in enumerate(column):
            if not trajectory.sampled[place]:
                continue
            turn = trajectory.turn_index[place]
            if not math.isfinite(score):
                raise NonFiniteError(
                    f"the learner gives token {in_turn[turn]} in turn {turn} of task {trajectory.task_id} "
                    f"the logprob {score}",
                    fix="use model.dtype float32, and weights that are whole",
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
    """The share of tokens marked as sampled that are what the sampler returned, place by place."""
    same = total = 0
    for trajectory in trajectories:
        scored = [token for token, own in zip(trajectory.token_ids, trajectory.sampled, strict=True) if own]
        returned = [token for turn in trajectory.turns for token in turn.sampled_ids]
        same += sum(a == b for a, b in zip(scored, returned, strict=False))
        total += max(len(scored), len(returned))
    return same / total


def pick_tasks(tasks: Sequence[Task], number: int, seed: int) -> list[Task]:
    """So many tasks, evenly spread over all of them from where the seed says; too few tasks are taken several times."""
    start = random.Random(derive_seed(seed, "parity")).randrange(len(tasks))
    return [tasks[(start + place * len(tasks) // number) % len(tasks)] for place in range(number)]


async def run_parity(config: RunConfig, tasks: Sequence[Task], watcher: Watcher, *, prompts: int = 16) -> ParityReport:
    """Play some tasks with the recipe's own servers and sampler, score what was sampled, and compare.

    Episodes end after two turns: enough to have an observation and the joint after it among what is compared. What
    they are worth is not asked, so no judge is.
    """
    config = config.model_copy(update={"rewards": RewardsConfig()})
    picked = pick_tasks(tasks, prompts, config.seed)
    short = [replace(task, max_turns=2, goal=Goal(answer=AnyText())) for task in picked]
    with tempfile.TemporaryDirectory(prefix="mcprl-parity-") as folder:
        async with AsyncExitStack() as stack:
            stage = await stack.enter_async_context(open_stage(config, short, watcher, logs=Path(folder) / "logs"))
            watcher.stage(f"playing {prompts} episodes")
            trajectories = await _play(config, short, stage, watcher)
            if stage.engine is None:
                await stack.aclose()  # sampler and learner need not have the machine's memory at once
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
    decode: Callable[[Sequence[int]], str] | None = None,
) -> ParityReport:
    """Have the learner score what was sampled before any update, and compare; again at temperature 1 where it helps."""
    watcher.stage("scoring what was sampled")
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
        watcher.stage("scoring it again at temperature 1")
        found = report(scores_at_1=await learner.score([replace(t, temperature=1.0) for t in trajectories]))
    return found


async def _play(config: RunConfig, tasks: Sequence[Task], stage: Stage, watcher: Watcher) -> tuple[Trajectory, ...]:
    places = asyncio.Semaphore(config.episodes.max_concurrent)
    taken = Counter[str]()

    async def play(task: Task, member: int) -> Trajectory:
        async with places:
            trajectory = await stage.runner.run(task, step=0, member=member, attempt=0)
        watcher.episode_finished(0, trajectory)
        return trajectory

    episodes: list[tuple[Task, int]] = []
    for task in tasks:
        episodes.append((task, taken[task.id]))
        taken[task.id] += 1
    return await run_all(play(task, member) for task, member in episodes)

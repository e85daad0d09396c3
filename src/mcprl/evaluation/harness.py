"""Plays an evaluation: every episode of every task on an open stage, without a learner; those lost are played again."""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mcprl.concurrency import run_all
from mcprl.config import EpisodesConfig, RunConfig
from mcprl.episodes import RunsEpisodes
from mcprl.episodes.attempts import lost_to, run_until_kept
from mcprl.errors import BadValueError, InfrastructureError
from mcprl.evaluation.figures import TaskResult, count_figures
from mcprl.evaluation.outcomes import EpisodeOutcome, outcome_of
from mcprl.evaluation.results import Evaluation, ServerCost
from mcprl.evaluation.suites import Suite
from mcprl.records import LostEpisode, Task, Trajectory, Weights
from mcprl.seeds import derive_seed
from mcprl.tools.stats import StatsDocument
from mcprl.training.run import open_stage
from mcprl.training.watching import Watcher

__all__ = ["Played", "Player", "Request", "choose_tasks", "evaluate", "fingerprint"]

# Episodes are those of no step of a training run, so their turns are drawn from streams of their own.
_STEP = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to evaluate: Request(config=config, suite=suite, episodes=4, sample=None, adapter=Path("…/adapter")).

    `config` is as the suite wants it. With `sample`, only so many tasks are played, drawn by the run's seed.
    """

    config: RunConfig
    suite: Suite
    episodes: int = 1
    sample: int | None = None
    adapter: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """An evaluation and the trajectories that it was counted from, task by task in the order of their members."""

    evaluation: Evaluation
    trajectories: tuple[Trajectory, ...]


async def evaluate(request: Request, watcher: Watcher, *, logs: Path) -> Played:
    """Play, judge, count. `watcher` hears of each attempt. Raises GroupIncompleteError where one keeps being lost."""
    config, suite = request.config, request.suite
    started, began = datetime.now(UTC), time.monotonic()
    every_task = suite.tasks()
    tasks = choose_tasks(every_task, request.sample, config.seed)
    async with open_stage(config, tasks, watcher, logs=logs) as stage:
        if request.adapter is not None:
            watcher.stage(f"loading the adapter {request.adapter}")
            await stage.sampler.publish(Weights(version=1, adapter=request.adapter))
        watcher.stage(f"playing {request.episodes} of each of {len(tasks)} tasks")
        player = Player(stage.runner, config.episodes, suite, watcher)
        by_task = await run_all(player.play(task, request.episodes) for task in tasks)
        servers = _costs(stage.figures.stats())
    outcomes = tuple(outcome for played in by_task for _, outcome in played)
    results = tuple(_result(task, suite, [o for _, o in played]) for task, played in zip(tasks, by_task, strict=True))
    evaluation = Evaluation(
        name=config.name,
        suite=suite.name,
        model=config.model.path,
        adapter=None if request.adapter is None else str(request.adapter),
        started=started.isoformat(timespec="seconds"),
        seconds=time.monotonic() - began,
        mcprl=version("mcprl"),
        tasks_in_suite=len(every_task),
        figures=count_figures(results, outcomes),
        lost=dict(sorted(player.lost.items())),
        servers=servers,
        tasks=results,
        episodes=outcomes,
        config=config.model_dump(mode="json"),
    )
    return Played(evaluation=evaluation, trajectories=tuple(t for played in by_task for t, _ in played))


def choose_tasks(tasks: Sequence[Task], sample: int | None, seed: int) -> tuple[Task, ...]:
    """All tasks, or as many as asked for, drawn by the seed and in the order in which they stand."""
    if not tasks:
        raise BadValueError("there is no task to play", fix="name a file that has some with --tasks")
    if sample is None or sample >= len(tasks):
        return tuple(tasks)
    drawn = random.Random(derive_seed(seed, "evaluation", "sample")).sample(range(len(tasks)), sample)
    return tuple(tasks[index] for index in sorted(drawn))


def fingerprint(task: Task) -> str:
    """The same for two tasks only where they ask the same and check the same."""
    # Its representation names the class of each check: to contain a text and to be that text differ in nothing else.
    return hashlib.blake2b(repr(task).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


class Player:
    """Plays the episodes of tasks, so many at once; what the infrastructure fails is counted and played again."""

    def __init__(self, runner: RunsEpisodes, config: EpisodesConfig, suite: Suite, watcher: Watcher) -> None:
        self.lost: Counter[str] = Counter()
        self._runner = runner
        self._config = config
        self._suite = suite
        self._watcher = watcher
        self._places = asyncio.Semaphore(config.max_concurrent)

    async def play(self, task: Task, episodes: int) -> tuple[tuple[Trajectory, EpisodeOutcome], ...]:
        """So many episodes of a task, each with what is counted of it."""
        return await run_all(self._member(task, member) for member in range(episodes))

    async def _member(self, task: Task, member: int) -> tuple[Trajectory, EpisodeOutcome]:
        async def attempt(number: int) -> tuple[Trajectory, EpisodeOutcome] | LostEpisode:
            ended = await self._attempt(task, member, number)
            self._watcher.episode_finished(_STEP, ended if isinstance(ended, LostEpisode) else ended[0])
            if isinstance(ended, LostEpisode):
                self.lost[ended.code] += 1
            return ended

        return await run_until_kept(f"episode {member} of task {task.id}", self._config.max_attempts, attempt)

    async def _attempt(self, task: Task, member: int, attempt: int) -> tuple[Trajectory, EpisodeOutcome] | LostEpisode:
        async with self._places:
            try:
                trajectory = await self._runner.run(task, step=_STEP, member=member, attempt=attempt)
                judged = await self._suite.judge(task, trajectory)
            except InfrastructureError as error:
                return lost_to(error, task, member, attempt)
            return trajectory, outcome_of(task, trajectory, judged)


def _result(task: Task, suite: Suite, outcomes: Sequence[EpisodeOutcome]) -> TaskResult:
    return TaskResult(
        id=task.id,
        category=suite.category(task),
        fingerprint=fingerprint(task),
        episodes=len(outcomes),
        solved=sum(outcome.success for outcome in outcomes),
        reward=sum(outcome.reward for outcome in outcomes) / len(outcomes),
    )


def _costs(stats: StatsDocument) -> dict[str, ServerCost]:
    servers: dict[str, Any] = dict(stats["servers"])
    return {
        name: ServerCost(calls=server["calls"], usd=server["usd"], restarts=server["restarts"])
        for name, server in servers.items()
    }

"""Runs an evaluation: all episodes of all tasks, without a learner. Lost episodes are run again."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from mcprl.concurrency import run_all
from mcprl.config import EpisodesConfig, RewardsConfig, RunConfig
from mcprl.episodes import RunsEpisodes
from mcprl.episodes.collector import lost_to, run_until_kept
from mcprl.episodes.endpoint import EndpointSettings, EndpointUse
from mcprl.episodes.stage import ToolFigures, open_endpoint_runner, open_stage
from mcprl.errors import BadValueError, InfrastructureError
from mcprl.evaluation.outcomes import EpisodeOutcome, Suite, TaskSuite, named_suite, outcome_of
from mcprl.evaluation.results import Evaluation, ServerCost
from mcprl.evaluation.statistics import TaskResult, count_figures
from mcprl.progress import Watcher
from mcprl.recipe import load_recipe
from mcprl.records import LostEpisode, Task, Trajectory, Weights
from mcprl.samplers.model_folder import adapter_settings, check_base_model
from mcprl.seeds import derive_seed
from mcprl.tasks import load_tasks
from mcprl.tools.stats import StatsDocument

if TYPE_CHECKING:
    from mcprl.episodes.reward_functions import RewardFunctions

_STEP = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to evaluate: Request(config=config, suite=suite, episodes=4, sample=None, adapter=Path("…/adapter")).

    `config` has the settings that the suite needs. With `sample`, only a random subset of this many tasks is run; the
    seed determines it. With `endpoint`, its model replaces the one in `config`.
    """

    config: RunConfig
    suite: Suite
    episodes: int = 1
    sample: int | None = None
    adapter: Path | None = None
    endpoint: EndpointSettings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The result of an evaluation, and its trajectories, ordered by task and then by episode."""

    evaluation: Evaluation
    trajectories: tuple[Trajectory, ...]


async def evaluate(request: Request, watcher: Watcher, *, logs: Path) -> Played:
    """Run all episodes, judge them and compute the statistics.

    `watcher` is called after each attempt. Raises GroupIncompleteError if all attempts at an episode are lost.
    """
    config, suite = request.config, request.suite
    started, began = datetime.now(UTC), time.monotonic()
    every_task = suite.tasks()
    tasks = choose_tasks(every_task, request.sample, config.seed)
    async with open_runner(request, tasks, watcher, logs) as (runner, tools, functions, endpoint):
        watcher.stage(f"running {request.episodes} episodes of each of {len(tasks)} tasks")
        player = Player(runner, config.episodes, suite, watcher)
        by_task = await run_all(player.play(task, request.episodes) for task in tasks)
        if functions is not None and functions.of_groups:
            grading = (_graded(functions, task, own, config.rewards) for task, own in zip(tasks, by_task, strict=True))
            by_task = await run_all(grading)
        servers = _costs(tools.stats())
    outcomes = tuple(outcome for played in by_task for _, outcome in played)
    results = tuple(_result(task, suite, [o for _, o in played]) for task, played in zip(tasks, by_task, strict=True))
    evaluation = Evaluation(
        name=config.name,
        suite=suite.name,
        model=config.model.path if request.endpoint is None else request.endpoint.model,
        adapter=None if request.adapter is None else str(request.adapter),
        started=started.isoformat(timespec="seconds"),
        seconds=time.monotonic() - began,
        mcprl=version("mcprl"),
        tasks_in_suite=len(every_task),
        figures=count_figures(results, outcomes),
        lost=dict(sorted(player.lost.items())),
        servers=servers,
        endpoint=endpoint,
        tasks=results,
        episodes=outcomes,
        config=config.model_dump(mode="json"),
    )
    return Played(evaluation=evaluation, trajectories=tuple(t for played in by_task for t, _ in played))


async def _graded(
    functions: RewardFunctions,
    task: Task,
    played: tuple[tuple[Trajectory, EpisodeOutcome], ...],
    rewards: RewardsConfig,
) -> tuple[tuple[Trajectory, EpisodeOutcome], ...]:
    """Add the reward parts of functions that grade a whole group: here, all episodes of the task."""
    graded = await functions.grade_group(task, [trajectory for trajectory, _ in played], rewards)
    return tuple((t, replace(outcome, reward=t.reward)) for t, (_, outcome) in zip(graded, played, strict=True))


@asynccontextmanager
async def open_runner(
    request: Request, tasks: Sequence[Task], watcher: Watcher, logs: Path
) -> AsyncGenerator[tuple[RunsEpisodes, ToolFigures, RewardFunctions | None, EndpointUse | None]]:
    """Open everything that runs the episodes: the servers, and the model or its endpoint."""
    if request.endpoint is not None:
        opening = open_endpoint_runner(request.config, request.endpoint, tasks, watcher, logs=logs)
        async with opening as (runner, toolbox, functions, use):
            yield runner, toolbox, functions, use
        return
    async with open_stage(request.config, tasks, watcher, logs=logs) as stage:
        if request.adapter is not None:
            watcher.stage(f"loading the adapter {request.adapter}")
            await stage.sampler.publish(Weights(version=1, adapter=request.adapter))
        yield stage.runner, stage.figures, stage.functions, None


def choose_tasks(tasks: Sequence[Task], sample: int | None, seed: int) -> tuple[Task, ...]:
    """Return all tasks, or a random sample of them (fixed by the seed), in their original order."""
    if not tasks:
        raise BadValueError("there are no tasks to evaluate on", fix="use --tasks to pass a file that contains tasks")
    if sample is None or sample >= len(tasks):
        return tuple(tasks)
    drawn = random.Random(derive_seed(seed, "evaluation", "sample")).sample(range(len(tasks)), sample)
    return tuple(tasks[index] for index in sorted(drawn))


def fingerprint(task: Task) -> str:
    """Return a hash of the task: two tasks have the same one only if all of their fields are equal."""
    # `repr` includes the class of each check. `Contains` and `Exactly` differ only in that.
    return hashlib.blake2b(repr(task).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


class Player:
    """Runs the episodes of all tasks concurrently. Episodes lost to infrastructure faults are counted and run again."""

    def __init__(self, runner: RunsEpisodes, config: EpisodesConfig, suite: Suite, watcher: Watcher) -> None:
        self.lost: Counter[str] = Counter()
        self._runner = runner
        self._config = config
        self._suite = suite
        self._watcher = watcher
        self._places = asyncio.Semaphore(config.max_concurrent)

    async def play(self, task: Task, episodes: int) -> tuple[tuple[Trajectory, EpisodeOutcome], ...]:
        """Run `episodes` episodes of a task. Return each trajectory with its outcome."""
        return await run_all(self._member(task, member) for member in range(episodes))

    async def _member(self, task: Task, member: int) -> tuple[Trajectory, EpisodeOutcome]:
        async def attempt(number: int) -> tuple[Trajectory, EpisodeOutcome] | LostEpisode:
            ended = await self._attempt(task, member, number)
            self._watcher.episode_finished(_STEP, ended if isinstance(ended, LostEpisode) else ended[0])
            if isinstance(ended, LostEpisode):
                self.lost[ended.code] += 1
            return ended

        return await run_until_kept(f"episode {member} of task {task.id}", attempt)

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


GREEDY_TEMPERATURE: Final = 0.01
"""Nearly greedy. Samplers do not accept 0, because all logprobs would then be 0."""


def make_request(  # noqa: PLR0913 - each is an option of `mcprl eval`
    recipe: Path | RunConfig | None = None,
    *,
    suite: str | None = None,
    tasks: Path | None = None,
    model: str | None = None,
    adapter: Path | None = None,
    episodes: int = 1,
    sample: int | None = None,
    greedy: bool = False,
    endpoint: EndpointSettings | None = None,
    overrides: Sequence[str] = (),
) -> Request:
    """Return the request for the options of `mcprl eval`. A recipe or a suite is required.

    Raises a ConfigurationError if arguments contradict each other.
    """
    if recipe is None and suite is None:
        raise BadValueError("there is nothing to evaluate", fix="pass a recipe, or a suite with --suite")
    if suite is not None and tasks is not None:
        raise BadValueError("a suite has its own tasks", fix="pass --suite or --tasks, not both")
    if endpoint is not None and adapter is not None:
        raise BadValueError("an endpoint has its own weights", fix="pass --endpoint or --adapter, not both")
    named = None if suite is None else named_suite(suite)
    # Later settings override earlier ones. Training injects errors; an evaluation does so only on request.
    settings = ["episodes.injected_errors=0", *overrides]
    if greedy:
        settings.append(f"sampling.temperature={GREEDY_TEMPERATURE}")
    if model is not None:
        settings.append(f"model.path={json.dumps(_location(model))}")
    settings += adapter_settings(adapter)
    config = _bare_config(suite or "", settings) if recipe is None else load_recipe(recipe, settings)
    check_base_model(adapter, config.model.path)
    # An evaluation imitates nothing, so no task needs a solution.
    config = _without_warm_start(config.for_rl())
    chosen = named or _task_suite(config, tasks)
    config = chosen.adapt(config)
    return Request(config=config, suite=chosen, episodes=episodes, sample=sample, adapter=adapter, endpoint=endpoint)


def _task_suite(config: RunConfig, tasks: Path | None) -> Suite:
    file = tasks or config.tasks.validation
    if file is None:
        raise BadValueError(
            "the recipe has no tasks.validation",
            fix=f"set tasks.validation, or pass a task file, such as --tasks {config.tasks.train}",
        )
    return TaskSuite(file.stem if file.stem not in ("tasks", "validation") else config.name, load_tasks(file))


def _bare_config(suite: str, settings: Sequence[str]) -> RunConfig:
    """Make a configuration without a recipe, from the suite's settings, the command line and defaults."""
    bare: dict[str, Any] = {"name": suite, "tasks": {"train": f"{suite}.jsonl"}, "servers": {"file": f"{suite}.json"}}
    with tempfile.TemporaryDirectory(prefix="mcprl-eval-") as folder:
        path = Path(folder) / f"{suite}.yaml"
        path.write_text(yaml.safe_dump(bare), encoding="utf-8")
        # Paths on the command line are relative to the working directory.
        return load_recipe(path, [_from_working_directory(setting) for setting in settings])


def _from_working_directory(setting: str) -> str:
    name, _, value = setting.partition("=")
    return f"{name}={json.dumps(_location(value))}" if name == "model.path" and value.startswith(".") else setting


def _location(model: str) -> str:
    """Return the absolute path of a model folder, or a hub name unchanged.

    A relative path would be resolved against the folder of the recipe.
    """
    return str(Path(model).absolute()) if Path(model).is_dir() or model.startswith((".", "/")) else model


def _without_warm_start(config: RunConfig) -> RunConfig:
    warm_start = config.algorithm.warm_start.model_copy(update={"weight": 0.0})
    algorithm = config.algorithm.model_copy(update={"warm_start": warm_start})
    return config.model_copy(update={"algorithm": algorithm})

"""A few episodes, played as the run will play them: does the sampler come up, do sampler and learner agree, is there
anything to learn from?

The sampler is started once. What it sampled is compared with the learner, judged, and taken for what all the run's
episodes will be like.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import pstdev
from typing import TYPE_CHECKING

import psutil

from mcprl.checks.doctor.examination import Examination, Finding, fine, warning, wrong, wrong_by
from mcprl.checks.plan import FORWARD_SHARE
from mcprl.config import RunConfig
from mcprl.episodes import Collector, episode_metrics
from mcprl.episodes.losses import LossLedger
from mcprl.errors import BadValueError, McprlError, ParityError
from mcprl.records import Group, LostEpisode, Source, StopReason, Trajectory
from mcprl.verdicts import Severity

if TYPE_CHECKING:
    from mcprl.episodes import Demonstrator
    from mcprl.episodes.stage import Stage

__all__ = ["PlayedSample", "check_episodes", "check_parity", "check_sampler", "foretell_learnable", "judge_groups"]


_TASKS = 2
_SOLUTIONS = 8  # the longest, and as many others
_COMPARED_OF_A_GROUP = 2
_SLOW_CALL_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedSample:
    """Whole groups of a few tasks, the seconds they took, and the stage they were played on.

    `ending` ends the stage: sampler and learner need not have the machine's memory at once.
    """

    groups: tuple[Group, ...]
    seconds: float
    stage: Stage
    ending: AsyncExitStack

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        return tuple(trajectory for group in self.groups for trajectory in group.trajectories)


async def check_sampler(examination: Examination) -> AsyncIterator[Finding]:
    """Start what the run starts, and have it play one group for each of a few tasks."""
    from mcprl.checks.parity import pick_tasks
    from mcprl.episodes.stage import open_stage

    config = examination.config.value
    chosen = {task.id: task for task in pick_tasks(examination.tasks.value.tasks, _TASKS, config.seed)}
    tasks = list(chosen.values())
    await examination.servers_stack.aclose()
    examination.memory_bytes["before"] = _resident_bytes()
    started = time.monotonic()
    ending = await examination.stack.enter_async_context(AsyncExitStack())
    opening = open_stage(config, tasks, examination.teller, logs=examination.folder / "logs")
    stage = await ending.enter_async_context(opening)
    name = config.engine if stage.engine is None else "SkyRL's server"
    yield fine("sampler", f"{name} is up after {time.monotonic() - started:.0f} s")
    if stage.demonstrator is not None:
        yield await _play_solutions(stage.demonstrator, examination)
    size = config.episodes.group_size
    examination.teller.stage(f"playing {len(tasks)} × {size} episodes")

    def finished(outcome: Trajectory | LostEpisode) -> None:
        examination.teller.episode_finished(0, outcome)

    started = time.monotonic()
    try:
        groups = await Collector(stage.runner, config.episodes).collect(tasks, 0, finished)
    except McprlError as error:
        yield wrong_by("episodes", error)
        return
    examination.memory_bytes["sampler"] = _resident_bytes() - examination.memory_bytes["before"]
    sample = PlayedSample(groups=groups, seconds=time.monotonic() - started, stage=stage, ending=ending)
    examination.sample.put(sample)


async def _play_solutions(demonstrator: Demonstrator, examination: Examination) -> Finding:
    """Play some solutions as the warm start will, the longest among them."""
    tasks = [task for task in examination.tasks.value.tasks if task.solution is not None]
    tasks.sort(key=lambda task: len(repr(task.solution)), reverse=True)
    chosen = [*tasks[:_SOLUTIONS], *tasks[_SOLUTIONS :: max(1, len(tasks) // _SOLUTIONS)]]
    examination.teller.stage(f"playing {len(chosen)} solutions")
    try:
        await demonstrator.play(chosen, 0)
    except McprlError as error:
        return wrong_by("warm start", error)
    return fine("warm start", f"{len(chosen)} of {len(tasks)} solutions were played, and solve their tasks")


async def check_parity(examination: Examination) -> AsyncIterator[Finding]:
    """Whether the learner gives what was sampled the probability that the sampler gave it."""
    from mcprl.checks.parity import measure_parity
    from mcprl.learning import open_learner

    config, sample = examination.config.value, examination.sample.value
    if sample.stage.engine is None:
        await sample.ending.aclose()
    compared = [trajectory for group in sample.groups for trajectory in group.trajectories[:_COMPARED_OF_A_GROUP]]
    examination.teller.stage("loading the learner")
    before = _resident_bytes()
    opening = open_learner(
        config,
        folder=examination.folder / "weights",
        grammars=sample.stage.grammars,
        engine=sample.stage.engine,
    )
    async with opening as learner:
        examination.state_bytes = await learner.state_bytes()
        started = time.monotonic()
        report = await measure_parity(config, compared, learner, examination.teller, decode=sample.stage.chat.decode)
        seconds = time.monotonic() - started
        examination.memory_bytes["learner"] = max(0, _resident_bytes() - before)
    # Scoring is a forward pass, which is a third of the work of one with gradients.
    tokens = sum(len(trajectory.token_ids) for trajectory in compared)
    examination.learner_tokens_per_s = tokens / seconds * FORWARD_SHARE
    figures = report.figures
    measured = (
        f"{report.tokens:,} tokens: mean |Δlogprob| {figures.logprob_mean_abs_error:.1e}, "
        f"max {figures.logprob_max_abs_error:.1e}; {report.verdict.what}"
    )
    if report.verdict.severity is Severity.OK:
        yield fine("parity", measured)
    elif report.verdict.severity is Severity.WARN:
        yield warning("parity", measured, report.verdict.fix)
    else:
        yield wrong("parity", measured, report.verdict.fix, code=ParityError.code)


async def check_episodes(examination: Examination) -> AsyncIterator[Finding]:
    """What the sample of episodes says of the run to come."""
    sample = examination.sample.value
    solutions = sum(task.solution is not None for task in examination.tasks.value.tasks)
    for finding in judge_groups(examination.config.value, sample.groups, sample.seconds, solutions=solutions):
        yield finding
    if (finding := foretell_learnable(examination.config.value, sample.trajectories)) is not None:
        yield finding


def foretell_learnable(config: RunConfig, trajectories: Sequence[Trajectory]) -> Finding | None:
    """A finding if steps of episodes like these would have fewer learnable tokens than an update needs."""
    from mcprl.learning.algorithms import learnable_tokens

    algorithm, episodes = config.algorithm, config.training.tasks_per_step * config.episodes.group_size
    counts = [sum(learnable_tokens(trajectory, algorithm.masks)) for trajectory in trajectories]
    sampled = sum(sum(trajectory.sampled) for trajectory in trajectories)
    least, expected = algorithm.min_learnable_tokens, episodes * sum(counts) / len(counts)
    least_share, share = algorithm.min_learnable_share, sum(counts) / max(1, sampled)
    if expected >= least and share >= least_share:
        return None
    what = (
        f"a step of {episodes} such episodes has about {expected:,.0f} learnable tokens, {share:.0%} of those sampled; "
        f"with algorithm.min_learnable_tokens {least:,} and min_learnable_share {least_share:.0%} its update is skipped"
    )
    fix = "lower that setting, or raise training.tasks_per_step"
    # Not even if all episodes were as long as the longest of the sample.
    if episodes * max(counts) < least:
        return wrong("learnable tokens", what, fix, code=BadValueError.code)
    return warning("learnable tokens", what, fix)


def judge_groups(
    config: RunConfig, groups: Sequence[Group], seconds: float, *, solutions: int = 0
) -> Iterator[Finding]:
    """Whether the policy can call tools, whether rewards differ, whether episodes are answered, whether tools keep up.

    `solutions` is the number of tasks that a warm start can imitate. A few groups prove nothing, so what they show is a
    warning, with what to try.
    """
    metrics = episode_metrics(groups, seconds)
    yield _valid_calls(config, metrics["calls"], metrics["valid_call_rate"], shown=solutions > 0)
    yield _rewards(groups, dead=int(metrics["groups_without_variance"]))
    yield _answers(config, groups)
    yield _latency(groups, config)
    lost = [episode for group in groups for episode in group.lost]
    if lost:
        yield warning(
            "lost episodes",
            f"{len(lost)} attempts were lost to the infrastructure, the last: {lost[-1]}",
            fix="fix that cause: lost episodes are played again, which costs time in every step",
        )
    ledger = LossLedger()
    ledger.add(groups)
    caused = [t.task_id for group in groups for t in group.trajectories if t.stop is StopReason.CAUSED_FAULT]
    found = [f"lost turns go together with {correlation}" for correlation in ledger.correlations()]
    if caused:
        found.insert(
            0, f"{len(caused)} episodes made their tool server fail, and again when repeated (task {caused[0]})"
        )
    if found:
        yield warning(
            "caused faults",
            "; ".join(found),
            fix="let the tool refuse such a call instead of failing: the policy would learn to use it",
        )


def _valid_calls(config: RunConfig, calls: float, rate: float, *, shown: bool) -> Finding:
    held = config.sampling.constrain != "off"
    if calls and rate > 0:
        return fine("valid calls", f"{rate:.0%} of {calls:.0f} calls")
    what = "no episode made a call" if not calls else f"none of {calls:.0f} calls was valid"
    if config.algorithm.warm_start.weight > 0 and shown:
        return fine("valid calls", f"{what}; the warm start will show some")
    ways = ["begin with a warm start (algorithm.warm_start.weight, tasks with a solution)"]
    if not held:
        ways.append("set sampling.constrain to act, which admits valid calls only")
    ways.append("show calls in tasks.preamble")
    return warning("valid calls", f"{what}: there would be little to learn from", fix=", or ".join(ways))


def _rewards(groups: Sequence[Group], *, dead: int) -> Finding:
    rewards = [trajectory.reward for group in groups for trajectory in group.trajectories]
    figures = f"mean {sum(rewards) / len(rewards):.2f}, deviation {pstdev(rewards):.2f}; {dead} of {len(groups)} groups"
    if dead == len(groups):
        return warning(
            "rewards",
            f"{figures} are dead: all their episodes earned the same, so nothing would be learned from them",
            fix="raise episodes.group_size or sampling.temperature, take easier tasks (tasks.order curriculum), begin "
            "with a warm start, or set algorithm.refill_rounds to 2",
        )
    return fine("rewards", f"{figures} without variance")


def _answers(config: RunConfig, groups: Sequence[Group]) -> Finding:
    asked = [t for group in groups if group.task.goal.answer is not None for t in group.trajectories]
    if not asked:
        return fine("answers", "no task of the sample asks for one")
    unanswered = [t for t in asked if t.stop.value != "answered"]
    figures = f"{len(unanswered)} of {len(asked)} episodes ended without one"
    if len(unanswered) < len(asked):
        return fine("answers", figures)
    reasons = ", ".join(sorted({t.stop.value.replace("_", " ") for t in unanswered}))
    return warning(
        "answers",
        f"{figures} ({reasons})",
        fix=f"raise sampling.max_tokens ({config.sampling.max_tokens}) where turns are cut, episodes.max_turns where "
        "turns run out, or show a finished conversation in tasks.preamble",
    )


def _latency(groups: Sequence[Group], config: RunConfig) -> Finding:
    seen = [
        observation
        for group in groups
        for trajectory in group.trajectories
        for turn in trajectory.turns
        for observation in turn.observations
        if observation.source is Source.LIVE and observation.server is not None
    ]
    if not seen:
        return fine("tool latency", "not known: no call reached a server")
    latencies = sorted(observation.latency_s for observation in seen)
    middle, late = (latencies[math.ceil(share * len(latencies)) - 1] for share in (0.5, 0.95))
    figures = f"p50 {middle * 1000:.0f} ms, p95 {late * 1000:.0f} ms over {len(seen)} calls"
    deadlines = {name: settings.call_deadline_s for name, settings in config.servers.settings.items()}
    slow = [o for o in seen if o.latency_s > _SLOW_CALL_SHARE * deadlines.get(o.server or "", 30.0)]
    if slow:
        return warning(
            "tool latency",
            f"{figures}; {slow[0].tool} took {slow[0].latency_s:.1f} s, more than half its deadline",
            fix=f"raise servers.settings.{slow[0].server}.call_deadline_s, or its replicas",
        )
    return fine("tool latency", figures)


def _resident_bytes() -> int:
    """What this process and all that it started hold in memory now."""
    own = psutil.Process()
    total = own.memory_info().rss
    for child in own.children(recursive=True):
        try:
            total += child.memory_info().rss
        except psutil.NoSuchProcess:
            continue  # it ended meanwhile
    return total

"""Checks that run a few episodes as in training: does the sampler start, does the learner agree, can a policy learn?

The sampler is started once. Its episodes are compared with the learner, judged, and used to forecast the run.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import pstdev
from typing import TYPE_CHECKING

import psutil

from mcprl.checks.doctor.examination import Examination, Finding, fine, skipped, warning, wrong, wrong_by
from mcprl.checks.doctor.server_checks import judge_text
from mcprl.checks.health.rules import CUTS, room_for
from mcprl.checks.health.view import may_set, one_of, refill
from mcprl.checks.plan import FORWARD_SHARE
from mcprl.config import RunConfig
from mcprl.episodes import episode_metrics
from mcprl.errors import BadValueError, McprlError, ParityError
from mcprl.records import Group, LostEpisode, Source, StopReason, Trajectory
from mcprl.verdicts import Severity

if TYPE_CHECKING:
    from mcprl.episodes import Demonstrator
    from mcprl.episodes.reward_functions import RewardFunctions
    from mcprl.episodes.stage import Stage

_TASKS = 2
_SOLUTIONS = 8  # this many of the longest solutions, and as many others
_COMPARED_OF_A_GROUP = 2
_SLOW_CALL_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedSample:
    """The groups of episodes run for a few tasks, the seconds that they took, and the stage that ran them.

    `ending` closes the stage, so that sampler and learner are not in memory at the same time.
    """

    groups: tuple[Group, ...]
    seconds: float
    stage: Stage
    ending: AsyncExitStack

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        return tuple(trajectory for group in self.groups for trajectory in group.trajectories)


async def check_sampler(examination: Examination) -> AsyncIterator[Finding]:
    """Start the sampler and the servers as in training, and run one group for each of a few tasks."""
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
    yield fine("sampler", f"{name} started in {time.monotonic() - started:.0f} s")
    if stage.demonstrator is not None:
        yield await _play_solutions(stage.demonstrator, examination)
    size = config.episodes.group_size
    examination.teller.stage(f"running {len(tasks)} × {size} episodes")

    def finished(outcome: Trajectory | LostEpisode) -> None:
        examination.teller.episode_finished(0, outcome)

    started = time.monotonic()
    try:
        groups = await stage.collector(config).collect(tasks, 0, finished)
    except McprlError as error:
        yield wrong_by("episodes", error)
        return
    examination.memory_bytes["sampler"] = _resident_bytes() - examination.memory_bytes["before"]
    seconds = time.monotonic() - started
    if stage.functions is not None and (finding := await _own_functions(stage.functions, groups)) is not None:
        yield finding
    examination.sample.put(PlayedSample(groups=groups, seconds=seconds, stage=stage, ending=ending))


async def _own_functions(functions: RewardFunctions, groups: Sequence[Group]) -> Finding | None:
    """Return a finding if a reward function scores an episode differently in another process."""
    played = next(((group.task, t) for group in groups for t in group.trajectories), None)
    differ = [] if played is None else await functions.that_differ(*played)
    if not differ:
        return None
    what = f"{', '.join(differ)} scored the same episode differently in two processes, so rewards depend on chance"
    return warning("code", what, "do not use the clock, process ids or unseeded random numbers in the function")


async def _play_solutions(demonstrator: Demonstrator, examination: Examination) -> Finding:
    """Run some solutions, including the longest, as the warm start will."""
    tasks = [task for task in examination.tasks.value.tasks if task.solution is not None]
    tasks.sort(key=lambda task: len(repr(task.solution)), reverse=True)
    chosen = [*tasks[:_SOLUTIONS], *tasks[_SOLUTIONS :: max(1, len(tasks) // _SOLUTIONS)]]
    examination.teller.stage(f"running {len(chosen)} solutions")
    try:
        await demonstrator.play(chosen, 0)
    except McprlError as error:
        return wrong_by("warm start", error)
    which = "" if len(chosen) == len(tasks) else ", including the longest"
    return fine("warm start", f"ran {len(chosen)} of {len(tasks)} solutions{which}: each solves its task")


async def check_parity(examination: Examination) -> AsyncIterator[Finding]:
    """Check that the learner gives the sampled tokens the same probabilities as the sampler."""
    from mcprl.checks.parity import measure_parity
    from mcprl.learning import open_learner

    config, sample = examination.config.value, examination.sample.value
    if sample.stage.engine is None:
        await sample.ending.aclose()
    compared = [trajectory for group in sample.groups for trajectory in group.trajectories[:_COMPARED_OF_A_GROUP]]
    examination.teller.stage("loading the learner")
    before = _resident_bytes()
    stage, weights = sample.stage, examination.folder / "weights"
    async with open_learner(config, folder=weights, grammars=stage.grammars, engine=stage.engine) as learner:
        examination.state_bytes = await learner.state_bytes()
        started = time.monotonic()
        report = await measure_parity(config, compared, learner, examination.teller, decode=stage.chat.decode)
        seconds = time.monotonic() - started
        examination.memory_bytes["learner"] = max(0, _resident_bytes() - before)
    # Scoring is a forward pass, which costs a third of a pass with gradients.
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
    """Judge the sampled episodes."""
    sample = examination.sample.value
    solutions = sum(task.solution is not None for task in examination.tasks.value.tasks)
    for finding in judge_groups(examination.config.value, sample.groups, sample.seconds, solutions=solutions):
        yield finding
    if (finding := foretell_learnable(examination.config.value, sample.trajectories)) is not None:
        yield finding


def foretell_learnable(config: RunConfig, trajectories: Sequence[Trajectory]) -> Finding | None:
    """Return a finding if a step of such episodes would have fewer learnable tokens than an update needs."""
    from mcprl.learning.algorithms import learnable_tokens

    algorithm, episodes = config.algorithm, config.training.tasks_per_step * config.episodes.group_size
    counts = [sum(learnable_tokens(trajectory, algorithm.masks)) for trajectory in trajectories]
    sampled = sum(sum(trajectory.sampled) for trajectory in trajectories)
    least, expected = algorithm.min_learnable_tokens, episodes * sum(counts) / len(counts)
    least_share, share = algorithm.min_learnable_share, sum(counts) / max(1, sampled)
    if expected >= least and share >= least_share:
        return None
    what = (
        f"a step of {episodes} episodes like these has about {expected:,.0f} learnable tokens ({share:.0%} of the "
        f"sampled tokens); updates would be skipped, since algorithm.min_learnable_tokens is {least:,} and "
        f"min_learnable_share is {least_share:.0%}"
    )
    fix = "lower these settings, or raise training.tasks_per_step"
    # There are too few even if all episodes were as long as the longest one in the sample.
    if episodes * max(counts) < least:
        return wrong("learnable tokens", what, fix, code=BadValueError.code)
    return warning("learnable tokens", what, fix)


def judge_groups(
    config: RunConfig, groups: Sequence[Group], seconds: float, *, solutions: int = 0
) -> Iterator[Finding]:
    """Check that the policy can call tools, that rewards differ, that episodes end with an answer, and that tools are
    fast.

    `solutions` is the number of tasks with a solution. A few groups are weak evidence, so all findings
    are warnings.
    """
    metrics = episode_metrics(groups, seconds)
    yield _valid_calls(config, metrics["calls"], metrics["valid_call_rate"], has_solutions=solutions > 0)
    yield _rewards(config, groups, dead=int(metrics["groups_without_variance"]), has_solutions=solutions > 0)
    yield _answers(config, groups)
    yield _latency(groups, config)
    yield from _results(groups)
    lost = [episode for group in groups for episode in group.lost]
    if lost:
        yield warning(
            "lost episodes",
            f"{len(lost)} attempts were lost to infrastructure faults, most recently {lost[-1]}",
            fix="fix the cause: rerunning lost episodes costs time in every step",
        )
    caused = [t.task_id for group in groups for t in group.trajectories if t.stop is StopReason.CAUSED_FAULT]
    if caused:
        yield warning(
            "server crashes",
            f"{len(caused)} episodes crashed their tool server, and crashed it again when rerun (first: task "
            f"{caused[0]})",
            "make the tool reject such calls instead of failing: otherwise the policy can learn to exploit the failure",
        )


def _results(groups: Sequence[Group]) -> Iterator[Finding]:
    """Yield findings for tools that return nothing that the policy can read, or that report an error as a success."""
    seen = (o for group in groups for t in group.trajectories for turn in t.turns for o in turn.observations)
    found = {o.tool: judge_text("tool results", o) for o in seen if o.worked and o.server is not None}
    yield from (finding for finding in found.values() if finding is not None)


def _valid_calls(config: RunConfig, calls: float, rate: float, *, has_solutions: bool) -> Finding:
    if calls and rate > 0:
        return fine("valid calls", f"{rate:.0%} of {calls:.0f} calls")
    what = "no episode called a tool" if not calls else f"none of the {calls:.0f} calls was valid"
    warm_start = config.algorithm.warm_start.weight > 0
    if warm_start and has_solutions:
        return fine("valid calls", f"{what}; the warm start will teach valid calls")
    ways = ["give tasks a solution" if warm_start else _imitate(has_solutions)]
    if may_set(config, "sampling.constrain", "act"):
        ways.append("set sampling.constrain to act, which allows only valid calls")
    ways.append("add example calls to tasks.preamble")
    return warning("valid calls", f"{what}: the rewards would teach the model little", fix=one_of(ways))


def _imitate(has_solutions: bool) -> str:
    return f"{'' if has_solutions else 'give tasks a solution and '}start with imitation (algorithm.warm_start.weight)"


def _rewards(config: RunConfig, groups: Sequence[Group], *, dead: int, has_solutions: bool) -> Finding:
    rewards = [trajectory.reward for group in groups for trajectory in group.trajectories]
    figures = f"mean {sum(rewards) / len(rewards):.2f}, std {pstdev(rewards):.2f}; {dead} of {len(groups)} groups"
    if dead < len(groups):
        return fine("rewards", f"{figures} have zero variance")
    temperature = config.sampling.temperature
    ways = ["raise episodes.group_size"]
    if may_set(config, "sampling.temperature", temperature * 1.2):
        ways.append(f"raise sampling.temperature (now {temperature:g})")
    ways.append(f"use easier tasks{'' if config.tasks.order == 'curriculum' else ' (tasks.order=curriculum)'}")
    ways += [] if config.algorithm.warm_start.weight > 0 else [_imitate(has_solutions)]
    return warning(
        "rewards",
        f"{figures} have zero variance: within each, all episodes earned the same reward, which teaches nothing",
        fix=one_of([*ways, refill(config)]),
    )


def _answers(config: RunConfig, groups: Sequence[Group]) -> Finding:
    asked = [t for group in groups if group.task.goal.answer is not None for t in group.trajectories]
    if not asked:
        return fine("answers", "no sampled task asks for an answer")
    unanswered = [t for t in asked if t.stop is not StopReason.ANSWERED]
    figures = f"{len(asked) - len(unanswered)} of {len(asked)} episodes ended with an answer"
    if len(unanswered) < len(asked):
        return fine("answers", figures)
    stops = Counter(t.stop for t in unanswered)
    reasons = ", ".join(sorted(stop.value.replace("_", " ") for stop in stops))
    ways = [room_for(f"stop_{stop.value}", config) for stop, _ in stops.most_common() if f"stop_{stop.value}" in CUTS]
    fix = one_of([*ways[:1], "add a complete example conversation to tasks.preamble"])
    return warning("answers", f"{figures} ({reasons})", fix=fix)


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
        return skipped("tool latency", "no call reached a server")
    latencies = sorted(observation.latency_s for observation in seen)
    middle, late = (latencies[math.ceil(share * len(latencies)) - 1] for share in (0.5, 0.95))
    figures = f"p50 {middle * 1000:.0f} ms, p95 {late * 1000:.0f} ms over {len(seen)} calls"
    deadlines = {name: settings.call_deadline_s for name, settings in config.servers.settings.items()}
    slow = [o for o in seen if o.latency_s > _SLOW_CALL_SHARE * deadlines.get(o.server or "", 30.0)]
    if slow:
        return warning(
            "tool latency",
            f"{figures}; {slow[0].tool} took {slow[0].latency_s:.1f} s, more than half of the call deadline",
            fix=f"raise call_deadline_s or replicas in servers.settings.{slow[0].server}",
        )
    return fine("tool latency", figures)


def _resident_bytes() -> int:
    """Return the memory of this process and all its children in bytes."""
    own = psutil.Process()
    total = own.memory_info().rss
    for child in own.children(recursive=True):
        try:
            total += child.memory_info().rss
        except psutil.NoSuchProcess:
            continue  # the process has just ended
    return total

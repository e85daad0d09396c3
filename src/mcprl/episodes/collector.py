"""Collects complete groups of episodes. Episodes of all tasks run concurrently, up to a limit; lost ones run again.

A group is returned only once it is complete. An attempt that fails because of the infrastructure leaves only a
`LostEpisode`: it does not count as a reward of 0, and the group does not become smaller. If an episode is lost
MAX_ATTEMPTS times, the run stops.
An episode counts as finished once it is in the journal. Episodes in the journal are not run again. With per-group
reward functions, a complete group's episodes are written to the journal again, with their final rewards.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, Final, Protocol, TypeVar

from mcprl.concurrency import run_all
from mcprl.config import EpisodesConfig, RewardsConfig
from mcprl.episodes.rewards import succeeded
from mcprl.errors import GroupIncompleteError, InfrastructureError
from mcprl.records import Group, LostEpisode, Source, StopReason, Task, Trajectory
from mcprl.secrets import SECRETS

__all__ = ["Collector", "Journal", "RunsEpisodes", "episode_metrics", "lost_to", "run_until_kept"]

Outcome = TypeVar("Outcome")
MAX_ATTEMPTS: Final = 5  # per episode; an attempt lost to the infrastructure is repeated
_EXCERPT: Final = 120  # characters


async def run_until_kept(episode: str, attempt: Callable[[int], Awaitable[Outcome | LostEpisode]]) -> Outcome:
    """Return the outcome of the first attempt that is not lost. Attempts are numbered from 0.

    Raises GroupIncompleteError if all are lost.

    kept = await run_until_kept("episode 3 of task a", play_once)
    """
    number = 0
    while isinstance(ended := await attempt(number), LostEpisode):
        number += 1
        if number == MAX_ATTEMPTS:
            raise GroupIncompleteError(
                f"{episode} was lost {number} times, most recently to {ended.code} {ended.reason}",
                fix="remove the cause, then resume the run",
            )
    return ended


def lost_to(error: InfrastructureError, task: Task, member: int, attempt: int) -> LostEpisode:
    """Return the record of an attempt that ended with `error`. The reason includes the policy's last calls."""
    last = ", ".join(_excerpt(name, given) for name, given in error.turns[-1]) if error.turns else ""
    return LostEpisode(
        task_id=task.id,
        member=member,
        attempt=attempt,
        code=error.code,
        reason=f"{error.what}, after {SECRETS.redact(last)}" if last else error.what,
    )


def _excerpt(tool: str, arguments: Mapping[str, Any]) -> str:
    """Format a call as one line. Long arguments, such as programs, are cut and followed by a digest."""
    text = json.dumps(dict(arguments), default=str)
    if len(text) > _EXCERPT:
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        text = f"{text[:_EXCERPT]}… ({len(text)} characters, sha256 {digest})"
    return f"{tool} {text}"


def episode_metrics(groups: Sequence[Group], seconds: float) -> dict[str, float]:
    """Return metrics averaged over the episodes of a step. Attempts lost to the infrastructure are counted, never
    averaged.

    A reward part is averaged over the episodes whose goal checks it. Injected failures are included in `calls`, but not
    in the rate of valid calls or the latency.
    """
    trajectories = [t for group in groups for t in group.trajectories]
    turns = [turn for t in trajectories for turn in t.turns]
    calls = [seen for turn in turns for seen in turn.observations]
    delivered = [seen for seen in calls if seen.source is not Source.INJECTED]
    lost = [episode for group in groups for episode in group.lost]
    sampled = sum(sum(t.sampled) for t in trajectories)
    metrics = {
        "reward": fmean(t.reward for t in trajectories),
        "success_rate": fmean(succeeded(t.reward_parts) for t in trajectories),
        "calls": float(len(calls)),
        "calls_injected": float(len(calls) - len(delivered)),
        "valid_call_rate": fmean(seen.fault is None for seen in delivered) if delivered else 0.0,
        "turns_with_call_rate": fmean(bool(turn.calls) for turn in turns),
        "turns_per_episode": fmean(len(t.turns) for t in trajectories),
        "groups": float(len(groups)),
        "groups_without_variance": float(sum(not group.has_variance for group in groups)),
        "episodes": float(len(trajectories)),
        "episodes_lost_to_infrastructure": float(len(lost)),
        "sampled_tokens": float(sampled),
        "sampled_tokens_per_second": sampled / seconds,
        "context_tokens": float(sum(len(t.token_ids) for t in trajectories) - sampled),
        "tool_latency_mean_s": fmean(seen.latency_s for seen in delivered) if delivered else 0.0,
        "turn_without_tools_mean_s": sum(map(_own_s, trajectories)) / len(turns),
        "collect_s": seconds,
    }
    for part in sorted({part for t in trajectories for part in t.reward_parts}):
        values = [t.reward_parts[part] for t in trajectories if part in t.reward_parts]
        metrics[f"reward_part_{part}"] = fmean(values)
    recorded = [seen for seen in delivered if seen.source in (Source.CASSETTE, Source.MISSING)]
    for tool in sorted({seen.tool for seen in recorded}):
        metrics[f"covered_calls_{tool}"] = fmean(
            seen.source is Source.CASSETTE for seen in recorded if seen.tool == tool
        )
    if recorded:
        metrics["covered_calls"] = fmean(seen.source is Source.CASSETTE for seen in recorded)
    for code, count in sorted(Counter(episode.code for episode in lost).items()):
        metrics[f"lost_{code}"] = float(count)
    for stop in StopReason:
        metrics[f"stop_{stop.value}"] = fmean(t.stop is stop for t in trajectories)
    return metrics


def _own_s(trajectory: Trajectory) -> float:
    """Return how long an episode took without its tool calls. The calls of a turn run in parallel."""
    waits = (max((seen.latency_s for seen in turn.observations), default=0.0) for turn in trajectory.turns)
    return trajectory.duration_s - sum(waits)


OnFinished = Callable[[Trajectory | LostEpisode], None]


class RunsEpisodes(Protocol):
    """Runs one episode, in this process or on a remote worker."""

    async def run(self, task: Task, *, step: int, member: int, attempt: int) -> Trajectory: ...


class Journal(Protocol):
    """Stores finished episodes."""

    async def add(self, trajectory: Trajectory, *, instead: bool = False) -> None:
        """Store an episode. With `instead`, replace its stored version. It is durable when this returns."""
        ...

    def finished(self, step: int) -> Mapping[tuple[str, int], Trajectory]:
        """Return the stored episodes of a step, keyed by task and member, in the order in which they finished."""
        ...


class GradesGroups(Protocol):
    """Grades complete groups with the per-group reward functions of a recipe (`of_groups`), if there are any."""

    @property
    def of_groups(self) -> Sequence[str]: ...

    async def grade_group(
        self, task: Task, trajectories: Sequence[Trajectory], rewards: RewardsConfig
    ) -> tuple[Trajectory, ...]: ...


class Collector:
    """Collects the groups of a step. Without a journal, episodes are not stored."""

    def __init__(
        self,
        runner: RunsEpisodes,
        config: EpisodesConfig,
        journal: Journal | None = None,
        rewards: RewardsConfig | None = None,
        functions: GradesGroups | None = None,
    ) -> None:
        self._runner = runner
        self._config = config
        self._journal = journal
        self._rewards = rewards or RewardsConfig()
        self._functions = functions
        self._places = asyncio.Semaphore(config.max_concurrent)
        self._alive = 0
        self._none_alive = asyncio.Event()
        self._none_alive.set()
        self._draining = False

    async def collect(self, tasks: Sequence[Task], step: int, on_finished: OnFinished) -> tuple[Group, ...]:
        """Return a complete group for each task, in the order of `tasks`. Calls `on_finished` when an attempt ends.

        Raises GroupIncompleteError if an episode is lost MAX_ATTEMPTS times.
        """
        kept: dict[str, list[Trajectory]] = {}
        if self._journal is not None:
            finished = await asyncio.to_thread(self._journal.finished, step)
            for (task_id, _), trajectory in finished.items():
                kept.setdefault(task_id, []).append(trajectory)
        groups = (self._collect_group(task, step, kept.get(task.id, []), on_finished) for task in tasks)
        return tuple(await run_all(groups))

    async def drain(self) -> None:
        """Start no more episodes, and wait until the running ones have ended. After this, `collect` never returns."""
        self._draining = True
        await self._none_alive.wait()

    async def _collect_group(self, task: Task, step: int, kept: Sequence[Trajectory], on_finished: OnFinished) -> Group:
        """Collect all episodes of one task: take those in the journal, and run the others now."""
        done, lost = {trajectory.member: trajectory for trajectory in kept}, list[LostEpisode]()
        for trajectory in kept:
            on_finished(trajectory)

        def note(outcome: Trajectory | LostEpisode) -> None:
            if isinstance(outcome, LostEpisode):
                lost.append(outcome)
            on_finished(outcome)

        missing = [member for member in range(self._config.group_size) if member not in done]
        played = await run_all(self._collect_member(task, step, member, note) for member in missing)
        done |= {trajectory.member: trajectory for trajectory in played}
        trajectories = await self._graded(task, tuple(done[member] for member in sorted(done)))
        return Group(task=task, trajectories=trajectories, lost=tuple(lost))

    async def _graded(self, task: Task, trajectories: tuple[Trajectory, ...]) -> tuple[Trajectory, ...]:
        """Add the reward parts of the per-group functions, unless the journal has them."""
        functions = self._functions
        if functions is None or all(t.reward_parts.keys() >= {*functions.of_groups} for t in trajectories):
            return trajectories
        graded = await functions.grade_group(task, trajectories, self._rewards)
        if self._journal is not None:
            journal = self._journal
            await run_all(journal.add(trajectory, instead=True) for trajectory in graded)
        return graded

    async def _collect_member(self, task: Task, step: int, member: int, on_ended: OnFinished) -> Trajectory:
        async def attempt(number: int) -> Trajectory | LostEpisode:
            outcome = await self._attempt(task, step, member, number)
            on_ended(outcome)
            return outcome

        return await run_until_kept(f"episode {member} of task {task.id}", attempt)

    async def _attempt(self, task: Task, step: int, member: int, attempt: int) -> Trajectory | LostEpisode:
        async with self._places:
            if self._draining:
                await asyncio.Event().wait()  # until it is cancelled
            self._alive += 1
            self._none_alive.clear()
            try:
                trajectory = await self._runner.run(task, step=step, member=member, attempt=attempt)
            except InfrastructureError as error:
                return lost_to(error, task, member, attempt)
            else:
                if self._journal is not None:
                    await self._journal.add(trajectory)
                return trajectory
            finally:
                self._alive -= 1
                if not self._alive:
                    self._none_alive.set()

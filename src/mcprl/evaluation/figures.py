"""The figures of an evaluation, counted from its episodes: success, reliability, reward, tools, failures, cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from mcprl.evaluation.outcomes import CallFate, CallOutcome, EpisodeOutcome
from mcprl.evaluation.statistics import Estimate, mean_interval, pass_all_k, pass_at_k, percentile, share_interval
from mcprl.records import Source

__all__ = ["Figures", "Slice", "Spread", "TaskResult", "ToolResult", "count_figures"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """One task over all its episodes. Two evaluations are compared where ids and fingerprints agree.

    TaskResult(id="meet-ana", category="medium", fingerprint="9f2c…", episodes=4, solved=1, reward=0.31)
    """

    id: str
    category: str
    fingerprint: str
    episodes: int
    solved: int
    reward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A part of the tasks: Slice(tasks=12, episodes=48, success=Estimate(…), reward=Estimate(…))."""

    tasks: int
    episodes: int
    success: Estimate
    reward: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How a number is spread over episodes: Spread(mean=2.4, p50=2, p95=5, most=8, total=115)."""

    mean: float
    p50: float
    p95: float
    most: float
    total: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """One tool. Shares are of its calls; `success` is of the tasks with an episode that used it.

    Latencies are of live calls that reached the server, None where there was none.

    ToolResult(server="directory", calls=40, valid=0.9, errors=0.05, latency_p50_s=0.003, latency_p95_s=0.011,
               tasks=10, success=Estimate(value=0.6, low=0.4, high=0.8))
    """

    server: str | None
    calls: int
    valid: float
    errors: float
    latency_p50_s: float | None
    latency_p95_s: float | None
    tasks: int
    success: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All that is said of an evaluation as a whole.

    `pass_at[k]` and `pass_all[k]` go from k = 1 to the number of episodes a task; `failures` has the most frequent kind
    first; `turn_counts` are episodes by their number of turns.
    """

    tasks: int
    episodes: int
    success: Estimate
    reward: Estimate
    pass_at: Mapping[int, Estimate]
    pass_all: Mapping[int, Estimate]
    categories: Mapping[str, Slice]
    failures: Mapping[str, int]
    tools: Mapping[str, ToolResult]
    turn_counts: Mapping[int, int]
    turns: Spread
    prompt_tokens: Spread
    sampled_tokens: Spread
    duration_s: Spread
    valid_calls: float | None


def count_figures(tasks: Sequence[TaskResult], episodes: Sequence[EpisodeOutcome]) -> Figures:
    """The figures of all episodes of all tasks; each task has at least one."""
    whole = _slice(tasks)
    most_k = min(task.episodes for task in tasks)
    categories = sorted({task.category for task in tasks}, key=_by_difficulty)
    calls = [call for episode in episodes for call in episode.calls]
    failures = Counter(episode.failure for episode in episodes if episode.failure is not None)
    return Figures(
        tasks=whole.tasks,
        episodes=whole.episodes,
        success=whole.success,
        reward=whole.reward,
        pass_at={k: _over_tasks(tasks, pass_at_k, k) for k in range(1, most_k + 1)},
        pass_all={k: _over_tasks(tasks, pass_all_k, k) for k in range(1, most_k + 1)},
        categories={name: _slice([task for task in tasks if task.category == name]) for name in categories},
        failures=dict(sorted(failures.items(), key=lambda item: (-item[1], item[0]))),
        tools=_tools(tasks, episodes, calls),
        turn_counts=dict(sorted(Counter(episode.turns for episode in episodes).items())),
        turns=_spread([episode.turns for episode in episodes]),
        prompt_tokens=_spread([episode.prompt_tokens for episode in episodes]),
        sampled_tokens=_spread([episode.sampled_tokens for episode in episodes]),
        duration_s=_spread([episode.duration_s for episode in episodes]),
        valid_calls=fmean(call.fate is not CallFate.INVALID for call in calls) if calls else None,
    )


def _over_tasks(tasks: Sequence[TaskResult], chance: Callable[[int, int, int], float], k: int) -> Estimate:
    return share_interval(
        [chance(task.episodes, task.solved, k) for task in tasks], sum(task.episodes for task in tasks)
    )


def _slice(tasks: Sequence[TaskResult]) -> Slice:
    return Slice(
        tasks=len(tasks),
        episodes=sum(task.episodes for task in tasks),
        success=_over_tasks(tasks, pass_at_k, 1),
        reward=mean_interval([task.reward for task in tasks]),
    )


def _tools(
    tasks: Sequence[TaskResult], episodes: Sequence[EpisodeOutcome], calls: Sequence[CallOutcome]
) -> dict[str, ToolResult]:
    by_tool: dict[str, list[CallOutcome]] = {}
    users: dict[str, set[str]] = {}
    for call in calls:
        by_tool.setdefault(call.tool, []).append(call)
    for episode in episodes:
        for call in episode.calls:
            users.setdefault(call.tool, set()).add(episode.task_id)
    return {
        tool: _tool(by_tool[tool], [task for task in tasks if task.id in users[tool]])
        for tool in sorted(by_tool, key=lambda tool: (-len(by_tool[tool]), tool))
    }


def _tool(calls: Sequence[CallOutcome], tasks: Sequence[TaskResult]) -> ToolResult:
    live = [call.latency_s for call in calls if call.source is Source.LIVE and call.fate is not CallFate.INVALID]
    return ToolResult(
        server=calls[0].server,
        calls=len(calls),
        valid=fmean(call.fate is not CallFate.INVALID for call in calls),
        errors=fmean(call.fate is CallFate.ERROR for call in calls),
        latency_p50_s=percentile(live, 50) if live else None,
        latency_p95_s=percentile(live, 95) if live else None,
        tasks=len(tasks),
        success=_slice(tasks).success,
    )


def _spread(values: Sequence[float]) -> Spread:
    return Spread(
        mean=fmean(values),
        p50=percentile(values, 50),
        p95=percentile(values, 95),
        most=max(values),
        total=float(sum(values)),
    )


def _by_difficulty(category: str) -> tuple[int, str]:
    """Difficulties in their own order, other categories by name."""
    order = ("easy", "medium", "hard")
    return (order.index(category) if category in order else len(order), category)

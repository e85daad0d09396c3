"""Statistics of evaluations: confidence intervals, pass@k and pass^k, paired tests, and figures by task and tool.

Pure Python, no numpy. Episodes of one task are correlated, so K episodes of one task contain less information than one
episode of each of K tasks. Every interval is therefore computed from task means. An interval that treats
episodes as independent would be too narrow by a factor of up to √K.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist, fmean, variance
from typing import Final

from mcprl.evaluation.outcomes import CallFate, CallOutcome, EpisodeOutcome
from mcprl.records import Source

CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure and its 95% confidence interval. There is no interval if there is only one task.

    Estimate(value=0.42, low=0.31, high=0.54)
    """

    value: float
    low: float | None = None
    high: float | None = None


def share_interval(task_means: Sequence[float], episodes: int) -> Estimate:
    """Return the mean over tasks of a number in [0, 1], with a Wilson interval at the effective number of episodes.

    The effective number of episodes is p(1 − p)·n / s² for n tasks whose means have variance s². It is at least the
    number of tasks (if the episodes of a task are fully correlated) and at most `episodes` (if they are independent).
    If all means are equal, s² is unknown and the number of tasks is used. A Wilson interval stays within [0, 1], and
    does not shrink to a point if all tasks or none were solved. If tasks have several episodes, s² is an estimate, so
    Student's quantile is used.
    """
    tasks = len(task_means)
    p = fmean(task_means)
    if tasks < 2:
        return Estimate(value=p)
    spread = variance(task_means)
    effective = min(max(p * (1.0 - p) * tasks / spread, tasks), max(tasks, episodes)) if spread > 0 else tasks
    several = episodes > tasks and spread > 0
    z = student_quantile(0.5 + CONFIDENCE / 2, tasks - 1) if several else NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    shrunk = 1.0 + z * z / effective
    centre = (p + z * z / (2 * effective)) / shrunk
    half = z / shrunk * math.sqrt(p * (1.0 - p) / effective + z * z / (4 * effective * effective))
    # Rounding must not move the estimate out of its interval.
    return Estimate(value=p, low=max(0.0, min(p, centre - half)), high=min(1.0, max(p, centre + half)))


def mean_interval(task_means: Sequence[float]) -> Estimate:
    """Return the mean over tasks, with Student's t interval over the task means."""
    mean = fmean(task_means)
    if len(task_means) < 2:
        return Estimate(value=mean)
    half = student_quantile(0.5 + CONFIDENCE / 2, len(task_means) - 1) * math.sqrt(
        variance(task_means) / len(task_means)
    )
    return Estimate(value=mean, low=mean - half, high=mean + half)


def difference_interval(differences: Sequence[float]) -> Estimate:
    """Return the mean of paired differences, each between −1 and 1, with an interval that is never a single point.

    It is Student's interval over n + 2 tasks: two are added, one with difference +1 and one with −1. With one episode
    per task, this is the interval of Bonett and Price for paired proportions. It is valid even if few pairs differ.
    Without the two tasks, the interval would be a single point if no pair differs.
    """
    n = len(differences) + 2
    centre = sum(differences) / n
    spread = (sum(d * d for d in differences) + 2.0) / n - centre * centre
    half = student_quantile(0.5 + CONFIDENCE / 2, n - 1) * math.sqrt(spread / n)
    mean = fmean(differences)
    return Estimate(value=mean, low=max(-1.0, min(mean, centre - half)), high=min(1.0, max(mean, centre + half)))


def pass_at_k(episodes: int, solved: int, k: int) -> float:
    """Return the probability that at least one of k episodes solves the task: 1 − C(n−c, k) / C(n, k).

    n is the number of episodes, c the number that solved the task. The estimate is unbiased, unlike 1 − (1 − c/n)^k.

    >>> pass_at_k(4, 1, 2)
    0.5
    """
    _require_k(episodes, solved, k)
    choices = math.comb(episodes, k)
    return (choices - math.comb(episodes - solved, k)) / choices


def pass_all_k(episodes: int, solved: int, k: int) -> float:
    """Return pass^k, the probability that all of k episodes solve the task: C(c, k) / C(n, k).

    n is the number of episodes, c the number that solved the task. It measures reliability.

    >>> round(pass_all_k(4, 3, 2), 3)
    0.5
    """
    _require_k(episodes, solved, k)
    return math.comb(solved, k) / math.comb(episodes, k)


def _require_k(episodes: int, solved: int, k: int) -> None:
    if not (1 <= k <= episodes and 0 <= solved <= episodes):
        raise ValueError(f"invalid counts: k={k}, {episodes} episodes, {solved} of them solved")


def sign_flip_p(differences: Sequence[Fraction]) -> float:
    """Return the two-sided p-value of the mean difference, by the exact sign-flip test.

    Under the null hypothesis, each task's difference is equally likely to have the opposite sign. The test considers
    all 2ⁿ combinations of signs. With one episode per task, it is McNemar's exact test.
    """
    unit = math.lcm(*(d.denominator for d in differences)) if differences else 1
    steps = [abs(int(d * unit)) for d in differences if d]
    if not steps:
        return 1.0
    common = math.gcd(*steps)
    steps = [step // common for step in steps]
    total, observed = sum(steps), abs(int(sum(differences) * unit)) // common
    # chance[i] is the probability that the positive differences sum to i. If they sum to m, the signed sum is 2m −
    # total.
    chance = [1.0] + [0.0] * total
    reached = 0
    for step in steps:
        reached += step
        for place in range(reached, -1, -1):
            moved = chance[place - step] if place >= step else 0.0
            chance[place] = 0.5 * (chance[place] + moved)
    return min(1.0, math.fsum(c for place, c in enumerate(chance) if abs(2 * place - total) >= observed))


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the percentile by nearest rank: the smallest value that at least `percent` % of values do not exceed."""
    return sorted(values)[max(0, math.ceil(percent * len(values) / 100) - 1)]


def student_cdf(t: float, freedom: int) -> float:
    """Return P(T ≤ t) for Student's t with `freedom` degrees of freedom (Abramowitz and Stegun 26.7.3–4).

    With θ = atan(t / √ν), P(−t ≤ T ≤ t) is a finite sum of powers of cos θ.
    """
    angle = math.atan(t / math.sqrt(freedom))
    square = math.cos(angle) ** 2
    term = math.cos(angle) if freedom % 2 else 1.0
    terms: list[float] = []
    for power in range(freedom % 2, freedom - 1, 2):
        terms.append(term)
        term *= square * (power + 1) / (power + 2)
    total = math.sin(angle) * math.fsum(terms)
    return 0.5 + 0.5 * (2.0 / math.pi * (angle + total) if freedom % 2 else total)


@lru_cache(maxsize=1024)
def student_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's distribution for a probability of at least 0.5, by bisection."""
    if not 0.5 <= probability < 1.0:
        raise ValueError(f"the probability is {probability}, but must be at least 0.5 and less than 1")
    low, high = 0.0, 1.0
    while student_cdf(high, freedom) < probability:
        high *= 2.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if student_cdf(middle, freedom) < probability else (low, middle)
    return (low + high) / 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """The result of one task over all its episodes.

    To compare two evaluations, tasks are matched by id and fingerprint.

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
    """The results of a subset of tasks: Slice(tasks=12, episodes=48, success=Estimate(…), reward=Estimate(…))."""

    tasks: int
    episodes: int
    success: Estimate
    reward: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The distribution of a number over episodes: Spread(mean=2.4, p50=2, p95=5, most=8, total=115)."""

    mean: float
    p50: float
    p95: float
    most: float
    total: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The results of one tool. `valid` and `errors` are shares of its calls.

    `success` is computed over the tasks with at least one episode that used the tool. Latencies are those of live calls
    that reached the server, or None if there were none. For a replayed tool, `covered` is the share of
    its calls that had a recording; otherwise it is None.

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
    covered: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All statistics of an evaluation.

    `pass_at[k]` and `pass_all[k]` exist for k from 1 to the number of episodes per task. `failures` is sorted by
    frequency. `turn_counts` maps a number of turns to the number of episodes that had it.
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
    """Compute the statistics of an evaluation. Each task needs at least one episode."""
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
    replayed = [call.source is Source.CASSETTE for call in calls if call.source in (Source.CASSETTE, Source.MISSING)]
    return ToolResult(
        server=calls[0].server,
        calls=len(calls),
        valid=fmean(call.fate is not CallFate.INVALID for call in calls),
        errors=fmean(call.fate is CallFate.ERROR for call in calls),
        latency_p50_s=percentile(live, 50) if live else None,
        latency_p95_s=percentile(live, 95) if live else None,
        tasks=len(tasks),
        success=_slice(tasks).success,
        covered=fmean(replayed) if replayed else None,
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
    """Sort key: difficulties from easy to hard, then other categories by name."""
    order = ("easy", "medium", "hard")
    return (order.index(category) if category in order else len(order), category)

"""What an evaluation may claim: estimates with intervals, pass@k and pass^k, and paired tests. Pure Python, no numpy.

Tasks are what is drawn from a population; the K episodes of a task are alike, and K of one task tell less than one each
of K tasks. So every interval here counts by task: its width comes from how much the tasks' means differ. An interval
that counts episodes as if they were independent would be too narrow by up to √K.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist, fmean, variance
from typing import Final

__all__ = [
    "CONFIDENCE",
    "Estimate",
    "difference_interval",
    "mean_interval",
    "pass_all_k",
    "pass_at_k",
    "percentile",
    "share_interval",
    "sign_flip_p",
    "student_cdf",
    "student_quantile",
]

CONFIDENCE: Final = 0.95
_HALVINGS: Final = 80
_TERMS: Final = 400
_TINY: Final = 1e-300


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure and the interval that holds the truth in 95 of 100 evaluations. One task alone has no interval.

    Estimate(value=0.42, low=0.31, high=0.54)
    """

    value: float
    low: float | None = None
    high: float | None = None


def share_interval(task_means: Sequence[float], episodes: int) -> Estimate:
    """The mean over tasks of something between 0 and 1, with a Wilson interval at the effective number of episodes.

    That number is p(1 − p)·n / s² for n tasks whose means have variance s²: as many independent episodes would tell as
    much. It lies between the number of tasks (episodes of a task all alike) and of `episodes` (tasks all alike). Where
    all means are the same, nothing is known about s², and it is the number of tasks. A Wilson interval stays within
    [0, 1] and does not shrink to a point where all tasks were solved, or none. Its quantile is Student's where tasks
    have several episodes, as s² is then itself an estimate.
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
    # Rounding must not push the estimate out of its own interval.
    return Estimate(value=p, low=max(0.0, min(p, centre - half)), high=min(1.0, max(p, centre + half)))


def mean_interval(task_means: Sequence[float]) -> Estimate:
    """The mean over tasks of anything, with Student's interval of the tasks' means."""
    mean = fmean(task_means)
    if len(task_means) < 2:
        return Estimate(value=mean)
    half = student_quantile(0.5 + CONFIDENCE / 2, len(task_means) - 1) * math.sqrt(
        variance(task_means) / len(task_means)
    )
    return Estimate(value=mean, low=mean - half, high=mean + half)


def difference_interval(differences: Sequence[float]) -> Estimate:
    """The mean of paired differences of shares, each between −1 and 1, with an interval that is never a point.

    Two tasks are added, one won and one lost, and Student's interval is taken of the n + 2. With one episode a task,
    this is the interval of Bonett and Price for paired proportions, which keeps its promise also where few pairs
    differ; an interval of the differences alone would claim certainty where none does.
    """
    n = len(differences) + 2
    centre = sum(differences) / n
    spread = (sum(d * d for d in differences) + 2.0) / n - centre * centre
    half = student_quantile(0.5 + CONFIDENCE / 2, n - 1) * math.sqrt(spread / n)
    mean = fmean(differences)
    return Estimate(value=mean, low=max(-1.0, min(mean, centre - half)), high=min(1.0, max(mean, centre + half)))


def pass_at_k(episodes: int, solved: int, k: int) -> float:
    """The chance that at least one of k episodes, drawn of those played, solves the task: 1 − C(n−c, k) / C(n, k).

    Unbiased for the chance with k fresh episodes, unlike 1 − (1 − c/n)^k.

    >>> pass_at_k(4, 1, 2)
    0.5
    """
    _require_k(episodes, solved, k)
    choices = math.comb(episodes, k)
    return (choices - math.comb(episodes - solved, k)) / choices


def pass_all_k(episodes: int, solved: int, k: int) -> float:
    """pass^k, the chance that all of k episodes solve the task: C(c, k) / C(n, k). It tells how reliable a policy is.

    >>> round(pass_all_k(4, 3, 2), 3)
    0.5
    """
    _require_k(episodes, solved, k)
    return math.comb(solved, k) / math.comb(episodes, k)


def _require_k(episodes: int, solved: int, k: int) -> None:
    if not (1 <= k <= episodes and 0 <= solved <= episodes):
        raise ValueError(f"no {k} of {episodes} episodes, {solved} of them solved")


def sign_flip_p(differences: Sequence[Fraction]) -> float:
    """The chance, were before and after the same, of a mean difference as large as this one in either direction.

    Were they the same, each task's difference could as well have had the other sign. All 2ⁿ choices of signs are
    counted, exactly, by the sums that they give. With one episode a task this is the exact test of McNemar.
    """
    unit = math.lcm(*(d.denominator for d in differences)) if differences else 1
    steps = [abs(int(d * unit)) for d in differences if d]
    if not steps:
        return 1.0
    common = math.gcd(*steps)
    steps = [step // common for step in steps]
    total, observed = sum(steps), abs(int(sum(differences) * unit)) // common
    # chance[i]: of a sum of the positive ones of i. With m of them positive, the signed sum is 2m − total.
    chance = [1.0] + [0.0] * total
    reached = 0
    for step in steps:
        reached += step
        for place in range(reached, -1, -1):
            moved = chance[place - step] if place >= step else 0.0
            chance[place] = 0.5 * (chance[place] + moved)
    return min(1.0, math.fsum(c for place, c in enumerate(chance) if abs(2 * place - total) >= observed))


def percentile(values: Sequence[float], percent: float) -> float:
    """By nearest rank: the smallest value that at least so many per cent of all reach or stay below."""
    return sorted(values)[max(0, math.ceil(percent * len(values) / 100) - 1)]


def student_cdf(t: float, freedom: float) -> float:
    """The chance that Student's t with that many degrees of freedom is at most `t`."""
    tail = 0.5 * _regularised_beta(freedom / (freedom + t * t), freedom / 2.0, 0.5)
    return 1.0 - tail if t > 0 else tail


@lru_cache(maxsize=1024)
def student_quantile(probability: float, freedom: float) -> float:
    """The t that Student's distribution stays below with that probability, above one half."""
    if not 0.5 <= probability < 1.0:
        raise ValueError(f"{probability} is no probability from one half to below 1")
    high = 1.0
    while student_cdf(high, freedom) < probability:
        high *= 2.0
    return _bisect(lambda t: student_cdf(t, freedom) < probability, 0.0, high)


def _bisect(is_below: Callable[[float], bool], low: float, high: float) -> float:
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return (low + high) / 2.0


def _regularised_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b), by its continued fraction on the side where that converges fast."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - _regularised_beta(1.0 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    return front * _beta_fraction(x, a, b) / a


def _beta_fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of the incomplete beta function, evaluated from the front (Lentz)."""
    numerator, denominator = 1.0, 1.0 / _apart_from_zero(1.0 - (a + b) * x / (a + 1.0))
    fraction = denominator
    for m in range(1, _TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        for coefficient in (even, odd):
            denominator = 1.0 / _apart_from_zero(1.0 + coefficient * denominator)
            numerator = _apart_from_zero(1.0 + coefficient / numerator)
            fraction *= numerator * denominator
        if abs(numerator * denominator - 1.0) < 1e-15:
            break
    return fraction


def _apart_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY

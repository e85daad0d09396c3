"""Intervals, pass@k, pass^k and the paired test, each against something that is slower and surely right."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from itertools import combinations, product
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcprl.evaluation.statistics import (
    difference_interval,
    mean_interval,
    pass_all_k,
    pass_at_k,
    percentile,
    share_interval,
    sign_flip_p,
    student_cdf,
    student_quantile,
)

shares = st.lists(st.integers(0, 4).map(lambda solved: solved / 4), min_size=2, max_size=40)


@pytest.mark.parametrize("episodes", range(1, 8))
def test_pass_at_k_and_pass_all_k_are_what_counting_every_choice_of_k_episodes_gives(episodes):
    for solved in range(episodes + 1):
        outcomes = [place < solved for place in range(episodes)]
        for k in range(1, episodes + 1):
            choices = list(combinations(outcomes, k))
            assert pass_at_k(episodes, solved, k) == pytest.approx(sum(map(any, choices)) / len(choices))
            assert pass_all_k(episodes, solved, k) == pytest.approx(sum(map(all, choices)) / len(choices))


def test_more_episodes_than_were_played_are_refused():
    with pytest.raises(ValueError, match="k=5, 4 episodes"):
        pass_at_k(4, 1, 5)


def signs_counted(differences: list[Fraction]) -> float:
    """Every choice of signs, one by one."""
    observed = abs(sum(differences))
    sums = [
        abs(sum(s * d for s, d in zip(signs, differences, strict=True)))
        for signs in product((1, -1), repeat=len(differences))
    ]
    return sum(one >= observed for one in sums) / len(sums)


@given(st.lists(st.fractions(-1, 1, max_denominator=6), max_size=8))
def test_the_paired_test_counts_every_choice_of_signs(differences):
    assert sign_flip_p(differences) == pytest.approx(signs_counted(differences))


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 20))
def test_with_one_episode_a_task_the_paired_test_is_mcnemars(won, lost, same):
    n, fewer = won + lost, min(won, lost)
    mcnemar = min(1.0, 2 * sum(math.comb(n, i) for i in range(fewer + 1)) / 2**n)
    differences = [Fraction(1)] * won + [Fraction(-1)] * lost + [Fraction(0)] * same
    assert sign_flip_p(differences) == pytest.approx(mcnemar)


def test_the_paired_test_of_many_tasks_is_exact_and_quick():
    differences = [Fraction(1, 4), Fraction(-1, 4), Fraction(1, 2)] * 100
    p = sign_flip_p(differences)
    spread = math.sqrt(sum(float(d) ** 2 for d in differences))
    assert p == pytest.approx(2 * (1 - NormalDist().cdf(float(sum(differences)) / spread)), rel=0.6)
    assert 0 < p < 1e-6


@given(shares)
def test_an_interval_of_shares_holds_its_estimate_and_stays_between_0_and_1(means):
    estimate = share_interval(means, 4 * len(means))
    assert 0.0 <= estimate.low <= estimate.value <= estimate.high <= 1.0
    assert estimate.high - estimate.low > 0.0


@given(shares)
def test_an_interval_shrinks_where_as_many_tasks_again_say_the_same(means):
    once, twice = share_interval(means, 4 * len(means)), share_interval(means * 2, 8 * len(means))
    assert twice.high - twice.low < once.high - once.low + 1e-12


@given(st.integers(2, 60), st.data())
def test_with_one_episode_a_task_an_interval_of_shares_is_wilsons(tasks, data):
    solved = data.draw(st.integers(0, tasks))
    estimate = share_interval([1.0] * solved + [0.0] * (tasks - solved), tasks)
    z, p = NormalDist().inv_cdf(0.975), solved / tasks
    # The ends of Wilson's interval are the p0 at which (p − p0)² = z² p0 (1 − p0) / n.
    for end in (estimate.low, estimate.high):
        if 0.0 < end < 1.0:
            assert (p - end) ** 2 == pytest.approx(z * z * end * (1 - end) / tasks, abs=1e-9)


def test_episodes_of_a_task_that_are_all_alike_count_once():
    means = [1.0] * 6 + [0.0] * 14
    assert share_interval(means, 20 * 8).low <= share_interval(means, 20).low
    assert share_interval(means, 20 * 8).high >= share_interval(means, 20).high


@given(st.lists(st.integers(-4, 4).map(lambda d: d / 4), min_size=1, max_size=40))
def test_an_interval_of_differences_holds_its_estimate_and_is_never_a_point(differences):
    estimate = difference_interval(differences)
    assert -1.0 <= estimate.low <= estimate.value <= estimate.high <= 1.0
    assert estimate.high - estimate.low > 0.0


def test_one_task_alone_has_no_interval():
    assert share_interval([0.5], 4).low is None
    assert mean_interval([0.5]).high is None


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.7062047), (2, 4.30265273), (5, 2.57058184), (30, 2.04227246), (1000, 1.96233908)]
)
def test_students_quantiles_are_those_of_the_printed_tables(freedom, quantile):
    assert student_quantile(0.975, freedom) == pytest.approx(quantile, rel=1e-7)
    assert student_cdf(quantile, freedom) == pytest.approx(0.975, rel=1e-7)


@given(st.floats(-8, 8), st.integers(1, 200))
def test_students_distribution_is_symmetric_and_exact_where_it_has_a_formula(t, freedom):
    assert student_cdf(t, freedom) + student_cdf(-t, freedom) == pytest.approx(1.0)
    assert student_cdf(t, 1) == pytest.approx(0.5 + math.atan(t) / math.pi, abs=1e-7)
    assert student_cdf(t, 2) == pytest.approx(0.5 + t / (2 * math.sqrt(2 + t * t)), abs=1e-7)


@pytest.mark.parametrize(
    ("tasks", "episodes", "a", "b"), [(10, 1, 0.5, 0.5), (10, 4, 2.0, 3.0), (10, 4, 0.3, 1.5), (40, 1, 0.3, 1.5)]
)
def test_intervals_hold_the_truth_as_often_as_they_say(tasks, episodes, a, b):
    """Tasks differ in how hard they are: all or nothing, middling, mostly hopeless."""
    rng, trials = random.Random(5), 300
    held = 0
    for _ in range(trials):
        chances = [rng.betavariate(a, b) for _ in range(tasks)]
        means = [sum(rng.random() < chance for _ in range(episodes)) / episodes for chance in chances]
        estimate = share_interval(means, tasks * episodes)
        held += estimate.low <= a / (a + b) <= estimate.high
    assert held / trials >= 0.9


@pytest.mark.parametrize("episodes", [1, 4])
@pytest.mark.parametrize("gain", [0.0, 0.15])
def test_intervals_of_differences_hold_the_truth_and_the_test_seldom_cries_wolf(episodes, gain):
    rng, trials, tasks = random.Random(9), 300, 25
    held = alarms = 0
    for _ in range(trials):
        differences: list[Fraction] = []
        for _ in range(tasks):
            chance = rng.betavariate(1, 2) * (1 - gain)
            before = sum(rng.random() < chance for _ in range(episodes))
            after = sum(rng.random() < chance + gain for _ in range(episodes))
            differences.append(Fraction(after - before, episodes))
        estimate = difference_interval([float(d) for d in differences])
        held += estimate.low <= gain <= estimate.high
        alarms += sign_flip_p(differences) <= 0.05
    assert held / trials >= 0.9
    assert gain or alarms / trials <= 0.08


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(0, 100))
def test_a_percentile_is_one_of_the_values_that_enough_of_them_stay_below(values, percent):
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= percent * len(values) / 100 - 1e-9

"""Injected failures: their rate, their reproducibility, and that the policy cannot recognise them."""
# R20

from __future__ import annotations

from itertools import product

import pytest

from mcprl.episodes.environment import ErrorInjection
from mcprl.records import Source

TOOL = "fmp_get_quote"


def make_injection(rate: float, *, seed: int = 7, step: int = 0, task_id: str = "a", member: int = 0) -> ErrorInjection:
    return ErrorInjection(rate=rate, seed=seed, step=step, task_id=task_id, member=member)


def failures(injection: ErrorInjection, calls: int = 2000):
    return [injection.failure_of(TOOL, turn=n // 4, index=n % 4) for n in range(calls)]


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.9])
def test_as_many_calls_fail_as_asked_for(rate):
    share = sum(seen is not None for seen in failures(make_injection(rate))) / 2000
    # Five standard deviations of 2000 independent draws.
    assert abs(share - rate) < 5 * (rate * (1 - rate) / 2000) ** 0.5


def test_the_same_calls_fail_the_same_way_each_time_and_others_at_every_other_place():
    drawn = {}
    for seed, step, task_id, member in product((1, 2), (0, 1), ("a", "b"), (0, 1)):
        place = {"seed": seed, "step": step, "task_id": task_id, "member": member}
        assert failures(make_injection(0.3, **place), 200) == failures(make_injection(0.3, **place), 200)
        drawn[tuple(place.values())] = tuple(seen is not None for seen in failures(make_injection(0.3, **place), 200))
    assert len(set(drawn.values())) == len(drawn) == 16


def test_a_higher_rate_fails_those_calls_and_more():
    few, many = (failures(make_injection(rate), 500) for rate in (0.1, 0.4))
    assert all(more is not None for fewer, more in zip(few, many, strict=True) if fewer is not None)


def test_failures_are_of_several_kinds_and_none_says_that_it_is_on_purpose():
    seen = [failure for failure in failures(make_injection(0.5)) if failure is not None]
    assert all((failure.source, failure.fault, failure.tool) == (Source.INJECTED, None, TOOL) for failure in seen)
    texts = {failure.text for failure in seen}
    assert len(texts) == 6
    for kind in ("rate limit", "timed out", "unavailable", "Bad Gateway"):
        assert any(kind in text for text in texts)
    assert not any(word in text.lower() for text in texts for word in ("inject", "purpose", "test", "{"))


def test_a_rate_of_nothing_fails_nothing():
    assert set(failures(make_injection(0.0), 500)) == {None}

"""The memory behind verdicts survives a stop, and stays small."""

# R9, R30

from __future__ import annotations

import json

import pytest

from healthy_steps import HEALTHY, make_config
from mcprl.checks.health import Health
from mcprl.checks.health.view import WINDOW


def long_run() -> list[dict[str, float]]:
    """Sixty steps in which many things go wrong."""
    return [
        {
            **HEALTHY,
            "reward": 0.6 if step < 30 else 0.05,
            "kl": 0.01 if step % 7 else 1.0 + step / 20,
            "entropy": 0.8 * 0.94**step,
            "grad_norm": 0.5 if step % 11 else 9.0,
            "groups_without_variance": float(step % 8),
            "explained_variance": 0.2 - step / 100,
        }
        for step in range(60)
    ]


@pytest.mark.parametrize("stop", [1, 9, 33])
def test_a_resumed_run_is_judged_like_one_that_never_stopped(stop):
    whole, before, beyond = (Health(make_config()) for _ in range(3))
    expected = [whole.judge(metrics) for metrics in long_run()]
    for metrics in long_run()[:stop]:
        before.judge(metrics)
    kept = json.loads(json.dumps(before.state(), allow_nan=False))
    beyond.restore(kept)
    assert [beyond.judge(metrics) for metrics in long_run()[stop:]] == expected[stop:]
    assert kept == before.state()


def test_the_memory_does_not_grow_with_the_run():
    health = Health(make_config())
    for _ in range(10):
        for metrics in long_run():
            health.judge(metrics)
    state = health.state()
    assert max(map(len, state["windows"].values())) == WINDOW
    assert len(json.dumps(state)) < 5000

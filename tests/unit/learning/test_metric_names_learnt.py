"""Real updates write the metrics that docs/metrics.md lists, under the conditions that it states."""
# R9

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_trajectories import make_trajectory
from small_models import save_small_model, small_batch, small_config, small_groups, small_learner

from metrics_table import METRICS, metric_named

LEARNT = ("scored", "fresh")
ON_REQUEST = (
    "with a reference policy",
    "with `algorithm.kl.cap`",
    "with a value head",
    "with `algorithm.old_logprobs: recomputed`",
    "while there are demonstrations",
)
EVERYTHING: dict[str, Any] = {
    "advantages": "gae",
    "old_logprobs": "recomputed",
    "kl": {"coefficient": 0.1, "cap": 100.0, "reference": "sync", "lag": 1},
    "ratio_gate": (0.25, 4.0),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("model"))


def names_written(*when: str) -> set[str]:
    assert set(when) <= {one.written for one in METRICS}
    return {one.name for one in METRICS if one.written in when}


async def metrics_of_an_update(
    model: Path, folder: Path, algorithm: dict[str, Any], *, shown: bool = False
) -> set[str]:
    learner = small_learner(small_config(model, algorithm=algorithm), folder)
    groups = small_groups()
    readings = await learner.read([t for group in groups for t in group.trajectories])
    more: dict[str, Any] = {"readings": readings}
    if shown:
        demonstration = replace(make_trajectory([3, 4, 5, 40, 41, 42, 43], "cccssss"), task_id="shown")
        more |= {"demonstrations": [demonstration], "demonstration_weight": 0.5}
    return set((await learner.update(small_batch(learner._config, groups, **more))).metrics)


async def test_an_update_with_every_part_writes_every_name_of_the_learner_and_no_unknown_one(model, tmp_path):
    names = await metrics_of_an_update(model, tmp_path, EVERYTHING, shown=True)
    assert {name for name in names if metric_named(name) is None} == set()
    assert names_written(*LEARNT, *ON_REQUEST) - names == set()


async def test_a_plain_update_writes_no_name_of_a_part_that_it_does_not_have(model, tmp_path):
    names = await metrics_of_an_update(model, tmp_path, {})
    assert names_written(*LEARNT) - names == set()
    assert names & names_written(*ON_REQUEST) == set()


async def test_an_update_that_scored_nothing_writes_only_what_every_step_has(model, tmp_path):
    names = await metrics_of_an_update(model, tmp_path, {"min_learnable_tokens": 1000})
    assert "update_skipped" in names
    assert names - names_written("every step") == set()

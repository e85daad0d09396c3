"""The cost model: what a step amounts to, how long it takes, which part it waits for, and what more episodes need."""
# R24

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned_runs import CLUSTER, CONSTANTS, SHAPE, WORKLOAD

from mcprl.planning import EpisodeShape, forecast, grow, step_counts

SHAPES = st.builds(
    EpisodeShape,
    turns=st.integers(1, 20),
    prompt_tokens=st.integers(1, 2000),
    turn_tokens=st.integers(1, 500),
    observation_tokens=st.integers(0, 500),
    calls=st.integers(0, 20),
    tool_s=st.floats(0, 10),
)


@given(SHAPES)
def test_the_tokens_of_an_episode_are_those_counted_turn_by_turn(shape):
    length = shape.prompt_tokens
    read = sampled = 0
    for turn in range(int(shape.turns)):
        length += shape.observation_tokens if turn else 0
        read += length
        sampled += shape.turn_tokens
        length += shape.turn_tokens
    assert (shape.length_tokens, shape.sampled_tokens) == (length, sampled)
    # What stands between two turns is part of the second one's prompt.
    assert shape.read_tokens == read


def test_a_step_amounts_to_its_episodes():
    counts = step_counts(WORKLOAD, CONSTANTS)
    assert (counts.episodes, counts.turns, counts.calls) == (32, 128, 96)
    assert (counts.sampled_tokens, counts.prompt_tokens) == (32 * 80, 32 * (100 + 3 * 30))
    assert counts.usd == pytest.approx(48 * 0.01)
    assert counts.trajectory_bytes == 32 * 270 * 40
    assert counts.relayed_bytes == 32 * (4 * 500 + (700 + 270) * 8)


def test_without_workers_nothing_is_relayed():
    assert step_counts(replace(WORKLOAD, relayed=False), CONSTANTS).relayed_bytes == 0


def test_a_run_is_its_steps():
    counts = step_counts(WORKLOAD, CONSTANTS)
    run = counts.times(10)
    assert (run.calls, run.usd, run.weights_bytes) == (960, pytest.approx(4.8), 1e7)


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({}, 8 * (100 + 4 * 170)),
        ({"microbatch": 8}, 8 * (100 + 4 * 170)),
        ({"microbatch": 2}, 8 * (2 * 100 + 4 * 170)),
        ({"microbatch": 3}, 8 * (2 * 100 + 4 * 170)),
        ({"share_prefix": False}, 8 * 4 * 270),
        ({"share_prefix": False, "forward_passes": 1}, 8 * 4 * 270 * 4 / 3),
    ],
)
def test_the_learner_computes_a_shared_prompt_once_a_pass(changes, tokens):
    assert replace(WORKLOAD, **changes).learned_tokens == pytest.approx(tokens)


def test_a_sync_step_is_collected_and_then_learned_from():
    step = forecast(WORKLOAD, CLUSTER, CONSTANTS)
    assert step.step_s == step.collect_s + step.update_s
    assert step.update_s == pytest.approx(WORKLOAD.learned_tokens / 8000)


def test_an_async_step_takes_as_long_as_the_busiest_part_or_a_share_of_both():
    ahead = replace(WORKLOAD, staleness=1, max_concurrent=64)
    step = forecast(ahead, CLUSTER, CONSTANTS)
    assert step.step_s < forecast(WORKLOAD, CLUSTER, CONSTANTS).step_s
    busiest = max(load.busy_s for load in step.loads)
    assert step.step_s == pytest.approx(max(busiest, (step.collect_s + step.update_s) / 2))


@pytest.mark.parametrize(
    ("workload", "cluster", "part"),
    [
        (WORKLOAD, CLUSTER, "rate of b"),
        (replace(WORKLOAD, servers=()), CLUSTER, "episodes alive"),
        (replace(WORKLOAD, servers=()), replace(CLUSTER, learner=replace(CLUSTER.learner, tokens_per_s=50)), "learner"),
        (
            replace(WORKLOAD, servers=(), max_sequences=1),
            replace(CLUSTER, sampler=replace(CLUSTER.sampler, tokens_per_s=50)),
            "sampler",
        ),
        (replace(WORKLOAD, servers=(), tasks_per_step=800, max_concurrent=4000), CLUSTER, "workers"),
        (
            replace(WORKLOAD, servers=(), tasks_per_step=8000, max_concurrent=40000),
            replace(
                CLUSTER,
                workers=100,
                sampler=replace(CLUSTER.sampler, tokens_per_s=1e7),
                learner=replace(CLUSTER.learner, tokens_per_s=1e7),
            ),
            "driver",
        ),
    ],
)
def test_the_bottleneck_is_what_has_the_most_to_do(workload, cluster, part):
    fast = replace(cluster.sampler, tokens_per_s=1e6) if part == "workers" else cluster.sampler
    learner = replace(cluster.learner, tokens_per_s=1e6) if part == "workers" else cluster.learner
    step = forecast(workload, replace(cluster, sampler=fast, learner=learner), CONSTANTS)
    assert step.bottleneck.name == part
    assert max(load.busy_s for load in step.loads) == next(
        load.busy_s for load in step.loads if load.part == step.bottleneck
    )


def test_a_run_without_workers_does_their_work_itself():
    step = forecast(WORKLOAD, replace(CLUSTER, workers=None), CONSTANTS)
    assert step.worker_cpu_s is None
    assert step.worker_bytes is None
    assert step.driver_cpu_s == pytest.approx(32 * (0.006 + 0.03))


def test_memory_grows_with_workers_and_episodes_alive():
    step = forecast(WORKLOAD, CLUSTER, CONSTANTS)
    assert step.driver_bytes == 100e6 + 32 * 1e5
    assert step.worker_bytes == 2 * 200e6 + 32 * 2e5


@given(SHAPES, st.integers(1, 64), st.integers(1, 64), st.integers(1, 2000), st.integers(0, 2), st.integers(1, 5))
def test_more_of_anything_never_makes_a_step_longer(shape, workers, tasks, places, staleness, more):
    workload = replace(WORKLOAD, episode=shape, tasks_per_step=tasks, max_concurrent=places, staleness=staleness)
    cluster = replace(CLUSTER, workers=workers)
    step_s = forecast(workload, cluster, CONSTANTS).step_s
    for larger in (
        replace(cluster, workers=workers + more),
        replace(cluster, sampler_units=2 + more),
        replace(cluster, learner_units=2 + more),
    ):
        assert forecast(workload, larger, CONSTANTS).step_s <= step_s * (1 + 1e-9)


@given(SHAPES, st.integers(1, 64), st.integers(1, 2000), st.integers(0, 2), st.integers(2, 10))
def test_more_episodes_never_make_a_step_shorter(shape, tasks, places, staleness, factor):
    workload = replace(WORKLOAD, episode=shape, tasks_per_step=tasks, max_concurrent=places, staleness=staleness)
    grown = replace(workload, tasks_per_step=tasks * factor)
    now, then = (forecast(each, CLUSTER, CONSTANTS).step_s for each in (workload, grown))
    assert then >= now * (1 - 1e-9)


def test_growth_names_the_parts_that_must_grow_and_those_that_cannot():
    quick = replace(WORKLOAD, servers=(), episode=replace(SHAPE, tool_s=0.0))
    growth = grow(quick, CLUSTER, CONSTANTS, 1000)
    needs = {need.part: need for need in growth.needs}
    assert not needs["driver"].possible
    assert needs["learner"].units == 2000
    assert needs["episodes alive"].possible
    assert growth.step_s > 100 * forecast(quick, CLUSTER, CONSTANTS).step_s


@pytest.mark.parametrize("factor", [10, 100, 1000])
def test_with_what_growth_asks_for_a_step_is_about_as_short_as_before(factor):
    """Within a factor of two: parts that are all busy at once queue for each other a little more."""
    workload = replace(WORKLOAD, servers=())
    cheap = replace(CONSTANTS, driver_episode_s=0.0, driver_turn_s=0.0)
    needs = {need.part: need.units for need in grow(workload, CLUSTER, cheap, factor).needs}
    grown = replace(
        workload,
        tasks_per_step=workload.tasks_per_step * factor,
        max_concurrent=needs.get("episodes alive", workload.max_concurrent),
    )
    hardware = replace(
        CLUSTER,
        workers=needs.get("workers", CLUSTER.workers),
        sampler_units=needs.get("sampler", CLUSTER.sampler_units),
        learner_units=needs.get("learner", CLUSTER.learner_units),
    )
    assert forecast(grown, hardware, cheap).step_s <= 2 * forecast(workload, CLUSTER, cheap).step_s

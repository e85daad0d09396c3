"""A run as the cost model sees it, with round numbers, for tests to change."""

from __future__ import annotations

from mcprl.planning import Cluster, Constants, EpisodeShape, Rate, ServerLoad, Workload

SHAPE = EpisodeShape(turns=4, prompt_tokens=100, turn_tokens=20, observation_tokens=30, calls=3, tool_s=1.0)
CONSTANTS = Constants(
    driver_episode_s=0.002,
    driver_turn_s=0.001,
    worker_episode_s=0.01,
    worker_turn_s=0.005,
    driver_base_bytes=100e6,
    driver_episode_bytes=1e5,
    worker_base_bytes=200e6,
    worker_episode_bytes=2e5,
    relayed_turn_bytes=500,
    relayed_token_bytes=8,
    trajectory_token_bytes=40,
    cpu_parameters=100e6,
    cpu_sampler_tokens_per_s=200,
    cpu_learner_tokens_per_s=400,
)
WORKLOAD = Workload(
    episode=SHAPE,
    steps=10,
    tasks_per_step=8,
    group_size=4,
    max_concurrent=32,
    staleness=0,
    forward_passes=0,
    microbatch=4,
    share_prefix=True,
    max_sequences=16,
    relayed=True,
    weights_bytes=1e6,
    servers=(
        ServerLoad(name="a", share=0.5, calls_per_s=None, usd_per_call=0.01, budget_calls=None, budget_usd=None),
        ServerLoad(name="b", share=0.5, calls_per_s=10.0, usd_per_call=0.0, budget_calls=100, budget_usd=None),
    ),
)
CLUSTER = Cluster(
    engine="skyrl",
    gpus=2,
    sampler_units=2,
    learner_units=2,
    sampler=Rate(tokens_per_s=1000, source="given"),
    learner=Rate(tokens_per_s=4000, source="given"),
    workers=2,
)

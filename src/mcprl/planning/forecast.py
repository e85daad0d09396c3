"""The cost model: what each part of a run is asked, how long a step takes, and which part it waits for."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mcprl.planning.cluster import Cluster
from mcprl.planning.makespan import Station, collect_time_s
from mcprl.planning.measured import Constants
from mcprl.planning.workload import Counts, Workload, step_counts

__all__ = ["Forecast", "Load", "Part", "forecast", "parts_of"]

LEARNER = "learner"
EPISODES = "episodes alive"
DRIVER = "driver"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Something that episodes need. `demand_s` is what one episode asks of one unit, `setting` what adds units.

    Part(name="workers", units=4, demand_s=0.02, setting="workers.count", can_grow=True)
    """

    name: str
    units: float
    demand_s: float
    setting: str
    can_grow: bool = True

    @property
    def carries(self) -> float | None:
        """Episodes a second of all units; None where an episode asks nothing of it."""
        return self.units / self.demand_s if self.demand_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A part in a step: how long it is busy, and the share of the step that this is."""

    part: Part
    busy_s: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A step as the model sees it. `bottleneck` is the part with the most to do; memory is in bytes, at its highest.

    Processor time and memory of workers are those of all workers together, and None without workers.
    """

    counts: Counts
    loads: tuple[Load, ...]
    bottleneck: Part
    collect_s: float
    update_s: float
    step_s: float
    driver_cpu_s: float
    driver_bytes: float
    worker_cpu_s: float | None
    worker_bytes: float | None


def parts_of(workload: Workload, cluster: Cluster, constants: Constants) -> tuple[Part, ...]:
    """The parts that episodes share while a step is collected, then the learner."""
    shape, torch = workload.episode, cluster.engine == "torch"
    driver_s = constants.driver_episode_s + shape.turns * constants.driver_turn_s
    worker_s = constants.worker_episode_s + shape.turns * constants.worker_turn_s
    if cluster.workers is None:
        # One process does both; what it saves by not relaying is not counted.
        cpu = [Part(name=DRIVER, units=1, demand_s=driver_s + worker_s, setting="workers.kind ray")]
    else:
        cpu = [
            Part(
                name=DRIVER,
                units=1,
                demand_s=driver_s,
                setting="fewer turns an episode, or several runs",
                can_grow=False,
            ),
            Part(name="workers", units=cluster.workers, demand_s=worker_s, setting="workers.count"),
        ]
    if cluster.cores is not None:
        both_s = driver_s + worker_s
        cpu.append(Part(name="cores", units=cluster.cores, demand_s=both_s, setting="workers.address: more nodes"))
    sampler = Part(
        name="sampler",
        units=cluster.sampler_units,
        demand_s=shape.sampled_tokens / cluster.sampler.tokens_per_s,
        setting="sampling.max_tokens; engine skyrl, on more GPUs" if torch else "GPUs behind skyrl.url",
    )
    limits = [
        Part(
            name=f"rate of {server.name}",
            units=1,
            demand_s=shape.calls * server.share / server.calls_per_s,
            setting=f"servers.settings.{server.name}: rate, cache_s",
            can_grow=False,
        )
        for server in workload.servers
        if server.calls_per_s is not None
    ]
    learner = Part(
        name=LEARNER,
        units=cluster.learner_units,
        demand_s=workload.learned_tokens / workload.episodes / cluster.learner.tokens_per_s,
        setting="learner.processes, learner.share_prefix" if torch else "GPUs behind skyrl.url",
    )
    return (*cpu, sampler, *limits, learner)


def episode_path_s(workload: Workload, cluster: Cluster, parts: tuple[Part, ...]) -> float:
    """How long an episode takes where nobody queues: its tools, its tokens, and the processor time of it.

    A sequence gets its share of a full batch: a replica's tokens a second, divided by sampling.vllm.max_sequences.
    """
    shape = workload.episode
    stream_s = shape.sampled_tokens * workload.max_sequences / cluster.sampler.tokens_per_s
    cpu_s = sum(part.demand_s for part in parts if part.name in (DRIVER, "workers"))
    return shape.calls * shape.tool_s + stream_s + cpu_s


def forecast(workload: Workload, cluster: Cluster, constants: Constants) -> Forecast:
    """A step of this workload on this hardware.

    sync    collect + update
    async   the largest of update, what the busiest part needs, and (collect + update) / (staleness + 1)
    """
    shape, episodes = workload.episode, workload.episodes
    *shared, learner = parts_of(workload, cluster, constants)
    path_s = episode_path_s(workload, cluster, tuple(shared))
    places = min(workload.max_concurrent, episodes * (workload.staleness + 1))
    collect_s = collect_time_s(
        episodes=episodes,
        places=min(places, episodes),
        turns=shape.turns,
        path_s=path_s,
        stations=[Station(demand_s=part.demand_s, units=part.units) for part in shared],
    )
    update_s = episodes * learner.demand_s / learner.units
    alive = _places_part(workload, path_s)
    busy = {part: episodes * part.demand_s / part.units for part in (*shared, learner)}
    # Episodes alive are served in waves while a step is collected alone, and without a gap where steps overlap.
    waves = episodes / places if workload.staleness else math.ceil(episodes / places)
    busy[alive] = waves * path_s
    if workload.staleness:
        overlapped_s = (collect_s + update_s) / (workload.staleness + 1)
        step_s = max(overlapped_s, *busy.values())
    else:
        step_s = collect_s + update_s
    driver_s, worker_s, machines = _cpu_s(episodes, cluster, shared)
    return Forecast(
        counts=step_counts(workload, constants),
        loads=tuple(Load(part=part, busy_s=spent, share=spent / step_s) for part, spent in busy.items()),
        bottleneck=max(busy, key=lambda part: busy[part]),
        collect_s=collect_s,
        update_s=update_s,
        step_s=step_s,
        driver_cpu_s=driver_s,
        driver_bytes=constants.driver_base_bytes + places * constants.driver_episode_bytes,
        worker_cpu_s=worker_s,
        worker_bytes=None
        if not machines
        else machines * constants.worker_base_bytes + places * constants.worker_episode_bytes,
    )


def _places_part(workload: Workload, path_s: float) -> Part:
    held = workload.episodes * (workload.staleness + 1) > workload.max_concurrent
    waits = "training.pipeline async, faster tools, fewer turns"
    return Part(
        name=EPISODES,
        units=min(workload.max_concurrent, workload.episodes * (workload.staleness + 1)),
        demand_s=path_s,
        setting="episodes.max_concurrent" if held else waits,
        can_grow=held,
    )


def _cpu_s(episodes: int, cluster: Cluster, parts: list[Part]) -> tuple[float, float | None, int]:
    """Processor seconds of the driver and of all workers in a step, and how many workers there are."""
    demand = {part.name: part.demand_s for part in parts}
    workers = cluster.workers or 0
    return episodes * demand[DRIVER], episodes * demand["workers"] if workers else None, workers

"""The plan of a run: a recipe, what is known and what is assumed of its episodes, and what follows for hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mcprl.config import RunConfig
from mcprl.planning.cluster import Cluster, Rate, make_cluster
from mcprl.planning.forecast import Forecast, forecast
from mcprl.planning.growth import FACTORS, Growth, grow
from mcprl.planning.measured import read_constants
from mcprl.planning.model_size import ModelSize, model_size
from mcprl.planning.shapes import SHAPE_FIELDS, assumed_shape
from mcprl.planning.workload import Counts, ServerLoad, Workload, workload_of
from mcprl.records import Message, Task

__all__ = ["FIGURES", "Assumption", "Known", "Plan", "make_plan", "plan_json"]

RATES = ("sampler_tokens_per_s", "learner_tokens_per_s")

FIGURES: Mapping[str, float] = {
    "turns": 1.0,
    "prompt_tokens": 0.0,
    "turn_tokens": 1.0,
    "observation_tokens": 0.0,
    "length_tokens": 1.0,
    "calls": 0.0,
    "tool_s": 0.0,
    "sampler_tokens_per_s": 0.001,
    "learner_tokens_per_s": 0.001,
    "parameters": 1.0,
}
"""The figures that may be known of a run, each with the least that it can be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the user, or a run that was made, knows of a figure: Known(value=3.2, source="given")."""

    value: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """A figure that nobody gave, and why it is what it is.

    Assumption(name="turns", value=8.0, why="every episode takes all turns that episodes.max_turns allows")
    """

    name: str
    value: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run will take. `warnings` are sentences on what will stop it, or leave hardware idle."""

    name: str
    engine: str
    model: ModelSize
    workload: Workload
    cluster: Cluster
    step: Forecast
    run: Counts
    run_s: float
    growth: tuple[Growth, ...]
    known: tuple[tuple[str, Known], ...]
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]
    machine: str


def make_plan(
    config: RunConfig,
    tasks: Sequence[Task],
    preamble: Sequence[Message],
    *,
    servers: Sequence[str],
    gpus: int,
    known: Mapping[str, Known],
) -> Plan:
    """The plan of a recipe. `known` may name figures of an episode, the two rates, and `parameters`."""
    constants, machine = read_constants()
    parameters = known.get("parameters")
    size = model_size(config.model.path, parameters.value if parameters else None)
    given = {name: known[name].value for name in (*SHAPE_FIELDS, "length_tokens") if name in known}
    shape, reasons = assumed_shape(config, tasks, preamble, given)
    workload = workload_of(config, shape, servers=servers, weights_bytes=size.weights_bytes(config))
    rates = {name: Rate(tokens_per_s=known[name].value, source=known[name].source) for name in RATES if name in known}
    cluster = make_cluster(config, constants, size, gpus=gpus, known=rates)
    step = forecast(workload, cluster, constants)
    run = step.counts.times(workload.steps)
    return Plan(
        name=config.name,
        engine=config.engine,
        model=size,
        workload=workload,
        cluster=cluster,
        step=step,
        run=run,
        run_s=step.step_s * workload.steps,
        growth=tuple(grow(workload, cluster, constants, factor) for factor in FACTORS),
        known=tuple(known.items()),
        assumptions=_assumptions(shape_values=asdict(shape), reasons=reasons, workload=workload, cluster=cluster),
        warnings=tuple(_warnings(config, workload, run, cluster)),
        machine=machine,
    )


def _assumptions(
    *, shape_values: Mapping[str, float], reasons: Mapping[str, str], workload: Workload, cluster: Cluster
) -> tuple[Assumption, ...]:
    made = [Assumption(name=name, value=shape_values[name], why=why) for name, why in reasons.items()]
    for name, rate in zip(RATES, (cluster.sampler, cluster.learner), strict=True):
        if rate.source.startswith("a CPU"):
            made.append(Assumption(name=name, value=rate.tokens_per_s, why=rate.source))
    if len({server.usd_per_call or server.calls_per_s for server in workload.servers}) > 1:
        why = "calls are spread evenly over the servers"
        made.append(Assumption(name="share of a server", value=workload.servers[0].share, why=why))
    return tuple(made)


def _warnings(config: RunConfig, workload: Workload, run: Counts, cluster: Cluster) -> list[str]:
    found = [sentence for server in workload.servers for sentence in _budget_warnings(server, run, workload.steps)]
    if config.engine == "torch" and cluster.gpus > max(1, config.learner.processes):
        idle = cluster.gpus - max(1, config.learner.processes)
        found.append(
            f"{idle} of {cluster.gpus} GPUs stand idle: learner.processes is {config.learner.processes}, and vLLM "
            "samples on the first GPU"
        )
    if config.engine == "torch" and 0 < cluster.gpus < config.learner.processes:
        found.append(f"learner.processes is {config.learner.processes}, but there are {cluster.gpus} GPUs")
    return found


def _budget_warnings(server: ServerLoad, run: Counts, steps: int) -> list[str]:
    """Where a budget ends the run before its last step."""
    calls = run.calls * server.share
    found: list[str] = []
    for what, needed, allowed in (
        ("calls", calls, server.budget_calls),
        ("usd", calls * server.usd_per_call, server.budget_usd),
    ):
        if allowed is not None and needed > allowed:
            at = int(steps * allowed / needed)
            setting = f"servers.settings.{server.name}.budget.{what}"
            found.append(f"{setting} is {allowed:g}, the run needs about {needed:,.6g}: it would stop after step {at}")
    return found


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON, for scripts. Names stay as they are from version to version."""
    step = plan.step
    return {
        "name": plan.name,
        "engine": plan.engine,
        "model": asdict(plan.model),
        "episode": asdict(plan.workload.episode),
        "hardware": asdict(plan.cluster),
        "step": {
            "seconds": step.step_s,
            "collect_s": step.collect_s,
            "update_s": step.update_s,
            "driver_cpu_s": step.driver_cpu_s,
            "driver_bytes": step.driver_bytes,
            "worker_cpu_s": step.worker_cpu_s,
            "worker_bytes": step.worker_bytes,
            **asdict(step.counts),
        },
        "run": {"steps": plan.workload.steps, "seconds": plan.run_s, **asdict(plan.run)},
        "parts": [
            {
                "name": load.part.name,
                "units": load.part.units,
                "episodes_per_s": load.part.carries,
                "busy_s": load.busy_s,
                "share": load.share,
                "setting": load.part.setting,
            }
            for load in step.loads
        ],
        "bottleneck": {"part": step.bottleneck.name, "setting": step.bottleneck.setting},
        "growth": [asdict(growth) for growth in plan.growth],
        "known": {name: asdict(known) for name, known in plan.known},
        "assumptions": [asdict(assumption) for assumption in plan.assumptions],
        "warnings": list(plan.warnings),
        "measured_on": plan.machine,
    }

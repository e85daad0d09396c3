"""The same run with ten, a hundred and a thousand times the episodes: what it waits for then, and what that takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from mcprl.planning.cluster import Cluster
from mcprl.planning.forecast import EPISODES, Forecast, forecast
from mcprl.planning.measured import Constants
from mcprl.planning.workload import Workload

__all__ = ["FACTORS", "Growth", "Need", "grow"]

FACTORS = (10, 100, 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Units of a part that keep the step as short as it is now. `possible` is False where no setting adds them."""

    part: str
    units: int
    possible: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """`factor` times the episodes a step, with nothing else changed: what it waits for, and the setting that moves it.

    `needs` are the parts that must grow so that a step takes no longer than now, the hardest pressed first.
    """

    factor: int
    step_s: float
    bottleneck: str
    setting: str
    usd: float
    needs: tuple[Need, ...]


def grow(workload: Workload, cluster: Cluster, constants: Constants, factor: int) -> Growth:
    """The run with `factor` times the tasks in a step."""
    now = forecast(workload, cluster, constants)
    then = forecast(replace(workload, tasks_per_step=workload.tasks_per_step * factor), cluster, constants)
    return Growth(
        factor=factor,
        step_s=then.step_s,
        bottleneck=then.bottleneck.name,
        setting=then.bottleneck.setting,
        usd=then.counts.usd,
        needs=_needs(now, then),
    )


def _needs(now: Forecast, then: Forecast) -> tuple[Need, ...]:
    """Of each part, the units with which its work fits into what collecting, or the update, takes now."""
    found: list[tuple[float, Need]] = []
    for load in then.loads:
        part = load.part
        time_s = now.update_s if part.name == "learner" else now.collect_s
        pressed = load.busy_s / time_s if time_s else 0.0
        # Rounded, so that the same work in another order of sums needs no further unit.
        units = math.ceil(round(pressed * part.units, 6))
        if units > part.units:
            found.append((pressed, Need(part=part.name, units=units, possible=part.can_grow or part.name == EPISODES)))
    return tuple(need for _, need in sorted(found, key=lambda each: -each[0]))

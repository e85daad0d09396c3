"""How long episodes take that share what serves them: a closed queue, in one formula."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Station", "collect_time_s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """What every episode passes once a turn. `demand_s` is what one episode asks of it in all; `units` serve at once.

    Station(demand_s=0.02, units=4)     # four workers, of which an episode needs 20 ms
    """

    demand_s: float
    units: float

    def busy_s(self, episodes: int) -> float:
        """How long all units are busy with so many episodes."""
        return episodes * self.demand_s / self.units


def collect_time_s(*, episodes: int, places: int, turns: float, path_s: float, stations: Sequence[Station]) -> float:
    """Seconds until `episodes` are done, `places` of them alive at once, each `path_s` long where nobody queues.

    With n = ⌈episodes / places⌉ and a demand of D on m units, the largest of these, over all stations:

        a station is always busy    episodes · D / m + (path − D) / turns
        episodes wait               n · path + max(0, places / m − 1) · D / turns

    The first is the work of a station and the last round's way from it; the second is what an episode takes, n times
    in a row, behind the queue that all form when they begin at once. Both are exact for one station that is asked the
    same in every turn. More units or more places never make it longer.
    """
    places = min(places, episodes)
    waves = math.ceil(episodes / places)
    times = [waves * path_s]
    for station in stations:
        times.append(station.busy_s(episodes) + max(0.0, path_s - station.demand_s) / turns)
        queue_s = max(0.0, places / station.units - 1) * station.demand_s / turns
        times.append(waves * path_s + queue_s)
    return max(times)

"""The formula of a closed queue against a queue that is played through, event by event."""
# R24

from __future__ import annotations

import heapq
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcprl.planning import Station, collect_time_s

SERVICE = st.floats(0.001, 1.0)
WAIT = st.floats(0.0, 5.0)


def played(*, episodes: int, places: int, turns: int, services: list[tuple[float, int]], wait_s: float) -> float:
    """When the last episode ends: `turns` times through all stations in order, then a wait.

    A station has so many units, and serves whoever came first.
    """
    free = [[0.0] * units for _, units in services]
    waiting = episodes - min(places, episodes)
    # (when it arrives, its number, rounds done, station it arrives at)
    events = [(0.0, number, 0, 0) for number in range(min(places, episodes))]
    heapq.heapify(events)
    number, last = len(events), 0.0
    while events:
        now, who, done, at = heapq.heappop(events)
        if at == len(services):
            now, done, at = now + wait_s, done + 1, 0
            if done == turns:
                last = max(last, now)
                if waiting:
                    waiting -= 1
                    heapq.heappush(events, (now, number, 0, 0))
                    number += 1
                continue
            heapq.heappush(events, (now, who, done, 0))
            continue
        service_s, _ = services[at]
        begins = max(now, heapq.heappop(free[at]))
        heapq.heappush(free[at], begins + service_s)
        heapq.heappush(events, (begins + service_s, who, done, at + 1))
    return last


def predicted(*, episodes: int, places: int, turns: int, services: list[tuple[float, int]], wait_s: float) -> float:
    return collect_time_s(
        episodes=episodes,
        places=places,
        turns=turns,
        path_s=turns * (wait_s + sum(service_s for service_s, _ in services)),
        stations=[Station(demand_s=turns * service_s, units=units) for service_s, units in services],
    )


def test_one_place_plays_one_episode_after_the_other():
    assert predicted(episodes=3, places=1, turns=2, services=[(0.5, 1)], wait_s=1.0) == 9.0


@given(st.integers(1, 3), st.integers(1, 8), st.integers(1, 5), SERVICE, st.integers(1, 3), WAIT)
def test_a_single_station_is_predicted_exactly(waves, rows, turns, service_s, units, wait_s):
    queue = {
        "episodes": waves * rows * units,
        "places": rows * units,
        "turns": turns,
        "services": [(service_s, units)],
        "wait_s": wait_s,
    }
    assert predicted(**queue) == pytest.approx(played(**queue), rel=1e-9)


@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(1, 5),
    st.lists(st.tuples(SERVICE, st.integers(1, 3)), min_size=2, max_size=3),
    WAIT,
)
def test_with_several_stations_the_prediction_is_no_longer_than_all_work_in_a_row(
    episodes, places, turns, services, wait_s
):
    queue = {"episodes": episodes, "places": places, "turns": turns, "services": services, "wait_s": wait_s}
    waves = math.ceil(episodes / min(places, episodes))
    path_s = turns * (wait_s + sum(service_s for service_s, _ in services))
    least = max(path_s, *(episodes * turns * service_s / units for service_s, units in services))
    most = waves * path_s + sum(episodes * turns * service_s for service_s, _ in services)
    for seconds in (predicted(**queue), played(**queue)):
        assert least * (1 - 1e-9) <= seconds <= most * (1 + 1e-9)


@given(st.integers(2, 30), st.integers(1, 5), SERVICE, SERVICE, st.integers(1, 3), WAIT)
def test_with_a_driver_and_workers_the_prediction_is_near(episodes, turns, driver_s, worker_s, workers, wait_s):
    services = [(worker_s, workers), (driver_s, 1)]
    queue = {"episodes": episodes, "places": episodes, "turns": turns, "services": services, "wait_s": wait_s}
    assert predicted(**queue) == pytest.approx(played(**queue), rel=0.35)


@given(
    st.integers(1, 500),
    st.integers(1, 500),
    st.floats(1, 10),
    st.lists(st.tuples(st.floats(0, 1), st.integers(1, 8)), min_size=1, max_size=4),
    WAIT,
    st.integers(1, 8),
)
def test_more_units_or_places_never_make_it_longer(episodes, places, turns, stations, wait_s, more):
    def seconds(at_once: int, extra: int) -> float:
        return collect_time_s(
            episodes=episodes,
            places=at_once,
            turns=turns,
            path_s=wait_s + sum(demand_s for demand_s, _ in stations),
            stations=[
                Station(demand_s=demand_s, units=units + (extra if number == 0 else 0))
                for number, (demand_s, units) in enumerate(stations)
            ],
        )

    assert seconds(places, more) <= seconds(places, 0) * (1 + 1e-9)

"""The bench that fits the cost model: it finds constants that are there, and the page shows what it wrote."""
# R24

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from mcprl.checks.plan import MEASURED_FILE, read_constants

ROOT = Path(__file__).parents[3]
CONSTANTS = replace(read_constants(), driver_turn_s=0.001, worker_turn_s=0.005)


@pytest.fixture(scope="module")
def scaling() -> ModuleType:
    """bench/scaling.py, which finds its neighbours beside itself."""
    bench = ROOT / "bench"
    sys.path.insert(0, str(bench))
    try:
        spec = importlib.util.spec_from_file_location("bench_scaling", bench / "scaling.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["bench_scaling"] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(bench))
    return module


def as_if_measured(size) -> SimpleNamespace:
    """What a machine with these constants would show."""
    episodes, turns, c = size.episodes, size.turns, CONSTANTS
    return SimpleNamespace(
        seconds=1.0,
        driver_cpu_s=episodes * turns * c.driver_turn_s,
        worker_cpu_s=episodes * turns * c.worker_turn_s,
        driver_rss=c.driver_base_bytes + episodes * c.driver_episode_bytes,
        worker_rss=size.workers * c.worker_base_bytes + episodes * c.worker_episode_bytes,
    )


@pytest.mark.parametrize("sizes", ["FIT", "CI_FIT"])
def test_the_constants_of_a_machine_are_found(scaling, sizes):
    chosen = getattr(scaling, sizes)
    found = scaling.fit(chosen, [as_if_measured(size) for size in chosen])
    assert found == {name: pytest.approx(getattr(CONSTANTS, name), rel=1e-6) for name in found}


def test_with_them_a_larger_collection_is_predicted(scaling):
    found = scaling.fit(scaling.FIT, [as_if_measured(size) for size in scaling.FIT])
    expected = scaling.predict(scaling.CHECK, replace(CONSTANTS, **found))
    checked = scaling.compared(scaling.CHECK, expected, as_if_measured(scaling.CHECK), 2)
    assert checked["cpu_error"] == checked["memory_error"] == 0
    # Two cores have more to do than the tools take.
    assert checked["wall_predicted"] == pytest.approx(1000 * 4 * (0.001 + 0.005) / 2)


def test_a_constant_that_would_be_negative_is_nothing(scaling):
    assert scaling.fitted([(1, 1), (1, 2), (1, 3)], [1.0, 2.5, 4.0]) == [
        0.0,
        pytest.approx((1 + 2 + 3) / (1 + 4 / 2.5 + 9 / 4)),
    ]


def test_the_page_shows_the_figures_that_were_measured(scaling):
    page = (ROOT / "docs" / "scaling.md").read_text()
    assert scaling.with_figures(page, json.loads(MEASURED_FILE.read_text())) == page

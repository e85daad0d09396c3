"""The places where the crash bench kills a run exist: otherwise only a full run would notice a moved function."""

from __future__ import annotations

import importlib
import sys

import pytest
from source_files import ROOT

pytest.importorskip("torch", reason="torch is missing: install mcprl[torch]")
sys.path.append(str(ROOT / "bench"))

from crashing.places import PLACES


def test_a_place_of_the_crash_bench_exists():
    for call in sorted({place.call for place in PLACES}):
        module, _, name = call.partition(":")
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        assert callable(found)

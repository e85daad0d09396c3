"""The functions of the objective against those of SkyRL and TRL, by the bench that does it at full size."""
# R1, R2, R3, R5, R6

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[4] / "bench"))

from oracles import compare, table
from pages import write_between_markers

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[4]
PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
# Where mcprl has its own way, an oracle would say nothing: tests here hold these against plain Python.
WITHOUT_ORACLE = {"inadmissible_tokens", "learnable_tokens", "make_batch", "mask_shares"}


@pytest.mark.skipif(not PEERS_PYTHON.exists(), reason=".venv-peers is missing: run scripts/setup peers")
def test_every_function_agrees_with_its_oracle(tmp_path: Path, record_property):
    import mcprl.learning.algorithms

    page = tmp_path / "page.md"
    page.write_text("before\n<!-- oracles -->\nold\n<!-- /oracles -->\nafter\n")
    rows = compare(40, PEERS_PYTHON)
    assert [row for row in rows if not row["largest_difference"] <= 1e-6] == []
    record_property("oracle_worst_difference", max(row["largest_difference"] for row in rows))

    functions = {name for name in mcprl.learning.algorithms.__all__ if name[0].islower()}
    asked = {row["function"].split(",")[0] for row in rows}
    assert asked == functions - WITHOUT_ORACLE
    assert {row["oracle"].split()[0] for row in rows} == {"SkyRL", "TRL", "plain"}

    write_between_markers(page, "oracles", table(rows))
    written = page.read_text()
    assert written.startswith("before\n<!-- oracles -->\n\n40 cases each.\n\n| oracles |")
    assert written.endswith("|\n\n<!-- /oracles -->\nafter\n")
    assert [name for name in functions - WITHOUT_ORACLE if f"`{name}`" not in written] == []

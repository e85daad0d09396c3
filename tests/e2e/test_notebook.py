"""examples/first_look.ipynb runs from its first cell to its last, and is kept without what it printed.

There is no Jupyter in the environment: the code cells are executed in order, in one namespace, by plain Python.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process

NEEDED = ("matplotlib", "duckdb", "tokenizers")
# What a notebook's kernel does with a cell, as far as this notebook needs it.
RUNNER = """
import json, sys
notebook = json.load(open(sys.argv[1]))
names = {"__name__": "__main__"}
for cell in notebook["cells"]:
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
print(json.dumps({
    "steps": names["run"].steps_done,
    "folder": str(names["run"].path),
    "lines": [len(line.get_xdata()) for line in names["axes"].get_lines()],
    "hardest": len(names["hardest"]),
    "roles": sorted(set(names["roles"])),
    "tokens": len(names["roles"]) == len(names["episode"].token_ids),
    "tasks": len(names["both"]),
    "change": [names["change"].low, names["change"].value, names["change"].high],
}))
"""


@pytest.fixture(scope="module")
def notebook(root: Path) -> dict[str, Any]:
    return json.loads((root / "examples/first_look.ipynb").read_text())


def execute(path: Path, root: Path) -> tuple[str, dict[str, Any]]:
    """Run a notebook where Jupyter would, in its own folder; what it printed, and what it found."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} missing: run scripts/setup")
    environment = os.environ | {"MPLBACKEND": "Agg"}
    # A program from the command line has its working folder on its path, as a notebook has.
    command = [sys.executable, "-c", RUNNER, str(path)]
    result = subprocess.run(
        command, cwd=root / "examples", env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stdout + result.stderr
    *printed, found = result.stdout.splitlines()
    return "\n".join(printed), json.loads(found)


def test_it_runs_on_a_run_that_it_makes_itself_and_sees_the_policy_get_better(root: Path):
    printed, found = execute(root / "examples/first_look.ipynb", root)
    assert found["steps"] == 12
    assert found["lines"] == [12, 12, 12]
    assert found["roles"] == ["chosen", "context", "forced"]
    assert found["tokens"]
    assert (found["tasks"], found["hardest"]) == (12, 5)
    low, value, high = found["change"]
    assert 0 < low < value < high <= 1
    assert "[0] policy: <tool_call>" in printed
    assert "not known" not in printed
    assert not Path(found["folder"]).exists()  # it leaves nothing behind


def test_it_runs_on_the_run_that_one_names(root: Path, notebook: dict[str, Any], tmp_path: Path):
    written = subprocess.run(
        [sys.executable, str(root / "examples/invented_run.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    run = Path(written.stdout.strip())
    changed = json.loads(json.dumps(notebook).replace("run_path: Path | None = None", f"run_path = Path('{run}')"))
    assert changed != notebook
    copy = tmp_path / "changed.ipynb"
    copy.write_text(json.dumps(changed))
    _, found = execute(copy, root)
    assert found["folder"] == str(run)


def test_it_is_kept_without_outputs_and_counts(notebook: dict[str, Any]):
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 6
    assert [cell["id"] for cell in cells if cell["outputs"] or cell["execution_count"] is not None] == []
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}


def test_it_has_the_form_that_jupyter_reads(notebook: dict[str, Any]):
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(ids) == len(set(ids))
    assert {cell["cell_type"] for cell in notebook["cells"]} == {"markdown", "code"}
    assert all(cell["metadata"] == {} for cell in notebook["cells"])


def test_the_pages_that_it_points_to_are_there(root: Path, notebook: dict[str, Any]):
    prose = "".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    pages = {part.split(")")[0] for part in prose.split("](")[1:]}
    assert len(pages) >= 3
    assert [page for page in pages if not (root / "examples" / page).is_file()] == []

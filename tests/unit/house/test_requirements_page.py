"""The pages for contributors are true: what they name is there, and what docs/extending.md says goes together does."""
# R32

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
from source_files import ROOT

from mcprl.config import ADVANTAGES, LOSSES, AlgorithmConfig, RunConfig, TrackingConfig
from mcprl.recipe import load_recipe
from mcprl.tracking import delivery, process

REQUIREMENTS = ROOT / "docs" / "requirements.md"
PAGES = ("requirements", "guides/coming-from", "design", "extending")
IDS = [f"R{number}" for number in range(1, 33)]
# In backticks: a path from the root of the repository and, behind two colons, something that is defined there.
NAMED = re.compile(r"`((?:src|packages|tests|bench|docs|recipes|scripts)/[^`\s:]*)(?:::([\w.]+))?[^`]*`")
MARK = re.compile(r"^# R\d+(?:, R\d+)*$", re.MULTILINE)  # under a test's docstring
ROW = re.compile(r"^\| (R\d+) \|(.*)\|$", re.MULTILINE)


def named_in(text: str) -> list[tuple[str, str]]:
    """Paths and, where they are given, the names behind them."""
    return [(path, name) for path, name in NAMED.findall(text)]


def rows() -> dict[str, str]:
    found = ROW.findall(REQUIREMENTS.read_text())
    assert len(found) == len(dict(found)), "a requirement stands twice"
    return dict(found)


@cache
def defined_in(path: Path) -> frozenset[str]:
    """Functions, classes, methods as Class.method, and module-level names of a file."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{inner.name}" for inner in node.body if hasattr(inner, "name")}
            found |= {f"{node.name}.{inner.target.id}" for inner in node.body if isinstance(inner, ast.AnnAssign)}
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return frozenset(found)


def test_every_requirement_has_one_row_in_order():
    assert list(rows()) == IDS


def test_a_row_names_its_code_and_a_test_has_its_id():
    marked = "\n".join(line for test in (ROOT / "tests").rglob("test_*.py") for line in MARK.findall(test.read_text()))
    for identifier in IDS:
        paths = [path for path, _ in named_in(rows()[identifier]) if (ROOT / path).exists()]
        assert any(path.startswith(("src/", "packages/", "scripts/")) for path in paths), identifier
        assert re.search(rf"\b{identifier}\b", marked), identifier


@pytest.mark.parametrize("page", PAGES)
def test_every_path_on_a_page_exists(page):
    named = named_in((ROOT / "docs" / f"{page}.md").read_text())
    assert [path for path, _ in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_function_on_a_page_is_defined_where_the_page_says(page):
    named = named_in((ROOT / "docs" / f"{page}.md").read_text())
    gone = [f"{path}::{name}" for path, name in named if name and name not in defined_in(ROOT / path)]
    assert gone == []


def test_a_path_or_a_function_that_is_gone_would_be_found():
    text = "`src/mcprl/nowhere.py` and `src/mcprl/seeds.py::no_such_draw`, not `recipes` or `src`"
    (gone, _), (path, name) = named_in(text)
    assert not (ROOT / gone).exists()
    assert name not in defined_in(ROOT / path)
    assert "derive_seed" in defined_in(ROOT / path)


def choices(section: type, setting: str) -> set[str]:
    """The values that a setting may have."""
    known = {"loss": LOSSES, "advantages": ADVANTAGES}
    return set(known.get(setting) or get_args(section.model_fields[setting].annotation))


@pytest.mark.parametrize("setting", ["advantages", "loss", "aggregation"])
def test_every_choice_of_the_objective_is_on_the_page_of_algorithms(setting):
    page = (ROOT / "docs" / "algorithms.md").read_text()
    assert {choice for choice in choices(AlgorithmConfig, setting) if f"| `{choice}`" not in page} == set()


def test_every_advantage_that_needs_no_critic_has_its_function():
    batches = pytest.importorskip("mcprl.learning.algorithms.batches", reason="torch is missing: install mcprl[torch]")
    assert set(batches._GROUP_RELATIVE) == choices(AlgorithmConfig, "advantages") - {"gae"}


def test_every_engine_of_sampling_makes_a_sampler_of_its_own(tmp_path):
    pytest.importorskip("torch", reason="torch is missing: install mcprl[torch]")
    from mcprl.episodes.stage import make_sampler

    engines = choices(RunConfig, "engine") - {"skyrl"}
    recipe = ROOT / "recipes" / "hello-cpu.yaml"
    made = {type(make_sampler(load_recipe(recipe, [f"engine={name}"]), tmp_path, None)) for name in engines}
    assert len(made) == len(engines)


def test_every_tracker_has_settings_a_process_a_library_and_an_extra():
    named = set(TrackingConfig.model_fields)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert named == set(process.KINDS) == set(delivery._MODULES) == set(delivery._VARIABLES)
    assert named - set(extras) == {"tracker"}  # the user's own

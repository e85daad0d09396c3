"""docs/metrics.md has every metric that the code writes, and no other."""
# R9, R28

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from source_files import ROOT, source_files

from mcprl.episodes.rewards import PARTS, PENALTIES
from mcprl.recipe import settings
from mcprl.training.loop import resource_metrics
from metrics_table import METRICS, metric_named

# Every function whose result, or whose dictionary, ends up in a step's line of metrics.jsonl.
WRITERS = {
    "episodes/collector.py": ("episode_metrics",),
    "training/pipeline.py": ("metrics",),
    "training/loop.py": ("record", "resource_metrics", "_gpu_metrics"),
    "learning/algorithms/diagnostics.py": ("parity_metrics", "ratio_metrics", "staleness_metrics"),
    "learning/algorithms/losses.py": ("mask_shares",),
    "learning/metrics.py": ("check_parity", "metrics", "_of_episodes", "_parts"),
    "learning/update.py": ("_update", "_follow"),
    "learning/models.py": ("follow",),
    "learning/skyrl_learner.py": ("follow",),
}
NAME = re.compile(r"[a-z][a-z0-9_]*")


def written_names(function: ast.AST) -> Iterator[str]:
    """Keys of dictionaries and of assignments to them; of a key that is put together, its beginning."""
    for node in ast.walk(function):
        keys: list[ast.expr | None] = []
        if isinstance(node, ast.Dict):
            keys = list(node.keys)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            keys = [node.slice]
        elif isinstance(node, ast.For) and isinstance(node.iter, ast.Tuple):  # for name in ("policy_loss", …)
            keys = list(node.iter.elts)
        for key in keys:
            part = key.values[0] if isinstance(key, ast.JoinedStr) else key
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value


def names_by_writer() -> dict[tuple[str, str], set[str]]:
    return {
        (file.name, node.name): set(written_names(node))
        for file in source_files()
        for node in ast.walk(file.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in WRITERS.get(file.name, ())
    }


def test_the_table_has_every_name_that_is_written_and_no_other():
    found = names_by_writer()
    assert set(found) == {(file, name) for file, names in WRITERS.items() for name in names}
    assert set().union(*found.values()) == {one.prefix or one.name for one in METRICS}


def test_a_name_stands_in_the_table_once():
    names = [one.name for one in METRICS]
    assert sorted(names) == sorted(set(names))
    for one in METRICS:
        assert [other.name for other in METRICS if other.covers(one.name)] == [one.name]


async def test_what_the_machine_is_measured_by_is_explained():
    assert {name for name in await resource_metrics() if metric_named(name) is None} == set()


def test_the_metrics_of_a_generated_run_are_explained():
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        from dashboards.side_files import metrics_of
    finally:
        sys.path.remove(str(ROOT / "bench"))
    names = set(metrics_of(0, 0.5, 0.5, 400)) - {"step"}
    assert {name for name in names if metric_named(name) is None} == set()
    assert len(names) > 60


def test_what_the_dashboard_draws_is_explained():
    text = (ROOT / "packages/dashboard/web/src/charts/catalog.ts").read_text()
    names = set(re.findall(r'\["([a-z0-9_]+)"(?:, "|\])', text))
    names |= {f"{prefix}something" for prefix in re.findall(r'prefix: "(\w+)"', text)}
    assert len(names) > 40
    assert {name for name in names if metric_named(name) is None} == set()


@pytest.mark.parametrize("file", ["cli/console.py", "runs/summary.py"])
def test_what_a_table_in_the_terminal_reads_is_explained(file):
    tree = next(one.tree for one in source_files() if one.name == file)
    subscripts = [node for node in ast.walk(tree) if isinstance(node, ast.Subscript)]
    of_steps = [node.slice for node in subscripts if isinstance(node.value, ast.Name) and node.value.id != "figures"]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    of_steps += [call.args[0] for call in calls if call.func.id == "figure"]
    constants = [node.value for node in of_steps if isinstance(node, ast.Constant)]
    read = {name for name in constants if isinstance(name, str) and NAME.fullmatch(name)}
    assert read
    assert {name for name in read if metric_named(name) is None} == set()


def test_a_pattern_explains_the_names_it_stands_for_and_not_itself():
    found = metric_named("stop_turn_limit")
    assert found is not None
    assert found.name == "stop_REASON"
    assert metric_named("stop_") is None
    assert metric_named("rewards") is None


def test_a_row_is_a_sentence_and_names_only_settings_and_metrics_that_exist():
    known = {setting.path for setting in settings()} | {one.name for one in METRICS} | {*PARTS, *PENALTIES}
    for one in METRICS:
        assert one.says.endswith("."), one.name
        assert len(one.says) < 180, one.name
        quoted = re.findall(r"`([^`:]+)(?:: \w+)?`", f"{one.says} {one.written}")
        assert set(quoted) <= known, one.name


def test_every_row_of_the_page_can_be_read():
    page = Path(ROOT / "docs/metrics.md").read_text()
    assert len(METRICS) == len(re.findall(r"^\| `", page, re.MULTILINE)) > 80

"""scripts/figures.py: what a figure depends on, when it is out of date, and what is stored of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from source_files import ROOT

sys.path.append(str(ROOT / "scripts"))

from figures import Figure, Sources, commit_of, meets, missed, out_of_date, read_figures, write_figure
from promises import Promise, read_promises

FILES = {
    "bench/quick.py": "import sys\nfrom servers.harness import say\nfrom mcprl.tools import Toolbox\n",
    "bench/slow.py": "from pathlib import Path\n\n\ndef run():\n    from mcprl.learning import models\n",
    "bench/starting.py": 'ARGV = ["python", "-m", "mcprl.training.worker"]\nSERVER = "echo.py"\n',
    "bench/servers/harness.py": "def say(text):\n    print(text)\n",
    "bench/servers/echo.py": "def answer(text):\n    return text\n",
    "tests/conftest.py": "import helpers\n",
    "tests/helpers.py": "LIMIT = 1\n",
    "tests/unit/test_a.py": "from made import make\nfrom helpers import LIMIT\n",
    "tests/unit/data/made.py": "import typing\nif typing.TYPE_CHECKING:\n    from mcprl.tools import pool\n",
    "src/mcprl/__init__.py": "",
    "src/mcprl/tools/__init__.py": "from .box import Toolbox\n",
    "src/mcprl/tools/box.py": "import mcprl.records\nclass Toolbox:\n    size = 1\n",
    "src/mcprl/tools/pool.py": "def take():\n    return 1\n",
    "src/mcprl/records.py": "def make():\n    return 1\n",
    "src/mcprl/learning/__init__.py": "",
    "src/mcprl/learning/models.py": "def step():\n    return 1\n",
    "src/mcprl/training/__init__.py": "",
    "src/mcprl/training/worker.py": "def work():\n    return 1\n",
    "src/mcprl/data/tasks.jsonl": "{}\n",
    "recipes/hello.yaml": "name: hello\n",
    "docs/a.md": "text\n",
}
PROMISES = [
    Promise(id="quick", says="", command="true", full="python bench/quick.py", figure="s", bar="<= 1"),
    Promise(id="slow", says="", command="python bench/slow.py", size="full", figure="s", bar="<= 1"),
    Promise(id="starting", says="", command="python bench/starting.py", size="full", figure="s", bar="<= 1"),
    Promise(id="test", says="", test="tests/unit/test_a.py::test_one", figure="s", bar="<= 1", speed=True),
    Promise(
        id="recipe", says="", command="python bench/servers/echo.py", size="full", figure="s", bar="<= 1",
        code=("recipes/*.yaml", "src/mcprl/data", "src/mcprl/tools/pool.py"),
    ),
]  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def digests(root: Path) -> dict[str, str]:
    sources = Sources(root)
    return {promise.id: sources.digest(promise) for promise in PROMISES}


@pytest.mark.parametrize(
    ("file", "dependent"),
    [
        ("bench/quick.py", {"quick"}),
        ("bench/servers/harness.py", {"quick"}),  # a folder without __init__
        ("src/mcprl/__init__.py", {"quick", "slow", "starting", "recipe"}),
        ("src/mcprl/tools/__init__.py", {"quick", "recipe"}),
        ("src/mcprl/tools/box.py", {"quick", "recipe"}),  # a relative import
        ("src/mcprl/records.py", {"quick", "recipe"}),  # an import of an import
        ("src/mcprl/learning/models.py", {"slow"}),  # an import inside of a function
        ("src/mcprl/training/worker.py", {"starting"}),  # a module that is started
        ("bench/servers/echo.py", {"starting", "recipe"}),  # a file that is started
        ("tests/helpers.py", {"test"}),
        ("tests/conftest.py", {"test"}),
        ("tests/unit/data/made.py", {"test"}),  # by its bare name
        ("src/mcprl/tools/pool.py", {"recipe"}),  # not of the test, which imports it for type checkers only
        ("recipes/hello.yaml", {"recipe"}),
        ("src/mcprl/data/tasks.jsonl", {"recipe"}),
        ("docs/a.md", set()),
    ],
)
def test_a_change_makes_stale_what_depends_on_it_and_nothing_else(root: Path, file: str, dependent: set[str]):
    before = digests(root)
    path = root / file
    path.write_text(path.read_text().replace("return 1", "return 2") + "\n# changed\n")
    after = digests(root)
    assert {name for name in before if before[name] != after[name]} == dependent


def test_a_digest_depends_on_nothing_but_the_code_and_the_command(root: Path, tmp_path_factory):
    before = digests(root)
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "copy"
    shutil.copytree(root, elsewhere)
    for path in elsewhere.rglob("*.py"):
        path.touch()
    (elsewhere / "src/mcprl/__pycache__").mkdir()
    (elsewhere / "src/mcprl/data/__pycache__").mkdir()
    (elsewhere / "src/mcprl/data/__pycache__/x.pyc").write_bytes(b"x")
    assert digests(elsewhere) == before
    other = Promise(id="slow", says="", command="python bench/slow.py --more", size="full", figure="s", bar="<= 1")
    assert Sources(root).digest(other) != before["slow"]


def test_code_that_is_not_there_is_named(root: Path):
    promise = Promise(id="p", says="", command="true", figure="s", bar="<= 1", speed=True, code=("recipes/none.yaml",))
    with pytest.raises(SystemExit, match=r"promise p: `code` names recipes/none.yaml"):
        Sources(root).digest(promise)


@pytest.mark.slow
def test_all_digests_of_this_repository_are_made_quickly():
    promises = [promise for promise in read_promises(ROOT / "promises.toml") if promise.keeps_figure]
    sources, started = Sources(ROOT), time.process_time()
    made = {promise.id: sources.digest(promise) for promise in promises}
    assert len(made) > 50
    assert time.process_time() - started < 10  # about 1 s; five times as much would be files that are parsed again


def figure(**changed: object) -> Figure:
    fields = {"figure": "s", "value": 0.5, "bar": "<= 1", "holds": True, "date": "2026-08-01", "commit": "abc1234"}
    return Figure(**{**fields, "seconds": 3.0, "code": "0" * 16, **changed})


def test_figures_are_stored_in_order_and_an_older_one_is_replaced(tmp_path: Path):
    assert read_figures(tmp_path) == {}
    for name, value in (("b", 1.0), ("a", 2.0), ("b", 3.0)):
        write_figure(tmp_path, name, figure(value=value))
    assert {name: stored.value for name, stored in read_figures(tmp_path).items()} == {"a": 2.0, "b": 3.0}
    stored = json.loads((tmp_path / "bench/figures.json").read_text())
    assert list(stored) == ["a", "b"]
    assert stored["a"] == {
        "figure": "s", "value": 2.0, "bar": "<= 1", "holds": True, "date": "2026-08-01", "commit": "abc1234",
        "seconds": 3.0, "code": "0" * 16,
    }  # fmt: skip


def test_a_file_that_is_not_one_of_figures_is_refused_with_a_sentence(tmp_path: Path):
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench/figures.json").write_text('{"a": {"value": 1}}')
    with pytest.raises(SystemExit, match=r"figures\.json"):
        read_figures(tmp_path)


def test_a_figure_is_out_of_date_if_it_is_missing_or_of_other_code_or_of_another_name(root: Path):
    codes = digests(root)
    stored = {name: figure(code=code) for name, code in codes.items()}
    assert out_of_date(PROMISES, stored, Sources(root)) == {}
    del stored["quick"]
    stored["slow"] = figure(code="1" * 16)
    stored["test"] = figure(code=codes["test"], figure="ms")
    assert out_of_date(PROMISES, stored, Sources(root)) == {
        "quick": "never measured",
        "slow": "measured 2026-08-01 at abc1234, the code has changed since",
        "test": "never measured",
    }


def test_plain_tests_and_exact_figures_of_the_gate_are_not_stored():
    plain = Promise(id="p", says="", test="tests/unit", covered_by="pytest", figure="s", bar="== 0")
    exact = Promise(id="p", says="", command="true", figure="s", bar="== 0")
    assert not plain.keeps_figure
    assert not exact.keeps_figure
    assert out_of_date([plain, exact], {}, Sources(ROOT)) == {}


def test_a_figure_is_held_against_the_bar_of_now_and_a_command_that_failed_is_not_forgotten():
    promise = PROMISES[0]
    assert missed([promise], {"quick": figure(bar="<= 0.1", holds=False)}) == {}
    assert missed([promise], {"quick": figure(value=2.0, bar="<= 9")}) == {"quick": "s was 2, its bar is <= 1"}
    assert missed([promise], {"quick": figure(holds=False)}) == {
        "quick": "s was 0.5, its bar is <= 1, and the command failed"
    }


@pytest.mark.parametrize(
    ("value", "bar", "room", "within"),
    [
        (1.0, "<= 1", 1, True),
        (1.1, "<= 1", 1, False),
        (2.0, "<= 1", 2, True),
        (2.1, "<= 1", 2, False),
        (1.5, ">= 3", 2, True),
        (1.4, ">= 3", 2, False),
        (float("nan"), "<= 1", 2, False),
    ],
)
def test_room_is_twice_a_bar_from_above_and_half_of_one_from_below(value, bar, room, within):
    assert meets(value, bar, room=room) is within


@pytest.mark.process
def test_the_commit_says_whether_files_differ_from_it_and_the_figures_do_not_count(root: Path):
    assert commit_of(root) == "unknown"
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", "-C", str(root), *identity, *arguments], check=True)
    clean = commit_of(root)
    assert clean.isalnum()
    write_figure(root, "quick", figure())
    assert commit_of(root) == clean
    (root / "docs/a.md").write_text("other\n")
    assert commit_of(root) == f"{clean}+"

"""scripts/promises --full: which figures it stores, when, and which it measures again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from source_files import ROOT
from test_promises import entry

pytestmark = pytest.mark.process


@pytest.fixture
def promises(tmp_path: Path):
    """Run scripts/promises in a repository with two benches: what it ended with, and the figures that are stored."""
    (tmp_path / "bench").mkdir()
    for name in ("one", "two"):
        (tmp_path / "bench" / f"{name}.py").write_text("print(1)\n")

    def run(toml: str, *options: str):
        (tmp_path / "promises.toml").write_text(toml)
        command = [sys.executable, str(ROOT / "scripts/promises.py"), "--file", str(tmp_path / "promises.toml")]
        result = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60)
        file = tmp_path / "bench/figures.json"
        return result, json.loads(file.read_text()) if file.exists() else {}

    return run


def bench(tmp_path: Path, name: str, figure: str = "1", then: str = "true") -> str:
    """A command that notes that it ran, and depends on bench/NAME.py."""
    return f"""echo {name} >> {tmp_path}/runs; : bench/{name}.py ; echo '{{"s": {figure}}}'; {then}"""


def runs(tmp_path: Path) -> list[str]:
    file = tmp_path / "runs"
    found = file.read_text().split() if file.exists() else []
    file.unlink(missing_ok=True)
    return found


def test_full_size_stores_what_the_gate_does_not_measure_exactly(promises, tmp_path):
    toml = entry("b", command=bench(tmp_path, "one", "1.5"), figure="s", bar="<= 2", size="full")
    toml += entry("a", command="false", full=bench(tmp_path, "two", "3"), figure="s", bar="<= 2", speed=True)
    toml += entry("exact", command=bench(tmp_path, "two"), figure="s", bar="<= 2")
    toml += entry("passes", command="true", size="full")
    result, stored = promises(toml, "--all", "--full")
    assert result.returncode == 1  # `a` misses its bar
    assert list(stored) == ["a", "b"]
    code = stored["b"].pop("code")
    assert len(code) == 16
    assert stored["b"].pop("date").count("-") == 2
    assert stored["b"].pop("seconds") >= 0
    assert stored["b"] == {"figure": "s", "value": 1.5, "bar": "<= 2", "holds": True, "commit": "unknown"}
    assert (stored["a"]["value"], stored["a"]["holds"]) == (3.0, False)


def test_the_gate_stores_nothing(promises, tmp_path):
    toml = entry("a", command=bench(tmp_path, "one"), figure="s", bar="<= 2", speed=True)
    result, stored = promises(toml, "--all")
    assert (result.returncode, stored) == (0, {})


def test_a_figure_is_stored_before_the_next_command_begins(promises, tmp_path):
    """The second command sees what is stored of both promises that share the first."""
    first = bench(tmp_path, "one")
    look = f"cp {tmp_path}/bench/figures.json {tmp_path}/seen; false"
    toml = entry("a", command=first, figure="s", bar="<= 2", size="full")
    toml += entry("second", command=look, size="full")
    toml += entry("b", command=first, figure="s", bar="<= 2", size="full")
    promises(toml, "--all", "--full")
    assert list(json.loads((tmp_path / "seen").read_text())) == ["a", "b"]


def test_stale_measures_what_is_missing_or_of_other_code_and_continues_where_it_stopped(promises, tmp_path):
    toml = "".join(
        entry(name, command=bench(tmp_path, name), figure="s", bar="<= 2", size="full") for name in ("one", "two")
    )
    toml += entry("plain", command=bench(tmp_path, "one"), figure="s", bar="<= 2")
    _, stored = promises(toml, "one", "--full")
    assert (runs(tmp_path), list(stored)) == (["one"], ["one"])
    promises(toml, "--full", "--stale")
    assert runs(tmp_path) == ["two"]
    promises(toml, "--full", "--stale")
    assert runs(tmp_path) == []
    (tmp_path / "bench/one.py").write_text("print(2)\n")
    promises(toml, "--full", "--stale")
    assert runs(tmp_path) == ["one"]


def test_a_command_without_a_figure_leaves_the_older_one_and_it_stays_stale(promises, tmp_path):
    promises(entry("a", command=bench(tmp_path, "one"), figure="s", bar="<= 2", size="full"), "a", "--full")
    crashed = entry("a", command="echo no; : bench/one.py; false", figure="s", bar="<= 2", size="full")
    result, stored = promises(crashed, "a", "--full")
    assert result.returncode == 1
    assert stored["a"]["value"] == 1.0
    result, _ = promises(crashed, "--stale-list")
    assert "the code has changed since" in result.stdout


def test_the_list_names_what_is_stale_and_is_no_failure(promises, tmp_path):
    toml = "".join(
        entry(name, command=bench(tmp_path, name), figure="s", bar="<= 2", size="full") for name in ("one", "two")
    )
    promises(toml, "one", "--full")
    result, _ = promises(toml, "--stale-list")
    assert result.returncode == 0
    assert result.stdout.splitlines() == [
        "two  never measured",
        "1 of 2 figures of full size are missing or older than their code. To measure them: scripts/promises --full"
        " --stale",
    ]
    assert runs(tmp_path) == ["one"]
    promises(toml, "--full", "--stale")
    result, _ = promises(toml, "--stale-list")
    assert result.stdout == "0 of 2 figures of full size are missing or older than their code.\n"


def test_stale_alone_is_refused(promises):
    result, _ = promises(entry("a", command="true"), "--stale")
    assert result.returncode == 2
    assert "--stale needs --full" in result.stderr


STOPPABLE = """import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored if these tests run in the background
sys.argv.pop(0)
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")"""


def test_a_run_that_is_stopped_ends_its_command_and_keeps_what_was_measured(promises, tmp_path):
    toml = entry("a", command=bench(tmp_path, "one"), figure="s", bar="<= 2", size="full")
    endless = f"echo $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; sleep 600; true"
    toml += entry("b", command=endless, figure="s", bar="<= 2", size="full")
    (tmp_path / "promises.toml").write_text(toml)
    options = ["--file", str(tmp_path / "promises.toml"), "--all", "--full"]
    command = [sys.executable, "-c", STOPPABLE, str(ROOT / "scripts/promises.py"), *options]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (tmp_path / "pid").exists():
        assert run.poll() is None
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    assert run.wait(60) != 0
    assert list(json.loads((tmp_path / "bench/figures.json").read_text())) == ["a"]
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()

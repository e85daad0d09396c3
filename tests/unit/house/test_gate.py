"""scripts/gate.py: which processes count as engines, and what it says was slow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest
from source_files import ROOT

sys.path.append(str(ROOT / "scripts"))

import gate

PYTHON = "/usr/bin/python3"
REPORT = """<testsuites><testsuite>
<testcase classname="tests.e2e.test_a" name="test_long" time="50.5">
  <properties><property name="fixture engine" value="40.5"/><property name="error" value="99"/></properties></testcase>
<testcase classname="tests.unit.test_b" name="test_short" time="0.5"/>
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("argv", "kind"),
    [
        ([PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", "m"], "vllm"),
        ([PYTHON, "-P", "/x/mcprl/skyrl/serve.py", "api", "--port", "1"], "skyrl"),
        ([PYTHON, "-P", "/x/mcprl/skyrl/serve.py", "engine", "--dtype", "float32"], None),
        (["/x/ray/core/src/ray/gcs/gcs_server", "--port=1"], "ray"),
        (["/usr/lib/chromium/chromium", "--headless"], "chromium"),
        (["/usr/lib/chromium/chromium", "--type=renderer"], None),
        ([PYTHON, "-m", "mcprl", "train", "recipe.yaml"], "trainer"),
        ([PYTHON, "/venv/bin/mcprl", "resume", "outputs/run"], "trainer"),
        ([PYTHON, "-m", "mcprl.learning.worker"], "trainer"),
        ([PYTHON, "-m", "mcprl", "doctor", "recipe.yaml"], None),
        (["bash", "-c", "mcprl train recipe.yaml"], None),
        ([], None),
    ],
)
def test_the_kind_of_an_engine_is_read_from_its_command_line(argv, kind):
    assert gate.kind_of(argv) == kind


@pytest.mark.process
def test_an_engine_of_this_gate_is_counted_once_and_one_of_another_gate_never():
    command = [sys.executable, "-c", "input()", "vllm.entrypoints.openai.api_server"]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, gate.MARK: mark})
        for mark in ("this-gate", "another-gate")
    ]
    try:
        seen: set[tuple[str, str]] = set()
        found: list[dict[str, str]] = []
        deadline = time.monotonic() + 60
        while not found and time.monotonic() < deadline:  # between fork and exec it has our command line
            found = gate.look(seen, "this-gate")
        assert [(start["kind"], start["pid"]) for start in found] == [("vllm", str(started[0].pid))]
        assert gate.look(seen, "this-gate") == []
    finally:
        for process in started:
            process.communicate(b"\n", timeout=60)


def test_starts_are_counted_by_kind(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gate, "STARTS", tmp_path / "engines.jsonl")
    lines = [{"kind": "vllm"}, {"kind": "trainer"}, {"kind": "vllm"}]
    gate.STARTS.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert gate.starts() == 0
    assert json.loads(capsys.readouterr().out) == {
        "vllm": 2, "skyrl": 0, "ray": 0, "chromium": 0, "trainer": 1, "starts": 3,
    }  # fmt: skip


def test_without_a_watched_gate_there_is_no_count(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gate, "STARTS", gate.ROOT / "not-there")
    assert gate.starts() == 1
    assert "run bash .ci/run" in capsys.readouterr().err


def test_the_slowest_tests_are_listed_apart_from_their_fixtures(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gate, "TESTS", tmp_path / "junit.xml")
    monkeypatch.setattr(gate, "PROMISES", tmp_path / "promises.json")
    gate.TESTS.write_text(REPORT)
    gate.PROMISES.write_text(json.dumps([{"id": "quick", "seconds": 1.0}, {"id": "slow", "seconds": 7.0}]))
    assert gate.slowest() == 0
    tests, fixtures, promises = (part.splitlines() for part in capsys.readouterr().out.split("Slowest ")[1:])
    assert tests[1].split() == ["10.0", "s", "test_a::test_long"]
    assert fixtures[1].split() == ["40.5", "s", "engine", "of", "test_a::test_long"]
    assert promises[1].split() == ["7.0", "s", "slow"]

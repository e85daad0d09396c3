"""The hello run, once for all tests that look at it: the command a newcomer types, on the real engine and servers."""

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class FinishedRun:
    """What a run left behind."""

    folder: Path
    stdout: str
    seconds: float

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.folder / "summary.json").read_text())

    @property
    def steps(self) -> list[dict[str, float]]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    @property
    def verdicts(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "health.jsonl").read_text().splitlines()]


@pytest.fixture(scope="session")
def hello_run(root, smollm2, time_server, user_environment, tmp_path_factory) -> FinishedRun:
    outputs = tmp_path_factory.mktemp("outputs")
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "mcprl", "train", "recipes/hello-cpu.yaml", "--set", f"training.outputs={outputs}"],
        cwd=root,
        env=user_environment,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    (outputs / "stdout.txt").write_text(done.stdout)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return FinishedRun(outputs / "hello-cpu", done.stdout, time.monotonic() - started)

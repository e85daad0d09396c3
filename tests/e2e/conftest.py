"""What all tests of whole runs share: one vLLM, and the quickstart, gone through once for all that look at it."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from shared_vllm import SharedVllm

from newcomer.walk import Walk
from quickstart import RUN, take


@dataclass(frozen=True)
class Quickstart:
    """What became of the commands of docs/quickstart.md, and what the run that they made left behind."""

    folder: Path
    made: Walk
    figures: dict[str, Any]

    @property
    def run(self) -> Path:
        return self.folder / RUN

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.run / "summary.json").read_text())

    @property
    def steps(self) -> list[dict[str, float]]:
        return [json.loads(line) for line in (self.run / "metrics.jsonl").read_text().splitlines()]

    @property
    def verdicts(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run / "health.jsonl").read_text().splitlines()]


@pytest.fixture(scope="session")
def shared_vllm(smollm2, tmp_path_factory) -> Iterator[SharedVllm]:
    shared = SharedVllm(smollm2, tmp_path_factory.mktemp("shared-vllm") / "vllm.log")
    yield shared
    shared.close()


@pytest.fixture(scope="session")
def quickstart(smollm2, time_server, tmp_path_factory) -> Quickstart:
    folder = tmp_path_factory.mktemp("newcomer")
    return Quickstart(folder, *take(folder))

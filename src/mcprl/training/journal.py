"""The folder of a run: resolved configuration, metrics line by line, trajectories as Parquet, weights, logs.

outputs/hello-cpu/
  config.yaml                     every setting as it was in force
  metrics.jsonl                   one object a step
  health.jsonl                    the verdicts on each step
  tool_stats.json                 what happened to the tool calls, for `mcprl tools stats`
  trajectories/step-00000.parquet one row an episode
  weights/v1, v2, …               the last versions of the weights
  adapter/ or model/              the last of them, once the run has ended
  logs/                           vLLM and the tool servers
  summary.json                    what the run showed, once it has ended
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pyarrow
import pyarrow.parquet
from pydantic import TypeAdapter

from mcprl.config import RunConfig
from mcprl.records import Group, Trajectory, Turn, Weights
from mcprl.verdicts import Verdict

__all__ = ["RunFolder", "read_trajectories"]

# pyarrow ships no types.
_ARROW, _PARQUET = cast("Any", pyarrow), cast("Any", pyarrow.parquet)
_KEPT_VERSIONS = 2
_TURNS = TypeAdapter(tuple[Turn, ...])
_TRAJECTORY = TypeAdapter(Trajectory)


class RunFolder:
    """Writes what a run leaves behind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.weights = path / "weights"
        self.logs = path / "logs"
        self._metrics = path / "metrics.jsonl"
        self._health = path / "health.jsonl"

    @classmethod
    def create(cls, config: RunConfig) -> RunFolder:
        """A new folder for the run: its name, with a number where that is taken."""
        config.training.outputs.mkdir(parents=True, exist_ok=True)
        number = 1
        while True:
            path = config.training.outputs / (config.name if number == 1 else f"{config.name}-{number}")
            try:
                path.mkdir()
            except FileExistsError:
                number += 1
                continue
            break
        folder = cls(path)
        for inner in (folder.weights, folder.logs, path / "trajectories"):
            inner.mkdir()
        (path / "config.yaml").write_text(config.to_yaml())
        return folder

    def record_step(
        self, step: int, groups: Sequence[Group], metrics: Mapping[str, float], verdicts: Sequence[Verdict]
    ) -> None:
        """Make a step durable: its trajectories, the verdicts on it, then the line that says it happened."""
        rows = [_row(t) for group in groups for t in group.trajectories]
        path = self.path / "trajectories" / f"step-{step:05d}.parquet"
        _PARQUET.write_table(_ARROW.Table.from_pylist(rows), path)
        with self._health.open("a") as file:
            file.writelines(json.dumps({"step": step, **asdict(verdict)}) + "\n" for verdict in verdicts)
        with self._metrics.open("a") as file:
            file.write(json.dumps({"step": step, **metrics}) + "\n")

    def drop_old_weights(self, newest: Weights) -> None:
        """Keep the last versions only; the sampler has let go of the others."""
        for folder in self.weights.glob("v*"):
            if int(folder.name.removeprefix("v")) <= newest.version - _KEPT_VERSIONS:
                shutil.rmtree(folder)

    def finish(self, weights: Weights, summary: Mapping[str, Any]) -> None:
        """The last weights in their place, and what the run showed."""
        if weights.adapter is not None:
            shutil.copytree(weights.adapter, self.path / "adapter")
        if weights.model is not None:
            shutil.copytree(weights.model, self.path / "model")
        (self.path / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")


def _row(trajectory: Trajectory) -> dict[str, Any]:
    """One episode as Parquet columns; turns and reward parts are JSON, since they have no fixed shape."""
    row = {name: getattr(trajectory, name) for name in trajectory.__dataclass_fields__}
    row["turns"] = json.dumps(trajectory.turns, default=_as_json_object)
    row["reward_parts"] = json.dumps(dict(trajectory.reward_parts))
    row["stop"] = trajectory.stop.value
    return row


def _as_json_object(value: Any) -> dict[str, Any]:
    # Python's own JSON, both ways: pydantic's has a limit of nesting, and a policy nests its arguments as it likes.
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def read_trajectories(path: Path) -> list[Trajectory]:
    """The trajectories of a Parquet file, as they were written."""
    rows: list[dict[str, Any]] = _PARQUET.read_table(path).to_pylist()
    for row in rows:
        row["turns"] = _TURNS.validate_python(json.loads(row["turns"]))
        row["reward_parts"] = json.loads(row["reward_parts"])
    return [_TRAJECTORY.validate_python(row) for row in rows]

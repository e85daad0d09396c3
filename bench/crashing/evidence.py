"""What a run left behind, as digests that two runs can be compared by."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import safe_open

from mcprl.records import Trajectory
from mcprl.runs.trajectories import encode_trajectory, read_token_notes, read_trajectories
from servers.harness import say

__all__ = [
    "Account",
    "Key",
    "all_trajectories",
    "differences",
    "evidence",
    "finished_lost",
    "played_again",
    "recorded_twice",
]

Key = tuple[int, str, int]
"""Step, task, member."""


def evidence(run: Path) -> dict[str, str]:
    """SHA-256 by name: each tensor and fact of the newest checkpoint, the adapter, each episode, token and step."""
    newest = max((run / "checkpoints").glob("step-?????"))
    state: dict[str, Any] = json.loads((newest / "state.json").read_text())
    del state["settings"]  # the folder of the run is one of them
    found = {f"checkpoint/{newest.name}/state.json": _digest(json.dumps(state).encode())}
    for file in sorted(newest.glob("learner-*")):
        found |= _tensors(file) if file.suffix == ".safetensors" else {f"learner/{file.name}": _digest_of_file(file)}
    found["adapter"] = _digest_of_file(run / "adapter" / "adapter_model.safetensors")
    for trajectory in all_trajectories(run):
        name = f"episode/{trajectory.step}/{trajectory.task_id}/{trajectory.member}"
        found[name] = _digest(encode_trajectory(_without_times(trajectory)))
    for line in (run / "metrics.jsonl").read_text().splitlines():
        metrics: dict[str, float] = json.loads(line)
        for name, value in metrics.items():
            if not _is_of_the_machine(name):
                found[f"metrics/{metrics['step']}/{name}"] = repr(value)
    for path in (run / "tokens").glob("*.parquet"):
        for (task, member), notes in read_token_notes(path).items():
            found[f"tokens/{path.stem}/{task}/{member}"] = _digest(repr(notes).encode())
    return found


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Names of what is not in both, or not the same in both."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def all_trajectories(run: Path) -> list[Trajectory]:
    """Of every step, sorted by step, task and member."""
    read = (t for path in (run / "trajectories").glob("*.parquet") for t in read_trajectories(path))
    return sorted(read, key=_key)


@dataclass(slots=True)
class Account:
    """What became of the episodes of several runs: Account(finished_lost=0, used_twice=0, played_again=0)."""

    finished_lost: int = 0
    used_twice: int = 0
    played_again: int = 0

    def look_at(self, run: Path, log: Path) -> None:
        """Count what is wrong with one more run, and name it."""
        lost, twice, again = finished_lost(run, log), recorded_twice(run), played_again(log)
        for words, names in (("lost", lost), ("used twice", twice), ("played again", again)):
            if names:
                say(f"{words.upper()}: {names}")
        self.finished_lost += len(lost)
        self.used_twice += len(twice)
        self.played_again += len(again)


def finished_lost(run: Path, log: Path) -> list[str]:
    """Episodes that were durable before a kill, and are not in the run's record with all they held then."""
    recorded = {_logged(trajectory) for trajectory in all_trajectories(run)}
    return sorted(set(log.read_text().splitlines()) - recorded)


def played_again(log: Path) -> list[str]:
    """Episodes that were finished more than once."""
    return _twice(line.rsplit(" ", 1)[0] for line in log.read_text().splitlines())


def recorded_twice(run: Path) -> list[str]:
    """Episodes that the run has used more than once."""
    return _twice("{} {} {}".format(*_key(trajectory)) for trajectory in all_trajectories(run))


def log_line(trajectory: Trajectory) -> bytes:
    """What is logged of an episode once the journal has it."""
    return f"{_logged(trajectory)}\n".encode()


def _logged(trajectory: Trajectory) -> str:
    """The episode without its rewards: functions per group add theirs after the episode was logged."""
    turns = tuple(replace(turn, reward=0.0) for turn in trajectory.turns)
    unscored = replace(trajectory, turns=turns, reward=0.0, reward_parts={})
    return "{} {} {} ".format(*_key(trajectory)) + _digest(encode_trajectory(unscored))


def _key(trajectory: Trajectory) -> Key:
    return trajectory.step, trajectory.task_id, trajectory.member


def _twice(names: Iterable[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _without_times(trajectory: Trajectory) -> Trajectory:
    turns = tuple(
        replace(turn, observations=tuple(replace(seen, latency_s=0.0) for seen in turn.observations))
        for turn in trajectory.turns
    )
    return replace(trajectory, turns=turns, duration_s=0.0)


def _is_of_the_machine(metric: str) -> bool:
    """Whether a metric is a time, or what the machine had to give: two runs that are the same differ in these."""
    return metric.endswith(("_s", "_idle_share")) or "per_s" in metric or metric.startswith(("memory_", "cpu_", "gpu_"))


def _tensors(file: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    with safe_open(file, framework="numpy") as tensors:
        opened: Any = tensors
        for name in opened.keys():  # noqa: SIM118
            array = opened.get_tensor(name)
            found[f"learner/{name}"] = _digest(f"{array.dtype} {array.shape}".encode() + array.tobytes())
    return found


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _digest_of_file(path: Path) -> str:
    return _digest(path.read_bytes())

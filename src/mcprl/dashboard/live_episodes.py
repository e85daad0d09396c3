"""The episodes of steps under way, from the journal: finished, durable, and in no file of trajectories yet."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mcprl.dashboard.episode_columns import PREVIEW_CHARACTERS
from mcprl.records import Trajectory
from mcprl.training.trajectory_files import decode_trajectory

__all__ = ["LiveEpisodes"]

_FILE_NAME = re.compile(r"step-(\d+)\.jsonl")


@dataclass(slots=True)
class _Journal:
    """What was read of one file: up to where, and the episodes by task and member."""

    inode: int
    offset: int = 0
    episodes: dict[tuple[str, int], Trajectory] = field(default_factory=dict[tuple[str, int], Trajectory])
    damaged: int = 0


class LiveEpisodes:
    """Follows the journals of a run. A line counts where it is whole and its checksum holds."""

    def __init__(self, run: Path) -> None:
        self._folder = run / "journal"
        self._journals: dict[int, _Journal] = {}

    @property
    def problems(self) -> list[str]:
        """A sentence for each journal with lines that are no episodes."""
        return [
            f"journal/step-{step:05d}.jsonl has {journal.damaged} damaged lines"
            for step, journal in sorted(dict(self._journals).items())
            if journal.damaged
        ]

    def finished(self) -> dict[int, int]:
        """How many episodes of each step under way have finished."""
        return {step: len(journal.episodes) for step, journal in sorted(dict(self._journals).items())}

    def refresh(self, recorded: Container[int]) -> bool:
        """Read on; whether something changed. Steps that are recorded are no longer under way."""
        paths = {step: path for step, path in self._files().items() if step not in recorded}
        changed = False
        for step in [step for step in self._journals if step not in paths]:
            del self._journals[step]
            changed = True
        for step, path in paths.items():
            changed = self._read_on(step, path) or changed
        return changed

    def row(self, step: int, task_id: str, member: int) -> dict[str, Any] | None:
        """An episode as a file of trajectories would have it."""
        journal = self._journals.get(step)
        trajectory = journal.episodes.get((task_id, member)) if journal is not None else None
        if trajectory is None:
            return None
        fields = asdict(trajectory)
        return fields | {
            "turns": json.dumps(fields["turns"]),
            "reward_parts": json.dumps(fields["reward_parts"]),
            "live": True,
        }

    def index_rows(self) -> list[tuple[Any, ...]]:
        """All of them as rows of the index."""
        return [_index_row(t) for journal in dict(self._journals).values() for t in journal.episodes.values()]

    def _files(self) -> dict[int, Path]:
        if not self._folder.is_dir():
            return {}
        named = ((_FILE_NAME.fullmatch(path.name), path) for path in self._folder.iterdir())
        return {int(name[1]): path for name, path in named if name is not None}

    def _read_on(self, step: int, path: Path) -> bool:
        try:
            with path.open("rb") as file:
                found = path.stat()
                journal = self._journals.get(step)
                anew = journal is None or journal.inode != found.st_ino or found.st_size < journal.offset
                if anew or journal is None:
                    journal = self._journals[step] = _Journal(found.st_ino)
                if found.st_size == journal.offset:
                    return anew
                file.seek(journal.offset)
                data = file.read()
        except FileNotFoundError:  # a checkpoint covers the step by now
            return self._journals.pop(step, None) is not None
        whole, _, _torn = data.rpartition(b"\n")
        if not whole:
            return anew
        journal.offset += len(whole) + 1
        for line in whole.split(b"\n"):
            trajectory = _episode(line, step)
            if trajectory is None:
                journal.damaged += 1
            else:
                journal.episodes.setdefault((trajectory.task_id, trajectory.member), trajectory)
        return True


def _episode(line: bytes, step: int) -> Trajectory | None:
    checksum, _, encoded = line.partition(b" ")
    if hashlib.sha256(encoded).hexdigest().encode() != checksum:
        return None
    try:
        trajectory = decode_trajectory(encoded)
    except ValueError:
        return None
    return trajectory if trajectory.step == step else None


def _index_row(trajectory: Trajectory) -> tuple[Any, ...]:
    calls = [call for turn in trajectory.turns for call in turn.calls]
    seen = [observation for turn in trajectory.turns for observation in turn.observations]
    texts = [turn.text for turn in trajectory.turns]
    texts += [f"{call.name} {_compact(call.arguments)}" for call in calls]
    texts += [observation.text for observation in seen]
    return (
        trajectory.step,
        trajectory.step,
        trajectory.task_id,
        trajectory.member,
        trajectory.reward,
        _succeeded(trajectory.reward_parts),
        trajectory.stop.value,
        trajectory.duration_s,
        len(trajectory.turns),
        len(calls),
        sum(observation.fault is not None for observation in seen),
        len(trajectory.token_ids),
        sum(trajectory.sampled),
        sorted({_storable(call.name) for call in calls}),
        _storable(texts[len(trajectory.turns) - 1][:PREVIEW_CHARACTERS]) if trajectory.turns else "",
        _storable("\n".join(texts).lower()),
        True,
    )


def _succeeded(parts: Mapping[str, float]) -> bool:
    """As the index says of recorded episodes; see episode_columns.SOLVED."""
    least = {"answer": 1.0, "state": 1.0, "rubric": 0.5}
    checked = [parts[name] >= bar for name, bar in least.items() if name in parts]
    return all(checked) if checked else parts.get("calls") == 1.0


def _compact(arguments: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(arguments), ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        return ""


def _storable(text: str) -> str:
    """Without halves of surrogate pairs, which no UTF-8 has."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

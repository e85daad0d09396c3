"""Reads runs from their folders. This module writes nothing and opens no run.

A run may be active while it is read: its last line may be incomplete, and files may disappear.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

import yaml

from mcprl.bounds import read_text, read_yaml
from mcprl.errors import McprlError, NoRunError, did_you_mean
from mcprl.recipe import settings
from mcprl.runs.checkpoints import Checkpoint, Checkpoints, Damaged
from mcprl.runs.folder import lock_holder, read_entry, verdict_of
from mcprl.verdicts import GRAVEST_FIRST, Verdict

_SERVERS = "servers.settings"  # the only setting that maps names to sections; its keys are server names
_NOTHING = ("null", "[]", "{}")
_CHECKPOINTS = "checkpoints"
_JOURNAL_FILE = re.compile(r"step-(\d+)\.jsonl")


class RunStatus(StrEnum):
    """The status of a run, from its lock and its files."""

    RUNNING = "running"  # a process holds its lock
    FINISHED = "finished"  # it has a summary
    STOPPED = "stopped"  # it was asked to stop, by a signal or Ctrl-C
    FAILED = "failed"  # an error ended it
    INTERRUPTED = "interrupted"  # it ended without a record
    UNREADABLE = "unreadable"  # one of its files cannot be read


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """The data of a run, read from its folder. `metrics` has one mapping per step; `config` is the content of
    config.yaml.

    `verdicts` are those of the last step, the most severe first; `journaled` counts finished episodes that no
    checkpoint covers; `files` has the size in bytes of each entry of the folder; times are in seconds since 1970.
    `pid` is set for an active run, `why` for one that ended early or cannot be read.

    PastRun(path=Path("outputs/hello-cpu"), state=RunStatus.STOPPED, started=1.7e9, changed=1.7e9 + 240,
            files={"config.yaml": 2210, "metrics.jsonl": 3116, "checkpoints": 5_242_880},
            config={"name": "hello-cpu", "model": {"path": "some/model"}, "training": {"steps": 5}, …},
            metrics=({"step": 0, "reward": 0.1, …}, {"step": 1, "reward": 0.3, …}),
            verdicts=(Verdict(severity=Severity.OK, what="the step is healthy", fix=""),),
            checkpoints=(Checkpoint(step=2, …),), journaled=3)
    """

    path: Path
    state: RunStatus
    started: float
    changed: float
    files: Mapping[str, int]
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    metrics: tuple[Mapping[str, float], ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    journaled: int = 0
    pid: int | None = None
    why: str = ""

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def recipe(self) -> str:
        return str(self.config.get("name", ""))

    @property
    def model(self) -> str:
        return str(_section(self.config, "model").get("path", ""))

    @property
    def steps_done(self) -> int:
        return int(self.metrics[-1]["step"]) + 1 if self.metrics else 0

    @property
    def steps_wanted(self) -> int | None:
        steps: object = _section(self.config, "training").get("steps")
        return steps if isinstance(steps, int) else None

    @property
    def rewards(self) -> tuple[float, ...]:
        return self.course("reward")

    @property
    def success_rate(self) -> float | None:
        """The success rate of the last step."""
        rates = self.course("success_rate")
        return rates[-1] if rates else None

    @property
    def seconds(self) -> float:
        """The total time of all steps in seconds."""
        return sum(self.course("step_s"))

    @property
    def size_bytes(self) -> int:
        return sum(self.files.values())

    def course(self, metric: str) -> tuple[float, ...]:
        """Return the values of a metric, from the steps that have it."""
        return tuple(value for _, value in self.points(metric))

    def points(self, metric: str) -> tuple[tuple[int, float], ...]:
        """Return a metric by the number of steps done: ((1, 0.1), (2, 0.3)). Non-finite values are left out."""
        return tuple(
            (int(step["step"]) + 1, float(step[metric]))
            for step in self.metrics
            if isinstance(step.get(metric), int | float) and math.isfinite(step[metric])
        )

    def changed_settings(self) -> dict[str, str]:
        """Return the settings that differ from their default or have no default, except the name."""
        defaults = {setting.path: setting.default for setting in settings()}
        return {
            path: text
            for path, described, text in _dotted(self.config, defaults)
            # An optional section has no default. If it is left out, it is null or empty.
            if path != "name" and (text != defaults[described] if defaults.get(described) else text not in _NOTHING)
        }


_NO_RECORD = (
    "there is no record of how the run ended: the process was killed, for example by the kernel's out-of-memory "
    "killer, or the disk was full (or the run is from mcprl 0.1.0, which kept no such record)"
)


class _DamagedError(Exception):
    """A file of a run is damaged."""


def is_run(path: Path) -> bool:
    """Return True if the folder belongs to a run: it has the files that a run creates first."""
    return (path / "metrics.jsonl").is_file() or ((path / "config.yaml").is_file() and (path / "trajectories").is_dir())


def find_runs(outputs: Path) -> list[PastRun]:
    """Return the runs in an output folder, most recently changed first."""
    if not outputs.is_dir():
        raise NoRunError(
            f"there is no folder {outputs}", fix="pass the folder of your runs; `mcprl train RECIPE` creates it"
        )
    if is_run(outputs):
        raise NoRunError(
            f"{outputs} is a run, not a folder of runs",
            fix=f"show the run with `mcprl runs show {outputs}`, or pass its parent folder",
        )
    runs = [read_run(path) for path in outputs.iterdir() if is_run(path)]
    return sorted(runs, key=lambda run: (-run.changed, run.name))


def read_run(path: Path) -> PastRun:
    """Read the run in a folder. A damaged run is UNREADABLE and has only the readable data. May raise NoRunError."""
    if not is_run(path):
        parent = path.parent
        others = [other.name for other in parent.iterdir() if is_run(other)] if parent.is_dir() else []
        fact = f"the folder {path} is not a run" if path.is_dir() else f"there is no run at {path}"
        raise NoRunError(
            f"{fact}{did_you_mean(path.name, others)}",
            fix=f"choose one of the runs that `mcprl runs list {parent}` shows",
        )
    read: dict[str, Any] = {}
    why, ended, reason = "", RunStatus.INTERRUPTED, _NO_RECORD
    try:
        read["config"] = _read_config(path / "config.yaml")
        read["metrics"] = tuple(_read_lines(path / "metrics.jsonl"))
        read["verdicts"] = _last_verdicts(path / "health.jsonl", read["metrics"])
        read["checkpoints"] = _checkpoints(path / _CHECKPOINTS)
        covered = max((saved.step for saved in read["checkpoints"]), default=0)
        read["journaled"] = _count_journaled(path / "journal", covered)
        ended, reason = _read_end(path / "end.json")
    except _DamagedError as damage:
        why = str(damage)
    except McprlError as error:
        why = error.what
    except OSError as error:
        why = f"cannot read {error.filename}: {error.strerror}"
    files, changed = _sizes(path)
    held, pid = lock_holder(path)
    if why:
        state = RunStatus.UNREADABLE
    elif held:
        state = RunStatus.RUNNING
    elif (path / "summary.json").is_file():
        state = RunStatus.FINISHED
    else:
        state, why = ended, reason
    return PastRun(
        path=path, state=state, started=_started(path, changed), changed=changed, files=files, pid=pid, why=why, **read
    )


def verify_checkpoints(run: PastRun, starting: Callable[[Path], None]) -> list[Checkpoint | Damaged]:
    """Verify the checkpoints of a run. Return complete and damaged ones, oldest first.

    `starting` is called before each checkpoint is read, which may take a long time.
    """
    checkpoints = Checkpoints(run.path / _CHECKPOINTS)
    starting(checkpoints.folder)
    newest, damaged = checkpoints.newest()
    found: list[Checkpoint | Damaged] = [*damaged, *([newest] if newest is not None else [])]
    for saved in run.checkpoints:
        if newest is not None and saved.step < newest.step:
            starting(saved.path)
            found.append(checkpoints.verify(saved.step))
    if run.state is RunStatus.RUNNING:
        # A running run writes and removes checkpoints. Those are not damaged.
        found = [seen for seen in found if seen.path.exists() and not seen.path.name.startswith(".")]
    return sorted(found, key=lambda seen: seen.path.name.lstrip("."))


def _dotted(
    section: Mapping[str, Any], known: Container[str], path: str = "", described: str = ""
) -> Iterator[tuple[str, str, str]]:
    """Yield the settings of a section: dotted name, documented name (NAME for a server's name), value as text.

    A setting whose value is a mapping, such as episodes.max_turns, is not split.
    """
    for key, value in section.items():
        here, as_described = f"{path}{key}", f"{described}{'NAME' if described == f'{_SERVERS}.' else key}"
        is_section = as_described not in known or as_described == _SERVERS
        if isinstance(value, dict) and value and is_section:
            yield from _dotted(cast("dict[str, Any]", value), known, f"{here}.", f"{as_described}.")
        else:
            text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
            yield here, as_described, text


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found: object = config.get(name)
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}


def _read_config(path: Path) -> Mapping[str, Any]:
    """Read config.yaml as plain YAML, so that runs of other versions with other settings can be read too."""
    try:
        config = read_yaml(read_text(path))[1]
    except FileNotFoundError as error:
        raise _DamagedError("config.yaml is missing") from error
    except (yaml.YAMLError, ValueError) as error:
        raise _DamagedError("config.yaml is not valid YAML") from error
    if not isinstance(config, dict) or not _section(cast("dict[str, Any]", config), "model"):
        raise _DamagedError("config.yaml does not contain the settings of a run")
    return cast("dict[str, Any]", config)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """Return those objects of a JSON lines file that have a step. The last line may be incomplete."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    found = [read_entry(line) if line.endswith(b"\n") else None for line in lines]
    for number, line in enumerate(found[:-1], start=1):
        if line is None:
            raise _DamagedError(f"line {number} of {path.name} cannot be read")
    return [line for line in found if line is not None]


def _last_verdicts(path: Path, metrics: tuple[Mapping[str, float], ...]) -> tuple[Verdict, ...]:
    """Return the verdicts of the last step that has metrics. Verdicts are written before the metrics of their step."""
    last = metrics[-1]["step"] if metrics else None
    try:
        verdicts = [verdict_of(line) for line in _read_lines(path) if line["step"] == last]
    except (KeyError, ValueError) as error:
        raise _DamagedError(f"{path.name} contains a line that is not a verdict") from error
    return tuple(sorted(verdicts, key=lambda verdict: GRAVEST_FIRST.index(verdict.severity)))


def _read_end(path: Path) -> tuple[RunStatus, str]:
    """Return how and why a run ended early, as `RunFolder.record_end` wrote it."""
    try:
        end = json.loads(path.read_bytes())
        return RunStatus(end["state"]), str(end["why"])
    except FileNotFoundError:
        return RunStatus.INTERRUPTED, _NO_RECORD
    except (ValueError, TypeError, KeyError) as error:
        raise _DamagedError(f"{path.name} cannot be read") from error


def _checkpoints(folder: Path) -> tuple[Checkpoint, ...]:
    try:
        return tuple(Checkpoints(folder).all())
    except FileNotFoundError:  # the run has just removed it; the next removal is far off
        return tuple(Checkpoints(folder).all())


def _count_journaled(folder: Path, covered: int) -> int:
    """Count the complete lines in the journals of steps that no checkpoint covers."""
    if not folder.is_dir():
        return 0
    count = 0
    for path in folder.iterdir():
        named = _JOURNAL_FILE.fullmatch(path.name)
        if named is not None and int(named[1]) >= covered:
            try:
                count += path.read_bytes().count(b"\n")
            except FileNotFoundError:  # just removed, because a checkpoint covers it
                continue
    return count


def _sizes(path: Path) -> tuple[dict[str, int], float]:
    """Return the size in bytes of each entry of a folder, and the time of the last change. Hard links count once."""
    sizes: dict[str, int] = {}
    seen: set[tuple[int, int]] = set()
    changed = path.stat().st_mtime
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                found = os.lstat(os.path.join(folder, name))
            except FileNotFoundError:
                continue
            changed = max(changed, found.st_mtime)
            entry = Path(folder, name).relative_to(path).parts[0]
            new = (found.st_dev, found.st_ino) not in seen
            seen.add((found.st_dev, found.st_ino))
            sizes[entry] = sizes.get(entry, 0) + (found.st_size if new else 0)
    return dict(sorted(sizes.items())), changed


def _started(path: Path, changed: float) -> float:
    """Return when the run started: the oldest time of its first files. config.yaml may be rewritten later."""
    oldest = changed
    for first in (path / "config.yaml", path / "trajectories" / "step-00000.parquet"):
        if first.is_file():
            oldest = min(oldest, first.stat().st_mtime)
    return oldest

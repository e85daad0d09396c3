"""The folder of a run: everything that the run writes, and everything needed to resume it.

outputs/hello-cpu/
  config.yaml                     all settings
  lock                            the process that has the run open
  metrics.jsonl                   one object per step
  health.jsonl                    the verdicts on each step
  tool_stats.json                 statistics of tool calls, for `mcprl tools stats`
  timeline.jsonl                  when each step was collected, learnt from, published and saved
  trajectories/step-00000.parquet one row per episode
  tokens/step-00000.parquet       advantages and ratios of its tokens
  checkpoints/step-00012/         the state after 12 steps
  journal/step-00012.jsonl        finished episodes of a step that no checkpoint covers yet
  conditions.json                 the settings, and digests of the tasks, tools and model, that they were played under
  weights/v1, v2, …               the latest versions of the weights
  adapter/ or model/              the final weights, once the run has finished
  logs/                           of vLLM and the tool servers
  tracking.json                   what trackers received, if the run has any
  wandb/, tensorboard/            their files
  summary.json                    the summary; it exists once the run has finished

A step is recorded in a fixed order: trajectories, tokens, spans, verdicts, metrics. So if a step has its line of
metrics, it is complete; anything without one is removed when the run is resumed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, Literal, Self, TypeVar, cast

from mcprl.config import RunConfig
from mcprl.errors import NoRunError, RunInUseError
from mcprl.files import storage_faults, sync_file, sync_folder, write_file
from mcprl.records import Batch, Columns, Group, Weights
from mcprl.runs.trajectories import write_token_notes, write_trajectories
from mcprl.verdicts import Severity, Verdict

__all__ = ["RunFolder", "Span", "StepRecord", "Timeline", "read_entry", "span_of", "verdict_of"]

Activity = Literal["collect", "update", "publish", "save"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The time of one activity for a step, in seconds since 1970.

    Span(step=3, activity="update", start=1763280000.25, end=1763280004.5)
    """

    step: int
    activity: Activity
    start: float
    end: float


class Timeline:
    """Collects spans until they are taken to be recorded. Spans of different activities may overlap."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._ended: list[Span] = []

    @contextmanager
    def span(self, step: int, activity: Activity) -> Generator[None]:
        """Measure the time inside, also if it is cancelled."""
        start = self._clock()
        try:
            yield
        finally:
            self._ended.append(Span(step=step, activity=activity, start=start, end=self._clock()))

    def take(self) -> list[Span]:
        """The spans that ended since the last call."""
        taken, self._ended = self._ended, []
        return taken


def read_entry(line: bytes) -> dict[str, Any] | None:
    """The object of a line, if it has a step; None if the line is damaged.

    >>> read_entry(b'{"step": 3, "reward": 0.25}')
    {'step': 3, 'reward': 0.25}
    """
    try:
        entry: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict):
        return None
    fields = cast("dict[str, Any]", entry)
    return fields if isinstance(fields.get("step"), int) else None


def verdict_of(entry: Mapping[str, Any]) -> Verdict:
    """The verdict of a line of health.jsonl. Raises KeyError or ValueError if it is not one."""
    return Verdict(
        severity=Severity(entry["severity"]), what=str(entry["what"]), fix=str(entry["fix"]), name=str(entry["name"])
    )


def span_of(entry: Mapping[str, Any]) -> Span:
    """The span of a line of timeline.jsonl. Raises KeyError or ValueError if it is not one."""
    return Span(step=entry["step"], activity=entry["activity"], start=float(entry["start"]), end=float(entry["end"]))


_KEPT_VERSIONS = 3  # vLLM may still sample from these
_LOCK_TRIES, _LOCK_TRY_S = 3, 0.05
_WEIGHTS_NAME = re.compile(r"v(\d+)(\.partial|\.replaced)?")
_STEP_FILE_NAME = re.compile(r"\.?step-(\d+)\.parquet(\.partial)?")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """What is recorded of a step: the groups played, the batch learnt from, its update, and the verdicts."""

    played: Sequence[Group]
    batch: Batch
    ratios: Columns
    spans: Sequence[Span]
    metrics: Mapping[str, float]
    verdicts: Sequence[Verdict]


class RunFolder:
    """Writes the files of a run. No other process can open the folder until this one closes it or ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.weights = path / "weights"
        self.logs = path / "logs"
        self.config_file = path / "config.yaml"
        self.checkpoints = path / "checkpoints"
        self.journal = path / "journal"
        self.conditions = path / "conditions.json"
        self._trajectories = path / "trajectories"
        self._tokens = path / "tokens"
        self._timeline = path / "timeline.jsonl"
        self._metrics = path / "metrics.jsonl"
        self._health = path / "health.jsonl"
        self._summary = path / "summary.json"
        self._release = weakref.finalize(self, os.close, _lock(path / "lock"))

    @classmethod
    def create(cls, config: RunConfig) -> Self:
        """Make a new folder, named after the run, with a number if the name is taken."""
        outputs = config.training.outputs
        with storage_faults(f"making a folder in {outputs}"):
            outputs.mkdir(parents=True, exist_ok=True)
            number = 1
            while True:
                path = outputs / (config.name if number == 1 else f"{config.name}-{number}")
                try:
                    path.mkdir(mode=0o700)  # prompts, results and trajectories are nobody else's
                except FileExistsError:
                    number += 1
                    continue
                break
            folder = cls(path)
            folder._make_folders()
        # Last: a folder with config.yaml is complete.
        folder.rewrite_config(config)
        sync_folder(outputs)
        return folder

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open an existing folder. Raises NoRunError, or RunInUseError if another process has it open."""
        if not (path / "config.yaml").is_file():
            raise NoRunError(f"{path} is not a run: it has no config.yaml", fix="give the folder of a run")
        folder = cls(path)
        with storage_faults(f"making folders in {path}"):
            folder._make_folders()
        return folder

    def _make_folders(self) -> None:
        for folder in (self.weights, self.logs, self.checkpoints, self.journal, self._trajectories, self._tokens):
            folder.mkdir(exist_ok=True)

    def clear(self, folder: Path) -> None:
        """Empty one of the run's folders."""
        with storage_faults(f"clearing {folder}"):
            shutil.rmtree(folder)
            folder.mkdir()

    def close(self) -> None:
        """Let other processes open the folder."""
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def rewrite_config(self, config: RunConfig) -> None:
        """Replace the settings in config.yaml."""
        write_file(self.config_file, config.to_yaml().encode())

    def record_step(self, step: int, record: StepRecord) -> None:
        """Record a step durably. Its line of metrics comes last: see the module's docstring."""
        name = f"step-{step:05d}.parquet"
        write_trajectories(self._trajectories / name, (t for group in record.played for t in group.trajectories))
        write_token_notes(self._tokens / name, record.batch, record.ratios)
        self.record_spans(record.spans)
        _append(self._health, [{"step": step, **asdict(verdict)} for verdict in record.verdicts])
        _append(self._metrics, [{"step": step, **record.metrics}])

    def record_spans(self, spans: Sequence[Span]) -> None:
        """Append spans to the timeline."""
        _append(self._timeline, [asdict(span) for span in spans])

    def cut_to(self, step: int) -> tuple[list[dict[str, float]], list[list[Verdict]]]:
        """Remove all records of this step and later ones, and the summary.

        Returns the metrics and the verdicts of the steps before. Raises NoRunError, and changes nothing, if some of
        them are missing or damaged.
        """
        metrics = _kept_lines(self._metrics, step, _metrics)
        health = _kept_lines(self._health, step, verdict_of)
        spans = _kept_lines(self._timeline, step, span_of, of_each_step=False)
        if [line.step for line in metrics] != list(range(step)):
            raise NoRunError(
                f"{self._metrics} does not have exactly one line for each of the first {step} steps",
                fix="resume from an earlier checkpoint, or start a new run",
            )
        with storage_faults(f"cutting {self.path} to {step} steps"):
            # First: from here on the run is not finished.
            self._summary.unlink(missing_ok=True)
            for name in ("adapter", "model"):
                _remove_folder(self.path / name)
                _remove_folder(self.path / f"{name}.partial")
            for folder in (self._trajectories, self._tokens):
                _cut_files(folder, step)
        for path, lines in ((self._timeline, spans), (self._health, health), (self._metrics, metrics)):
            write_file(path, b"".join(line.text + b"\n" for line in lines))
        verdicts = [[line.value for line in health if line.step == kept] for kept in range(step)]
        return [line.value for line in metrics], verdicts

    def drop_old_weights(self, newest: Weights) -> None:
        """Keep only the latest versions; the sampler no longer uses the others."""
        with storage_faults(f"removing old weights from {self.weights}"):
            for folder in self.weights.iterdir():
                name = _WEIGHTS_NAME.fullmatch(folder.name)
                if name is None:
                    continue
                # A partial version is left from a crash, unless it is newer: then the learner may be writing it.
                oldest = newest.version - _KEPT_VERSIONS + 1 if name[2] is None else newest.version + 1
                if int(name[1]) < oldest:
                    _remove_folder(folder)

    def finish(self, weights: Weights, summary: Mapping[str, Any]) -> None:
        """Copy the final weights and then write the summary. May be repeated."""
        with storage_faults(f"finishing {self.path}"):
            self._summary.unlink(missing_ok=True)
            if weights.adapter is not None:
                _copy_folder(weights.adapter, self.path / "adapter")
            if weights.model is not None:
                _copy_folder(weights.model, self.path / "model")
        write_file(self._summary, (json.dumps(summary, indent=2) + "\n").encode())


def _lock(path: Path) -> int:
    """Lock the file and return its descriptor. The system releases the lock however the process ends."""
    with storage_faults(f"locking {path}"):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _take(descriptor)
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode(errors="replace").strip()
            os.close(descriptor)
            raise RunInUseError(
                f"{path.parent} is in use by process {holder or '(unknown)'}",
                fix="wait until that process has ended, or end it",
            ) from None
        except OSError:
            os.close(descriptor)
            raise
    return descriptor


def _take(descriptor: int) -> None:
    """Take the lock. Retries, because a reader of the run holds it for a moment (`lock_holder`)."""
    for _ in range(_LOCK_TRIES - 1):
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(_LOCK_TRY_S)
    return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _append(path: Path, objects: Sequence[Mapping[str, Any]]) -> None:
    with storage_faults(f"writing {path}"):
        is_new = not path.exists()
        with path.open("ab") as file:
            file.write("".join(json.dumps(line) + "\n" for line in objects).encode())
            file.flush()
            os.fsync(file.fileno())
    if is_new:
        sync_folder(path.parent)


@dataclass(frozen=True, slots=True)
class _Line(Generic[T]):
    """A line of a file: _Line(step=3, value=Verdict(severity=Severity.OK, …), text=b'{"step": 3, …}')."""

    step: int
    value: T
    text: bytes


def _cut_files(folder: Path, step: int) -> None:
    """Remove the files of this step and later ones, and unfinished files."""
    for path in folder.iterdir():
        file = _STEP_FILE_NAME.fullmatch(path.name)
        if file is not None and (file[2] is not None or int(file[1]) >= step):
            path.unlink()
    sync_folder(folder)


def _kept_lines(
    path: Path, step: int, read: Callable[[Mapping[str, Any]], T], *, of_each_step: bool = True
) -> list[_Line[T]]:
    """The lines of a file that belong to steps before this one.

    Unreadable lines at the end are left from a crash. Before a kept line, or in place of the last step's line, they are
    damage: raises NoRunError.
    """
    with storage_faults(f"reading {path}"):
        *ended, _torn = path.read_bytes().split(b"\n") if path.exists() else [b""]
    lines = [_read_line(line, read) for line in ended]
    kept = {i: line for i, line in enumerate(lines) if line is not None and line.step < step}
    last = max(kept, default=-1)
    has_last_step = not of_each_step or step == 0 or (last >= 0 and kept[last].step == step - 1)
    damaged = [i for i, line in enumerate(lines) if line is None and (i < last or not has_last_step)]
    if damaged:
        raise NoRunError(f"{path}: line {damaged[0] + 1} cannot be read", fix="fix that line, or start a new run")
    return list(kept.values())


def _read_line(text: bytes, read: Callable[[Mapping[str, Any]], T]) -> _Line[T] | None:
    entry = read_entry(text)
    if entry is None:
        return None
    try:
        return _Line(entry["step"], read(entry), text)
    except (ValueError, TypeError, KeyError):
        return None


def _metrics(entry: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in entry.items() if name != "step"}


def _remove_folder(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)


def _copy_folder(source: Path, target: Path) -> None:
    """Copy durably, replacing the target; the target is complete once it has its name."""
    unfinished = target.with_name(f"{target.name}.partial")
    _remove_folder(unfinished)
    shutil.copytree(source, unfinished)
    for path in (*unfinished.rglob("*"), unfinished):
        sync_folder(path) if path.is_dir() else sync_file(path)
    _remove_folder(target)
    unfinished.rename(target)
    sync_folder(target.parent)

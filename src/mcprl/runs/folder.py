"""The folder of a run: everything that the run writes, and everything needed to resume it.

outputs/hello-cpu/
  config.yaml                     all settings
  lock                            the process that has the run open
  train.log                       a copy of the console output
  end.json                        why the run ended early; a run that was killed has none
  metrics.jsonl                   one object per step
  health.jsonl                    the verdicts on each step
  tool_stats.json                 statistics of tool calls, for `mcprl tools stats`
  timeline.jsonl                  when each step was collected, trained on, published and saved
  trajectories/step-00000.parquet one row per episode
  tokens/step-00000.parquet       advantages and ratios of its tokens
  sft/                            the conversations imitated, and those left out, with the reasons
  checkpoints/step-00012/         the state after 12 steps
  journal/step-00012.jsonl        finished episodes of a step that no checkpoint covers yet
  conditions.json                 settings of the journaled episodes, and digests of their tasks, tools and model
  weights/v1, v2, …               the latest versions of the weights
  adapter/ or model/              the final weights, once the run has finished
  logs/                           logs of vLLM and the tool servers
  tracking.json                   what trackers received, if the run has any
  wandb/, tensorboard/            files of these trackers
  summary.json                    the summary; it exists once the run has finished

A step is recorded in a fixed order: trajectories, tokens, spans, verdicts, metrics. So a step with a metrics line is
complete. Records of a step without a metrics line are removed when the run is resumed.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import json
import os
import re
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, Literal, Self, TypeVar, cast

from mcprl.config import RunConfig
from mcprl.errors import McprlError, NoRunError, RunInUseError, StorageError
from mcprl.files import storage_faults, sync_file, sync_folder, write_file
from mcprl.records import Batch, Columns, Group, Weights
from mcprl.runs.trajectories import write_token_notes, write_trajectories
from mcprl.secrets import SECRETS
from mcprl.verdicts import Severity, Verdict

Activity = Literal["collect", "update", "publish", "save"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Start and end of one activity for a step, as Unix times.

    Span(step=3, activity="update", start=1763280000.25, end=1763280004.5)
    """

    step: int
    activity: Activity
    start: float
    end: float


class Timeline:
    """Collects the spans of a run until `take` returns them. Spans of different activities may overlap."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        zero = time.time() - time.monotonic()  # read the clock once: its time may be set during the run
        self._clock = clock or (lambda: zero + time.monotonic())
        self._ended: list[Span] = []

    @contextmanager
    def span(self, step: int, activity: Activity) -> Generator[None]:
        """Measure the time inside the block, even if it is cancelled."""
        start = self._clock()
        try:
            yield
        finally:
            self._ended.append(Span(step=step, activity=activity, start=start, end=self._clock()))

    def take(self) -> list[Span]:
        """Return the spans that ended since the last call."""
        taken, self._ended = self._ended, []
        return taken


def read_entry(line: bytes) -> dict[str, Any] | None:
    """Parse a line of JSON. Return its object, or None if it has no step or the line is damaged.

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
    """Parse the verdict in a line of health.jsonl. Raises KeyError or ValueError if it is not a verdict."""
    return Verdict(
        severity=Severity(entry["severity"]), what=str(entry["what"]), fix=str(entry["fix"]), name=str(entry["name"])
    )


def span_of(entry: Mapping[str, Any]) -> Span:
    """Parse the span in a line of timeline.jsonl. Raises KeyError or ValueError if it is not a span."""
    return Span(step=entry["step"], activity=entry["activity"], start=float(entry["start"]), end=float(entry["end"]))


_KEPT_VERSIONS = 3  # vLLM may still sample from these versions
_LOCK_TRIES, _LOCK_TRY_S = 3, 0.05
_WEIGHTS_NAME = re.compile(r"v(\d+)(\.partial|\.replaced)?")
_STEP_FILE_NAME = re.compile(r"\.?step-(\d+)\.parquet(\.partial)?")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """The record of a step: its groups, the batch trained on, the update, and the verdicts."""

    played: Sequence[Group]
    batch: Batch
    ratios: Columns
    spans: Sequence[Span]
    metrics: Mapping[str, float]
    verdicts: Sequence[Verdict]


class RunStopped(Exception):
    """The run was asked to stop, and has stopped. The message lists what was saved."""


class RunFolder:
    """Writes the files of a run. No other process can open the folder until this process closes it or ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.weights = path / "weights"
        self.logs = path / "logs"
        self.train_log = path / "train.log"
        self.config_file = path / "config.yaml"
        self.checkpoints = path / "checkpoints"
        self.journal = path / "journal"
        self.examples = path / "sft"
        self.conditions = path / "conditions.json"
        self._trajectories = path / "trajectories"
        self._tokens = path / "tokens"
        self._timeline = path / "timeline.jsonl"
        self._metrics = path / "metrics.jsonl"
        self._health = path / "health.jsonl"
        self._summary = path / "summary.json"
        self._end = path / "end.json"
        self._release = weakref.finalize(self, _close, *_lock(path))

    @classmethod
    def create(cls, config: RunConfig) -> Self:
        """Create a folder for a new run, with the run's name, and a number if the name is taken.

        The folder of a run that failed before its first episode contains nothing but its error, so it is reused.
        """
        outputs = config.training.outputs
        find_writable(outputs)
        with storage_faults(f"creating a folder in {outputs}"):
            outputs.mkdir(parents=True, exist_ok=True)
            names = itertools.chain([config.name], (f"{config.name}-{number}" for number in itertools.count(2)))
            folder = next(folder for name in names if (folder := cls._claim(outputs / name)) is not None)
            folder._make_folders()
        # written last: a folder with config.yaml is complete
        folder.rewrite_config(config)
        sync_folder(outputs)
        return folder

    @classmethod
    def _claim(cls, path: Path) -> Self | None:
        """Create this folder, or empty it if its run has no results. Return None if it is taken."""
        try:
            path.mkdir(mode=0o700)  # nobody else may read prompts, results and trajectories
        except FileExistsError:
            if not (path / "config.yaml").is_file() or _has_results(path):
                return None
        try:
            folder = cls(path)
        except RunInUseError:
            return None
        if _has_results(path):  # another process changed it after the check
            folder.close()
            return None
        for entry in path.iterdir():
            if entry.name != "lock":
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        return folder

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open an existing folder. Raises NoRunError if it has no run, RunInUseError if another process uses it."""
        if not (path / "config.yaml").is_file():
            raise NoRunError(f"{path} is not a run: it has no config.yaml", fix="pass the folder of a run")
        folder = cls(path)
        with storage_faults(f"creating folders in {path}"):
            folder._make_folders()
        return folder

    def _make_folders(self) -> None:
        for folder in (self.weights, self.logs, self.checkpoints, self.journal, self._trajectories, self._tokens):
            folder.mkdir(exist_ok=True)

    def clear(self, folder: Path) -> None:
        """Remove everything from one of the run's folders."""
        with storage_faults(f"clearing {folder}"):
            shutil.rmtree(folder)
            folder.mkdir()

    def close(self) -> None:
        """Close the folder, so that other processes can open it."""
        self._release()

    def __enter__(self) -> Self:
        """Remove the record of an earlier end, because the run continues."""
        with storage_faults(f"removing {self._end}"):
            self._end.unlink(missing_ok=True)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Record why the run ends, if it ends early, and close the folder."""
        # If a signal cancelled the run, its handler has already recorded the reason.
        known = isinstance(error, asyncio.CancelledError) and self._end.exists()
        if error is not None and self._release.alive and not known:
            with contextlib.suppress(StorageError):  # report the first error, not one from recording it
                self.record_end(error)
        self.close()

    def record_end(self, error: BaseException) -> None:
        """Record why the run ends early."""
        if isinstance(error, RunStopped | KeyboardInterrupt | asyncio.CancelledError):
            state, why = "stopped", str(error) or "stopped before the first step"
        elif isinstance(error, McprlError):
            state, why = "failed", f"{error.fault} error {error}"
        else:
            state, why = "failed", SECRETS.redact(f"{type(error).__name__}: {error}")
        write_file(self._end, (json.dumps({"state": state, "why": why}) + "\n").encode())

    def rewrite_config(self, config: RunConfig) -> None:
        """Write new settings to config.yaml."""
        write_file(self.config_file, config.to_yaml().encode())

    def record_step(self, step: int, record: StepRecord) -> None:
        """Record a step durably. Its metrics line is written last; see the module's docstring."""
        name = f"step-{step:05d}.parquet"
        if record.played:  # in most steps, supervised fine-tuning runs no episodes and so has no groups
            write_trajectories(self._trajectories / name, (t for group in record.played for t in group.trajectories))
        if record.batch.groups:
            write_token_notes(self._tokens / name, record.batch, record.ratios)
        self.record_spans(record.spans)
        _append(self._health, [{"step": step, **asdict(verdict)} for verdict in record.verdicts])
        _append(self._metrics, [{"step": step, **record.metrics}])

    def record_spans(self, spans: Sequence[Span]) -> None:
        """Append spans to the timeline."""
        _append(self._timeline, [asdict(span) for span in spans])

    def cut_to(self, step: int) -> list[tuple[Mapping[str, float], list[Verdict]]]:
        """Remove all records of this step and later ones, the summary, and lines that cannot be read.

        Returns the metrics and verdicts of the earlier steps. Metrics are empty if the file has lost them.
        """
        metrics = _kept_lines(self._metrics, step, _metrics)
        health = _kept_lines(self._health, step, verdict_of)
        spans = _kept_lines(self._timeline, step, span_of)
        with storage_faults(f"truncating {self.path} to {step} steps"):
            # removed first, because from here on the run counts as unfinished
            self._summary.unlink(missing_ok=True)
            for name in ("adapter", "model"):
                _remove_folder(self.path / name)
                _remove_folder(self.path / f"{name}.partial")
            for folder in (self._trajectories, self._tokens):
                _cut_files(folder, step)
        for path, lines in ((self._timeline, spans), (self._health, health), (self._metrics, metrics)):
            write_file(path, b"".join(line.text + b"\n" for line in lines))
        by_step = {line.step: line.value for line in metrics}
        return [(by_step.get(kept, {}), [line.value for line in health if line.step == kept]) for kept in range(step)]

    def drop_old_weights(self, newest: Weights) -> None:
        """Delete old weights: all but the latest versions, which the sampler may still use."""
        with storage_faults(f"removing old weights from {self.weights}"):
            for folder in self.weights.iterdir():
                name = _WEIGHTS_NAME.fullmatch(folder.name)
                if name is None:
                    continue
                # A partial version is left from a crash. If it is newer than `newest`, the learner may be writing it.
                oldest = newest.version - _KEPT_VERSIONS + 1 if name[2] is None else newest.version + 1
                if int(name[1]) < oldest:
                    _remove_folder(folder)

    def finish(self, weights: Weights, summary: Mapping[str, Any]) -> None:
        """Copy the final weights, then write the summary. Safe to call again."""
        with storage_faults(f"finishing {self.path}"):
            self._summary.unlink(missing_ok=True)
            if weights.adapter is not None:
                _copy_folder(weights.adapter, self.path / "adapter")
            if weights.model is not None:
                _copy_folder(weights.model, self.path / "model")
        write_file(self._summary, (json.dumps(summary, indent=2) + "\n").encode())


def find_writable(outputs: Path) -> Path:
    """Return the folder of runs, or its nearest existing parent. Raises StorageError if it is not writable."""
    place = next(folder for folder in (outputs.absolute(), *outputs.absolute().parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=place):
            return place
    except OSError as error:
        raise StorageError(
            f"training.outputs is {outputs}, but {place} is not writable: {error.strerror}",
            fix="set training.outputs to a folder with write permission",
        ) from error


def lock_holder(folder: Path) -> tuple[bool, int | None]:
    """Return whether a process has the run open, and its pid. Readers share a lock and do not detect each other."""
    for place in (folder, folder / "lock"):
        try:
            descriptor = os.open(place, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True, _noted_pid(folder / "lock")
        finally:
            os.close(descriptor)
    return False, None


def _noted_pid(lock: Path) -> int | None:
    try:
        digits = lock.read_bytes()[:32].strip()
    except FileNotFoundError:
        return None
    return int(digits) if digits.isdigit() else None


def _lock(folder: Path) -> tuple[int, int]:
    """Lock the folder, and the file `lock` in it. The system releases both locks when the process ends.

    The file holds the pid. Its lock also works between the machines of a network file system. The lock on the folder
    still holds if someone deletes the file.
    """
    with storage_faults(f"locking {folder}"), contextlib.ExitStack() as on_failure:
        descriptors: list[int] = []
        for place, flags in ((folder, os.O_RDONLY | os.O_DIRECTORY), (folder / "lock", os.O_RDWR | os.O_CREAT)):
            descriptors.append(os.open(place, flags, 0o644))
            on_failure.callback(os.close, descriptors[-1])
            try:
                _take(descriptors[-1])
            except BlockingIOError:
                raise RunInUseError(
                    f"{folder} is in use by process {_noted_pid(folder / 'lock') or '(unknown)'}",
                    fix="wait for that process to end, or end it",
                ) from None
        os.ftruncate(descriptors[1], 0)
        os.write(descriptors[1], f"{os.getpid()}\n".encode())
        on_failure.pop_all()
    return descriptors[0], descriptors[1]


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _has_results(folder: Path) -> bool:
    """Return whether a run left a step, a checkpoint or a finished episode."""
    journal = [path for path in folder.glob("journal/*") if path.stat().st_size]
    return bool(journal) or any(path.exists() for path in (*folder.glob("checkpoints/*"), folder / "metrics.jsonl"))


def _take(descriptor: int) -> None:
    """Take the lock. If another process has it, try again, because a reader may hold it briefly (`lock_holder`)."""
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
    """Remove the files of this step and later ones, and incomplete files."""
    for path in folder.iterdir():
        file = _STEP_FILE_NAME.fullmatch(path.name)
        if file is not None and (file[2] is not None or int(file[1]) >= step):
            path.unlink()
    sync_folder(folder)


def _kept_lines(path: Path, step: int, read: Callable[[Mapping[str, Any]], T]) -> list[_Line[T]]:
    """Return the lines of a file for steps before this one. Damaged lines are left out: mcprl does not need them."""
    with storage_faults(f"reading {path}"):
        *ended, _torn = path.read_bytes().split(b"\n") if path.exists() else [b""]
    return [line for text in ended if (line := _read_line(text, read)) is not None and line.step < step]


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
    """Copy a folder durably, replacing the target. The target is complete once it has its name."""
    unfinished = target.with_name(f"{target.name}.partial")
    _remove_folder(unfinished)
    shutil.copytree(source, unfinished)
    for path in (*unfinished.rglob("*"), unfinished):
        sync_folder(path) if path.is_dir() else sync_file(path)
    _remove_folder(target)
    unfinished.rename(target)
    sync_folder(target.parent)

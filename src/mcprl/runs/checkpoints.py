"""The checkpoints of a run: each whole and verified, or not there.

checkpoints/
  step-00011/                  the state after 11 steps
  step-00012/                  the state after 12 steps
    manifest.json              size and SHA-256 of every other file, and of itself
    state.json, learner/…      whatever the run put there
  step-00012.replaced/         an older whole one of the same step, while a newer takes its place
  .step-00013.partial/         one that is being written, or was when the run ended
  .step-00009.removed.partial/ one that is being deleted, or was when the run ended

A name without a dot is given by one rename, after all that it names is on the disk; and it is taken away by one
rename, before anything in it is deleted. So a kill at any instant leaves no half of a checkpoint that looks whole.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mcprl.errors import NoRoomError, OtherStateError
from mcprl.files import storage_faults, sync_file, sync_folder, write_file
from mcprl.records import Task
from mcprl.tasks import Deal

__all__ = [
    "Checkpoint",
    "Checkpoints",
    "Damaged",
    "RunState",
    "deal_ids",
    "deals_of",
    "forecast",
    "read_state",
    "write_state",
]


_FILE = "state.json"
_STATE_FORMAT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Where a run stands after `step` steps.

    RunState(step=12, seed=7, weights_version=11, kl_coefficient=0.02, order={"order": "shuffled", …},
             health={"steps": 12, …}, open_deals={"12": {"tasks": ["meet-ana"], "stand_ins": []}},
             settings={"name": "hello", …}, model="c14e…")

    `open_deals` are the steps that were being collected already, by the ids of their tasks. `settings` and `model` are
    those of `Conditions`.
    """

    step: int
    settings: dict[str, Any]
    model: str
    weights_version: int
    kl_coefficient: float
    order: dict[str, Any]
    health: dict[str, Any]
    open_deals: dict[str, dict[str, list[str]]]
    format: int = _STATE_FORMAT


_STATE = TypeAdapter(RunState)


def write_state(folder: Path, state: RunState) -> None:
    """Into an existing folder; the caller makes the file durable."""
    with storage_faults(f"writing {folder / _FILE}"):
        (folder / _FILE).write_text(json.dumps(asdict(state), indent=1) + "\n")


def read_state(folder: Path) -> RunState:
    """Raises OtherStateError where another version of mcprl wrote it."""
    try:
        state = _STATE.validate_json((folder / _FILE).read_bytes())
    except ValidationError as error:
        raise OtherStateError(
            f"{folder / _FILE} is not what this version of mcprl writes: {error.errors()[0]['msg']}",
            fix="resume with the version of mcprl that saved it",
        ) from error
    if state.format != _STATE_FORMAT:
        raise OtherStateError(
            f"{folder / _FILE} has format {state.format}, this version of mcprl reads {_STATE_FORMAT}",
            fix="resume with the version of mcprl that saved it",
        )
    return state


def deal_ids(deals: Mapping[int, Deal]) -> dict[str, dict[str, list[str]]]:
    """Deals as JSON holds them."""
    return {
        str(step): {"tasks": [task.id for task in deal.tasks], "stand_ins": [task.id for task in deal.stand_ins]}
        for step, deal in deals.items()
    }


def deals_of(ids: Mapping[str, Mapping[str, Sequence[str]]], tasks: Sequence[Task]) -> dict[int, Deal]:
    """The deals that `deal_ids` wrote down. The tasks are those of then: the order of tasks was checked for that."""
    known = {task.id: task for task in tasks}
    return {
        int(step): Deal(
            tasks=tuple(known[task_id] for task_id in deal["tasks"]),
            stand_ins=tuple(known[task_id] for task_id in deal["stand_ins"]),
        )
        for step, deal in ids.items()
    }


_FORMAT = 1
_MANIFEST = "manifest.json"
_STEP = re.compile(r"step-(\d{5,})(\.replaced)?")
_UNFINISHED = re.compile(r"\.step-(\d{5,})\.partial")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The state after `step` steps were done.

    >>> Checkpoint(step=12, path=Path("outputs/hello/checkpoints/step-00012"), bytes=58_211_040).path.name
    'step-00012'
    """

    step: int
    path: Path
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    """A checkpoint that cannot be used, and why, in words.

    >>> damaged = Damaged(path=Path("checkpoints/step-00012"), why="policy.safetensors is not as it was written")
    >>> f"{damaged.path.name}: {damaged.why}"
    'step-00012: policy.safetensors is not as it was written'
    """

    path: Path
    why: str


class Checkpoints:
    """The checkpoints in one folder, which is made when needed. For one process, and one thread of it, at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._committed: int | None = None

    def begin(self, step: int) -> Path:
        """An empty folder for the files of a checkpoint. What earlier attempts left behind is removed."""
        unfinished = self._unfinished(step)
        with storage_faults(f"starting a checkpoint in {self.folder}"):
            if not self.folder.exists():
                self.folder.mkdir(parents=True)
            for left in self.folder.glob(".step-*.partial"):
                shutil.rmtree(left)
            unfinished.mkdir()
        return unfinished

    def commit(self, step: int) -> Checkpoint:
        """Make durable what was written since `begin`, and give it its name.

        Where the step has a checkpoint already (a resumed run does a step again), that one steps aside under a name by
        which it is still found, until the new one has the name: at every instant a whole one is there, on any file
        system, as would not be with a swap of two names, which many file systems do not have.
        """
        unfinished, path, aside = self._unfinished(step), self._path(step), self._aside(step)
        with storage_faults(f"saving {path}"):
            _seal(unfinished, step)
            if path.exists():
                if isinstance(_examine(path, step), Damaged):
                    self._discard(path)
                else:
                    self._discard(aside)
                    path.rename(aside)
                    sync_folder(self.folder)
            unfinished.rename(path)
            sync_folder(self.folder)
            sync_folder(self.folder.parent)
            self._committed = step
            self._discard(aside)
        return Checkpoint(step=step, path=path, bytes=_size(path))

    def verify(self, step: int) -> Checkpoint | Damaged:
        """The checkpoint of a step, read from end to end: the manifest, and every file with its size and digest.

        A file that the manifest does not name is damage too: nobody knows what would read it.
        """
        found = _examine(self._path(step), step)
        if isinstance(found, Damaged) and self._aside(step).exists():
            aside = _examine(self._aside(step), step)
            return found if isinstance(aside, Damaged) else aside
        return found

    def newest(self) -> tuple[Checkpoint | None, list[Damaged]]:
        """The newest checkpoint that is whole, and those newer than it that are not."""
        skipped: list[Damaged] = []
        finished, unfinished = self._named(_STEP), self._named(_UNFINISHED)
        for step in sorted(finished | unfinished, reverse=True):
            if step in finished:
                found = self.verify(step)
                if isinstance(found, Checkpoint):
                    return found, skipped
                skipped.append(found)
            if step in unfinished:
                skipped.append(Damaged(path=self._unfinished(step), why="was not finished"))
        return None, skipped

    def all(self) -> list[Checkpoint]:
        """Every checkpoint whose manifest is whole, the oldest first. Cheap: the files are not read."""
        found: list[Checkpoint] = []
        for step in sorted(self._named(_STEP)):
            for path in (self._path(step), self._aside(step)):
                manifest = _read_manifest(path, step)
                if not isinstance(manifest, Damaged):
                    size = sum(file["bytes"] for file in manifest["files"]) + len(_manifest_bytes(manifest))
                    found.append(Checkpoint(step=step, path=path, bytes=size))
                    break
        return found

    def retain(self, keep: int, also: Collection[int] = ()) -> list[int]:
        """Remove all but the newest `keep` and those of the steps in `also`; the steps that were removed.

        Where one was committed here, those of later steps are removed: the run was resumed before them, since they
        were damaged, and will come to these steps again.
        """
        whole = [c.step for c in self.all() if self._committed is None or c.step <= self._committed]
        kept = {*whole[max(0, len(whole) - keep) :], *(step for step in whole if step in also)}
        return self._remove(self._named(_STEP) - kept)

    def remove_after(self, step: int) -> list[int]:
        """Remove those of later steps, for a run that goes another way from here; the steps that were removed."""
        return self._remove({later for later in self._named(_STEP) if later > step})

    def _remove(self, steps: Collection[int]) -> list[int]:
        # The newest first: broken off, it leaves a run that stands at an earlier step, not one with a gap.
        with storage_faults(f"removing checkpoints from {self.folder}"):
            for step in sorted(steps, reverse=True):
                self._discard(self._aside(step))
                self._discard(self._path(step))
        return sorted(steps)

    def _discard(self, path: Path) -> None:
        if not path.exists():
            return
        removed = path.with_name(f".{path.name}.removed.partial")
        if removed.exists():
            shutil.rmtree(removed)
        path.rename(removed)
        sync_folder(self.folder)  # or a power cut could bring back the name, and not the files
        shutil.rmtree(removed)

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:05d}"

    def _aside(self, step: int) -> Path:
        return self.folder / f"step-{step:05d}.replaced"

    def _unfinished(self, step: int) -> Path:
        return self.folder / f".step-{step:05d}.partial"

    def _named(self, pattern: re.Pattern[str]) -> set[int]:
        if not self.folder.exists():
            return set()
        return {int(match[1]) for path in self.folder.iterdir() if (match := pattern.fullmatch(path.name))}


def forecast(checkpoint_bytes: int, keep: int, free_bytes: int) -> str:
    """What the checkpoints of a run will take, in one line. Raises NoRoomError where that is more than is free.

    >>> forecast(58_211_040, keep=4, free_bytes=12_345_000_000)
    'a checkpoint takes 58.2 MB; 4 are kept at most, and one more while it is written (291 MB); 12.3 GB are free'
    """
    needed = checkpoint_bytes * (keep + 1)
    line = (
        f"a checkpoint takes {_in_words(checkpoint_bytes)}; {keep} are kept at most, and one more while it is written "
        f"({_in_words(needed)}); {_in_words(free_bytes)} are free"
    )
    if needed > free_bytes:
        raise NoRoomError(line, fix="free space, set training.outputs to a larger disk, or lower keep_checkpoints")
    return line


def _in_words(size: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB" if size < 999.5 else f"{size:.0f} TB"


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if not path.is_dir() and path != folder / _MANIFEST)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in (*_files(folder), folder / _MANIFEST))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _seal(folder: Path, step: int) -> None:
    """Force a folder's files and names to the disk, and list them in a manifest."""
    files: list[dict[str, Any]] = []
    for path in _files(folder):
        sync_file(path)
        name = path.relative_to(folder).as_posix()
        files.append({"name": name, "bytes": path.stat().st_size, "sha256": _digest(path)})
    for path in folder.rglob("*"):
        if path.is_dir():
            sync_folder(path)
    write_file(folder / _MANIFEST, _manifest_bytes({"format": _FORMAT, "step": step, "files": files}))


def _manifest_bytes(content: dict[str, Any]) -> bytes:
    """The one text of a manifest: its content, and the digest of that."""
    digest = hashlib.sha256(json.dumps(content, indent=1).encode()).hexdigest()
    return (json.dumps({**content, "sha256": digest}, indent=1) + "\n").encode()


def _read_manifest(folder: Path, step: int) -> dict[str, Any] | Damaged:
    try:
        data = (folder / _MANIFEST).read_bytes()
        content: dict[str, Any] = json.loads(data)
        content.pop("sha256")
        # Compared as bytes, so that even a changed space is found.
        whole = _manifest_bytes(content) == data
    except FileNotFoundError:
        return Damaged(path=folder, why=f"has no {_MANIFEST}" if folder.exists() else "is not there")
    except OSError as error:
        return Damaged(path=folder, why=f"{_MANIFEST} cannot be read: {error.strerror}")
    except (ValueError, KeyError, AttributeError, TypeError):
        whole, content = False, {}
    if not whole:
        return Damaged(path=folder, why=f"{_MANIFEST} is not as it was written")
    if content["format"] != _FORMAT:
        return Damaged(path=folder, why=f"is of format {content['format']}, and this mcprl reads format {_FORMAT}")
    if content["step"] != step:
        return Damaged(path=folder, why=f"holds step {content['step']}, so it was renamed or copied here")
    return content


def _examine(folder: Path, step: int) -> Checkpoint | Damaged:
    """A checkpoint read from end to end."""
    manifest = _read_manifest(folder, step)
    if isinstance(manifest, Damaged):
        return manifest
    listed: dict[str, dict[str, Any]] = {file["name"]: file for file in manifest["files"]}
    try:
        there = {path.relative_to(folder).as_posix(): path for path in _files(folder)}
        if missing := sorted(listed.keys() - there.keys()):
            return Damaged(path=folder, why=f"{missing[0]} is missing")
        if unknown := sorted(there.keys() - listed.keys()):
            return Damaged(path=folder, why=f"{unknown[0]} is not in its manifest")
        for name, file in listed.items():
            size = there[name].stat().st_size
            if size != file["bytes"]:
                return Damaged(path=folder, why=f"{name} has {size} bytes, and {file['bytes']} were written")
            if _digest(there[name]) != file["sha256"]:
                return Damaged(path=folder, why=f"{name} is not as it was written")
        return Checkpoint(step=step, path=folder, bytes=_size(folder))
    except OSError as error:
        return Damaged(path=folder, why=f"cannot be read: {error.strerror}")

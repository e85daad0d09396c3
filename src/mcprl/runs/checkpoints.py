"""The checkpoints of a run. Each one is either complete and verified, or absent.

checkpoints/
  step-00011/                  the state after 11 steps
  step-00012/                  the state after 12 steps
    manifest.json              size and SHA-256 of every other file, and a checksum of its own content
    state.json, learner/…      the files of the run
  step-00012.replaced/         an older checkpoint of the same step, until the new one is in place
  .step-00013.partial/         being written, or left unfinished
  .step-00009.removed.partial/ being deleted, or left half deleted

A checkpoint gets its name by one rename, after its content is on disk. It loses its name by one rename, before anything
is deleted. So if a process is killed at any moment, no partial checkpoint looks complete.
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
from rich.filesize import decimal

from mcprl.errors import NoRoomError, OtherStateError
from mcprl.files import storage_faults, sync_file, sync_folder, write_file
from mcprl.records import Task
from mcprl.tasks import Deal

_FILE = "state.json"
_STATE_FORMAT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The state of a run after `step` steps, except the learner's state.

    RunState(step=12, weights_version=11, kl_coefficient=0.02, order={"order": "shuffled", …},
             health={"steps": 12, …}, open_deals={"12": {"tasks": ["meet-ana"], "stand_ins": []}},
             settings={"name": "hello", …}, model="c14e…")

    `open_deals` holds the task ids of each step for which collecting episodes had begun. `settings` and `model` are as
    in `Conditions`.
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
    """Write state.json into an existing folder. The caller syncs it to disk."""
    with storage_faults(f"writing {folder / _FILE}"):
        (folder / _FILE).write_text(json.dumps(asdict(state), indent=1) + "\n")


def read_state(folder: Path) -> RunState:
    """Read state.json. Raises OtherStateError if a different version of mcprl wrote it."""
    try:
        state = _STATE.validate_json((folder / _FILE).read_bytes())
    except ValidationError as error:
        raise OtherStateError(
            f"{folder / _FILE} was not written by this version of mcprl: {error.errors()[0]['msg']}",
            fix="resume with the version of mcprl that saved the checkpoint",
        ) from error
    if state.format != _STATE_FORMAT:
        raise OtherStateError(
            f"{folder / _FILE} has format {state.format}, but this version of mcprl reads format {_STATE_FORMAT}",
            fix="resume with the version of mcprl that saved the checkpoint",
        )
    return state


def deal_ids(deals: Mapping[int, Deal]) -> dict[str, dict[str, list[str]]]:
    """Replace the tasks of each deal by their ids, for JSON."""
    return {
        str(step): {"tasks": [task.id for task in deal.tasks], "stand_ins": [task.id for task in deal.stand_ins]}
        for step, deal in deals.items()
    }


def deals_of(ids: Mapping[str, Mapping[str, Sequence[str]]], tasks: Sequence[Task]) -> dict[int, Deal]:
    """Invert `deal_ids`. All tasks exist, because restoring the task order has checked that."""
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
    """The saved state after `step` steps.

    >>> Checkpoint(step=12, path=Path("outputs/hello/checkpoints/step-00012"), bytes=58_211_040).path.name
    'step-00012'
    """

    step: int
    path: Path
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    """A checkpoint that cannot be used, and why.

    >>> damaged = Damaged(path=Path("step-00012"), why="policy.safetensors does not match its checksum")
    >>> f"{damaged.path.name}: {damaged.why}"
    'step-00012: policy.safetensors does not match its checksum'
    """

    path: Path
    why: str


class Checkpoints:
    """The checkpoints in one folder, which is created when needed. Use it from one thread of one process at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._committed: int | None = None

    def begin(self, step: int) -> Path:
        """Create an empty folder for the files of a checkpoint, and remove leftovers of earlier attempts."""
        unfinished = self._unfinished(step)
        with storage_faults(f"starting a checkpoint in {self.folder}"):
            if not self.folder.exists():
                self.folder.mkdir(parents=True)
            for left in self.folder.glob(".step-*.partial"):
                shutil.rmtree(left)
            unfinished.mkdir()
        return unfinished

    def commit(self, step: int) -> Checkpoint:
        """Sync the files written since `begin` to disk, and give the checkpoint its name.

        If the step already has a checkpoint (a resumed run repeats steps), that one is renamed first, and can still be
        found under its new name. So a complete checkpoint exists at every moment. Many file systems cannot swap two
        names atomically.
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
        """Verify the checkpoint of a step: the manifest, and the size and digest of every file.

        A file that the manifest does not list counts as damage.
        """
        found = _examine(self._path(step), step)
        if isinstance(found, Damaged) and self._aside(step).exists():
            aside = _examine(self._aside(step), step)
            return found if isinstance(aside, Damaged) else aside
        return found

    def newest(self) -> tuple[Checkpoint | None, list[Damaged]]:
        """Return the newest complete checkpoint, and the newer ones that are damaged."""
        skipped: list[Damaged] = []
        finished, unfinished = self._named(_STEP), self._named(_UNFINISHED)
        for step in sorted(finished | unfinished, reverse=True):
            if step in finished:
                found = self.verify(step)
                if isinstance(found, Checkpoint):
                    return found, skipped
                skipped.append(found)
            if step in unfinished:
                skipped.append(Damaged(path=self._unfinished(step), why="is incomplete"))
        return None, skipped

    def all(self) -> list[Checkpoint]:
        """Return every checkpoint with an intact manifest, oldest first. Fast, because it does not read the files."""
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
        """Remove all checkpoints except the newest `keep` and those of the steps `also`. Return the removed steps.

        Also remove checkpoints of steps after the last one saved with `commit`: they were damaged, so the run
        resumed from an earlier one and will reach these steps again.
        """
        whole = [c.step for c in self.all() if self._committed is None or c.step <= self._committed]
        kept = {*whole[max(0, len(whole) - keep) :], *(step for step in whole if step in also)}
        return self._remove(self._named(_STEP) - kept)

    def remove_after(self, step: int) -> list[int]:
        """Remove the checkpoints of later steps, for a run that restarts from `step`. Return their steps."""
        return self._remove({later for later in self._named(_STEP) if later > step})

    def _remove(self, steps: Collection[int]) -> list[int]:
        # Newest first: if this is interrupted, no checkpoint before the newest one is missing.
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
        sync_folder(self.folder)  # otherwise a power cut could bring back the name without the files
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
    """Describe the disk space that checkpoints will need, in one line. Raises NoRoomError if there is less free space.

    >>> forecast(58_211_040, keep=4, free_bytes=12_345_000_000)
    'a checkpoint takes 58.2 MB; at most 4 are kept, and one more during a save (291.1 MB in all); 12.3 GB are free'
    """
    needed = checkpoint_bytes * (keep + 1)
    line = (
        f"a checkpoint takes {decimal(checkpoint_bytes)}; at most {keep} are kept, and one more during a save "
        f"({decimal(needed)} in all); {decimal(free_bytes)} are free"
    )
    if needed > free_bytes:
        raise NoRoomError(
            line, fix="free up space, set training.outputs to a larger disk, or lower training.keep_checkpoints"
        )
    return line


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if not path.is_dir() and path != folder / _MANIFEST)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in (*_files(folder), folder / _MANIFEST))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _seal(folder: Path, step: int) -> None:
    """Sync a folder's files and names to disk, and write its manifest."""
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
    """Encode a manifest: its content and the digest of its content."""
    digest = hashlib.sha256(json.dumps(content, indent=1).encode()).hexdigest()
    return (json.dumps({**content, "sha256": digest}, indent=1) + "\n").encode()


def _read_manifest(folder: Path, step: int) -> dict[str, Any] | Damaged:
    try:
        data = (folder / _MANIFEST).read_bytes()
        content: dict[str, Any] = json.loads(data)
        content.pop("sha256")
        # Compare bytes, to detect any change.
        whole = _manifest_bytes(content) == data
    except FileNotFoundError:
        return Damaged(path=folder, why=f"has no {_MANIFEST}" if folder.exists() else "does not exist")
    except OSError as error:
        return Damaged(path=folder, why=f"{_MANIFEST} cannot be read: {error.strerror}")
    except (ValueError, KeyError, AttributeError, TypeError):
        whole, content = False, {}
    if not whole:
        return Damaged(path=folder, why=f"{_MANIFEST} does not match its checksum")
    if content["format"] != _FORMAT:
        return Damaged(
            path=folder, why=f"has format {content['format']}, but this version of mcprl reads format {_FORMAT}"
        )
    if content["step"] != step:
        return Damaged(path=folder, why=f"contains step {content['step']}: the folder was renamed or copied")
    return content


def _examine(folder: Path, step: int) -> Checkpoint | Damaged:
    """Read a checkpoint completely and verify it."""
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
                return Damaged(path=folder, why=f"{name} has {size} bytes instead of {file['bytes']}")
            if _digest(there[name]) != file["sha256"]:
                return Damaged(path=folder, why=f"{name} does not match its checksum")
        return Checkpoint(step=step, path=folder, bytes=_size(folder))
    except OSError as error:
        return Damaged(path=folder, why=f"cannot be read: {error.strerror}")

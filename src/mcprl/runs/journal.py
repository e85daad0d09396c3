"""The episode journal: a finished episode is on disk before it is used, so a crash never loses one.

journal/step-00012.jsonl has one line per episode, in the order in which they finished: the SHA-256 of the JSON's bytes
in hex, a space, the trajectory as JSON. If an episode has several lines, the last one counts. A line is valid if it
ends with a newline and its checksum is correct. Other lines are damaged, or incomplete because the process was killed.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from mcprl.errors import ResourceLimitError, StorageError
from mcprl.files import storage_faults, sync_folder
from mcprl.records import Trajectory
from mcprl.runs.trajectories import decode_trajectory, encode_trajectory

Key = tuple[str, int]
"""Task id and member (the index in the group). They identify an episode of a step."""

_LINE_START = re.compile(rb"[0-9a-f]{64} \{")
_FILE_NAME = re.compile(r"step-(\d+)\.jsonl")
_MAX_OPEN_FILES = 4


@dataclass(slots=True)
class _Addition:
    """A trajectory to be written. `add` awaits `written`. `refusal` says why it was rejected; None if it was not."""

    trajectory: Trajectory
    instead: bool
    written: asyncio.Future[None]
    refusal: ValueError | None = None


@dataclass(frozen=True, slots=True)
class _Contents:
    """The content of a file: its episodes, the offset after the last one, and the damaged lines before this offset."""

    episodes: dict[Key, Trajectory]
    end: int
    damaged: list[int]  # line numbers, from 1
    torn: bool  # there are bytes after `end`


class EpisodeJournal:
    """Appends to the files of a journal, and reads what earlier processes appended.

    Additions that wait for the disk share one write and one fsync. `problems` has a sentence for each damaged line.
    Only the writer thread uses the open files.
    """

    def __init__(self, folder: Path) -> None:
        self.problems: list[str] = []
        self._folder = folder
        self._first_step = 0
        self._waiting: list[_Addition] = []
        self._writing: asyncio.Task[None] | None = None
        # Not asyncio's shared threads, because they may all be busy with sampling.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")
        self._descriptors: dict[int, int] = {}
        self._keys: dict[int, set[Key]] = {}
        self._failure: StorageError | ResourceLimitError | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def add(self, trajectory: Trajectory, *, instead: bool = False) -> None:
        """Append an episode or, with `instead`, a new version of it that replaces the old one. It is durable when this
        returns.

        Raises StorageError or ResourceLimitError if this or an earlier write failed. Raises ValueError if the journal
        already has the episode and must not replace it, or if `forget_before` removed its step.
        """
        addition = _Addition(trajectory, instead, asyncio.get_running_loop().create_future())
        self._waiting.append(addition)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_what_waits())
        await addition.written

    def finished(self, step: int) -> dict[Key, Trajectory]:
        """Return a step's episodes from earlier processes, in order. Call it before adding an episode to the step."""
        return self._read(step).episodes

    @property
    def steps(self) -> list[int]:
        """The steps that have a file."""
        return sorted(int(path.stem.removeprefix("step-")) for path in self._folder.glob("step-*.jsonl"))

    def forget_before(self, step: int) -> None:
        """Remove the files of the steps before this one. A checkpoint covers them."""
        self._first_step = max(self._first_step, step)
        with storage_faults(f"removing old files of {self._folder}"):
            for path in self._folder.iterdir():
                name = _FILE_NAME.fullmatch(path.name)
                if name is not None and int(name[1]) < step:
                    path.unlink()
        self._thread.submit(self._close_before, step)

    async def close(self) -> None:
        """Wait for pending additions and close all files. Nothing can be added after this."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
        self._thread.submit(self._close_before, math.inf)
        await asyncio.to_thread(self._thread.shutdown)

    async def _write_what_waits(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting, []
            failure = await self._written(group)
            for addition in group:
                if addition.written.done():  # the caller of `add` was cancelled
                    continue
                if (problem := addition.refusal or failure) is not None:
                    addition.written.set_exception(problem)
                else:
                    addition.written.set_result(None)
        self._writing = None

    async def _written(self, group: Sequence[_Addition]) -> BaseException | None:
        """Write several additions in the writer thread. Return the error, if any."""
        try:
            written = asyncio.get_running_loop().run_in_executor(self._thread, self._write, group)
        except RuntimeError as error:
            # The first write starts the thread. If that fails, the group must not be written later.
            self._failure = ResourceLimitError(
                f"the journal cannot start its writer thread: {error}", fix=ResourceLimitError.FIX
            )
            return self._failure
        await asyncio.wait([written])
        return written.exception()

    def _write(self, group: Sequence[_Addition]) -> None:
        """Append several additions, with one fsync per step. Runs in the writer thread."""
        if self._failure is not None:
            raise self._failure
        try:
            for step in dict.fromkeys(addition.trajectory.step for addition in group):
                self._append(step, [addition for addition in group if addition.trajectory.step == step])
        except StorageError as failure:
            # The file may end with half a line, and lines appended after it would be lost.
            self._failure = failure
            raise

    def _append(self, step: int, additions: Sequence[_Addition]) -> None:
        if step < self._first_step:
            for addition in additions:
                addition.refusal = ValueError(f"step {step} was removed from the journal")
            return
        with storage_faults(f"writing {self._path(step)}"):
            descriptor = self._open(step)
            lines: dict[Key, bytes] = {}
            for addition in additions:
                key = _key(addition.trajectory)
                if (key in self._keys[step] or key in lines) and not addition.instead:
                    addition.refusal = ValueError(f"step {step} already has episode {key[1]} of task {key[0]}")
                else:
                    lines[key] = _line(addition.trajectory)
            unwritten = b"".join(lines.values())
            while unwritten:
                unwritten = unwritten[os.write(descriptor, unwritten) :]
            os.fsync(descriptor)
            self._keys[step] |= lines.keys()

    def _open(self, step: int) -> int:
        """Open a step's file, truncate it to its last complete line, and return its descriptor."""
        if step in self._descriptors:
            return self._descriptors[step]
        contents = self._read(step)
        if len(self._descriptors) >= _MAX_OPEN_FILES:
            self._close_before(sorted(self._descriptors)[1])
        self._keys[step] = set(contents.episodes)
        self._descriptors[step] = os.open(self._path(step), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        if contents.torn:
            os.ftruncate(self._descriptors[step], contents.end)
        sync_folder(self._folder)
        return self._descriptors[step]

    def _close_before(self, step: float) -> None:
        for old in [old for old in self._descriptors if old < step]:
            del self._keys[old]
            os.close(self._descriptors.pop(old))

    def _read(self, step: int) -> _Contents:
        path = self._path(step)
        with storage_faults(f"reading {path}"):
            contents = _parse(path.read_bytes() if path.exists() else b"", step)
        found = [f"line {number} is damaged" for number in contents.damaged]
        if contents.torn:
            found.append("the last line is incomplete")
        for words in found:
            problem = f"{path}: {words}; its episode will be rerun"
            if problem not in self.problems:  # a file is read twice: for its episodes, and before appending
                self.problems.append(problem)
        return contents

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:05d}.jsonl"


def _key(trajectory: Trajectory) -> Key:
    return trajectory.task_id, trajectory.member


def _line(trajectory: Trajectory) -> bytes:
    encoded = encode_trajectory(trajectory)
    return _checksum(encoded) + b" " + encoded + b"\n"


def _checksum(encoded: bytes) -> bytes:
    return hashlib.sha256(encoded).hexdigest().encode()


def _parse(data: bytes, step: int) -> _Contents:
    """Parse the bytes of a step's file. They may be damaged anywhere."""
    episodes: dict[Key, Trajectory] = {}
    damaged: list[int] = []
    end = position = known_damage = 0
    *lines, _unended = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        position += len(line) + 1
        start, trajectory = _episode_in(line, step)
        if start != 0:
            damaged.append(number)
        if trajectory is not None:
            episodes[_key(trajectory)] = trajectory  # the last version; its place is that of the first
            end, known_damage = position, len(damaged)
    return _Contents(episodes=episodes, end=end, damaged=damaged[:known_damage], torn=len(data) > end)


def _episode_in(line: bytes, step: int) -> tuple[int | None, Trajectory | None]:
    """Return where in a line the episode starts, and the episode. It starts later than 0 after a damaged newline."""
    for match in _LINE_START.finditer(line):
        checksum, _, encoded = line[match.start() :].partition(b" ")
        if checksum != _checksum(encoded):
            continue
        try:
            trajectory = decode_trajectory(encoded)
        except ValueError:  # intact, but this version of mcprl cannot load it as an episode
            continue
        if trajectory.step == step:
            return match.start(), trajectory
    return None, None

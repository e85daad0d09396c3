"""How a run makes a file durable: written whole and forced to the disk, or not there at all.

A write returns when the system has the bytes, not when the disk has them; `fsync` waits for the disk. The name of a
file is an entry of its folder, so the folder needs an `fsync` of its own.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from mcprl.errors import StorageError

__all__ = ["storage_faults", "sync_file", "sync_folder", "write_file"]

_NUMBER_IN_TEXT = re.compile(r"\(os error (\d+)\)")


def write_file(path: Path, data: bytes) -> None:
    """Replace a file as a whole, durably; at every instant the old one or the new one is there.

    Raises StorageError, and then the old one is there.
    """
    unfinished = path.with_name(f".{path.name}.partial")
    with storage_faults(f"writing {path}"):
        try:
            # A buffered file goes on where the system takes only a part of the bytes.
            with unfinished.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except OSError:
            with suppress(OSError):  # the first fault is the one to tell
                unfinished.unlink(missing_ok=True)
            raise
    sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Wait until the disk has what a file holds. Raises StorageError."""
    _sync(path, os.O_RDONLY)


def sync_folder(path: Path) -> None:
    """Wait until the disk has the names in a folder. Raises StorageError."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    with storage_faults(f"syncing {path}"):
        descriptor = os.open(path, flags)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def storage_faults(doing: str, *also: type[Exception]) -> Generator[None]:
    """A fault of the disk within becomes a StorageError: "writing runs/a/state.json failed: No space left on device".

    `also` are exceptions of libraries that write files without Python and have the system's number in their text, such
    as "(os error 28)" of Rust; without a number in it they are no fault of the disk, and stay as they are.
    """
    try:
        yield
    except OSError as error:
        raise _storage_error(doing, error.errno, str(error)) from error
    except also as error:
        found = _NUMBER_IN_TEXT.search(str(error))
        if found is None:
            raise
        raise _storage_error(doing, int(found[1]), str(error)) from error


def _storage_error(doing: str, number: int | None, text: str) -> StorageError:
    if number in (errno.ENOSPC, errno.EDQUOT):
        first = "free space on that disk, or raise the quota"
    elif number in (errno.EACCES, errno.EPERM, errno.EROFS):
        first = "let this user write there, and see that the disk is not mounted read-only"
    else:
        first = "see in the system's log whether that disk is sound and still mounted"
    reason = text if number is None else os.strerror(number)
    return StorageError(f"{doing} failed: {reason}", fix=f"{first}; then go on with `mcprl resume`")

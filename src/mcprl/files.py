"""JSON in one canonical form, and files that are either complete or absent.

A write returns when the system has the bytes, not when the disk has them; `fsync` waits for the disk. A file's name is
an entry of its folder, so the folder needs an `fsync` of its own.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from mcprl.errors import StorageError

__all__ = ["canonical_json", "is_unicode", "storage_faults", "sync_file", "sync_folder", "write_file"]


def canonical_json(value: object) -> str:
    r"""The value as ASCII JSON with sorted keys and no spaces; a whole number has one form, as 1 and 1.0 are equal.

    Texts are compared as they are: two Unicode forms of one letter stay two texts, because a tool may tell them apart.
    Raises ValueError for what JSON cannot hold: infinities, keys that are no texts, other types, endless nesting.

    >>> canonical_json({"limit": 2.0, "symbol": "AAPL"}) == canonical_json({"symbol": "AAPL", "limit": 2})
    True
    """
    try:
        return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except RecursionError as error:
        raise ValueError("nested too deeply for JSON") from error


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        entries = cast("Mapping[Any, object]", value)
        for key in entries:
            if not isinstance(key, str):
                raise ValueError(f"a key that is no text: {key!r}")
        return {key: _plain(entry) for key, entry in entries.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in cast("list[object]", value)]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError(f"a {type(value).__name__}, which is no JSON value")


def is_unicode(text: str) -> bool:
    """Whether a text can be sent: half of a surrogate pair, which JSON can spell, is no character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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

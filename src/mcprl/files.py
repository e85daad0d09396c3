"""JSON in one canonical form, and files that are either complete or absent.

A write returns when the operating system has the bytes; `fsync` waits until the disk has them. A file's name is an
entry of its folder, so the folder needs an `fsync` too.
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


def canonical_json(value: object) -> str:
    r"""Return a value as ASCII JSON with sorted keys and no spaces. 1.0 is written as 1.

    Strings are not normalized: two Unicode forms of a letter stay different, because a tool may distinguish them.
    Raises ValueError for values that are not JSON: infinities, keys that are not strings, other types, infinite
    nesting.

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
                raise ValueError(f"a key that is not a string: {key!r}")
        return {key: _plain(entry) for key, entry in entries.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in cast("list[object]", value)]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError(f"a {type(value).__name__}, which is not a JSON value")


def is_unicode(text: str) -> bool:
    """Return whether a string can be encoded. JSON can contain lone surrogates, which cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_NUMBER_IN_TEXT = re.compile(r"\(os error (\d+)\)")


def write_file(path: Path, data: bytes) -> None:
    """Replace a file durably and atomically: at any time it has either the old or the new content.

    After a StorageError the file still has its old content.
    """
    unfinished = path.with_name(f".{path.name}.partial")
    with storage_faults(f"writing {path}"):
        try:
            # A buffered file would continue after a partial write.
            with unfinished.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except OSError:
            with suppress(OSError):  # report only the first error
                unfinished.unlink(missing_ok=True)
            raise
    sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Wait until a file's content is on disk. Raises StorageError."""
    _sync(path, os.O_RDONLY)


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on disk. Raises StorageError."""
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
    """Turn OS errors into a StorageError: "writing runs/a/state.json failed: No space left on device".

    `also` are exceptions of libraries that do their own file access. They are converted only if their text has an OS
    error number, such as "(os error 28)" from Rust. All others are raised unchanged.
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
        first = "free up space on this disk, or raise the quota"
    elif number in (errno.EACCES, errno.EPERM, errno.EROFS):
        first = "give this user write access, and check that the disk is not mounted read-only"
    else:
        first = "check the system log for disk errors, and check that the disk is still mounted"
    reason = text if number is None else os.strerror(number)
    return StorageError(f"{doing} failed: {reason}", fix=f"{first}; then continue with `mcprl resume`")

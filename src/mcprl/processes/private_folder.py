"""A folder that only our user can enter, for the sockets of processes on one host."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["private_folder"]

_LONGEST_FOLDER_BYTES = 40
"""The path of a Unix socket has at most 107 bytes on Linux, 103 on macOS: this leaves about 60 for its name, as many as
Ray needs."""


@contextmanager
def private_folder() -> Generator[Path]:
    """Make an empty folder with mode 0700 and a short path; remove it with everything in it at the end.

    It is in XDG_RUNTIME_DIR if that folder is ours, otherwise in the folder for temporary files. The mode keeps every
    other user (except root) from opening anything inside, whatever the modes of the files and sockets in it are.
    """
    with tempfile.TemporaryDirectory(prefix="mcprl-", dir=_parent(), ignore_cleanup_errors=True) as name:
        yield Path(name)


def _parent() -> Path:
    runtime, temporary = Path(os.environ.get("XDG_RUNTIME_DIR", "")), Path(tempfile.gettempdir())
    if runtime.is_absolute() and _is_ours(runtime) and _is_short(runtime):
        return runtime
    return temporary if _is_short(temporary) else Path("/tmp")


def _is_ours(folder: Path) -> bool:
    """Whether we own it: after `sudo` the variable can still name another user's folder."""
    return folder.is_dir() and folder.stat().st_uid == os.geteuid() and os.access(folder, os.W_OK)


def _is_short(folder: Path) -> bool:
    return len(os.fsencode(folder)) + len("/mcprl-12345678") <= _LONGEST_FOLDER_BYTES

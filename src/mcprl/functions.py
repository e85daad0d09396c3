"""Functions and classes of your own, named in a recipe as `file.py:name`.

The file is imported once per process, and can import its neighbors. Whatever goes wrong in it is a UserCodeError that
names the file and the line.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any
from zlib import crc32

from mcprl.errors import McprlError, UserCodeError, did_you_mean


class UserCode:
    """Runs code of the user: an exception of any kind becomes a UserCodeError with its file and line.

    with UserCode("/home/ana/losses.py:sapo"):
        loss_N = sapo(logprob_N, …)
    """

    def __init__(self, reference: str) -> None:
        self._reference = reference

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception | SystemExit) and not isinstance(error, McprlError):
            place = _place_of(error, trace, _file_of(self._reference))
            raise UserCodeError(
                f"{place}: {type(error).__name__}: {error}, in {self._reference}", fix="correct the code at that place"
            ) from error


def load_function(reference: str, setting: str) -> Callable[..., Any]:
    """Return the function or class `file.py:name`. Error messages mention `setting`."""
    file, name = _file_of(reference), reference.rpartition(":")[2]
    if not file.is_file():
        raise UserCodeError(f"{setting} refers to {file}, which is not a file", fix="correct the path")
    found = getattr(_module(file), name, None)
    if callable(found):
        return found
    defined = [known for known, value in vars(_module(file)).items() if callable(value) and not known.startswith("_")]
    raise UserCodeError(
        f"{setting} refers to {name}, but {file} defines no such function or class{did_you_mean(name, defined)}",
        fix=f"define {name} in that file, or correct {setting}",
    )


def digest_of_code(references: Iterable[str]) -> str:
    """A digest that changes if one of these files, or a Python file in the same folder, changes."""
    digest = hashlib.sha256()
    folders = sorted({_file_of(reference).parent for reference in references})
    for file in (file for folder in folders for file in sorted(folder.glob("*.py"))):
        digest.update(f"{file.name}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


@cache
def _module(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"user_code_{crc32(bytes(file))}_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    with UserCode(f"{file}:import"):
        spec.loader.exec_module(module)
    return module


def _file_of(reference: str) -> Path:
    return Path(reference.rpartition(":")[0])


def _place_of(error: Exception | SystemExit, trace: TracebackType | None, file: Path) -> str:
    """The innermost line in the folder of `file`."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename}:{error.lineno}"
    own = [frame for frame in traceback.extract_tb(trace) if Path(frame.filename).parent == file.parent]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else str(file)

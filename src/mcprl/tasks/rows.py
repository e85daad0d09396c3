"""The entries of a task file as they stand there: one JSON object a line, or one JSON list of objects.

JSON is read strictly. Two equal keys in one object, NaN and halves of surrogate pairs are refused: Python's decoder
alone would keep the last of the keys, and let the others fail much later.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from mcprl.errors import TaskFileError

__all__ = ["Row", "decode_strictly", "read_rows", "read_text"]

_SPACE = " \t\n\r"
# The only way in which JSON can spell half of a pair.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One entry of a task file, counted from 1: a line, or a row of a list. `value` is what was decoded.

    Row(file=Path("train.json"), number=3, in_list=True, value={"prompt": […], "env_class": "…", …})
    """

    file: Path
    number: int
    value: Any
    in_list: bool = False

    @property
    def place(self) -> str:
        """Where it stands, for an error: `tasks.jsonl:3`, or `train.json: row 3`."""
        return f"{self.file}: row {self.number}" if self.in_list else f"{self.file}:{self.number}"

    @property
    def label(self) -> str:
        """Where it stands in its file, for a table: `line 3` or `row 3`."""
        return f"{'row' if self.in_list else 'line'} {self.number}"


def read_text(path: Path) -> str:
    """The text of a file, or a TaskFileError that says why there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise TaskFileError(f"cannot read {path}: {reason}", fix="correct the path") from error


def read_rows(path: Path) -> Iterator[Row]:
    """The entries of a file in their order. Raises TaskFileError at the first that is no JSON."""
    text = read_text(path)
    start = _skip_space(text, 0)
    if text.startswith("[", start):
        yield from _rows_of_list(path, text, start + 1)
        return
    # Not splitlines: it also splits at U+2028 and others that may stand inside a JSON text.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            value = decode_strictly(line.strip(_SPACE), place=f"{path}:{number}", fix="write one JSON object a line")
            yield Row(file=path, number=number, value=value)


def decode_strictly(text: str, *, place: str, fix: str) -> Any:
    """The one JSON value of a text. Raises TaskFileError, which begins with `place`."""
    value, end = _decode(text, 0, place, fix)
    if _skip_space(text, end) != len(text):
        raise TaskFileError(f"{place}: not JSON (something follows the value)", fix=fix)
    return value


def _rows_of_list(path: Path, text: str, position: int) -> Iterator[Row]:
    """Decoded one by one, so that an error names its row."""
    fix = "correct the JSON list at that place"
    number = 0
    position = _skip_space(text, position)
    while not text.startswith("]", position):
        number += 1
        if number > 1:
            if not text.startswith(",", position):
                raise TaskFileError(f"{path}: row {number}: not JSON (no comma before it)", fix=fix)
            position = _skip_space(text, position + 1)
        value, position = _decode(text, position, f"{path}: row {number}", fix)
        yield Row(file=path, number=number, value=value, in_list=True)
        position = _skip_space(text, position)
    if _skip_space(text, position + 1) != len(text):
        raise TaskFileError(f"{path}: not JSON (something follows the list)", fix=fix)


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in _SPACE:
        position += 1
    return position


def _decode(text: str, position: int, place: str, fix: str) -> tuple[Any, int]:
    try:
        value, end = _DECODER.raw_decode(text, position)
        _refuse_surrogates(value, text[position:end])
    except json.JSONDecodeError as error:
        raise TaskFileError(f"{place}: not JSON ({error.msg})", fix=fix) from error
    except _RefusedError as error:
        raise TaskFileError(f"{place}: {error}", fix="correct it there") from error
    except RecursionError as error:
        raise TaskFileError(f"{place}: too deeply nested", fix="correct it there") from error
    except ValueError as error:
        # Python's decoder gives up on numbers of thousands of digits.
        raise TaskFileError(f"{place}: a number too long", fix="correct it there") from error
    return value, end


class _RefusedError(ValueError):
    """JSON that Python's decoder would take, and that would not mean what it says."""


def _refuse_surrogates(value: Any, text: str) -> None:
    if _SURROGATE.search(text) is None:
        return
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _RefusedError("a text with half of a surrogate pair") from None


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _RefusedError(f"the key {twice!r} appears twice in one object")
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise _RefusedError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_refuse_duplicates, parse_constant=_refuse_constant)

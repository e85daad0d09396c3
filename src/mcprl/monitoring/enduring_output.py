"""Standard output and error that a run outlives."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, TextIO

__all__ = ["enduring_output"]

_logger = logging.getLogger(__name__)


class _EnduringStream:
    """A stream whose first failed write makes it a stream to nowhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._turn_away(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._turn_away(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _turn_away(self, error: OSError) -> None:
        # The descriptor itself, because what is buffered is written again when the process ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        _logger.warning("%s can no longer be written (%s): the run goes on without it", self._stream.name, error)


@contextmanager
def enduring_output() -> Generator[None]:
    """Within, nothing fails because stdout or stderr cannot be written.

    Otherwise `mcprl train recipe.yaml | head -1`, a closed terminal or a full disk behind `> log` would end the run.
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_enduring(stream) for stream in before)
    try:
        yield
    finally:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        sys.stdout, sys.stderr = before


def _enduring(stream: TextIO | None) -> Any:
    return None if stream is None else _EnduringStream(stream)  # None: it was closed when Python started

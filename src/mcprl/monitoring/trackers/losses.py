"""What a library gives up without raising it: it goes on, and ends as if it had sent everything."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["LossHandler", "WandbLog"]

_LEFT_OUT = re.compile(r"\b(drop|skip)(s|ped|ping)?\b", re.IGNORECASE)
_MOST_CHARACTERS = 300
# What these parts of W&B say is no loss by itself: whoever needed it says so where something was lost by it.
_NO_LOSSES = ("api:", "featurechecker:", "monitor:")


class LossHandler(logging.Handler):
    """Passes on what a library logs as an error, and of its warnings those that say that something is left out."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno >= logging.ERROR or _LEFT_OUT.search(text):
            self._tell(_first_line(text))


class WandbLog:
    """The log of a run of W&B, an object of JSON a line. What is sent again is no error in it; what is given up is.

    {"time": "…", "level": "ERROR", "msg": "filestream: failed to upload: 403 Forbidden url=…"}
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_losses(self) -> list[str]:
        """A sentence for each thing that was given up since the last time."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                whole, newline, _torn = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return [f"nobody knows what it sent: its log {self._path.name} is missing"]
        self._offset += len(whole) + len(newline)
        return [text for line in whole.split(b"\n") if (text := _loss(line))]


def _loss(line: bytes) -> str:
    try:
        entry: Any = json.loads(line)
        level, text = str(entry["level"]), str(entry["msg"])
    except (ValueError, KeyError, TypeError):
        return ""  # what the runtime of Go writes when it crashes; then `finish` raises
    given_up = level.startswith("ERROR") or (level.startswith("WARN") and _LEFT_OUT.search(text))
    return _first_line(text) if given_up and not text.startswith(_NO_LOSSES) else ""


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:_MOST_CHARACTERS].rstrip(".")

"""What an episode stored: values by key, for its later code to use."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

__all__ = ["MAX_KEYS", "MAX_STORED_BYTES", "ContextFullError", "EpisodeContext", "Stored"]

MAX_KEYS = 100
MAX_STORED_BYTES = 4 * 1024 * 1024


class ContextFullError(ValueError):
    """A value does not fit beside what is stored already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A value and what it is.

    Stored(value={"symbol": "VLKN", "pe": 55.79}, description="Figures of Valkenor", num_bytes=31)
    """

    value: Any
    description: str
    num_bytes: int


class EpisodeContext:
    """The values that one episode stored."""

    def __init__(self) -> None:
        self._stored: dict[str, Stored] = {}

    @property
    def values(self) -> dict[str, Any]:
        return {key: stored.value for key, stored in self._stored.items()}

    def keys(self) -> tuple[str, ...]:
        return tuple(self._stored)

    def get(self, key: str) -> Stored | None:
        return self._stored.get(key)

    def store(self, key: str, value: Any, description: str) -> None:
        """Store a value, in place of the one that had the key. Raises ContextFullError where there is no room."""
        size = len(json.dumps(value))
        others = [stored.num_bytes for name, stored in self._stored.items() if name != key]
        if len(others) >= MAX_KEYS:
            raise ContextFullError(f"No more than {MAX_KEYS} results can be stored.")
        if sum(others) + size > MAX_STORED_BYTES:
            raise ContextFullError(f"No more than {MAX_STORED_BYTES // (1024 * 1024)} MB can be stored in all.")
        self._stored[key] = Stored(value=value, description=description, num_bytes=size)

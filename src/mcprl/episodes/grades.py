"""Grades that a judge once gave, kept in a SQLite file, so that the same question is asked and paid for once."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from mcprl.errors import BadValueError

__all__ = ["GradeCache"]

_BUSY_S = 30.0
_IN_MEMORY = ":memory:"
_TABLE = "CREATE TABLE IF NOT EXISTS grades (question TEXT PRIMARY KEY, grade REAL NOT NULL, reason TEXT NOT NULL)"


class GradeCache:
    """Grades by the digest of their question. Processes of one machine may share the file; None keeps it in memory."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def open(self) -> None:
        """Open the file, made where there is none."""
        try:
            self._connection = sqlite3.connect(self._path or _IN_MEMORY, timeout=_BUSY_S, isolation_level=None)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute(_TABLE)
        except sqlite3.Error as error:
            self.close()
            raise self._unusable(error) from error

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def find(self, question: str) -> float | None:
        """The grade that this question got, if it was asked before."""
        rows = self._run("SELECT grade FROM grades WHERE question = ?", (question,))
        return rows[0][0] if rows else None

    def keep(self, question: str, grade: float, reason: str) -> None:
        """Remember a grade. The first one given stays, whichever process was first."""
        self._run("INSERT OR IGNORE INTO grades VALUES (?, ?, ?)", (question, grade, reason))

    def _run(self, statement: str, values: tuple[str | float, ...]) -> list[tuple[float]]:
        if self._connection is None:
            raise RuntimeError("the judge is not open: use `async with`")
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def _unusable(self, error: sqlite3.Error) -> BadValueError:
        return BadValueError(
            f"rewards.judge.cache: {self._path} cannot be used as a file of grades ({error})",
            fix="name another file in a folder that can be written to, or leave it out",
        )

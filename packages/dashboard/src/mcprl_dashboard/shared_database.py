"""A database in memory that many threads ask at the same time, and that can be closed while they do."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from threading import Condition

import duckdb

from mcprl_dashboard.answers import Refusal

__all__ = ["SharedDatabase", "closed"]


_INTERRUPT_EVERY_S = 0.05
_SETTINGS = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}


class SharedDatabase:
    """Every question has a cursor of its own. DuckDB does not close under a query that runs, so they end first.

    with database.cursor() as cursor:
        cursor.execute("SELECT 1")
    database.close(within_s=2.0)
    """

    def __init__(self) -> None:
        self._connection = duckdb.connect(":memory:", config=dict(_SETTINGS))
        self._changed = Condition()
        self._asking: set[duckdb.DuckDBPyConnection] = set()
        self._closing = False

    @contextmanager
    def cursor(self) -> Generator[duckdb.DuckDBPyConnection]:
        """For one question. What it began and did not commit is undone.

        Raises Refusal where the database is closed, before or during the question.
        """
        with self._changed:
            if self._closing:
                raise closed()
            cursor = self._connection.cursor()
            self._asking.add(cursor)
        try:
            yield cursor
        except duckdb.Error as error:
            if self._closing:  # what an interrupted query says is about the interruption
                raise closed() from error
            raise
        finally:
            with self._changed:
                self._asking.discard(cursor)
                cursor.close()
                self._close_if_unused()
                self._changed.notify_all()

    def close(self, within_s: float) -> None:
        """Refuse new questions, interrupt those that are asked, and wait for their end, for so long and no longer.

        A query that waits for its disk cannot be interrupted; then the database is closed when that query ends.
        """
        until = time.monotonic() + within_s
        with self._changed:
            self._closing = True
            while self._asking:
                # More than once: between two queries of a question there is nothing to interrupt.
                for cursor in self._asking:
                    cursor.interrupt()
                left_s = until - time.monotonic()
                if left_s <= 0:
                    return
                self._changed.wait(min(left_s, _INTERRUPT_EVERY_S))
            self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._closing and not self._asking:
            self._connection.close()


def closed() -> Refusal:
    """What whoever asks of a run that is closed is told."""
    return Refusal(
        503,
        "closed",
        "the episodes of this run are shown no more: the dashboard ends, or the run was removed",
        "start mcprl dashboard again, or choose another run",
    )

"""An in-memory database that many threads query at the same time, and that can be closed during queries."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from threading import Condition

import duckdb

from mcprl_dashboard.answers import Refusal

_INTERRUPT_EVERY_S = 0.05
DATABASE_SETTINGS = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}


class SharedDatabase:
    """A DuckDB database with a cursor per query. DuckDB cannot close during a query, so `close` ends queries first.

    with database.cursor() as cursor:
        cursor.execute("SELECT 1")
    database.close(within_s=2.0)
    """

    def __init__(self) -> None:
        self._connection = duckdb.connect(":memory:", config=dict(DATABASE_SETTINGS))
        self._changed = Condition()
        self._asking: set[duckdb.DuckDBPyConnection] = set()
        self._closing = False

    @contextmanager
    def cursor(self) -> Generator[duckdb.DuckDBPyConnection]:
        """Open a cursor for one query. Uncommitted changes are rolled back.

        Raises Refusal if the database is closed, before or during the query.
        """
        with self._changed:
            if self._closing:
                raise closed()
            cursor = self._connection.cursor()
            self._asking.add(cursor)
        try:
            yield cursor
        except duckdb.Error as error:
            if self._closing:  # the error is caused by the interruption
                raise closed() from error
            raise
        finally:
            with self._changed:
                self._asking.discard(cursor)
                cursor.close()
                self._close_if_unused()
                self._changed.notify_all()

    def close(self, within_s: float) -> None:
        """Reject new queries, interrupt running ones, and wait at most `within_s` until they end.

        A query that waits for the disk cannot be interrupted. Then the database is closed when that query ends.
        """
        until = time.monotonic() + within_s
        with self._changed:
            self._closing = True
            while self._asking:
                # Interrupt repeatedly: between two statements there is nothing to interrupt.
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
    """Return the error for queries of a closed run."""
    return Refusal(
        503,
        "closed",
        "the episodes of this run are no longer available: the dashboard is closing, or the run was removed",
        "start `mcprl dashboard` again, or choose another run",
    )

"""The SQLite database of a world: in memory, filled once, then only read, from any thread."""

from __future__ import annotations

import sqlite3
import threading
import weakref
from collections.abc import Iterable
from typing import Any

__all__ = ["Database"]

# Prices are whole cents, moments are ISO texts of New York. `pages` is what web search finds.
_SCHEMA = """
CREATE TABLE bars (
    symbol TEXT, day TEXT, open INTEGER, high INTEGER, low INTEGER, close INTEGER, volume INTEGER,
    PRIMARY KEY (symbol, day)
) WITHOUT ROWID;
CREATE TABLE statements (
    symbol TEXT, period TEXT, ended TEXT, label TEXT, revenue INTEGER, gross_profit INTEGER, operating_income INTEGER,
    net_income INTEGER, eps REAL, PRIMARY KEY (symbol, period, ended)
) WITHOUT ROWID;
CREATE TABLE articles (
    id INTEGER PRIMARY KEY, symbols TEXT, title TEXT, text TEXT, publisher TEXT, published TEXT, url TEXT
);
CREATE TABLE mentions (symbol TEXT, article INTEGER, PRIMARY KEY (symbol, article)) WITHOUT ROWID;
CREATE VIRTUAL TABLE pages USING fts5 (title, content, url UNINDEXED, tokenize = 'porter unicode61');
"""


class Database:
    """Tables `bars`, `statements`, `articles`, `mentions` and `pages`.

    >>> database = Database()
    >>> database.write("INSERT INTO mentions VALUES (?, ?)", [("VLDX", 1)])
    >>> database.rows("SELECT symbol FROM mentions WHERE article = ?", 1)
    [('VLDX',)]
    """

    def __init__(self) -> None:
        # Tools run in threads; the lock makes one connection safe for all of them, however SQLite was compiled.
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._connection.executescript(_SCHEMA)
        weakref.finalize(self, self._connection.close)

    def write(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Run a statement for each row, all of them in one transaction."""
        # Making a row may read the database, so all of them are made before the lock is taken.
        made = list(rows)
        with self._lock:
            self._connection.execute("BEGIN")
            self._connection.executemany(statement, made)
            self._connection.execute("COMMIT")

    def rows(self, query: str, *parameters: str | int) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._connection.execute(query, parameters).fetchall()

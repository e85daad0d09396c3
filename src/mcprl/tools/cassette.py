"""A cassette: recorded tool calls in one SQLite file, looked up by server, version, tool and arguments.

Callers must record only successful calls to tools without side effects. Each operation is one statement in write-ahead
mode, so tasks, threads and processes of one machine may share the file. A crash loses at most the last recordings and
never damages the file. (Write-ahead mode needs a local file system.)

A cassette may come from an untrusted source. So it must have exactly the tables below, and no views or triggers, which
our statements would run. The size of each value and the number of steps of each statement are limited.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, cast

from pydantic import BaseModel, ConfigDict, TypeAdapter

from mcprl.bounds import MAX_CASSETTE_STEPS, MAX_CASSETTE_VALUE_BYTES, decode_json
from mcprl.errors import CassetteError
from mcprl.files import canonical_json
from mcprl.secrets import SECRETS
from mcprl.tools.catalog import ToolDefinition

ANY_VERSION = ""
"""Marks recordings whose server version is unknown, as in old logs. They match every version."""

_APPLICATION_ID = 0x6D63726C
_LAYOUT = 1
_BUSY_S = 30.0
_TABLES = (
    "CREATE TABLE recordings (id INTEGER PRIMARY KEY, server TEXT NOT NULL, version TEXT NOT NULL, tool TEXT NOT NULL,"
    " arguments TEXT NOT NULL, answer BLOB NOT NULL, truncated INTEGER NOT NULL)",
    "CREATE INDEX recordings_by_call ON recordings (server, tool, arguments, version)",
    # AUTOINCREMENT: a listing that is recorded again gets the highest id, even if it replaces the last row.
    "CREATE TABLE listings (id INTEGER PRIMARY KEY AUTOINCREMENT, server TEXT NOT NULL, version TEXT NOT NULL,"
    " definitions TEXT NOT NULL, UNIQUE (server, version))",
)
# What SQLite adds for AUTOINCREMENT and UNIQUE.
_ADDED = {("sqlite_sequence", "CREATE TABLE sqlite_sequence(name,seq)"), ("sqlite_autoindex_listings_1", None)}
_SCHEMA = {(statement.split()[2], statement) for statement in _TABLES} | _ADDED
_NO_DATA = re.compile(r"(?i)\b(?:no|not)\b.{0,60}\b(?:found|available|exist|data|results?)\b")
_NO_DATA_BYTES = 300
_STEPS_BETWEEN_LOOKS = 100_000
_FEWEST_STEPS = 2_000_000
_RECORD = """
INSERT INTO recordings (server, version, tool, arguments, answer, truncated) SELECT ?1, ?2, ?3, ?4, ?5, ?6
WHERE NOT EXISTS (
    SELECT 1 FROM (
        SELECT answer, truncated FROM recordings
        WHERE server = ?1 AND version = ?2 AND tool = ?3 AND arguments = ?4 ORDER BY id DESC LIMIT 1
    ) WHERE answer = ?5 AND truncated = ?6
)"""
_FIND = """
SELECT version, answer, truncated FROM recordings
WHERE server = ?1 AND tool = ?3 AND arguments = ?4 AND version IN (?2, '')
ORDER BY version = ?2 DESC, id DESC LIMIT 1"""
_ALL = """
SELECT server, version, tool, arguments, answer, truncated,
    row_number() OVER (PARTITION BY server, version, tool, arguments ORDER BY id)
FROM recordings ORDER BY server, tool, arguments, version, id"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One recorded answer. If the same call got different answers, `ordinal` numbers them from 1, oldest first.

    Recording(server="fmp", version="1.2.0", tool="fmp_get_quote", arguments={"symbol": "AAPL"},
              text="**AAPL - Apple Inc.**\\nPrice: $213.88", truncated=False, ordinal=1)
    """

    server: str
    version: str
    tool: str
    arguments: Mapping[str, Any]
    text: str
    truncated: bool = False
    ordinal: int = 1


class Cassette:
    """An open cassette. Open it with `Cassette.open`; close it with `close` or a `with` block."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._looks = 0
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_CASSETTE_VALUE_BYTES)
        connection.set_progress_handler(self._takes_too_long, _STEPS_BETWEEN_LOOKS)

    @classmethod
    def open(cls, path: Path, *, writable: bool) -> Cassette:
        """Open a cassette. With `writable`, create the file if it does not exist."""
        if not writable and not path.is_file():
            raise CassetteError(
                f"cassette {path} does not exist",
                fix="record one with servers.cassette_mode=record, or import one with `mcprl tasks import`",
            )
        if writable:
            cls.require_folder(path)
        try:
            connection = _connect(path, writable=writable)
        except sqlite3.Error as error:
            raise _unusable(path, error) from error
        cassette = cls(path, connection)
        try:
            cassette._prepare(writable=writable)
        except BaseException:
            connection.close()
            raise
        return cassette

    @staticmethod
    def require_folder(path: Path) -> None:
        """Raise CassetteError if a cassette cannot be created because its folder does not exist."""
        if not path.parent.is_dir():
            raise CassetteError(
                f"cassette {path} cannot be created: its folder does not exist", fix="create the folder"
            )

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def find(self, server: str, version: str, tool: str, arguments: Mapping[str, Any]) -> Recording | None:
        """Return the newest answer of exactly this server version, else the newest of an unknown version, else None."""
        known = _clean(arguments)
        rows = self._run(_FIND, (server, version, tool, canonical_json(known)))
        if not rows:
            return None
        found_version, answer, truncated = rows[0]
        return Recording(
            server=server,
            version=found_version,
            tool=tool,
            arguments=known,
            text=self._decoded(answer),
            truncated=bool(truncated),
        )

    def record(
        self, server: str, version: str, tool: str, arguments: Mapping[str, Any], text: str, *, truncated: bool = False
    ) -> None:
        """Store an answer with its secrets redacted. Does nothing if it equals the call's newest stored answer."""
        key = canonical_json(_clean(arguments))
        # Encode to bytes, because SQLite rejects text with unpaired surrogates.
        answer = SECRETS.redact(text).encode("utf-8", "surrogatepass")
        self._run(_RECORD, (server, version, tool, key, answer, truncated))

    def record_tools(self, server: str, version: str, tools: Iterable[ToolDefinition]) -> None:
        """Store the tools that a server lists, in the server's order, so that replay works without the server."""
        clean = [ToolDefinition(**_clean(asdict(tool))) for tool in tools]
        entries = [{**asdict(tool), "fingerprint": tool.fingerprint()} for tool in clean]
        values = (server, version, json.dumps(entries))
        self._run("INSERT OR REPLACE INTO listings (server, version, definitions) VALUES (?, ?, ?)", values)

    def tools(self) -> Mapping[str, tuple[str, tuple[ToolDefinition, ...]]]:
        """Return the version and the tools of each server's newest listing. Servers are in the order first recorded."""
        newest = {server: (version, definitions) for server, version, definitions in self.listings()}
        return {
            server: (version, tuple(definition for definition, _ in definitions))
            for server, (version, definitions) in newest.items()
        }

    def listings(self) -> Iterator[tuple[str, str, list[tuple[ToolDefinition, str]]]]:
        """Yield every recorded listing, oldest first: server, version, and each definition with its fingerprint."""
        for server, version, text in self._run("SELECT server, version, definitions FROM listings ORDER BY id"):
            try:
                entries = _ENTRIES.validate_python(decode_json(text)[0])
            except (ValueError, TypeError) as error:
                raise _damaged(self.path, f"the tools of server {server!r} are unreadable: {error}") from error
            yield (
                server,
                version,
                [(ToolDefinition(**entry.model_dump(exclude={"fingerprint"})), entry.fingerprint) for entry in entries],
            )

    def recordings(self) -> Iterator[Recording]:
        """Yield every recording, sorted by server, tool and arguments; different answers to a call are oldest first."""
        for server, version, tool, key, answer, truncated, ordinal in self._run(_ALL):
            try:
                arguments = decode_json(key)[0]
                is_canonical = canonical_json(arguments) == key
            except (ValueError, TypeError) as error:
                raise _damaged(self.path, f"the arguments of a call to {tool!r} are not JSON") from error
            if not isinstance(arguments, dict):
                raise _damaged(self.path, f"the arguments of a call to {tool!r} are not an object")
            if not is_canonical:
                raise _damaged(self.path, f"the arguments of a call to {tool!r} are not in canonical form")
            yield Recording(
                server=server,
                version=version,
                tool=tool,
                arguments=cast("dict[str, Any]", arguments),
                text=self._decoded(answer),
                truncated=bool(truncated),
                ordinal=ordinal,
            )

    def recorded_tools(self) -> frozenset[tuple[str, str]]:
        """Return the tools that have recordings, as (server, tool)."""
        return frozenset((server, tool) for server, tool in self._run("SELECT DISTINCT server, tool FROM recordings"))

    def no_data(self, server: str, tool: str, arguments: Mapping[str, Any]) -> str:
        """Return a tool's "no data" answer to a call: adapted from another recording, or else a plain sentence.

        Recorded: {"ticker": "X"} → "No price data found for X". So {"ticker": "Y"} gets "No price data found for Y".
        """
        statement = "SELECT arguments, answer FROM recordings WHERE server = ? AND tool = ? AND length(answer) < ?"
        for key, answer in self._run(statement, (server, tool, _NO_DATA_BYTES)):
            text, known = self._decoded(answer), cast("dict[str, Any]", decode_json(key)[0])
            if _NO_DATA.search(text):
                for name in sorted(known, key=lambda name: -len(str(known[name]))):
                    text = text.replace(str(known[name]), str(arguments.get(name, ""))) if str(known[name]) else text
                return text
        return f"No data found for {', '.join(str(value) for value in arguments.values()) or 'this call'}."

    def _prepare(self, *, writable: bool) -> None:
        """Reject a file that is not a cassette before writing to it; create the tables in an empty one."""
        if self._is_empty() and writable:
            self._create_tables()
        application, layout = self._number("application_id"), self._number("user_version")
        if application != _APPLICATION_ID:
            raise _no_cassette(self.path)
        if layout != _LAYOUT:
            raise CassetteError(
                f"cassette {self.path} has format {layout}, but this version of mcprl reads format {_LAYOUT}",
                fix="record or import the calls again, or use the version of mcprl that wrote the cassette",
            )
        if {(name, sql) for name, sql in self._run("SELECT name, sql FROM sqlite_master")} != _SCHEMA:
            raise CassetteError(
                f"{self.path} does not have the tables of a cassette", fix="record or import the calls again"
            )

    def _is_empty(self) -> bool:
        return self._run("SELECT count(*) FROM sqlite_master") == [(0,)] and self._number("application_id") == 0

    def _create_tables(self) -> None:
        self._enter_write_ahead_mode()
        self._run("BEGIN IMMEDIATE")
        try:
            # Another process may have created them before we got the lock.
            if self._is_empty():
                for statement in _TABLES:
                    self._run(statement)
                self._run(f"PRAGMA application_id = {_APPLICATION_ID}")
                self._run(f"PRAGMA user_version = {_LAYOUT}")
            self._run("COMMIT")
        except CassetteError:
            self._connection.rollback()
            raise

    def _enter_write_ahead_mode(self) -> None:
        """Switch to write-ahead mode. SQLite's busy timeout does not cover this statement, so wait for locks here."""
        give_up = time.monotonic() + _BUSY_S
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() > give_up:
                    raise _unusable(self.path, error) from error
            time.sleep(0.01)

    def _number(self, pragma: str) -> int:
        return cast("int", self._run(f"PRAGMA {pragma}")[0][0])

    def _run(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        self._looks = 0
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise _unusable(self.path, error) from error
        except UnicodeDecodeError as error:  # a text of the file, or SQLite's message that quotes one
            raise _damaged(self.path, "it contains text that is not UTF-8") from error

    def _takes_too_long(self) -> bool:
        """Return True to stop a statement after too many steps: a damaged file may cause a loop. Called by SQLite."""
        self._looks += 1
        steps = self._looks * _STEPS_BETWEEN_LOOKS
        files = (self.path, Path(f"{self.path}-wal"))
        return steps > _FEWEST_STEPS and steps > MAX_CASSETTE_STEPS * sum(
            file.stat().st_size for file in files if file.exists()
        )

    def _decoded(self, answer: object) -> str:
        try:
            return cast("bytes", answer).decode("utf-8", "surrogatepass")
        except (AttributeError, UnicodeDecodeError) as error:
            raise _damaged(self.path, "a recorded answer is not text") from error


def _connect(path: Path, *, writable: bool) -> sqlite3.Connection:
    def connect(options: str) -> sqlite3.Connection:
        # No implicit transactions, because each statement is atomic. Any thread may use the connection.
        uri = f"{path.absolute().as_uri()}?{options}"
        opened = sqlite3.connect(uri, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        opened.execute("PRAGMA trusted_schema = OFF")
        return opened

    if writable:
        connection = connect("mode=rwc")
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection
    if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        # The last reader to close removes the -wal and -shm files, if it has write access.
        connection = connect("mode=rw")
        connection.execute("PRAGMA query_only = ON")
        return connection
    # Without write access, SQLite can read a file in write-ahead mode only if it is opened as immutable.
    return connect("mode=ro" if Path(f"{path}-wal").exists() else "mode=ro&immutable=1")


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    description: str
    parameters: dict[str, Any]
    output_schema: dict[str, Any] | None
    read_only: bool
    idempotent: bool
    episodic: bool
    fingerprint: str


_ENTRIES = TypeAdapter(list[_Entry])


def _clean(value: Mapping[str, Any]) -> dict[str, Any]:
    return cast("dict[str, Any]", SECRETS.redact_json(value))


def _no_cassette(path: Path) -> CassetteError:
    return CassetteError(f"{path} is not a cassette", fix="use a file that mcprl recorded, or a new file")


def _damaged(path: Path, why: str) -> CassetteError:
    return CassetteError(f"cassette {path} is damaged: {why}", fix="restore an intact copy, or record the calls again")


def _unusable(path: Path, error: sqlite3.Error) -> CassetteError:
    name = getattr(error, "sqlite_errorname", "")
    if name == "SQLITE_NOTADB":
        return _no_cassette(path)
    if name.startswith("SQLITE_CORRUPT") or (not name and isinstance(error, sqlite3.OperationalError)):  # not UTF-8
        return _damaged(path, str(error))
    if name == "SQLITE_INTERRUPT":
        return _damaged(path, "reading the file takes too long")
    if name == "SQLITE_TOOBIG":
        return _damaged(path, f"it contains a value of more than {MAX_CASSETTE_VALUE_BYTES} bytes")
    return CassetteError(
        f"cassette {path} cannot be used: {error}",
        fix="check the file's permissions, the free space, and whether another process uses the file",
    )

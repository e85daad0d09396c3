"""All episodes of a run in an in-memory database, which is updated from the run's files.

Loading has two stages. The plain columns of a file load first, so a table of a hundred thousand episodes is ready
quickly. The columns extracted from the turns (tools, faults, the text to search) load in the background, newest first.
Until then, responses include the number of episodes that are still `pending`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Container, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Condition, Lock, Thread
from typing import Any

import duckdb

from mcprl.records import Trajectory
from mcprl.runs.trajectories import decode_trajectory
from mcprl_dashboard.answers import Refusal
from mcprl_dashboard.line_files import Cursor, LineFile, Signature, file_signature, step_files
from mcprl_dashboard.questions import EpisodeKey, Filter, Page

PREVIEW_CHARACTERS = 160

COLUMNS = """
    file BIGINT, step BIGINT, task_id VARCHAR, member BIGINT, reward DOUBLE, solved BOOLEAN, stop VARCHAR,
    duration_s DOUBLE, turns BIGINT, calls BIGINT, faults BIGINT, tokens BIGINT, sampled_tokens BIGINT,
    tools VARCHAR[], preview VARCHAR, text VARCHAR, live BOOLEAN
"""

TURN_SHAPE = (
    '[{"text":"VARCHAR","calls":[{"name":"VARCHAR","arguments":"JSON"}],'
    '"observations":[{"tool":"VARCHAR","text":"VARCHAR","fault":"VARCHAR"}]}]'
)

# The same as `mcprl.episodes.succeeded`, but without importing all modules that run episodes. A test compares them.
SOLVED = """
    CASE WHEN coalesce(parts['answer'], parts['state'], parts['check'], parts['rubric']) IS NOT NULL
    THEN coalesce(parts['answer'] >= 1, true) AND coalesce(parts['state'] >= 1, true)
        AND coalesce(parts['check'] >= 1, true) AND coalesce(parts['rubric'] >= 0.5, true)
    WHEN parts['calls'] IS NOT NULL THEN parts['calls'] = 1
    ELSE coalesce(list_bool_and([part.value >= 0.5 FOR part IN map_entries(parts)
        IF part.key NOT IN ('invalid_call', 'unanswered')]), false)
    END
"""

_PARTS = """
    coalesce(try(json_transform(reward_parts, '"MAP(VARCHAR, DOUBLE)"')), MAP {}::MAP(VARCHAR, DOUBLE)) AS parts
"""
# The number in step-00012.parquet. A file belongs to the step in its name, even if its rows say otherwise.
_FILE = r"regexp_extract(filename, 'step-(\d+)\.parquet$', 1)::BIGINT AS file"

LIGHT_ROWS = f"""
    SELECT file, step, task_id, member, reward, {SOLVED} AS solved, stop, duration_s,
        NULL::BIGINT AS turns, NULL::BIGINT AS calls, NULL::BIGINT AS faults, NULL::BIGINT AS tokens,
        NULL::BIGINT AS sampled_tokens, NULL::VARCHAR[] AS tools, NULL::VARCHAR AS preview, NULL::VARCHAR AS text,
        false AS live
    FROM (
        SELECT {_FILE}, step::BIGINT AS step, task_id::VARCHAR AS task_id, member::BIGINT AS member,
            reward::DOUBLE AS reward, stop::VARCHAR AS stop, duration_s::DOUBLE AS duration_s, {_PARTS}
        FROM read_parquet($files, filename = true)
    )
"""

_HALF_PAIRS = r"'\\u[dD][89abAB][0-9a-fA-F]{2}|\\u[dD][c-fC-F][0-9a-fA-F]{2}'"
_ALL_CALLS = "flatten(list_transform(said, lambda turn: turn.calls))"
_ALL_OBSERVATIONS = "flatten(list_transform(said, lambda turn: turn.observations))"

FULL_ROWS = rf"""
    SELECT file, step, task_id, member, reward, {SOLVED} AS solved, stop, duration_s,
        coalesce(len(said), 0) AS turns, coalesce(len(called), 0) AS calls,
        coalesce(len(list_filter(seen, lambda one: one.fault IS NOT NULL)), 0) AS faults,
        tokens, sampled_tokens,
        coalesce(list_distinct(list_transform(called, lambda call: call.name)), []) AS tools,
        left(coalesce(said[-1].text, ''), {PREVIEW_CHARACTERS}) AS preview,
        lower(concat_ws(chr(10),
            array_to_string(list_transform(said, lambda turn: turn.text), chr(10)),
            array_to_string(list_transform(called, lambda call: concat_ws(' ', call.name, call.arguments)), chr(10)),
            array_to_string(list_transform(seen, lambda one: one.text), chr(10))
        )) AS text,
        false AS live
    FROM (
        SELECT *, {_ALL_CALLS} AS called, {_ALL_OBSERVATIONS} AS seen
        FROM (
            SELECT {_FILE}, step::BIGINT AS step, task_id::VARCHAR AS task_id, member::BIGINT AS member,
                reward::DOUBLE AS reward, stop::VARCHAR AS stop, duration_s::DOUBLE AS duration_s, {_PARTS},
                len(sampled) AS tokens, list_aggregate(sampled, 'count_if') AS sampled_tokens,
                coalesce(
                    try(json_transform(turns::VARCHAR, '{TURN_SHAPE}')),
                    try(json_transform(regexp_replace(turns::VARCHAR, {_HALF_PAIRS}, '\uFFFD', 'g'), '{TURN_SHAPE}'))
                ) AS said
            FROM read_parquet($files, filename = true)
        )
    )
"""


class _Journal:
    """The episodes of one journal, by task and member number. If an episode has several lines, the last counts."""

    def __init__(self, path: Path, step: int) -> None:
        self.file = LineFile(path, lambda line: _episode(line, step))
        self.episodes: dict[tuple[str, int], Trajectory] = {}
        self._cursor = Cursor()

    def refresh(self) -> bool:
        """Read new lines. Return whether something changed."""
        news = self.file.since(self._cursor)
        self._cursor = news.cursor
        if news.reset:
            self.episodes = {}
        for trajectory in news.entries:
            self.episodes[trajectory.task_id, trajectory.member] = trajectory
        return news.reset or bool(news.entries)


class LiveEpisodes:
    """Follows the journals of a run. A line is valid if it is complete and its checksum is correct."""

    def __init__(self, run: Path) -> None:
        self._folder = run / "journal"
        self._journals: dict[int, _Journal] = {}

    @property
    def problems(self) -> list[str]:
        """Return a sentence for each journal that has invalid lines."""
        return [
            f"journal/step-{step:05d}.jsonl has {journal.file.damaged} damaged lines"
            for step, journal in sorted(dict(self._journals).items())
            if journal.file.damaged
        ]

    def finished(self) -> dict[int, int]:
        """Return the number of finished episodes per unfinished step."""
        return {step: len(journal.episodes) for step, journal in sorted(dict(self._journals).items())}

    def refresh(self, recorded: Container[int]) -> bool:
        """Read new lines. Return whether something changed. Steps in `recorded` are skipped."""
        paths = {step: path for step, path in step_files(self._folder, "jsonl").items() if step not in recorded}
        changed = False
        for step in [step for step in self._journals if step not in paths]:
            del self._journals[step]
            changed = True
        for step, path in paths.items():
            changed = self._journals.setdefault(step, _Journal(path, step)).refresh() or changed
        return changed

    def row(self, step: int, task_id: str, member: int) -> dict[str, Any] | None:
        """Return an episode in the format of a trajectories file."""
        journal = self._journals.get(step)
        trajectory = journal.episodes.get((task_id, member)) if journal is not None else None
        if trajectory is None:
            return None
        fields = asdict(trajectory)
        return fields | {name: json.dumps(fields[name]) for name in ("turns", "reward_parts")} | {"live": True}

    def index_rows(self) -> list[tuple[Any, ...]]:
        """Return all episodes as rows of the index."""
        return [_index_row(t) for journal in dict(self._journals).values() for t in journal.episodes.values()]


def _episode(line: bytes, step: int) -> Trajectory | None:
    checksum, _, encoded = line.partition(b" ")
    if hashlib.sha256(encoded).hexdigest().encode() != checksum:
        return None
    try:
        trajectory = decode_trajectory(encoded)
    except ValueError:
        return None
    return trajectory if trajectory.step == step else None


def _index_row(trajectory: Trajectory) -> tuple[Any, ...]:
    calls = [call for turn in trajectory.turns for call in turn.calls]
    seen = [observation for turn in trajectory.turns for observation in turn.observations]
    texts = [turn.text for turn in trajectory.turns]
    texts += [f"{call.name} {_compact(call.arguments)}" for call in calls]
    texts += [observation.text for observation in seen]
    faults = sum(observation.fault is not None for observation in seen)
    tools = sorted({_storable(call.name) for call in calls})
    preview = _storable(texts[len(trajectory.turns) - 1][:PREVIEW_CHARACTERS]) if trajectory.turns else ""
    # In the order of COLUMNS.
    identity = (trajectory.step, trajectory.step, trajectory.task_id, trajectory.member)
    outcome = (trajectory.reward, _succeeded(trajectory.reward_parts), trajectory.stop.value, trajectory.duration_s)
    counts = (len(trajectory.turns), len(calls), faults, len(trajectory.token_ids), sum(trajectory.sampled))
    return (*identity, *outcome, *counts, tools, preview, _storable("\n".join(texts).lower()), True)


def _succeeded(parts: Mapping[str, float]) -> bool:
    """Return what SOLVED computes, for episodes that are not recorded yet."""
    least = {"answer": 1.0, "state": 1.0, "check": 1.0, "rubric": 0.5}
    checked = [parts[name] >= bar for name, bar in least.items() if name in parts]
    if checked or "calls" in parts:
        return all(checked) if checked else parts["calls"] == 1.0
    own = [value >= 0.5 for name, value in parts.items() if name not in ("invalid_call", "unanswered")]
    return bool(own) and all(own)


def _compact(arguments: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(arguments), ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        return ""


def _storable(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_FILES_AT_ONCE = 12  # some thousands of episodes; other queries can run between two batches
_FRESH_S = 0.25
CLOSE_S = 2.0
_MAX_COMPLETED_FILES = 4
_SHOWN = (
    "step, task_id, member, reward, solved, stop, turns, calls, faults, tokens, sampled_tokens, duration_s, tools, "
    "preview, live"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The episodes that match a filter: the total, one page of rows, and the number not indexed yet.

    Found(total=812, rows=[{"step": 12, "task_id": "meet-ana", …}], pending=0)
    """

    total: int
    rows: list[dict[str, Any]]
    pending: int


class EpisodeIndex:
    """The episodes of one run. Any thread may query it; each query sees one consistent state.

    Once it is closed, every query raises Refusal, including running ones.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._folder = run / "trajectories"
        self._live = LiveEpisodes(run)
        self._database = SharedDatabase()
        with self._database.cursor() as cursor:
            # `light` has the rows of files whose turns were not read yet; `full_rows` has complete rows.
            cursor.execute(f"CREATE TABLE light ({COLUMNS}); CREATE TABLE full_rows ({COLUMNS})")
            cursor.execute(
                "CREATE VIEW episodes AS SELECT *, false AS pending FROM full_rows "
                "UNION ALL SELECT *, true AS pending FROM light"
            )
        self._known: dict[int, Signature] = {}
        self._pending: set[int] = set()
        self._problems: dict[int, str] = {}
        self._lock = Lock()
        self._filling: Thread | None = None
        self._fresh_until = 0.0

    def close(self, within_s: float = CLOSE_S) -> None:
        """Interrupt queries and background work, and free the memory.

        Wait at most `within_s` for work that cannot be interrupted. Such work frees its memory when it ends.
        """
        until = time.monotonic() + within_s
        self._database.close(within_s)
        if (filling := self._filling) is not None:
            filling.join(max(0.0, until - time.monotonic()))

    @property
    def problems(self) -> list[str]:
        """Return a sentence for each file that cannot be read. All other files are indexed."""
        return [self._problems[step] for step in sorted(self._problems)] + self._live.problems

    def refresh(self) -> None:
        """Load changed files, unless this was done a moment ago."""
        with self._lock:
            if time.monotonic() < self._fresh_until:
                return
            files = self._files()
            gone = [step for step, known in self._known.items() if files.get(step) != known]
            new = [step for step, found in files.items() if self._known.get(step) != found]
            if gone:
                self._forget(gone)
            if new:
                self._load_light(sorted(new))
                self._known |= {step: files[step] for step in new}
            if self._live.refresh(set(self._known)):
                self._replace_live()
            if self._pending and (self._filling is None or not self._filling.is_alive()):
                filling = Thread(target=self._fill, name="episode-index", daemon=True)
                filling.start()
                self._filling = filling  # set only now, because `close` joins it from another thread
            self._fresh_until = time.monotonic() + _FRESH_S

    def wait(self) -> None:
        """Wait until the turns of all files are read."""
        while (filling := self._filling) is not None and filling.is_alive():
            filling.join()

    def find(self, wanted: Filter, page: Page) -> Found:
        """Return a page of the episodes that match a filter."""
        condition, parameters = wanted.condition()
        with self._database.cursor() as cursor:
            cursor.begin()  # all queries below see one state
            # Materialized, so that the texts are searched only once for the page and the count.
            chosen = cursor.execute(
                f"WITH found AS MATERIALIZED (SELECT {_SHOWN}, pending FROM episodes WHERE {condition}) "
                f"SELECT *, (SELECT count(*) FROM found) AS total FROM found {page.clause()}",
                parameters,
            )
            rows = _dicts(chosen)
            totals = [row.pop("total") for row in rows]
            if not rows and page.offset:  # the page is after the last row
                totals = [_count(cursor, f"SELECT count(*) FROM episodes WHERE {condition}", parameters)]
            needs_turns = wanted.needs_turns or page.sort in ("turns", "tokens")
            pending = _count(cursor, "SELECT count(*) FROM light") if needs_turns else 0
        self._complete([row for row in rows if row.pop("pending")])
        return Found(total=totals[0] if totals else 0, rows=rows, pending=pending)

    def facets(self) -> dict[str, Any]:
        """Return the values to filter by, with counts."""
        with self._database.cursor() as cursor:
            cursor.begin()
            summary = cursor.execute("SELECT count(*), min(step), max(step) FROM episodes").fetchone() or (0, 0, 0)
            return {
                "episodes": summary[0],
                "steps": [summary[1], summary[2]] if summary[0] else [],
                "tasks": _counts(cursor, "SELECT task_id, count(*) FROM episodes GROUP BY 1 ORDER BY 1", "id"),
                "tools": _counts(
                    cursor,
                    "SELECT tool, count(*) FROM (SELECT unnest(tools) AS tool FROM full_rows) "
                    "GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 1000",
                    "name",
                ),
                "stops": _counts(cursor, "SELECT stop, count(*) FROM episodes GROUP BY 1 ORDER BY 2 DESC, 1", "name"),
                "pending": _count(cursor, "SELECT count(*) FROM light"),
            }

    def group(self, step: int, task_id: str) -> list[dict[str, Any]]:
        """Return the episodes of a task in a step, sorted by member number."""
        wanted = Filter(task=task_id, step_from=step, step_to=step)
        return sorted(self.find(wanted, Page(limit=500)).rows, key=lambda row: row["member"])

    def of_task(self, task_id: str) -> list[dict[str, Any]]:
        """Return step, member, reward and solved of all episodes of a task, sorted in that order."""
        with self._database.cursor() as cursor:
            return _dicts(
                cursor.execute(
                    "SELECT step, member, reward, solved FROM episodes WHERE task_id = $task ORDER BY step, member",
                    {"task": task_id},
                )
            )

    def stored(self, key: EpisodeKey) -> dict[str, Any] | None:
        """Return an episode's row from its file, with turns and reward parts as JSON text; None if it has no row."""
        live = self._live.row(key.step, key.task_id, key.member)
        if live is not None:
            return live
        path = self._folder / f"step-{key.step:05d}.parquet"
        if key.step not in self._known or key.step in self._problems:
            return None
        query = "SELECT * FROM read_parquet($file) WHERE task_id = $task AND member = $member LIMIT 1"
        parameters = {"file": str(path), "task": key.task_id, "member": key.member}
        try:
            with self._database.cursor() as cursor:
                found = _dicts(cursor.execute(query, parameters))
        except duckdb.Error as error:
            self._note(key.step, error)
            return None
        return found[0] | {"live": False} if found else None

    def _files(self) -> dict[int, Signature]:
        """Return the signature of each file, by step."""
        files = step_files(self._folder, "parquet").items()
        return {step: found for step, path in files if (found := file_signature(path)) is not None}

    def _forget(self, steps: Sequence[int]) -> None:
        with self._database.cursor() as cursor:
            cursor.begin()
            for table in ("light", "full_rows"):
                condition = "list_contains($steps, file) AND NOT live"
                cursor.execute(f"DELETE FROM {table} WHERE {condition}", {"steps": [*steps]})
            cursor.commit()
        for step in steps:
            self._known.pop(step, None)
            self._problems.pop(step, None)
        self._pending -= set(steps)

    def _load_light(self, steps: Sequence[int]) -> None:
        """Load files in one query, which is fast. If a file cannot be read, split the files in halves to find it."""
        try:
            self._insert("light", LIGHT_ROWS, steps)
        except duckdb.Error as error:
            if len(steps) == 1:
                self._note(steps[0], error)
                return
            middle = len(steps) // 2
            self._load_light(steps[:middle])
            self._load_light(steps[middle:])
        else:
            self._pending |= set(steps)

    def _fill(self) -> None:
        """Read the turns of pending files in the background, newest first."""
        with contextlib.suppress(Refusal):  # closed in the meantime
            while True:
                with self._lock:
                    newest = sorted(self._pending, reverse=True)[:_FILES_AT_ONCE]
                    steps = {step: self._known[step] for step in newest if step in self._known}
                if not steps:
                    return
                self._load_full(steps)

    def _load_full(self, steps: Mapping[int, Signature]) -> None:
        try:
            self._insert("full_rows", FULL_ROWS, list(steps), unless_changed=steps)
        except duckdb.TransactionException:
            return  # a file was dropped in the meantime; the rest is tried again
        except duckdb.Error as error:
            if len(steps) > 1:
                for step, signature in steps.items():
                    self._load_full({step: signature})
                return
            for step in steps:
                self._note(step, error)
        with self._lock:
            self._pending -= {step for step, signature in steps.items() if self._known.get(step) == signature}

    def _insert(
        self, table: str, rows: str, steps: Sequence[int], *, unless_changed: Mapping[int, Signature] | None = None
    ) -> None:
        """Load files into a table. `unless_changed`: replace their `light` rows; do nothing if a file has changed."""
        with self._database.cursor() as cursor:
            cursor.begin()
            cursor.execute(f"INSERT INTO {table} {rows}", {"files": self._paths(steps)})
            if unless_changed is None:
                cursor.commit()
                return
            with self._lock:
                if all(self._known.get(step) == signature for step, signature in unless_changed.items()):
                    cursor.execute("DELETE FROM light WHERE list_contains($steps, file)", {"steps": list(steps)})
                    cursor.commit()

    def _paths(self, steps: Sequence[int]) -> list[str]:
        return [str(self._folder / f"step-{step:05d}.parquet") for step in steps]

    def _replace_live(self) -> None:
        with self._database.cursor() as cursor:
            cursor.begin()
            cursor.execute("DELETE FROM full_rows WHERE live")
            rows = self._live.index_rows()
            if rows:
                cursor.executemany(f"INSERT INTO full_rows VALUES ({', '.join('?' * len(rows[0]))})", rows)
            cursor.commit()

    def _complete(self, rows: Sequence[dict[str, Any]]) -> None:
        """For rows that are not indexed yet, fill in the columns derived from turns, unless there are many rows."""
        steps = sorted({row["step"] for row in rows})
        if not rows or len(steps) > _MAX_COMPLETED_FILES:
            return
        try:
            with self._database.cursor() as cursor:
                found = _dicts(cursor.execute(f"SELECT {_SHOWN} FROM ({FULL_ROWS})", {"files": self._paths(steps)}))
        except duckdb.Error:
            return  # the background thread gets the same error and records it
        whole = {(row["step"], row["task_id"], row["member"]): row for row in found}
        for row in rows:
            row.update(whole.get((row["step"], row["task_id"], row["member"]), {}))

    def _note(self, step: int, error: duckdb.Error) -> None:
        reason = str(error).splitlines()[0][:200]
        self._problems[step] = f"trajectories/step-{step:05d}.parquet cannot be read: {reason}"


def _dicts(result: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    names = [column[0] for column in result.description or []]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def _counts(cursor: duckdb.DuckDBPyConnection, query: str, name: str) -> list[dict[str, Any]]:
    return [{name: found, "count": count} for found, count in cursor.execute(query).fetchall()]


def _count(cursor: duckdb.DuckDBPyConnection, query: str, parameters: Mapping[str, Any] | None = None) -> int:
    counted = cursor.execute(query, dict(parameters or {})).fetchone()
    return counted[0] if counted else 0


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
    what = "the episodes of this run are no longer available: the dashboard is closing, or the run was removed"
    return Refusal(503, "closed", what, "start `mcprl dashboard` again, or choose another run")

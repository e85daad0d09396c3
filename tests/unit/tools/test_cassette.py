"""Cassettes: what goes in comes out again, under one key a call, whoever writes and whatever happens to the file."""
# R15

from __future__ import annotations

import asyncio
import json
import math
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import mcp_types
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcprl.errors import CassetteError
from mcprl.files import canonical_json
from mcprl.secrets import SECRETS
from mcprl.tools.cassette import ANY_VERSION, Cassette
from mcprl.tools.catalog import ToolDefinition, definition_of

QUOTE = ToolDefinition(
    name="quote",
    description="A price.",
    parameters={"type": "object", "properties": {"symbol": {"type": "string"}}, "required": ["symbol"]},
    read_only=True,
)
TEXTS = st.text(st.characters(exclude_categories=[]), max_size=8)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3))
ARGUMENTS = st.dictionaries(TEXTS, VALUES, max_size=4)


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "calls.sqlite"


@pytest.fixture
def cassette(path):
    with Cassette.open(path, writable=True) as opened:
        yield opened


def reversed_keys(value):
    if isinstance(value, dict):
        return {key: reversed_keys(value[key]) for key in reversed(value)}
    return [reversed_keys(item) for item in value] if isinstance(value, list) else value


def same(one, other) -> bool:
    """Whether two JSON values mean the same: Python's equality, but with true told from 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    both_numbers = isinstance(one, int | float) and isinstance(other, int | float)
    return one == other and (both_numbers or type(one) is type(other))


@given(ARGUMENTS)
def test_the_order_of_arguments_does_not_matter(arguments):
    assert canonical_json(arguments) == canonical_json(reversed_keys(arguments))


@given(ARGUMENTS, ARGUMENTS)
@example({"x": 1}, {"x": True})
@example({"x": 0}, {"x": False})
@example({"x": 1}, {"x": "1"})
@example({"x": None}, {"x": "null"})
@example({"x": {}}, {"x": []})
@example({"x": "caf\u00e9"}, {"x": "cafe\u0301"})
def test_two_calls_share_a_key_exactly_where_their_arguments_mean_the_same(one, other):
    assert (canonical_json(one) == canonical_json(other)) is same(one, other)


@given(ARGUMENTS)
def test_a_key_is_json_that_means_the_arguments(arguments):
    key = canonical_json(arguments)
    assert same(json.loads(key), arguments)
    assert canonical_json(json.loads(key)) == key


@pytest.mark.parametrize(
    ("one", "other"), [(1, 1.0), (0, -0.0), (10**22, 1e22), ([2.0, {"a": 3.0}], [2, {"a": 3}]), ((1, 2), [1, 2])]
)
def test_equal_numbers_have_one_key(one, other):
    assert canonical_json({"x": one}) == canonical_json({"x": other})


@pytest.mark.parametrize("value", [math.nan, math.inf, {1: "a"}, object(), {"s": {1}}], ids=lambda v: type(v).__name__)
def test_what_is_no_json_has_no_key(value):
    with pytest.raises(ValueError, match=r"\w"):
        canonical_json({"x": value})


def test_endless_nesting_has_no_key():
    nested: list = []
    nested.append(nested)
    with pytest.raises(ValueError, match="nested too deeply"):
        canonical_json({"x": nested})


def test_a_recorded_call_is_found_by_its_server_version_tool_and_arguments(cassette):
    cassette.record("fmp", "1", "quote", {"symbol": "A", "limit": 2}, "Price: 1", truncated=True)
    found = cassette.find("fmp", "1", "quote", {"limit": 2.0, "symbol": "A"})
    assert (found.text, found.truncated, found.version) == ("Price: 1", True, "1")
    assert cassette.find("other", "1", "quote", {"symbol": "A", "limit": 2}) is None
    assert cassette.find("fmp", "2", "quote", {"symbol": "A", "limit": 2}) is None
    assert cassette.find("fmp", "1", "news", {"symbol": "A", "limit": 2}) is None
    assert cassette.find("fmp", "1", "quote", {"symbol": "A"}) is None


def test_a_recording_without_version_answers_for_any_but_the_exact_version_is_preferred(cassette):
    cassette.record("fmp", "2", "quote", {}, "of version 2")
    cassette.record("fmp", ANY_VERSION, "quote", {}, "of an old log")
    assert cassette.find("fmp", "2", "quote", {}).text == "of version 2"
    assert cassette.find("fmp", "3", "quote", {}).text == "of an old log"
    assert cassette.find("fmp", ANY_VERSION, "quote", {}).text == "of an old log"


def test_the_newest_of_differing_answers_is_found_and_all_are_kept_in_order(cassette):
    for text in ("old", "new", "new", "old"):
        cassette.record("s", "1", "t", {}, text)
    assert cassette.find("s", "1", "t", {}).text == "old"
    assert [(r.text, r.ordinal) for r in cassette.recordings()] == [("old", 1), ("new", 2), ("old", 3)]


@given(TEXTS)
def test_any_text_comes_back_as_it_was(text):
    # Checked against the registry, because a text that looks like a key is struck out on purpose.
    connection = sqlite3.connect(":memory:", isolation_level=None)
    memory = Cassette(Path(":memory:"), connection)
    memory._prepare(writable=True)
    memory.record("s", "1", "t", {"q": text}, text)
    assert memory.find("s", "1", "t", {"q": text}).text == SECRETS.redact(text)
    memory.close()


def test_secrets_in_answers_and_arguments_never_reach_the_file_and_the_call_is_still_found(path):
    key = "9f8e7d6c5b4a39281706f5e4d3c2b1a0"
    url = f"https://api.example.com/v3/quote?apikey={key}"
    with Cassette.open(path, writable=True) as cassette:
        cassette.record("s", "1", "fetch", {"url": url}, f"404 for url: {url}")
        cassette.record_tools("s", "1", [ToolDefinition(name="fetch", description=url, parameters={})])
        assert key not in cassette.find("s", "1", "fetch", {"url": url}).text
    assert key.encode() not in path.read_bytes()


def test_the_tools_of_a_server_come_back_whole_in_their_order(cassette):
    tools = [
        QUOTE,
        ToolDefinition(
            name="b", description="", parameters={}, output_schema={"type": "object"}, read_only=True, idempotent=True
        ),
    ]
    cassette.record_tools("z", "1", [])
    cassette.record_tools("fmp", "1", tools)
    assert cassette.tools() == {"fmp": ("1", tuple(tools)), "z": ("1", ())}
    assert list(cassette.tools()) == ["z", "fmp"]


def test_the_newest_listing_of_a_server_counts_also_where_its_version_came_back(cassette):
    cassette.record_tools("fmp", "1", [QUOTE])
    cassette.record_tools("fmp", "2", [])
    assert cassette.tools() == {"fmp": ("2", ())}
    cassette.record_tools("fmp", "1", [QUOTE])
    assert cassette.tools() == {"fmp": ("1", (QUOTE,))}


def test_a_definition_is_taken_from_a_listing_with_its_hints():
    hints = mcp_types.ToolAnnotations(read_only_hint=True, idempotent_hint=True)
    listed = mcp_types.Tool(name="a", input_schema={"type": "object"}, annotations=hints)
    assert definition_of(listed) == ToolDefinition(
        name="a", description="", parameters={"type": "object"}, read_only=True, idempotent=True
    )
    silent = definition_of(mcp_types.Tool(name="a", description="A.", input_schema={}))
    assert (silent.description, silent.read_only, silent.idempotent) == ("A.", False, False)


def test_a_fingerprint_changes_with_every_field_and_not_with_the_order_of_keys():
    shuffled = ToolDefinition(**{**vars_of(QUOTE), "parameters": reversed_keys(QUOTE.parameters)})
    assert shuffled.fingerprint() == QUOTE.fingerprint()
    changes = {"name": "q", "description": "x", "parameters": {}, "output_schema": {}, "read_only": False}
    changed = [ToolDefinition(**{**vars_of(QUOTE), name: value}) for name, value in changes.items()]
    changed.append(ToolDefinition(**{**vars_of(QUOTE), "idempotent": True}))
    assert len({definition.fingerprint() for definition in [QUOTE, *changed]}) == 7


def vars_of(definition: ToolDefinition) -> dict:
    return {name: getattr(definition, name) for name in ToolDefinition.__dataclass_fields__}


def test_what_one_wrote_another_reads_at_once_and_a_reader_cannot_write(path):
    with Cassette.open(path, writable=True) as writer:
        writer.record("s", "1", "t", {}, "x")
        with Cassette.open(path, writable=False) as reader:
            writer.record("s", "1", "t", {"n": 1}, "y")
            assert reader.find("s", "1", "t", {"n": 1}).text == "y"
            with pytest.raises(CassetteError, match="cannot be used"):
                reader.record("s", "1", "t", {"n": 2}, "z")
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_cassette_is_read_where_nothing_can_be_written(path, monkeypatch):
    with Cassette.open(path, writable=True) as writer:
        writer.record("s", "1", "t", {}, "x")
    # As root may write anywhere, the answer of the system is given here; SQLite itself then opens for reading only.
    monkeypatch.setattr("os.access", lambda *_: False)
    with Cassette.open(path, writable=False) as reader:
        assert reader.find("s", "1", "t", {}).text == "x"
        assert [file.name for file in path.parent.iterdir()] == [path.name]


WRITER = """
import sys
from pathlib import Path
from mcprl.tools.cassette import Cassette
path, name, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
with Cassette.open(path, writable=True) as cassette:
    for call in range(number):
        cassette.record("s", "1", "t", {"writer": name, "call": call}, "x" * 1000)
"""


@pytest.mark.process
def test_several_processes_make_and_fill_one_cassette_and_nothing_is_lost(path):
    command = [sys.executable, "-c", WRITER, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    writers = [subprocess.Popen([*command, str(name), "150"], **pipes) for name in range(2)]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    with Cassette.open(path, writable=False) as cassette:
        assert len({canonical_json(r.arguments) for r in cassette.recordings()}) == 300
        assert list(cassette._run("PRAGMA integrity_check")) == [("ok",)]


@pytest.mark.process
def test_what_a_killed_process_recorded_is_still_there(path):
    killed = WRITER + "    import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n"
    result = subprocess.run([sys.executable, "-c", killed, str(path), "k", "20"], input="go\n", text=True, timeout=60)
    assert result.returncode == -9
    with Cassette.open(path, writable=True) as cassette:
        assert len(list(cassette.recordings())) == 20
        assert list(cassette._run("PRAGMA integrity_check")) == [("ok",)]


async def test_many_tasks_and_threads_share_one_open_cassette(cassette):
    async def work(task: int) -> None:
        for call in range(20):
            cassette.record("s", "1", "t", {"task": task, "call": call}, f"{task}.{call}")
            await asyncio.sleep(0)
            assert cassette.find("s", "1", "t", {"task": task, "call": call}).text == f"{task}.{call}"

    await asyncio.gather(*(work(task) for task in range(50)))
    threads = [threading.Thread(target=asyncio.run, args=(work(task),)) for task in (100, 101)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(cassette.recordings())) == 52 * 20


def records(path: Path) -> None:
    path.unlink(missing_ok=True)
    with Cassette.open(path, writable=True) as cassette:
        cassette.record_tools("s", "", [QUOTE])
        cassette.record("s", "", "quote", {"symbol": "A"}, "1")


def creates_the_folder(path: Path) -> None:
    path.parent.mkdir()
    records(path)


def restores_a_copy(path: Path) -> None:
    path.write_bytes(path.with_suffix(".copy").read_bytes())


def set_layout(path: Path) -> None:
    change(path, "PRAGMA user_version = 99")


@pytest.mark.parametrize(
    ("spoil", "writable", "advice", "follow"),
    [
        (Path.unlink, False, "record one with servers.cassette_mode=record", records),
        (lambda path: shutil.rmtree(path.parent), True, "create the folder", creates_the_folder),
        (lambda path: path.write_bytes(b"something else " * 100), False, "a file that mcprl recorded", restores_a_copy),
        (lambda path: path.write_bytes(b"something else " * 100), True, "or a new file", Path.unlink),
        (set_layout, False, "record or import the calls again", records),
        (lambda path: change(path, TRIGGER), False, "record or import the calls again", records),
        (lambda path: change(path, "UPDATE recordings SET answer = 3"), False, "an intact copy", restores_a_copy),
        (lambda path: change(path, "UPDATE recordings SET answer = 3"), False, "or record the calls again", records),
    ],
)
def test_following_the_advice_about_a_cassette_makes_it_usable(tmp_path, spoil, writable, advice, follow):
    def use() -> None:
        with Cassette.open(path, writable=writable) as cassette:
            assert len(list(cassette.recordings())) == len(cassette.tools())

    path = tmp_path / "calls" / "calls.sqlite"
    creates_the_folder(path)
    path.with_suffix(".copy").write_bytes(path.read_bytes())
    spoil(path)
    with pytest.raises(CassetteError) as caught:
        use()
    assert advice in caught.value.fix
    follow(path)
    use()


def test_a_cassette_is_usable_once_no_other_process_locks_it(path, monkeypatch):
    monkeypatch.setattr("mcprl.tools.cassette._BUSY_S", 0.01)
    records(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with Cassette.open(path, writable=True) as cassette:
        with pytest.raises(CassetteError, match=r"Fix: check .* whether another process uses the file"):
            cassette.record("s", "", "quote", {"symbol": "B"}, "2")
        other.close()
        cassette.record("s", "", "quote", {"symbol": "B"}, "2")


def test_a_missing_cassette_is_made_for_writing_and_an_error_for_reading(path):
    with pytest.raises(CassetteError, match="does not exist") as caught:
        Cassette.open(path, writable=False)
    assert "tasks import" in caught.value.fix
    assert not path.exists()
    with pytest.raises(CassetteError, match="its folder does not exist"):
        Cassette.open(path.parent / "nowhere" / "c", writable=True)


@pytest.mark.parametrize("writable", [True, False])
@pytest.mark.parametrize(
    "write",
    [
        lambda path: path.write_bytes(b"these are no recorded calls " * 100),
        lambda path: change(path, "CREATE TABLE people (name TEXT)"),
    ],
    ids=["file", "database"],
)
def test_a_file_of_something_else_is_refused_and_left_as_it_was(path, write, writable):
    write(path)
    before = path.read_bytes()
    with pytest.raises(CassetteError, match="is not a cassette"):
        Cassette.open(path, writable=writable)
    assert path.read_bytes() == before


def test_an_empty_file_is_laid_out_for_writing_and_is_no_cassette_to_read(path):
    path.touch()
    with pytest.raises(CassetteError, match="is not a cassette"):
        Cassette.open(path, writable=False)
    with Cassette.open(path, writable=True) as cassette:
        assert cassette.tools() == {}


def test_a_cassette_of_another_layout_is_refused_with_a_fix(path, cassette):
    cassette.close()
    set_layout(path)
    with pytest.raises(CassetteError, match="has format 99, but this version of mcprl reads format 1") as caught:
        Cassette.open(path, writable=True)
    assert "import the calls again" in caught.value.fix


ENDLESS = (
    "DROP TABLE recordings; CREATE VIEW recordings AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
    "SELECT x AS id, 's' AS server, '' AS version, 't' AS tool, '{}' AS arguments, x'' AS answer, 0 AS truncated FROM n"
)
HUGE = (
    "DROP TABLE recordings; CREATE VIEW recordings AS SELECT 1 AS id, 's' AS server, '' AS version, 't' AS tool, "
    "'{}' AS arguments, zeroblob(1000000000) AS answer, 0 AS truncated"
)
TRIGGER = "CREATE TRIGGER t AFTER INSERT ON recordings BEGIN DELETE FROM recordings; END"


def change(path, statements):
    connection = sqlite3.connect(path)
    connection.executescript(statements)
    connection.close()


@pytest.mark.parametrize(
    "statements", [ENDLESS, HUGE, TRIGGER, "CREATE TABLE more (a)", "DROP INDEX recordings_by_call"]
)
@pytest.mark.parametrize("writable", [True, False])
def test_a_cassette_with_other_tables_views_or_triggers_is_refused(path, statements, writable):
    Cassette.open(path, writable=True).close()
    change(path, statements)
    with pytest.raises(CassetteError, match="does not have the tables of a cassette"):
        Cassette.open(path, writable=writable)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE recordings SET answer = 3",
        "UPDATE recordings SET answer = x'ff'",
        "UPDATE recordings SET arguments = 7",
        "UPDATE recordings SET arguments = replace(hex(zeroblob(3000)), '0', '[')",
        "UPDATE recordings SET server = CAST(x'ff' AS TEXT)",
        "UPDATE recordings SET arguments = '{'",
        "UPDATE recordings SET arguments = '[]'",
        """UPDATE recordings SET arguments = '{"a": 1}'""",  # not in canonical form
        "UPDATE listings SET definitions = 5",
        "UPDATE listings SET definitions = '[{}]'",
        "UPDATE listings SET definitions = '[3]'",
        "UPDATE listings SET definitions = replace(definitions, '\"A price.\"', '3')",
        "UPDATE listings SET definitions = replace(hex(zeroblob(3000)), '0', '[')",
    ],
)
def test_a_value_of_another_kind_is_damage_and_not_a_crash(path, statement):
    with Cassette.open(path, writable=True) as cassette:
        cassette.record_tools("s", "", [QUOTE])
        cassette.record("s", "", "t", {"a": 1}, "x")
    change(path, statement)
    with Cassette.open(path, writable=False) as opened, pytest.raises(CassetteError, match="is damaged"):
        print(list(opened.recordings()), opened.tools())


def test_a_statement_and_a_value_are_limited(path):
    with Cassette.open(path, writable=True) as cassette:
        endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
        with pytest.raises(CassetteError, match="reading the file takes too long"):
            cassette._run(endless)
        with pytest.raises(CassetteError, match="a value of more than"):
            cassette._run("SELECT zeroblob(1000000000)")
        cassette.record("s", "", "t", {}, "x")
        assert len(list(cassette.recordings())) == 1


def test_a_damaged_file_is_an_error_with_a_fix(path):
    with Cassette.open(path, writable=True) as cassette:
        for call in range(500):
            cassette.record("s", "1", "t", {"call": call}, "x" * 500)
    content = bytearray(path.read_bytes())
    content[4096 * 3 :] = b"\x5a" * (len(content) - 4096 * 3)
    path.write_bytes(content)
    with Cassette.open(path, writable=False) as cassette, pytest.raises(CassetteError, match="is damaged"):
        list(cassette.recordings())

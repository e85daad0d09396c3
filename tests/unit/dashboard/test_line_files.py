"""A file of lines that another process appends to, tears, cuts and replaces: what a reader gets."""
# R29

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from mcprl_dashboard.line_files import Cursor, JsonLines

LINES = [b'{"step": 0, "x": 1}\n', b'{"step": 1}\n', b"damaged\n", b'{"step": 2, "x": "\xc3\xa9"}\n']


def test_a_line_counts_once_its_end_is_written(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    file = JsonLines(path)
    assert file.entries() == []
    path.write_bytes(LINES[0] + LINES[1][:5])
    assert [entry["step"] for entry in file.entries()] == [0]
    with path.open("ab") as appended:
        appended.write(LINES[1][5:])
    assert [entry["step"] for entry in file.entries()] == [0, 1]


@given(st.lists(st.integers(0, sum(map(len, LINES))), max_size=8))
def test_wherever_the_writing_pauses_each_entry_arrives_once_and_in_order(tmp_path_factory, places: list[int]):
    path = tmp_path_factory.mktemp("lines") / "metrics.jsonl"
    data = b"".join(LINES)
    file, cursor, heard = JsonLines(path), Cursor(), []
    for start, end in zip([0, *sorted(places)], [*sorted(places), len(data)], strict=True):
        with path.open("ab") as appended:
            appended.write(data[start:end])
        news = file.since(cursor)
        assert not news.reset
        cursor = news.cursor
        heard += news.entries
    assert heard == [json.loads(LINES[place]) for place in (0, 1, 3)]


def test_a_file_that_was_cut_replaced_or_removed_is_read_anew(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(LINES[0] + LINES[1])
    file = JsonLines(path)
    cursor = file.now()
    path.write_bytes(LINES[0])
    cut = file.since(cursor)
    assert (cut.reset, [entry["step"] for entry in cut.entries]) == (True, [0])
    other = tmp_path / "other"
    other.write_bytes(LINES[1] + LINES[3] + LINES[0])
    other.replace(path)
    replaced = file.since(cut.cursor)
    assert (replaced.reset, [entry["step"] for entry in replaced.entries]) == (True, [1, 2, 0])
    path.unlink()
    assert file.since(replaced.cursor).reset
    assert file.entries() == []

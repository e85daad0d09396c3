"""`mcprl logs`: the logs of a run, the end of one, and what is added to it."""
# R25

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
import typer
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from mcprl.cli import logs
from mcprl.cli.logs import find_logs, follow_lines, last_lines
from mcprl.errors import NoRunError

APP = typer.Typer()
APP.command()(logs.command)


def make_run(path: Path, changed: float, **files: str) -> None:
    (path / "trajectories").mkdir(parents=True)
    (path / "config.yaml").write_text("name: x\n")
    for name, text in files.items():
        log = path / "logs" / f"{name}.log"
        log.parent.mkdir(exist_ok=True)
        log.write_text(text)
        os.utime(log, (changed, changed))
    for entry in (path / "config.yaml", path):
        os.utime(entry, (changed, changed))


@pytest.fixture
def outputs(tmp_path, monkeypatch) -> Path:
    """Two runs, of which `new` changed last, seen from the folder that outputs is in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    make_run(tmp_path / "outputs" / "old", 1.6e9, vllm="old words\n")
    make_run(tmp_path / "outputs" / "new", 1.7e9, vllm="one\ntwo\x1b[2J\nthree\n", fmp="a tool server\n")
    return tmp_path / "outputs"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(APP, list(arguments))


def test_the_logs_of_the_newest_run_are_listed_with_size_and_age(outputs):
    result = run()
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == ["log", "size", "last", "change"]
    assert {line[0] for line in lines[1:3]} == {"vllm.log", "fmp.log"}
    assert any(line[:3] == ["fmp.log", "14", "bytes"] and line[-1] == "ago" for line in lines)
    assert "mcprl logs outputs/new NAME" in result.stdout


@pytest.mark.parametrize("chosen", [("old", "vllm"), ("outputs/old", "vllm.log"), ("./outputs/old/", "vllm")])
def test_a_run_is_found_by_name_and_by_folder_and_a_log_without_its_ending(outputs, chosen):
    assert run(*chosen).stdout == "old words\n"


def test_a_single_name_that_is_no_run_is_a_log_of_the_newest_run(outputs):
    assert run("fmp").stdout == "a tool server\n"


def test_the_end_of_a_log_is_printed_with_its_control_characters_written_out(outputs):
    assert run("new", "vllm", "--lines", "2").stdout == "two\\x1b[2J\nthree\n"
    assert run("new", "vllm", "-n", "0").stdout == ""


def test_what_looks_like_a_key_is_not_printed(outputs):
    (outputs / "new" / "logs" / "vllm.log").write_text("GET /v1?apikey=8f3a9c2b7d1e4f60 HTTP/1.1\n")
    assert run("new", "vllm").stdout == "GET /v1?apikey=[redacted key] HTTP/1.1\n"


def test_only_lines_with_a_text_are_printed_where_one_is_given(outputs):
    assert run("new", "vllm", "--grep", "t").stdout == "two\\x1b[2J\nthree\n"
    assert run("new", "vllm", "--grep", "nothing").stdout == ""


def test_the_log_of_the_run_itself_is_one_of_its_logs(outputs):
    (outputs / "new" / "train.log").write_text("step 1/4\n")
    assert list(find_logs(outputs / "new")) == ["train.log", "fmp.log", "vllm.log"]
    assert CliRunner().invoke(APP, ["train"]).stdout == "step 1/4\n"


def test_a_folder_below_the_logs_is_listed_too_and_a_dead_link_is_not(outputs):
    (outputs / "new" / "logs" / "workers").mkdir()
    (outputs / "new" / "logs" / "workers" / "worker-0.log").write_text("w\n")
    (outputs / "new" / "logs" / "gone.log").symlink_to("nowhere")
    assert set(find_logs(outputs / "new")) == {"vllm.log", "fmp.log", "workers/worker-0.log"}
    assert run("new", "workers/worker-0").stdout == "w\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nev",), "did you mean 'new'?"),
        (("new", "vlm"), "run new has no log 'vlm' (did you mean 'vllm'?)"),
        (("new", "--follow"), "need the name of a log"),
        (("nowhere/at/all", "vllm"), "nowhere/at/all"),
    ],
)
def test_a_run_or_log_that_is_not_there_is_an_error_with_a_hint(outputs, arguments, said):
    error = run(*arguments).exception
    assert isinstance(error, NoRunError)
    assert said in error.what


def test_where_there_is_no_run_or_no_log_that_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert isinstance(run().exception, NoRunError)
    make_run(tmp_path / "outputs" / "silent", 1.7e9)
    assert run().stdout == "No logs in outputs/silent/logs.\n"


def test_what_is_added_is_printed_as_it_comes_until_ctrl_c(outputs, monkeypatch):
    def follow(path, start, text):
        assert (path.name, start, text) == ("vllm.log", path.stat().st_size, "t")
        yield "ten\x1b[2J"
        raise KeyboardInterrupt

    monkeypatch.setattr("mcprl.cli.logs.follow_lines", follow)
    result = run("new", "vllm", "--follow", "--grep", "t", "-n", "1")
    assert (result.exit_code, result.stdout) == (0, "three\nten\\x1b[2J\n")


def test_following_sees_what_is_appended_cut_and_replaced(tmp_path):
    path = tmp_path / "a.log"
    path.write_text("before\nhalf")
    found, end = last_lines(path, 10, only_whole=True)
    assert found == ["before"]

    def events():
        with path.open("a") as file:
            file.write(" a line\nsecond\n")
        yield
        path.write_text("cut\n")
        yield
        path.rename(tmp_path / "a.log.1")
        yield
        path.write_text("new\nlast without an end")
        yield
        yield

    happening = events()
    lines = list(follow_lines(path, end, wait=lambda: next(happening, happening) is not happening))
    assert lines == ["half a line", "second", "cut", "new", "last without an end"]


def test_the_last_matching_lines_of_a_long_log_are_found(tmp_path):
    path = tmp_path / "long.log"
    path.write_text("".join(f"line {n} {'x' * 100}\n" for n in range(5000)) + "needle\n" + "y\n" * 70000)
    assert last_lines(path, 2)[0] == ["y", "y"]
    assert last_lines(path, 1, "needle")[0] == ["needle"]
    assert last_lines(path, 1, "line 7 ")[0] == [f"line 7 {'x' * 100}"]


@given(st.lists(st.text(st.characters(exclude_characters="\n\r", codec="utf-8"))), st.booleans(), st.integers(0, 8))
def test_the_last_lines_are_those_of_the_whole_file(lines, is_ended, count):
    text = "\n".join(lines) + ("\n" if is_ended and lines else "")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.log"
        path.write_bytes(text.encode())
        found, end = last_lines(path, count)
    whole = text.removesuffix("\n").split("\n") if text else []
    assert found == (whole[-count:] if count else [])
    assert end == len(text.encode())

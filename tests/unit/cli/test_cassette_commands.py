"""`mcprl cassette`, from recorded conversations to a checked cassette, as a user sees it."""
# R25, R31, R32

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mcprl.cli import app
from mcprl.errors import BadValueError, CassetteError
from mcprl.tools.cassettes.cassette import Cassette

ROOT = Path(__file__).parents[3]
BENCH = [sys.executable, str(ROOT / "bench" / "cassette_import.py"), "--ci"]
DATA = ROOT.parent / "shared" / "data"


def exchange(name: str, arguments: dict, content: str) -> list[dict]:
    call = json.dumps({"name": name, "arguments": arguments})
    return [
        {"role": "assistant", "content": f"<tool_call>{call}</tool_call>"},
        {"role": "tool", "content": f"<tool_response>{json.dumps({'content': content})}</tool_response>"},
    ]


@pytest.fixture
def log(tmp_path) -> Path:
    path = tmp_path / "log.json"
    prompt = [
        *exchange("fmp_get_quote", {"symbol": "A"}, "**A**\nPrice: 1"),
        *exchange("fmp_get_quote", {"symbol": "A"}, "**A**\nPrice: 2 [red]not markup[/red] \x1b[31m"),
        *exchange("fmp_get_quote", {"ticker": "A"}, "Error executing tool fmp_get_quote: 'symbol'"),
        *exchange("send_message", {"message": "hi"}, "sent"),
        {"role": "assistant", "content": "<tool_call>{broken</tool_call>"},
    ]
    path.write_text(json.dumps([{"prompt": prompt}]))
    return path


@pytest.fixture
def run(monkeypatch):
    """Runs a command in this process, on a wide screen; an error of mcprl is raised."""
    monkeypatch.setenv("COLUMNS", "200")

    def invoke(*arguments: object):
        return CliRunner().invoke(app, ["cassette", *map(str, arguments)], catch_exceptions=False)

    return invoke


@pytest.fixture
def made(run, log, tmp_path) -> Path:
    path = tmp_path / "calls.sqlite"
    assert run("import", log, "--into", path, "--server", "fmp=fmp_*", "--server", "rest=*").exit_code == 0
    return path


def cells(output: str, first: str) -> list[str]:
    return next(line.split() for line in output.splitlines() if line.split()[:2] == first.split())


def test_an_import_reports_what_went_in_what_did_not_and_why(run, log, tmp_path):
    path = tmp_path / "calls.sqlite"
    result = run(
        *("import", log, "--into", path, "--server", "fmp=fmp_*", "--server", "rest=send_*"),
        *("--alias", "ticker=symbol"),
    )
    assert result.exit_code == 0
    assert result.output.split()[:9] == [
        *("server", "tool", "calls", "recorded", "distinct", "differing", "writes", "errors", "unfit")
    ]
    assert cells(result.output, "fmp fmp_get_quote") == ["fmp", "fmp_get_quote", "3", "2", "1", "1", "1"]
    assert cells(result.output, "rest send_message") == ["rest", "send_message", "1", "1"]
    assert cells(result.output, "total 4") == ["total", "4", "2", "1", "1", "1", "1"]
    assert "2 of 5 calls recorded, 1 of them different." in result.output
    assert "1 calls had different results at different times: the last result is replayed." in result.output
    assert "Treated as writes, by definition or name: send_message (1). --read PATTERN overrides." in result.output
    assert (
        "Definitions inferred from the calls (--tools can provide the real ones): fmp_get_quote, send_message."
        in result.output
    )
    assert "Argument aliases applied: 1. Texts with redacted secrets: 0." in result.output
    assert "unreadable: log.json, row 1, message 9: the call is not JSON" in result.output


def test_tools_that_no_pattern_matches_and_calls_that_do_not_fit_are_named(run, log, tmp_path):
    tools = tmp_path / "tools.json"
    parameters = {"type": "object", "properties": {"symbol": {"enum": ["B"]}}}
    tools.write_text(json.dumps([{"name": "fmp_get_quote", "description": "A price.", "parameters": parameters}]))
    result = run("import", log, "--into", tmp_path / "c", "--server", "fmp=fmp_*", "--tools", tools)
    assert "Left out, because no --server pattern matches: send_message (1)." in result.output
    assert "Unfit calls have arguments that the tool's definition does not allow" in result.output
    assert "Definitions inferred" not in result.output


def test_the_user_says_what_is_a_read_a_write_and_an_error(run, log, tmp_path):
    path = tmp_path / "c"
    run("import", log, "--into", path, "--read", "send_*", "--write", "fmp_*", "--error", "nothing")
    with Cassette.open(path, writable=False) as cassette:
        assert [recording.tool for recording in cassette.recordings()] == ["send_message"]
    run("import", log, "--into", tmp_path / "d", "--error", "Price: 2")
    with Cassette.open(tmp_path / "d", writable=False) as cassette:
        assert [recording.text for recording in cassette.recordings()] == ["**A**\nPrice: 1"]


@pytest.mark.parametrize("option", [("--server", "fmp"), ("--alias", "=x"), ("--alias", "x="), ("--error", "(")])
def test_a_wrong_option_is_an_error_and_makes_no_cassette(run, log, tmp_path, option):
    with pytest.raises(BadValueError):
        run("import", log, "--into", tmp_path / "c", *option)
    assert not (tmp_path / "c").exists()


def test_files_without_any_call_are_an_error_and_make_no_cassette(run, tmp_path):
    empty = tmp_path / "empty.json"
    empty.write_text('[{"prompt": [{"role": "user", "content": "Hi"}]}]')
    with pytest.raises(CassetteError, match="no tool call is recorded in"):
        run("import", empty, "--into", tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_the_tools_of_a_cassette_are_shown_with_their_numbers(run, made):
    output = run("show", made).output
    assert cells(output, "fmp fmp_get_quote") == ["fmp", "fmp_get_quote", "reads", "1", "2"]
    assert cells(output, "rest send_message") == ["rest", "send_message", "may", "write"]
    assert cells(output, "total 1") == ["total", "1", "2"]


def test_recordings_are_shown_by_their_beginning_or_whole_and_command_no_terminal(run, made):
    output = run("show", made, "--tool", "fmp_*").output
    assert output.splitlines() == [
        'fmp  fmp_get_quote {"symbol": "A"}',
        "    **A** Price: 1",
        'fmp  fmp_get_quote {"symbol": "A"}  (answer 2)',
        "    **A** Price: 2 [red]not markup[/red] \\x1b[31m",
    ]
    assert "    **A**\n    Price: 1\n" in run("show", made, "--tool", "fmp_*", "--full").output
    assert "… and 1 more: --limit 2 shows all." in run("show", made, "--tool", "*", "--limit", "1").output
    assert "No recording of a tool that matches 'x'." in run("show", made, "--tool", "x").output


def test_a_sound_cassette_answers_the_calls_it_was_made_from(run, made, log):
    result = run("verify", made, log)
    assert result.exit_code == 0
    sound, share, unreadable = result.output.splitlines()
    assert sound == f"{made} is valid."
    assert share == "Found 2 of 2 calls (100.0%) that can be replayed, 2 of 5 calls (40.0%) in total."
    assert unreadable.startswith("unreadable: log.json, row 1, message 9: ")
    assert "3 of 5 calls (60.0%) in total" in run("verify", made, log, "--alias", "ticker=symbol").output


def test_a_call_that_is_missing_from_the_cassette_is_named_and_the_exit_code_is_1(run, made, tmp_path):
    other = tmp_path / "other.json"
    other.write_text(json.dumps(exchange("fmp_get_quote", {"symbol": "Z"}, "Price: 9")))
    result = run("verify", made, other)
    assert result.exit_code == 1
    assert "Found 0 of 1 calls (0.0%) that can be replayed" in result.output
    assert "missing: other.json, row 1, message 1: fmp_get_quote" in result.output


def test_a_cassette_that_was_tampered_with_is_not_sound(run, made):
    database = sqlite3.connect(made)
    database.execute("UPDATE listings SET definitions = replace(definitions, 'Inferred', 'Deferred')")
    database.commit()
    database.close()
    result = run("verify", made)
    assert result.exit_code == 1
    assert "fault: server 'fmp': the definition of 'fmp_get_quote' is not the one recorded" in result.output
    assert "is valid" not in result.output


def test_a_long_list_of_faults_is_cut_and_says_so(run, made):
    with Cassette.open(made, writable=True) as cassette:
        for number in range(25):
            cassette.record("fmp", "", "fmp_get_quote", {"symbol": number}, "unfit")
    lines = run("verify", made).output.splitlines()
    assert len(lines) == 21
    assert lines[-1] == "fault: … and 5 more"


@pytest.mark.parametrize(
    ("option", "text", "advice"),
    [
        ("log", "{", "a JSON list of rows, or one row per line"),
        ("log", None, "give files of recorded conversations"),
        ("log", "[]", "give files of conversations that contain tool calls"),
        ("tools", "{", '"name", "description" and "parameters"'),
        ("tools", "[3]", '"name", "description" and "parameters"'),
    ],
)
def test_following_the_advice_about_recorded_files_makes_them_usable(run, log, tmp_path, option, text, advice):
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([{"name": "fmp_get_quote", "description": "A price.", "parameters": {}}]))
    command = ("import", log, "--into", tmp_path / "calls.sqlite", "--server", "all=*", "--tools", tools)
    spoilt = {"log": log, "tools": tools}[option]
    sound = spoilt.read_text()
    spoilt.unlink()
    if text is not None:
        spoilt.write_text(text)
    with pytest.raises(CassetteError) as caught:
        run(*command)
    assert advice in caught.value.fix
    spoilt.write_text(sound)
    assert run(*command).exit_code == 0


def test_a_file_that_is_no_cassette_is_one_sentence_with_a_fix(mcprl, log):
    result = mcprl("cassette", "show", str(log))
    assert (result.returncode, result.stdout) == (2, "")
    assert (
        result.stderr == f"mcprl: E-TOOL-009 {log} is not a cassette. Fix: give a file that mcprl recorded, "
        "or a new one. (mcprl explain E-TOOL-009)\n"
    )


@pytest.mark.process
@pytest.mark.skipif(not DATA.is_dir(), reason="the recorded conversations are not beside the project")
def test_the_real_logs_are_found_again_whole_and_without_keys():
    result = subprocess.run([*BENCH, str(DATA)], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout.splitlines()[-1])
    assert figures["calls_seen"] == 1137
    assert figures["identical_found"] == 1.0
    assert figures["share_found_again"] > 0.75
    assert (figures["key_parameters_found"], figures["key_parameters_left"]) == (14, 0)
    assert figures["aliases_applied"] == 20


@pytest.mark.process
def test_the_measurement_without_its_data_says_what_is_missing(tmp_path):
    result = subprocess.run([*BENCH, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout) == (2, "")
    assert f"there are no recorded conversations in {tmp_path}" in result.stderr

"""`mcprl explain`: the page of a code, however it was written, and help with a code that does not exist."""
# R32

from __future__ import annotations

import pytest
import typer
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from mcprl.cli import EXIT_CODES, explain
from mcprl.cli.explain import GROUPS, error_pages, find_page
from mcprl.errors import UnknownKeyError, did_you_mean

APP = typer.Typer()
APP.command()(explain.command)


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(APP, list(arguments))


def words(text: str) -> str:
    return " ".join(text.split())


def test_every_page_is_printed_with_all_its_parts():
    for code in error_pages():
        page = error_pages()[code]
        result = run(code)
        assert result.exit_code == 0
        printed = words(result.stdout)
        assert printed.startswith(f"{code} {page.name} {page.meaning} Whose fault ")
        assert f"Usual causes • {' • '.join(page.causes)} Fix {page.fix}" in printed
        assert printed.endswith(f"Example mcprl: {page.example}")
        assert all(len(line) <= 100 for line in result.stdout.splitlines())


@pytest.mark.parametrize("written", ["E-TOOL-003", "e-tool-003", "TOOL-003", "tool 3", "E_TOOL_3", " tool3 "])
def test_a_code_may_be_written_as_one_remembers_it(written):
    assert run(written).stdout.startswith("E-TOOL-003  UnknownToolError")


def test_a_group_that_begins_with_an_e_keeps_it():
    assert run("eng 1").stdout.startswith("E-ENG-001  ")
    assert run("epis-10").stdout.startswith("E-EPIS-010  ")


def test_without_a_code_all_are_listed_in_their_groups():
    result = run()
    assert result.exit_code == 0
    assert [line for line in result.stdout.splitlines() if line in GROUPS.values()] == list(GROUPS.values())
    for page in error_pages().values():
        assert f"{page.code} {page.meaning}" in words(result.stdout)


def test_a_code_that_does_not_exist_is_an_error_with_the_nearest_code():
    error = run("E-TOL-003").exception
    assert isinstance(error, UnknownKeyError)
    assert EXIT_CODES[error.fault] == 2
    assert "there is no error code 'E-TOL-003' (did you mean 'E-TOOL-003'?)" in error.what


@given(st.text())
def test_whatever_is_written_is_a_known_code_or_an_error(written):
    page = find_page(written)
    assert page is None or page is error_pages()[page.code]


@given(st.sampled_from(list(error_pages())), st.integers(min_value=0, max_value=9), st.characters())
def test_a_code_with_one_wrong_character_is_near_to_the_right_one(code, place, character):
    written = code[:place] + character + code[place + 1 :]
    assert find_page(written) is not None or did_you_mean(written.strip().upper(), error_pages()) != ""

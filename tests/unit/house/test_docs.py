"""The documentation is that of this code: generated pages are fresh, the site builds, and snippets really run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from source_files import ROOT

pytestmark = pytest.mark.process


def docs(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts/docs.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("page", ["configuration.md", "cli.md", "errors.md", "api.md", "llms.txt"])
def test_a_generated_page_says_what_the_code_says(page):
    result = docs("check", page)
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The site, and how building it went."""
    folder = tmp_path_factory.mktemp("site")
    return folder, docs("build", "--site-dir", str(folder))


def test_the_site_builds_without_a_warning(site):
    result = site[1]
    assert result.returncode == 0, result.stdout + result.stderr


def test_marked_snippets_run_and_others_are_counted(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("<!-- run -->\n```bash\ncd src && ls mcprl/records.py\n```\n\n```bash\nexit 1\n```\n")
    result = docs("snippets", str(page))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "1 snippets executed, 1 not executed, 0 failed" in result.stdout


@pytest.mark.parametrize(
    ("block", "shown"),
    [
        ("<!-- run -->\n```bash\nfalse\necho unreachable\n```\n", "exit 1"),
        ("<!-- run -->\n```python\nimport mcprl\nprint(mcprl.nothing)\n```\n", "AttributeError"),
        ("<!-- run timeout=1 -->\n```bash\nsleep 60 | cat\n```\n", "no end after 1 s"),
        ("<!-- run -->\n```json\n{}\n```\n", "cannot run a block of json"),
        ("<!-- run -->\n\n```bash\ntrue\n```\n", "the fence must be on the next line"),
        ("<!-- run -->\n```bash\ntrue\n", "never closed"),
    ],
)
def test_a_snippet_that_cannot_run_fails_with_its_reason(tmp_path: Path, block: str, shown: str):
    page = tmp_path / "page.md"
    page.write_text(block)
    result = docs("snippets", str(page))
    assert result.returncode != 0
    assert shown in result.stdout + result.stderr


def test_a_page_that_shows_what_a_snippet_prints_must_show_what_it_prints_now(tmp_path: Path):
    page = tmp_path / "page.md"
    text = "<!-- run -->\n```bash\necho now\n```\n\n<!-- output -->\n```text\n{}\n```\n"
    page.write_text(text.format("then"))
    result = docs("snippets", str(page))
    assert result.returncode != 0
    assert "prints something else than the page says" in result.stdout
    assert docs("snippets", "--write", str(page)).returncode == 0
    assert page.read_text() == text.format("now")
    assert docs("snippets", str(page)).returncode == 0


def test_an_output_behind_nothing_that_runs_is_refused(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("```bash\necho now\n```\n\n<!-- output -->\n```text\nnow\n```\n")
    result = docs("snippets", str(page))
    assert result.returncode != 0
    assert "stands behind no block that is run" in result.stderr


def test_every_link_that_leads_out_is_well_formed():
    result = docs("links")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "external links, 0 at fault" in result.stdout


def test_the_site_has_the_markdown_of_each_page_that_the_list_for_programs_names(site):
    folder = site[0]
    files = re.findall(r"\]\(([^)]+)\)", (folder / "llms.txt").read_text())
    assert len(files) > 20
    assert [file for file in files if not (folder / file).is_file()] == []

"""Every error has a page with all its parts, in the code and in the documentation."""
# R32

from __future__ import annotations

import re
from collections import Counter

import pytest
from source_files import ROOT

from mcprl import errors
from mcprl.cli.explain import FAULTS, GROUPS, error_pages, read_page
from mcprl.errors import ConfigurationError, McprlError
from mcprl.recipe import settings

DOCS = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
CODES = [
    value.code
    for name in errors.__all__
    if isinstance(value := getattr(errors, name), type) and issubclass(value, McprlError) and "code" in vars(value)
]


def section(code: str) -> str:
    """What the documentation says under the anchor of a code."""
    _, _, after = DOCS.partition(f"\n### {code} {{ #{code.lower()} }}\n")
    return re.split(r"\n##+ ", after)[0]


def test_every_code_has_one_page_and_one_section():
    assert sorted(error_pages()) == sorted(CODES)
    assert Counter(re.findall(r"(?m)^### (\S+)", DOCS)) == Counter(CODES)


def test_a_section_has_all_parts_of_its_page():
    for code in CODES:
        page = error_pages()[code]
        text = section(code)
        assert f"{page.meaning} (`{page.name}`, {page.fault.value})" in text
        assert f"\nCauses: {'; '.join(page.causes)}.\n" in text
        assert f"\nFix: {page.fix}\n" in text


def test_an_example_is_a_sentence_as_an_error_prints_it():
    for code in CODES:
        page = error_pages()[code]
        error = getattr(errors, page.name)
        what, _, fix = page.example.removeprefix(f"{code} ").partition(". Fix: ")
        assert str(error(what, fix=fix.removesuffix("."))) == page.example
        assert page.fix.endswith(".")
        assert page.meaning.endswith(".")


def test_no_two_pages_say_the_same():
    for part in ("meaning", "fix", "example", "causes"):
        said = Counter(getattr(page, part) for page in error_pages().values())
        assert [text for text, count in said.items() if count > 1] == []


def test_every_group_and_fault_is_known():
    assert {page.group for page in error_pages().values()} == set(GROUPS)
    assert {page.fault for page in error_pages().values()} == set(FAULTS)


def test_every_setting_that_a_page_names_exists():
    known = {setting.path for setting in settings()}
    sections = {path.split(".")[0] for path in known if "." in path}
    named = re.compile(rf"(?<![\w/.])(?:{'|'.join(sorted(sections))})\.[a-z_A-Z.]*[a-zA-Z]")
    # A suffix makes it a file; fmp is the server of the examples.
    wrong = {
        f"{page.code} {name}"
        for page in error_pages().values()
        for text in (*page.causes, page.fix)
        for name in named.findall(text)
        if not name.endswith((".md", ".json", ".yaml"))
        if not any(path == name or path.startswith(f"{name}.") for path in known)
    }
    assert wrong == set()


class Whole(ConfigurationError):
    """It went wrong.

    Causes: one thing; another.
    Fix: fix it.
    Example: it went wrong. Fix: fix it.
    """

    code = "E-CONF-999"


def test_a_class_elsewhere_is_no_error_of_mcprl():
    assert Whole.code not in error_pages()
    assert read_page(Whole).causes == ("one thing", "another")


@pytest.mark.parametrize("part", ["It went wrong.\n\n", "Causes: one thing; another.\n", "Fix: fix it.\n", "Example: "])
def test_a_docstring_without_one_of_its_parts_is_refused(part):
    doc = Whole.__doc__.replace("    ", "")
    broken = type("Broken", (Whole,), {"__doc__": doc.replace(part, "", 1)})
    with pytest.raises(ValueError, match="docstring of Broken"):
        read_page(broken)

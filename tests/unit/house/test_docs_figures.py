"""Figures that the documentation quotes are those that were measured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from source_files import ROOT

sys.path.append(str(ROOT / "scripts"))

import docs
from docs_figures import figure_faults
from figures import Figure, write_figure

FIGURES = {
    name: Figure(
        figure="x", value=value, bar="<= 9", holds=True, date="2026-08-01", commit="abc1234", seconds=1.0, code="0"
    )
    for name, value in (("ratio", 1.0637), ("share", 0.6289), ("many", 12345.6), ("drift", -0.25))
}


@pytest.mark.parametrize(
    "text",
    [
        "It is 1.06<!-- figure: ratio --> times as long.",
        "It is 1.0637<!-- figure: ratio --> and **1.1×**<!-- figure: ratio -->.",
        "| 1<!-- figure: ratio --> | 62.9%<!-- figure: share --> | 63 %<!-- figure: share --> |",
        "12,346<!-- figure: many -->, −0.25<!-- figure: drift --> and -0.3<!-- figure: drift -->",
        "no mark: 9.99",
        "```text\n7<!-- figure: ratio -->\n```\n",
        "`7<!-- figure: ratio -->`",
    ],
)
def test_a_figure_is_quoted_to_as_many_digits_as_one_likes(tmp_path: Path, text: str):
    (tmp_path / "page.md").write_text(text)
    assert figure_faults({"page.md": tmp_path / "page.md"}, FIGURES)[1] == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("\n1.07<!-- figure: ratio -->", "page.md:2: ratio was measured as 1.0637, not 1.07"),
        ("1.1%<!-- figure: ratio -->", "page.md:1: ratio was measured as 106.37%, not 1.1"),
        ("62.8%<!-- figure: share -->", "page.md:1: share was measured as 62.89%, not 62.8"),
        ("0.25<!-- figure: drift -->", "page.md:1: drift was measured as -0.25, not 0.25"),
        ("fast<!-- figure: ratio -->", "page.md:1: no number stands before the mark of ratio"),
        ("1.06 ms<!-- figure: ratio -->", "page.md:1: no number stands before the mark of ratio"),
        ("2<!-- figure: none -->", "page.md:1: there is no figure of none. Fix: scripts/promises --full none"),
    ],
)
def test_a_figure_that_was_not_measured_so_is_named_with_its_place(tmp_path: Path, text: str, fault: str):
    (tmp_path / "page.md").write_text(text)
    assert figure_faults({"page.md": tmp_path / "page.md"}, FIGURES) == (1, [fault])


def test_the_check_of_the_documentation_fails_on_such_a_figure(tmp_path: Path, capsys):
    write_figure(tmp_path, "ratio", FIGURES["ratio"])
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text("1.06<!-- figure: ratio -->\n")
    docs.check_figures([page], tmp_path)
    assert "1 quoted figures" in capsys.readouterr().out
    page.write_text("1.05<!-- figure: ratio -->\n")
    with pytest.raises(SystemExit, match=r"docs/page.md:1: ratio was measured as 1.0637, not 1.05"):
        docs.check_figures([page], tmp_path)

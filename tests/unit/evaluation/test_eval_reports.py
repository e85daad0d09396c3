"""Reports: whole, readable without anything else, and safe whatever tasks, tools and categories are called."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_evaluations import make_evaluation, make_trajectory, said
from rich.console import Console

from mcprl.cli.eval import print_report
from mcprl.cli.stages import StageConsole
from mcprl.evaluation.harness import Played
from mcprl.evaluation.report import (
    _amount,
    _line,
    _mean,
    _percent,
    _points,
    comparison_report,
    evaluation_report,
    make_folder,
    to_html,
    to_markdown,
    write_comparison,
    write_report,
)
from mcprl.evaluation.results import ServerCost, compare, read_evaluation
from mcprl.evaluation.statistics import Estimate
from mcprl.records import LostEpisode
from mcprl.runs.trajectories import read_trajectories

HOSTILE = '<script>alert(1)</script>" onload="x" \u202e|`*_[a](javascript:1)\x1b[31m'


class Elements(HTMLParser):
    """Every element of a page with its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs) -> None:
        self.found.append((tag, dict(attrs)))


def hostile_page(name: str) -> str:
    before = make_evaluation([0.2, 0.8], names=[name, "b"], categories=[name], failure=name, suite=name, model=name)
    after = make_evaluation([0.8, 0.2], seed=4, names=[name, "b"], categories=[name], failure=name, suite=name)
    return to_html(evaluation_report(after, compare(before, after)))


@given(st.one_of(st.just(HOSTILE), st.text(min_size=1)))
def test_a_page_has_no_script_and_asks_for_nothing_whatever_things_are_called(name):
    for tag, attributes in Elements(hostile_page(name)).found:
        assert tag not in {"script", "iframe", "object", "embed", "img", "link", "form", "base", "a"}
        assert not any(key.startswith("on") or key in ("style", "src", "href") for key in attributes)


def test_a_page_admits_its_one_sheet_and_nothing_else():
    page = hostile_page(HOSTILE)
    policy = next(a["content"] for tag, a in Elements(page).found if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "prefers-color-scheme:dark" in page
    assert 'name="viewport"' in page


def test_every_plot_is_well_formed_and_has_a_name_for_those_who_cannot_see_it():
    plots = re.findall(r"<svg.*?</svg>", hostile_page(HOSTILE), re.DOTALL)
    assert len(plots) == 2
    for plot in plots:
        root = ElementTree.fromstring(plot)
        assert root.attrib["role"] == "img"
        assert root.attrib["aria-label"]
        assert all(float(v) >= 0 for e in root.iter() for k, v in e.attrib.items() if k in ("width", "height", "r"))


def test_markdown_shows_foreign_names_as_they_are():
    before = make_evaluation([0.2, 0.8], names=[HOSTILE, "b"])
    text = to_markdown(evaluation_report(before, None))
    assert "<script>" not in text.replace("\\<", "").replace("\\>", "")
    assert "\x1b" not in text
    rows = [line for line in text.splitlines() if line.startswith("| \\<script")]
    assert len(re.findall(r"(?<!\\)\|", rows[0])) == 5


@pytest.mark.parametrize("chances", [[0.0] * 3, [1.0] * 3, [0.5]])
@pytest.mark.parametrize("episodes", [1, 5])
def test_extreme_evaluations_are_reported_too(chances, episodes):
    evaluation = make_evaluation(chances, episodes=episodes)
    page = to_html(evaluation_report(evaluation, compare(evaluation, evaluation)))
    assert "nan" not in page.lower().replace("finance", "")
    assert to_markdown(evaluation_report(evaluation, None))


def test_the_folder_of_an_evaluation_holds_results_reports_and_trajectories(tmp_path):
    evaluation = make_evaluation([0.5] * 3)
    trajectories = tuple(make_trajectory(said("Lima"), member=member) for member in range(2))
    folder = make_folder(tmp_path, "made", None)
    write_report(folder, Played(evaluation=evaluation, trajectories=trajectories), compare(evaluation, evaluation))
    assert sorted(path.name for path in folder.iterdir()) == [
        "report.html",
        "report.md",
        "results.json",
        "trajectories.parquet",
    ]
    assert read_evaluation(folder) == evaluation
    assert tuple(read_trajectories(folder / "trajectories.parquet")) == trajectories
    assert make_folder(tmp_path, "made", None) == tmp_path / "eval-made-2"


def test_a_comparison_can_be_written_alone(tmp_path):
    evaluation = make_evaluation([0.5] * 3)
    write_comparison(make_folder(tmp_path, "x", tmp_path / "both"), compare(evaluation, evaluation))
    assert "No difference" in (tmp_path / "both" / "report.md").read_text()
    assert "No difference" in to_html(comparison_report(compare(evaluation, evaluation)))


def test_the_terminal_shows_the_figures_and_no_foreign_command(tmp_path):
    console = Console(record=True, width=160, file=(tmp_path / "out").open("w"))
    before = make_evaluation([0.2, 0.8], names=[HOSTILE, "b"])
    after = make_evaluation(
        [0.9, 0.1],
        names=[HOSTILE, "b"],
        lost={"E-TOOL-011": 3},
        servers={"fmp": ServerCost(calls=9, usd=1.5, restarts=0)},
    )
    print_report(evaluation_report(after, compare(before, after)), Path("outputs/eval-made"), console)
    print_report(comparison_report(compare(before, after)), Path("outputs/both"), console)
    shown = console.export_text()
    assert "\x1b[31m" not in shown
    assert "3 attempts were lost" in shown
    assert "$1.50 in total" in shown
    assert "Report: outputs/eval-made/report.html" in shown


def test_progress_is_a_few_lines_where_there_is_no_terminal(tmp_path):
    console = Console(record=True, width=160, file=(tmp_path / "out").open("w"))
    with StageConsole(20, console) as watcher:
        watcher.stage("starting")
        watcher.episode_finished(
            0, LostEpisode(task_id="t", member=0, attempt=0, code="E-TOOL-011", reason="it went away")
        )
        for member in range(20):
            watcher.episode_finished(0, make_trajectory(said("Lima"), member=member))
        watcher.step_finished(0, {}, ())
    lines = console.export_text().splitlines()
    assert len(lines) == 12
    assert "played again: t/0 (E-TOOL-011 it went away)" in lines[1]
    assert lines[-1].endswith("20 of 20 episodes")


def test_numbers_are_worded_alike_everywhere():
    estimate = Estimate(value=0.125, low=-0.03125, high=0.28)
    assert _percent(Estimate(value=0.42, low=0.312, high=0.54)) == "42.0% (31.2 to 54.0)"
    assert _points(estimate) == "+12.5 points (−3.1 to +28.0)"
    assert _mean(estimate) == "0.125 (−0.031 to 0.280)"
    assert _points(Estimate(value=-0.0)) == "+0.0 points"
    assert [_amount(value) for value in (3, 2.44, 1204.2)] == ["3", "2.4", "1,204"]
    assert _line("a\n" * 200).endswith("…")

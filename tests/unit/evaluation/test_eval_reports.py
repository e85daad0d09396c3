"""Reports: whole, readable without anything else, and safe whatever tasks, tools and categories are called."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest
from rich.console import Console

from made_evaluations import make_evaluation, make_trajectory, said
from mcprl.cli.eval import print_report
from mcprl.cli.stages import StageConsole
from mcprl.episodes.endpoint import EndpointUse
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
    to_markdown,
    write_comparison,
    write_report,
)
from mcprl.evaluation.results import ServerCost, compare, read_evaluation
from mcprl.evaluation.statistics import Estimate, count_figures
from mcprl.records import LostEpisode, Source
from mcprl.runs.trajectories import read_trajectories

HOSTILE = '<script>alert(1)</script>" onload="x" \u202e|`*_[a](javascript:1)\x1b[31m'


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
    page = to_markdown(evaluation_report(evaluation, compare(evaluation, evaluation)))
    assert "nan" not in page.lower().replace("finance", "")
    assert to_markdown(evaluation_report(evaluation, None))


def test_the_folder_of_an_evaluation_holds_results_reports_and_trajectories(tmp_path):
    evaluation = make_evaluation([0.5] * 3)
    trajectories = tuple(make_trajectory(said("Lima"), member=member) for member in range(2))
    folder = make_folder(tmp_path, "made", None)
    write_report(folder, Played(evaluation=evaluation, trajectories=trajectories), compare(evaluation, evaluation))
    assert sorted(path.name for path in folder.iterdir()) == [
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
    assert "No significant difference" in (tmp_path / "both" / "report.md").read_text()


def test_the_terminal_shows_the_figures_and_no_foreign_command(tmp_path):
    console = Console(record=True, width=160, file=(tmp_path / "out").open("w"))
    before = make_evaluation([0.2, 0.8], names=[HOSTILE, "b"])
    after = make_evaluation(
        [0.9, 0.1],
        names=[HOSTILE, "b"],
        lost={"E-TOOL-011": 3},
        servers={"fmp": ServerCost(calls=9, usd=1.5, restarts=0)},
        endpoint=EndpointUse(requests=12, prompt_tokens=3400, completion_tokens=120, usd=0.25),
    )
    print_report(evaluation_report(after, compare(before, after)), Path("outputs/eval-made"), console)
    print_report(comparison_report(compare(before, after)), Path("outputs/both"), console)
    shown = console.export_text()
    assert "\x1b[31m" not in shown
    assert "3 attempts were lost" in shown
    assert "3,400 prompt tokens, 120 completion tokens, $0.2500. $1.75 in total." in " ".join(shown.split())
    assert "Report: outputs/eval-made/report.md" in shown


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
    assert "will be rerun: t/0 (E-TOOL-011 it went away)" in lines[1]
    assert lines[-1].endswith("20 of 20 episodes")


def test_numbers_are_worded_alike_everywhere():
    estimate = Estimate(value=0.125, low=-0.03125, high=0.28)
    assert _percent(Estimate(value=0.42, low=0.312, high=0.54)) == "42.0% (31.2 to 54.0)"
    assert _points(estimate) == "+12.5 points (−3.1 to +28.0)"
    assert _mean(estimate) == "0.125 (−0.031 to 0.280)"
    assert _points(Estimate(value=-0.0)) == "+0.0 points"
    assert [_amount(value) for value in (3, 2.44, 1204.2)] == ["3", "2.4", "1,204"]
    assert _line("a\n" * 200).endswith("…")


def test_the_share_of_replayed_calls_that_were_recorded_is_shown_per_tool():
    made = make_evaluation([0.5] * 3)
    assert not any("covered" in table.columns for table in evaluation_report(made, None).tables)

    # One tool is live, one has recordings of half of its calls, one has none of them.
    sources = {
        "find_person": cycle([Source.LIVE]),
        "convert_time": cycle([Source.CASSETTE, Source.MISSING]),
        "search_news": cycle([Source.MISSING]),
    }
    episodes = [
        replace(episode, calls=tuple(replace(call, source=next(sources[call.tool])) for call in episode.calls))
        for episode in made.episodes
    ]
    figures = count_figures(made.tasks, episodes)
    assert figures.tools["find_person"].covered is None
    assert figures.tools["convert_time"].covered == pytest.approx(0.5, abs=0.1)
    assert figures.tools["search_news"].covered == 0.0
    (table,) = (t for t in evaluation_report(replace(made, figures=figures), None).tables if t.title == "By tool")
    place = table.columns.index("covered")
    assert {row[0]: row[place] for row in table.rows}["search_news"] == "0.0%"
    assert {len(row) for row in table.rows} == {len(table.columns)}

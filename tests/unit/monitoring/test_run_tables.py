"""Runs as a terminal shows them: a line each, one in full, several side by side with their curves."""
# R28

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from mcprl.monitoring.run_tables import (
    RunComparison,
    RunDetails,
    RunList,
    cautions,
    differing_settings,
    next_command,
    plot_lines,
    sparkline,
)
from mcprl.training.checkpoints import Checkpoint, Damaged
from mcprl.training.past_runs import PastRun, RunStatus
from mcprl.verdicts import Severity, Verdict

NOW = 1.7e9
RUN = PastRun(
    path=Path("outputs/hello"),
    state=RunStatus.STOPPED,
    started=NOW - 7000,
    changed=NOW - 200,
    files={"checkpoints": 3_000_000, "config.yaml": 2000},
    config={"name": "hello", "seed": 7, "model": {"path": "some/model"}, "training": {"steps": 20}},
    metrics=tuple(
        {"step": n, "reward": reward, "success_rate": n / 4, "weights_version": n + 1.0, "kl": 0.01, "step_s": 30.0}
        for n, reward in enumerate((0.1, 0.5, 0.4))
    ),
    verdicts=(Verdict(severity=Severity.WARN, name="clipping", what="the clip cuts off much", fix="slow down"),),
    journaled=4,
)
HOSTILE = "\x1b[2J[red]x[/nothing]"


def shown(renderable: object, *, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(renderable, crop=False)
    text = console.file.getvalue()
    assert all(len(line) <= width for line in text.splitlines())
    return "\n".join(line.rstrip() for line in text.splitlines())


def test_a_run_is_a_line_with_state_steps_rewards_course_age_and_size():
    lines = shown(RunList([RUN], now=NOW)).splitlines()
    assert lines[0].split() == ["run", "state", "steps", "reward", "course", "changed", "size"]
    assert " ".join(lines[1].split()) == "hello stopped 3/20 +0.10 → +0.40 ▁█▆ 3 min ago 3.0 MB"
    assert lines[2:] == ["", "To go on with what stopped:", "  mcprl resume outputs/hello"]


def test_a_command_stays_one_line_so_that_it_can_be_copied():
    run = replace(RUN, path=Path("far/" * 30) / "hello")
    for renderable in (RunList([run], now=NOW), RunDetails(run, [], now=NOW)):
        console = Console(file=io.StringIO(), width=80, highlight=False)
        console.print(renderable, crop=False)
        assert f"mcprl resume {run.path}\n" in console.file.getvalue()


def test_only_what_stopped_is_offered_to_be_resumed():
    others = [replace(RUN, state=state) for state in RunStatus if state is not RunStatus.STOPPED]
    assert "resume" not in shown(RunList(others, now=NOW))


def test_a_run_that_cannot_be_read_says_why_below():
    run = replace(RUN, state=RunStatus.UNREADABLE, metrics=(), config={}, why="config.yaml is missing")
    text = shown(RunList([run], now=NOW))
    assert "0/?" in text
    assert "hello cannot be read: config.yaml is missing" in text


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_course_gives_way_where_the_line_is_short(width):
    runs = [replace(RUN, path=Path(f"outputs/{'long-' * n}name")) for n in range(6)]
    text = shown(RunList(runs, now=NOW), width=width)
    assert ("course" in text) == (width >= 100)
    # Numbers never wrap.
    assert text.count("+0.10 → +0.40") == text.count("3.0 MB") == 6


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(1, "just now"), (119, "119 s ago"), (7199, "119 min ago"), (90_000, "25 h ago"), (2e5, "2 days")],
)
def test_ages_are_in_the_largest_unit_of_which_there_are_two(seconds, words):
    assert words in shown(RunList([replace(RUN, changed=NOW - seconds)], now=NOW))


@given(st.lists(st.floats(-1e6, 1e6), max_size=60), st.integers(1, 30))
def test_a_sparkline_is_no_longer_than_asked_and_shows_lowest_and_highest(values, width):
    line = sparkline(values, width)
    assert len(line) == min(width, len(values))
    assert set(line) <= set("▁▂▃▄▅▆▇█")
    if len(values) <= width and len(set(values)) > 1:
        assert line[values.index(max(values))] == "█"
        assert line[values.index(min(values))] == "▁"


def test_a_sparkline_of_what_does_not_change_is_level():
    assert sparkline([0.3] * 5, 4) == "▄▄▄▄"


@given(
    st.dictionaries(
        st.sampled_from("ox+"), st.lists(st.tuples(st.integers(1, 500), st.floats(-100, 100)), max_size=30), max_size=3
    )
)
def test_a_plot_has_every_curve_within_80_columns_and_its_ends_on_the_axes(curves):
    lines = plot_lines(curves)
    points = [point for curve in curves.values() for point in curve]
    if not points:
        assert lines == []
        return
    assert all(len(line) <= 80 for line in lines)
    axis = lines[-2].index("+")
    assert {line[axis] for line in lines[1:-1]} == {"+", "|"}
    drawn = set("".join(line[axis + 1 :] for line in lines[1:-2])) - {" "}
    assert drawn <= {*curves, "&"}
    assert "&" in drawn or drawn == {symbol for symbol, curve in curves.items() if curve}
    assert lines[-1].split()[0] == str(min(step for step, _ in points))
    assert str(max(step for step, _ in points)) in lines[-1]


def test_a_plot_puts_points_where_they_belong():
    lines = plot_lines({"o": [(1, 0.0), (11, 1.0)], "x": [(1, 0.0), (6, 0.5)]})
    top, bottom = lines[1], lines[-3]
    assert (top.startswith("+1.000 +"), bottom.startswith("+0.000 +")) == (True, True)
    assert top.endswith("o")
    assert bottom == "+0.000 +&"  # both runs
    (middle,) = [line for line in lines if "x" in line]
    assert abs(middle.index("x") - (8 + len(top) - 1) / 2) <= 1


def test_details_have_where_the_run_stands_and_what_to_do_next():
    found = [
        Checkpoint(step=2, path=Path("step-00002"), bytes=1_000_000),
        Damaged(path=Path("step-00003"), why="policy.safetensors is not as it was written"),
    ]
    text = shown(RunDetails(RUN, found, now=NOW))
    for part in (
        "hello  stopped",
        "steps         3 of 20",
        "weights       version 3",
        "reward        +0.100 → +0.400, best +0.500 at step 2",
        "success rate  0% → 50%",
        "time          0:01:30, 30.0 s a step",
        "journal       4 finished episodes that no checkpoint covers; resuming uses them",
        "✓  KL a token, mean",
        "verdicts on step 3\nwarn clipping: the clip cuts off much. Try: slow down.",
        "✓  step-00002  1.0 MB  whole",
        "✗  step-00003          damaged: policy.safetensors is not as it was written",
        "model.path      some/model",
        "checkpoints     3.0 MB",
        "Next: mcprl resume outputs/hello",
    ):
        assert part in text


def test_details_of_a_run_without_anything_are_short():
    run = replace(RUN, state=RunStatus.UNREADABLE, config={}, metrics=(), verdicts=(), journaled=0, why="no YAML")
    text = shown(RunDetails(run, [], now=NOW))
    assert "cannot be read: no YAML" in text
    assert not any(word in text for word in ("verdicts", "reward", "checkpoint ", "setting", "Next"))


def test_what_comes_next_depends_on_where_a_run_stands():
    def after(state: RunStatus, **files: int) -> str:
        return next_command(replace(RUN, path=Path("my runs/a"), state=state, files=files))

    assert after(RunStatus.STOPPED) == after(RunStatus.FAILED_TO_START) == "mcprl resume 'my runs/a'"
    assert after(RunStatus.FINISHED, adapter=1) == "mcprl try 'my runs/a/config.yaml' --adapter 'my runs/a/adapter'"
    assert after(RunStatus.FINISHED, model=1).startswith("mcprl try 'my runs/a/config.yaml' --set 'model.path=/")
    assert after(RunStatus.RUNNING) == after(RunStatus.UNREADABLE) == ""


def other(**sections: object) -> PastRun:
    return replace(RUN, path=Path("outputs/other"), config={**RUN.config, "name": "other", **sections})


def test_settings_that_differ_are_named_but_not_the_name_of_the_run():
    assert differing_settings([RUN, other()]) == {}
    assert differing_settings([RUN, other(seed=8, training={"steps": 20, "tasks_per_step": 4})]) == {
        "seed": ["7", "8"],
        "training.tasks_per_step": ["–", "4"],
    }


def test_a_caution_stands_where_seeds_tasks_rewards_or_steps_differ():
    assert cautions([RUN, other()]) == []
    assert [words.split(":")[0] for words in cautions([RUN, other(seed=8)])] == ["the seeds differ"]
    assert [words.split(":")[0] for words in cautions([RUN, other(tasks={"train": "b"})])] == ["the tasks differ"]
    assert "counted differently" in cautions([RUN, other(rewards={"calls": 0.0})])[0]
    assert "numbers of steps" in cautions([RUN, replace(other(), metrics=RUN.metrics[:2])])[0]


def test_a_comparison_has_settings_figures_curves_and_cautions():
    text = " ".join(shown(RunComparison([RUN, other(seed=8)])).split())
    for part in (
        "setting o hello x other seed 7 8",
        "reward, mean of last 5 +0.333 +0.333",
        "KL a token, mean 1.0e-02 1.0e-02",
        "sampled tokens a second – –",
        "o hello x other & several",
        "Caution: the seeds differ: a part of every difference is chance.",
    ):
        assert part in text
    assert "The settings are the same." in shown(RunComparison([RUN, other()]))


def test_many_runs_are_spread_over_tables_and_namesakes_told_apart():
    runs = [replace(RUN, path=Path(f"somewhere/{n}/hello")) for n in range(8)]
    text = shown(RunComparison(runs))
    assert text.count("updates skipped") == 3
    assert "".join(text.split()).count("somewhere/7/hello") == 2  # over its column, and below the curves


def test_words_from_files_neither_command_the_terminal_nor_are_markup():
    run = replace(
        RUN,
        path=Path(f"outputs/{HOSTILE.replace('/', '')}"),
        config={"name": HOSTILE, "model": {"path": HOSTILE}, HOSTILE: HOSTILE},
        files={HOSTILE: 1},
        state=RunStatus.UNREADABLE,
        why=HOSTILE,
    )
    damaged = Damaged(path=Path("step-\x1b"), why=HOSTILE)
    for renderable in (RunList([run], now=NOW), RunDetails(run, [damaged], now=NOW), RunComparison([run, RUN])):
        text = shown(renderable, width=200)
        assert "\x1b" not in text
        assert "\\x1b[2J[red]x[" in text

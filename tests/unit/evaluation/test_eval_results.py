"""What is counted over episodes, kept as JSON, and compared task by task."""

from __future__ import annotations

import dataclasses
import json

import pytest

from made_evaluations import make_evaluation
from mcprl.errors import BadValueError, ConfigFileError
from mcprl.evaluation.results import compare, comparison_json, read_evaluation, write_evaluation
from mcprl.evaluation.statistics import count_figures


def test_figures_add_up_to_the_episodes_that_they_are_counted_from():
    evaluation = make_evaluation([0.1, 0.5, 0.9, 0.5, 0.2], episodes=3)
    figures = evaluation.figures
    assert (figures.tasks, figures.episodes) == (5, 15)
    assert figures.success.value == pytest.approx(sum(e.success for e in evaluation.episodes) / 15)
    assert sum(figures.failures.values()) == sum(not e.success for e in evaluation.episodes)
    assert sum(part.episodes for part in figures.categories.values()) == 15
    assert sum(tool.calls for tool in figures.tools.values()) == sum(len(e.calls) for e in evaluation.episodes)
    assert sum(figures.turn_counts.values()) == 15
    assert figures.pass_at[1] == figures.pass_all[1] == figures.success
    assert figures.pass_all[3].value <= figures.success.value <= figures.pass_at[3].value
    assert list(figures.categories) == ["easy", "medium", "hard"]


def test_latencies_are_those_of_calls_that_reached_their_server():
    evaluation = make_evaluation([0.5] * 6)
    for tool in evaluation.figures.tools.values():
        assert 0.0 < tool.latency_p50_s <= tool.latency_p95_s
        assert 0.0 <= tool.errors <= tool.valid <= 1.0


def test_a_task_with_fewer_episodes_bounds_k_and_nothing_else():
    evaluation = make_evaluation([0.5, 0.5], episodes=4)
    first, second = evaluation.tasks
    short = dataclasses.replace(second, episodes=2, solved=1)
    assert list(count_figures([first, short], evaluation.episodes).pass_at) == [1, 2]


def test_an_evaluation_is_read_back_as_it_was_written(tmp_path):
    evaluation = make_evaluation([0.1, 0.9], names=["half \ud83d", "b"], lost={"E-TOOL-011": 2})
    write_evaluation(tmp_path, evaluation, {"comparison": {"p": 1.0}})
    assert read_evaluation(tmp_path) == read_evaluation(tmp_path / "results.json") == evaluation
    assert json.loads((tmp_path / "results.json").read_text())["schema"] == 1


@pytest.mark.parametrize("text", ["[]", "{}", "no JSON", '{"schema": 2}', "\x00"])
def test_a_file_that_is_not_an_evaluation_is_refused_by_name(tmp_path, text):
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(ConfigFileError, match=r"results\.json does not contain an evaluation"):
        read_evaluation(tmp_path)


def test_a_folder_without_results_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigFileError, match="cannot be read"):
        read_evaluation(tmp_path)


def test_two_evaluations_are_compared_on_the_tasks_that_both_played():
    before = make_evaluation([0.0] * 8, seed=1)
    after = make_evaluation([1.0] * 6 + [0.0], seed=2, adapter="outputs/market/adapter")
    comparison = compare(before, after)
    assert (comparison.tasks, comparison.won, comparison.lost) == (7, 6, 0)
    assert (comparison.before, comparison.after) == (0.0, pytest.approx(6 / 7))
    assert comparison.p == pytest.approx(2 / 2**6)
    assert comparison.left_out == ("task-7",)
    assert comparison.after_name == "smollm2-135m with market/adapter"
    assert comparison.verdict.startswith("Significantly better")
    assert compare(after, before).verdict.startswith("Significantly worse")
    assert json.loads(json.dumps(comparison_json(comparison)))["won"] == 6


def test_an_evaluation_against_itself_shows_no_difference():
    evaluation = make_evaluation([0.3] * 9)
    comparison = compare(evaluation, evaluation)
    assert (comparison.p, comparison.difference.value, comparison.won, comparison.lost) == (1.0, 0.0, 0, 0)
    assert comparison.difference.low < 0.0 < comparison.difference.high
    assert comparison.verdict.startswith("No significant difference")


def test_a_task_that_reads_differently_is_no_pair():
    before = make_evaluation([0.5, 0.5])
    changed = [dataclasses.replace(before.tasks[0], fingerprint="another"), before.tasks[1]]
    after = dataclasses.replace(before, tasks=tuple(changed))
    assert compare(before, after).left_out == ("task-0",)


def test_evaluations_without_a_task_in_common_are_not_compared():
    with pytest.raises(BadValueError, match="no tasks in common"):
        compare(make_evaluation([0.5]), make_evaluation([0.5], names=["other"]))


def test_settings_that_differ_besides_the_weights_are_told():
    before = make_evaluation([0.5] * 2)
    config = {"sampling": {"temperature": 0.01}, "model": {"path": "models/other"}}
    after = dataclasses.replace(before, config=config)
    assert compare(before, after).other_settings == {"sampling.temperature": ("0.7", "0.01")}

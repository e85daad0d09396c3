"""The benches of multi-turn tasks: what they count as spent and as recovered, and the figures made of kept results."""

from __future__ import annotations

import json
import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from source_files import ROOT

sys.path.append(str(ROOT / "bench"))

from many_turns import report
from many_turns.held_out import recovery, success
from many_turns.spending import keep_adapters, read_spending, run_watched

# Adds rows to a file, after it has removed those after the checkpoint, as a training does that resumes. After each row,
# it waits until the row was seen.
TRAINING = """
import json, sys
file, kept, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rows = open(file).readlines()[:kept] if kept else []
open(file, "w").writelines(rows)
seen = open(sys.argv[4])
for step in range(kept, steps):
    sum(range(10**6))
    with open(file, "a") as lines:
        lines.write(json.dumps({"step": step}) + "\\n")
    seen.readline()
"""


def watched(folder: Path, kept: int, steps: int) -> list[int]:
    seen: list[int] = []
    pipe = folder / f"seen-after-{kept}"
    os.mkfifo(pipe)
    line = [sys.executable, "-c", TRAINING, str(folder / "rows.jsonl"), str(kept), str(steps), str(pipe)]
    with open(os.open(pipe, os.O_RDWR), "wb", buffering=0) as answer:

        def see(number: int) -> None:
            seen.append(number)
            answer.write(b"\n")

        run_watched(line, folder / "rows.jsonl", folder / "spending.jsonl", see, saved=kept)
    return seen


@pytest.mark.process
def test_the_spending_of_a_resumed_training_counts_its_saved_steps_once(tmp_path):
    assert watched(tmp_path, 0, 3) == [1, 2, 3]
    first = read_spending(tmp_path / "spending.jsonl")
    assert [spent.steps for spent in first] == [1, 2, 3]
    assert first[0].cpu_s > 0
    assert watched(tmp_path, 2, 4) == [3, 4]
    both = read_spending(tmp_path / "spending.jsonl")
    assert both[:2] == first[:2]
    assert [spent.steps for spent in both] == [1, 2, 3, 4]
    assert all(a.cpu_s <= b.cpu_s and a.wall_s < b.wall_s for a, b in pairwise(both))


def test_an_adapter_is_kept_by_its_version_and_before_any_update_it_is_the_first(tmp_path):
    run, start = tmp_path / "run", tmp_path / "start"
    for folder, text in ((start, "start"), (run / "weights" / "v00003", "third")):
        folder.mkdir(parents=True)
        (folder / "adapter.txt").write_text(text)
    rows = [{"weights_version": version} for version in (0.0, 0.0, 3.0)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    keep_adapters(run, tmp_path / "kept", (2, 3), start)(3)
    assert [(tmp_path / "kept" / name / "adapter.txt").read_text() for name in "23"] == ["start", "third"]


def result(solved: dict[str, int], *, injected: int = 0, recovered: int = 0) -> dict[str, Any]:
    errors = {"injected": injected, "recovered": recovered, "struck": 0, "struck_solved": 0}
    tasks = [
        {
            "id": f"validation-kind-{name}",
            "calls": 2 + place % 2,
            "episodes": 2,
            "solved": count,
            "reward": 0.0,
            **errors,
        }
        for place, (name, count) in enumerate(solved.items())
    ]
    return {"tasks": tasks, "failures": {"wrong answer": 1}, "transcripts": {}}


def test_success_counts_tasks_by_their_number_of_calls_over_all_seeds():
    seeds = [result({"a": 2, "b": 0}), result({"a": 1, "b": 1})]
    assert success(seeds).value == pytest.approx(0.5)
    assert success(seeds, 2).value == pytest.approx(0.75)
    assert success(seeds, 3).value == pytest.approx(0.25)
    assert recovery([result({"a": 2, "b": 0}, injected=4, recovered=3)]).value == pytest.approx(0.75)


def test_the_better_of_both_sfts_is_what_rl_is_compared_with(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    kept = {"plain-sft-010": 0, "plain-long-020": 1, "plain-long-040": 0, "plain-rl-012": 1, "plain-rl-024": 2}
    for seed in (1, 2):
        folder = tmp_path / f"recipe-{seed}"
        folder.mkdir()
        asked = {"settings": [], "sft": [], "rl": [], "start": None, "demonstrations": None}
        (folder / "options.json").write_text(json.dumps(asked))
        for name, solved in kept.items():
            (folder / f"{name}.json").write_text(json.dumps(result({"a": solved, "b": solved})))
    found = report.write_report("recipe", None)
    assert found["seeds"] == 2
    assert (found["sft_success"], found["sft_best_success"], found["sft_whole_success"]) == (0.0, 0.5, 0.0)
    assert found["rl_success"] == 1.0
    assert found["rl_over_sft"] == pytest.approx(2.0)
    assert "untrained_success" not in found  # no figure without a file
    text = (tmp_path / "report-recipe.md").read_text()
    assert "| SFT, then RL | 2 | 100.0%" in text
    assert "untrained" not in text

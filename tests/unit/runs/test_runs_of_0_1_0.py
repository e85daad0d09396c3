"""Run folders written by 0.1.0 stay readable. Settings, metrics and summaries are those of real runs."""
# R28

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from plain_trajectory import make_trajectory
from typer.testing import CliRunner

from mcprl.cli import app
from mcprl.errors import OtherStateError
from mcprl.runs.checkpoints import read_state
from mcprl.runs.journal import EpisodeJournal
from mcprl.runs.past_runs import RunStatus, find_runs, read_run
from mcprl.runs.trajectories import read_trajectories
from mcprl.verdicts import Severity, Verdict

RESULTS = Path(__file__).parents[3] / "docs" / "results"
NAMES = sorted(path.parent.name for path in RESULTS.glob("*/summary.json"))
# Lines and a row as 0.1.0 wrote them. The trajectory is make_trajectory(step=2, text="é").
VERDICT = '{"step": 7, "severity": "warn", "what": "much is clipped", "fix": "slow down", "name": "clipping"}\n'
TURN = (
    '{"text": "é", "sampled_ids": [1], "finish": "stop", "weights_version": 0, "calls": [{"name": "f", "arguments":'
    ' {"x": null}, "problem": null}], "observations": [{"tool": "f", "server": null, "text": "no", "fault": "policy",'
    ' "latency_s": 0.0, "source": "live", "attempts": 1, "truncated": false, "arguments": null}], "reward": 0.0}'
)
TRAJECTORY = (
    '{"task_id": "task", "step": 2, "member": 0, "attempt": 0, "temperature": 1.0, "token_ids": [0, 1], "sampled":'
    ' [false, true], "forced": [false, false], "fixed": [false, false], "logprobs": [0.0, -0.1], "turn_index": [-1, 0],'
    ' "weights_version": [-1, 0], "turns": [' + TURN + '], "stop": "answered", "reward": 0.0, "reward_parts": {},'
    ' "duration_s": 0.0, "grammar": null, "stop_token_ids": []}'
)
JOURNALED = f"c55392a482804ae596d0cab5d6328eb6a391a82793b83be06b98f9bfd84ecda5 {TRAJECTORY}\n"


@pytest.fixture
def outputs(tmp_path) -> Path:
    for name in NAMES:
        shutil.copytree(RESULTS / name, tmp_path / name)
    return tmp_path


def test_every_run_is_found_with_its_steps_settings_and_figures(outputs):
    runs = {run.name: run for run in find_runs(outputs)}
    assert sorted(runs) == NAMES
    for name, run in runs.items():
        lines = (RESULTS / name / "metrics.jsonl").read_text().splitlines()
        summary = json.loads((RESULTS / name / "summary.json").read_text())
        assert (run.state, run.why, run.steps_done) == (RunStatus.FINISHED, "", len(lines))
        assert run.steps_wanted == len(lines)
        assert (run.rewards[0], run.rewards[-1]) == (summary["reward_first"], summary["reward_last"])
        assert run.changed_settings()["model.path"] == run.model


def test_runs_show_prints_a_run(outputs):
    shown = CliRunner().invoke(app, ["runs", "show", str(outputs / "finance-1"), "--json"])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["steps_done"] == 24
    shown = CliRunner().invoke(app, ["runs", "show", str(outputs / "finance-1")])
    assert shown.exit_code == 0, shown.output
    assert "finance-1" in shown.stdout


def test_verdicts_and_episodes_are_read(outputs):
    path = outputs / "async-1"
    (path / "summary.json").unlink()
    (path / "health.jsonl").write_text(VERDICT)
    (path / "journal").mkdir()
    (path / "journal" / "step-00002.jsonl").write_text(JOURNALED)
    run = read_run(path)
    clipped = Verdict(severity=Severity.WARN, name="clipping", what="much is clipped", fix="slow down")
    assert (run.state, run.verdicts, run.journaled) == (RunStatus.INTERRUPTED, (clipped,), 1)
    assert "0.1.0, which kept no such record" in run.why
    journal = EpisodeJournal(path / "journal")
    assert journal.finished(2) == {("task", 0): make_trajectory(step=2, text="é")}
    assert journal.problems == []


def test_trajectories_in_parquet_are_read(tmp_path):
    row = json.loads(TRAJECTORY)
    row |= {name: json.dumps(row[name]) for name in ("turns", "reward_parts")}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "step-00002.parquet")
    assert read_trajectories(tmp_path / "step-00002.parquet") == [make_trajectory(step=2, text="é")]


def test_a_checkpoint_is_not_resumed_and_the_error_names_the_way_out(tmp_path):
    state = {"step": 2, "seed": 7, "weights_version": 2, "kl_coefficient": 0.0, "order": {}, "health": {}}
    (tmp_path / "state.json").write_text(json.dumps({**state, "open_deals": {}, "format": 1}))
    with pytest.raises(OtherStateError, match="resume with the version of mcprl that saved the checkpoint"):
        read_state(tmp_path)

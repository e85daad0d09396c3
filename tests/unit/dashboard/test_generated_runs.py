"""The runs that benches and browsers look at: real to every reader, hostile to a browser."""
# R29

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from shown_runs import ROOT, client_of, get

from mcprl.runs.past_runs import RunStatus, read_run
from mcprl.runs.trajectories import read_token_notes, read_trajectories
from mcprl_dashboard.open_run import RunList

pytestmark = pytest.mark.slow

MODEL = ROOT / ".cache" / "models" / "taught-qwen3"


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    """The folder bench/dashboards, which its script finds beside itself."""
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        import dashboards.generated_runs
        import dashboards.hostile

        yield dashboards
    finally:
        sys.path.remove(str(ROOT / "bench"))


@pytest.fixture(scope="module")
def run(bench, tmp_path_factory) -> Path:
    if not MODEL.is_dir():
        pytest.skip(f"{MODEL.relative_to(ROOT)} is missing: run scripts/setup")
    path = tmp_path_factory.mktemp("outputs") / "generated"
    bench.generated_runs.make_run(path, model=MODEL, episodes=416)
    bench.hostile.add_hostile_episodes(path, len(bench.hostile.ATTACKS))
    return path


def test_a_generated_run_reads_as_a_real_one(run):
    assert (read_run(run).state, read_run(run).steps_done) == (RunStatus.INTERRUPTED, 2)
    episodes = read_trajectories(run / "trajectories" / "step-00000.parquet")
    notes = read_token_notes(run / "tokens" / "step-00000.parquet")
    assert len(episodes) == len(notes) == 400
    assert all(len(notes[one.task_id, one.member].ratios) == len(one.token_ids) for one in episodes)


def test_what_hostile_episodes_say_is_shown_word_for_word_and_only_as_json(bench, run):
    attacks, task = bench.hostile.ATTACKS, bench.hostile.TASK_ID
    runs: list[RunList] = []
    client = client_of(run.parent, runs)
    path = "/api/runs/generated"
    found = get(client, f"{path}/episodes", task=task, limit=200)
    assert (found["total"], found["problems"]) == (len(attacks), [])
    for member, attack in list(enumerate(attacks))[::3]:
        answer = client.get(f"{path}/episode", params={"step": 1, "task": task, "member": member})
        assert answer.headers["content-type"] == "application/json"
        turn = answer.json()["episode"]["turns"][0]
        assert (turn["text"], turn["observations"][0]["text"]) == (attack, attack)
        assert turn["calls"][0]["arguments"]["__proto__"] == {"hacked": attack[:1000]}
    runs[0].close()

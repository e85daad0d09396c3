"""`mcprl train` with every tracker there is: told of everything where they work, unharmed where they hang."""
# R28

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "unit" / "tracking"))

from commands import ended, start, wait_for
from tracking_stand_in import StandIn, stand_in

from crashing.small_runs import small_run
from mcprl.config import TrackingConfig
from mcprl.runs.trajectories import read_trajectories

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

STEPS = 2
KEY = "fedcba9876543210fedcba9876543210fedcba98"


def write_recipe(folder: Path, model: Path, server: StandIn, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Path:
    for name, value in (("WANDB_API_KEY", KEY), ("WANDB_BASE_URL", server.url), ("WF_TRACE_SERVER_URL", server.url)):
        monkeypatch.setenv(name, value)
    tracking = TrackingConfig.model_validate(
        {
            "tensorboard": True,
            "wandb": {"project": "e/p"},
            "weave": {"project": "e/p"},
        }
        | settings
    )
    config = small_run(folder, "refill", model=model, steps=STEPS, checkpoint_every=1)
    config = config.model_copy(update={"tracking": tracking})
    recipe = folder / "recipe.yaml"
    recipe.write_text(config.to_yaml())
    return recipe


def test_every_tracker_is_told_of_every_episode_and_nothing_is_said_of_it(
    small_qwen3, tmp_path, monkeypatch, record_property
):
    with stand_in() as server:
        recipe = write_recipe(tmp_path, small_qwen3, server, monkeypatch)
        with start("train", recipe) as process:
            status, said = ended(process)
    assert status == 0, said
    assert "tracking:" not in said
    run = tmp_path / "outputs" / "refill"
    outcomes = json.loads((run / "tracking.json").read_text())
    assert {kind: outcome["state"] for kind, outcome in outcomes.items()} == dict.fromkeys(
        ("wandb", "weave", "tensorboard"), "delivered"
    )
    played = [t for file in (run / "trajectories").iterdir() for t in read_trajectories(file)]
    calls = [call for request in server.bodies("/calls/complete$") for call in request.json["batch"]]
    assert sum(call["parent_id"] is None for call in calls) == len(played)
    assert sum(call["parent_id"] is not None for call in calls) == sum(
        1 + len(turn.calls) for t in played for turn in t.turns
    )
    assert any(b"refill-adapter" in request.body for request in server.bodies("/graphql$"))
    sent = b"".join(request.body for request in server.requests)
    assert KEY.encode() not in sent
    logs = "".join(file.read_text(errors="replace") for file in (run / "logs").iterdir())
    assert KEY not in logs
    record_property("requests", len(server.requests))


@pytest.mark.full
def test_a_run_whose_trackers_all_hang_makes_every_step_and_ends(small_qwen3, tmp_path, monkeypatch, record_property):
    with stand_in("hang") as server:
        recipe = write_recipe(tmp_path, small_qwen3, server, monkeypatch)
        run = tmp_path / "outputs" / "refill"
        with start("train", recipe) as process:
            wait_for((run / "summary.json").exists, process)
            finished = time.monotonic()
            status, said = ended(process)
            record_property("exit_s", round(time.monotonic() - finished, 2))
    assert status == 0, said
    # Meanwhile servers and sampler are ended; after it, Python itself, which is not for trackers to answer for.
    held_up_s = (run / "tracking.json").stat().st_mtime - (run / "summary.json").stat().st_mtime
    record_property("held_up_s", round(held_up_s, 2))
    assert "Traceback" not in said
    for name in ("W&B", "Weave"):
        assert said.count(f"tracking: {name} ") == 1, (name, said)
    outcomes = json.loads((run / "tracking.json").read_text())
    assert outcomes["tensorboard"]["state"] == "delivered"
    assert [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()] == list(range(STEPS))

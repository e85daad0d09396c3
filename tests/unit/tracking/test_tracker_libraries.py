"""The real libraries, told of a run, and what they made of it: read back from their files or from a stand-in server."""
# R28

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from told_runs import KEY, MEMBERS, STEPS, Listener, make_folder, tell
from tracking_stand_in import StandIn, stand_in

pytest.importorskip("tensorboard", reason="install mcprl[tensorboard]")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from mcprl.processes import free_port
from mcprl.tracking import delivery

EPISODES = STEPS * MEMBERS
FLUSH_S = 3.0
# Found, and not imported: that takes seconds.
needs_wandb = pytest.mark.skipif(find_spec("wandb") is None, reason="install mcprl[wandb]")
needs_weave = pytest.mark.skipif(find_spec("weave") is None, reason="install mcprl[weave]")


@pytest.fixture
def server(monkeypatch):
    """A stand-in for all of them, which the libraries find by their variables."""
    with stand_in() as running:
        for name in [name for name in os.environ if name.startswith(("WANDB_", "WEAVE_", "WF_"))]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.setenv("WANDB_BASE_URL", running.url)
        monkeypatch.setenv("WF_TRACE_SERVER_URL", running.url)
        yield running


def histories(server: StandIn) -> list[dict]:
    """The lines of metrics that W&B was sent."""
    lines = []
    for request in server.bodies("/file_stream$"):
        lines += request.json.get("files", {}).get("wandb-history.jsonl", {}).get("content", [])
    return [json.loads(line) for line in lines]


def check_wandb(server: StandIn, run: Path) -> None:
    """All that W&B is to know of the run, as it came."""
    steps = histories(server)
    assert [(line["step"], line["reward"]) for line in steps] == [(1, 0.25), (2, 1.25)]
    assert all("loss" not in line for line in steps)  # it was no number
    assert [line["episodes"]["nrows"] for line in steps] == [4, 4]
    assert steps[1]["verdicts"]["nrows"] == 1
    assert sum(steps[0]["rewards"]["values"]) == MEMBERS
    tables = [request.json for request in server.bodies("/storage/media/table/episodes_0")]
    assert tables[0]["data"][0][:6] == [1, "meet-ana", 3, 0.75, "answered", 2]
    assert "→ find_person: Ana: Lima" in tables[0]["data"][0][7]
    asked = [request.json for request in server.bodies("/graphql$")]
    alerts = [query["variables"] for query in asked if "notifyScriptableRunAlert" in query["query"]]
    assert [(alert["title"], alert["severity"]) for alert in alerts] == [("collapse", "WARN")]
    artefacts = [query["variables"]["input"] for query in asked if "createArtifact(" in query["query"]]
    assert [made["artifactCollectionName"] for made in artefacts if made["artifactTypeName"] == "model"] == [
        "told-adapter"
    ]
    (config,) = [request.body for request in server.bodies("/storage/config.yaml")][-1:]
    assert b"group_size" in config
    names = {query["variables"]["name"] for query in asked if "upsertBucket(" in query["query"]}
    assert names == {(run / "wandb" / "run-id").read_text().strip()}


@pytest.mark.process
async def test_tensorboard_reads_back_scalars_and_histograms_and_no_torch_was_needed(tmp_path):
    folder, listener = make_folder(tmp_path), Listener()
    outcomes = await tell(folder, listener, tensorboard=True)
    assert (outcomes["tensorboard"].state, listener.said) == ("delivered", [])
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"tensors": 0})
    events.Reload()
    assert set(events.Tags()["tensors"]) == {"reward", "kl", "rewards"}
    scalars = [(event.step, float(make_ndarray(event.tensor_proto))) for event in events.Tensors("reward")]
    assert scalars == [(1, 0.25), (2, 1.25)]
    buckets = make_ndarray(events.Tensors("rewards")[0].tensor_proto)
    assert (buckets[0, 0], buckets[-1, 1], buckets[:, 2].sum()) == (0.0, 0.75, MEMBERS)
    code = "import sys, mcprl.tracking.process; print(sorted({'torch', 'wandb', 'weave'} & set(sys.modules)))"
    loaded = await asyncio.to_thread(subprocess.check_output, [sys.executable, "-c", code], text=True)
    assert loaded == "[]\n"


@pytest.mark.process
@needs_weave
async def test_weave_gets_a_tree_of_turns_and_calls_for_each_episode(tmp_path, server):
    folder, listener = make_folder(tmp_path), Listener()
    outcomes = await tell(folder, listener, weave={"project": "e/p"})
    assert (outcomes["weave"].state, listener.said) == ("delivered", [])
    calls = [call for request in server.bodies("/calls/complete$") for call in request.json["batch"]]
    by_id = {call["id"]: call for call in calls}
    roots = [call for call in calls if call["parent_id"] is None]
    assert (len(roots), len(calls)) == (EPISODES, EPISODES * 4)
    (root,) = [c for c in roots if (c["inputs"]["step"], c["inputs"]["member"]) == (2, 2)]
    assert root["inputs"]["prompt"] == [{"role": "user", "content": "Where is Ana?"}]
    assert (root["output"]["reward"], root["output"]["stop"]) == (0.5, "answered")
    turns = [call for call in calls if call["parent_id"] == root["id"]]
    assert sorted(turn["output"]["text"] for turn in turns) == [
        '<tool_call>{"name": "find_person"}</tool_call>',
        "Lima.",
    ]
    (tool,) = [call for call in calls if call["parent_id"] in {turn["id"] for turn in turns}]
    assert "/mcprl.call:" in tool["op_name"]
    assert tool["inputs"] == {"tool": "find_person", "server": "directory", "arguments": {"name": "Ana"}}
    assert (tool["output"]["result"], tool["output"]["latency_s"]) == ("Ana: Lima", 0.25)
    assert by_id[tool["parent_id"]]["started_at"] < tool["started_at"] < tool["ended_at"] <= root["ended_at"]
    assert {call["trace_id"] for call in (root, *turns, tool)} == {root["trace_id"]}


@pytest.mark.process
@needs_wandb
async def test_wandb_online_gets_metrics_tables_alerts_and_the_adapter(tmp_path, server):
    folder, listener = make_folder(tmp_path), Listener()
    outcomes = await tell(folder, listener, wandb={"project": "e/p"})
    assert (outcomes["wandb"].state, listener.said) == ("delivered", [])
    check_wandb(server, folder)
    (log,) = (folder / "logs").glob("tracker-wandb.log")
    assert KEY not in log.read_text()


@pytest.mark.process
@needs_wandb
async def test_wandb_offline_asks_nobody_and_its_own_sync_sends_the_same_later(tmp_path, server, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    folder, listener = make_folder(tmp_path), Listener()
    outcomes = await tell(folder, listener, wandb={"project": "e/p"})
    assert (outcomes["wandb"].state, listener.said) == ("delivered", [])
    assert server.requests == []
    (kept,) = (folder / "wandb").glob("offline-run-*")
    assert list(kept.glob("run-*.wandb"))
    command = [str(Path(sys.executable).with_name("wandb")), "sync", str(kept)]
    # It keeps a log in a folder `wandb` of where it is called.
    await asyncio.to_thread(subprocess.run, command, cwd=tmp_path, check=True, capture_output=True, timeout=500)
    check_wandb(server, folder)


@pytest.mark.process
@needs_wandb
@needs_weave
@pytest.mark.parametrize(
    "fault", ["500", "slow", *(pytest.param(fault, marks=pytest.mark.full) for fault in ("refused", "429", "cut"))]
)
async def test_wandb_and_weave_are_spoken_of_once_whatever_the_fault(tmp_path, server, monkeypatch, fault):
    if fault == "refused":
        for name in ("WANDB_BASE_URL", "WF_TRACE_SERVER_URL"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    else:
        server.fault = fault
    folder, listener = make_folder(tmp_path), Listener()
    asked = server.asked if fault != "refused" else None
    monkeypatch.setattr(delivery, "FLUSH_S", FLUSH_S)
    both = {"wandb": {"project": "e/p"}, "weave": {"project": "e/p"}}
    outcomes = await tell(folder, listener, until=asked, **both)
    assert listener.held_up_s < FLUSH_S + 30.0  # not for as long as the fault lasts
    assert {outcome.state for outcome in outcomes.values()} <= {"failed", "incomplete"}
    assert sorted(text.split()[1] for text in listener.said) == ["W&B", "Weave"]


@pytest.mark.process
@needs_wandb
async def test_what_wandb_gives_up_is_told_and_never_called_delivered(tmp_path, server):
    given_up = {
        "filestream: fatal error": "^/files/.*/file_stream ",
        "file transfer: upload: failed to upload": "^/storage/media/table/episodes_0",
        "sender: failed to log artifact": r"createArtifact\(.*told-adapter",
        "sender: sendAlert: failed": "notifyScriptableRunAlert",
    }
    server.forbidden = re.compile("|".join(given_up.values()), re.DOTALL)
    folder, listener = make_folder(tmp_path), Listener()
    outcomes = await tell(folder, listener, wandb={"project": "e/p"})
    assert outcomes["wandb"].state == "incomplete"
    for start in given_up:
        assert any(text.startswith(f"W&B reported a problem: {start}") for text in outcomes["wandb"].said), start
    assert len(listener.said) == 1
    assert "to send the rest, run `wandb sync`" in listener.said[0]


@pytest.mark.process
@needs_weave
async def test_what_weave_gives_up_is_told_and_never_called_delivered(tmp_path, server, monkeypatch):
    monkeypatch.setenv("WEAVE_LOG_LEVEL", "CRITICAL")
    server.forbidden = re.compile("/calls/complete ")
    folder, listener = make_folder(tmp_path), Listener()
    outcomes = await tell(folder, listener, weave={"project": "e/p"})
    assert outcomes["weave"].state == "incomplete"
    assert outcomes["weave"].said[0].startswith("Weave reported a problem: e/p: Error sending batch of")
    assert len(listener.said) == 1


@pytest.mark.process
@needs_weave
async def test_weave_that_is_turned_off_by_its_variable_is_not_called_delivered(tmp_path, server, monkeypatch):
    monkeypatch.setenv("WEAVE_DISABLED", "true")
    folder, listener = make_folder(tmp_path), Listener()
    outcomes = await tell(folder, listener, weave={"project": "e/p"})
    assert (outcomes["weave"].state, server.requests) == ("failed", [])
    assert "WEAVE_DISABLED" in listener.said[0]


@pytest.mark.process
@needs_wandb
async def test_a_run_that_is_resumed_goes_on_in_the_same_run_of_wandb(tmp_path, server):
    folder, listener = make_folder(tmp_path), Listener()
    for ends in (False, True):
        outcomes = await tell(folder, listener, ends=ends, wandb={"project": "e/p"})
        assert (outcomes["wandb"].state, listener.said) == ("delivered", [])
    asked = [request.json for request in server.bodies("/graphql$")]
    names = {query["variables"]["name"] for query in asked if "upsertBucket(" in query["query"]}
    assert names == {(folder / "wandb" / "run-id").read_text().strip()}

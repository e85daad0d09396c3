"""A tool server that dies in the middle of a call, in a real training run."""
# R1, R20

import asyncio
import json
import os
import signal

import pytest

from mcprl.recipe import load_recipe
from mcprl.records import LostEpisode
from mcprl.runs.trajectories import read_trajectories
from mcprl.tools import ServerConnection
from mcprl.training.loop import train
from mcprl.training.run import open_run

pytestmark = [pytest.mark.process, pytest.mark.timeout(900), pytest.mark.full]


class Listener:
    """Keeps what the run tells."""

    def __init__(self):
        self.lost: list[tuple[int, LostEpisode]] = []

    def stage(self, text): ...

    def episode_finished(self, step, outcome):
        if isinstance(outcome, LostEpisode):
            self.lost.append((step, outcome))

    def step_finished(self, step, metrics, verdicts): ...


def kill_during_first_call(monkeypatch, killed):
    """Stop each server before its first call, so that the call is surely in flight when the server is killed."""
    real_call = ServerConnection.call

    async def call(connection, tool, arguments, deadline_s):
        if connection.spec.name in killed:
            return await real_call(connection, tool, arguments, deadline_s)
        killed.append(connection.spec.name)
        pid = connection.pid
        os.kill(pid, signal.SIGSTOP)
        pending = asyncio.ensure_future(real_call(connection, tool, arguments, deadline_s))
        done, _ = await asyncio.wait({pending}, timeout=0.3)
        assert not done, "a stopped server cannot have answered"
        os.kill(pid, signal.SIGKILL)
        return await pending

    monkeypatch.setattr(ServerConnection, "call", call)


async def test_a_server_killed_during_a_run_is_restarted_and_its_episode_run_again(
    root, shared_vllm, time_server, tmp_path, record_property, monkeypatch
):
    # Both servers' tools are read-only: unless told otherwise, their calls would be made again and no episode lost.
    overrides = [
        "servers.settings.time.attempts=1",
        "servers.settings.directory.attempts=1",
        f"training.outputs={tmp_path}",
        "training.steps=2",
        "training.tasks_per_step=4",
        "algorithm.warm_start.weight=0",  # the first call is to be one of the policy's
        "episodes.group_size=2",
    ]
    config = load_recipe(root / "recipes" / "hello-cpu.yaml", overrides)
    listener, killed = Listener(), []
    with shared_vllm.lent():
        async with open_run(config, listener) as run:
            kill_during_first_call(monkeypatch, killed)
            summary = (await train(run)).as_dict()
            folder = run.folder.path

    assert killed, "the policy called no tool at all: the test needs another seed"
    assert summary["groups_complete"] == 2 * 4
    assert summary["server_restarts"] == len(killed)
    assert summary["episodes_lost_to_infrastructure"] == len(listener.lost) >= len(killed)
    assert {loss.code for _, loss in listener.lost} == {"E-TOOL-011"}

    first, second = (read_trajectories(folder / "trajectories" / f"step-0000{step}.parquet") for step in range(2))
    assert len(first) == len(second) == 8
    rerun = {(t.step, t.task_id, t.member) for t in (*first, *second) if t.attempt > 0}
    assert rerun == {(step, loss.task_id, loss.member) for step, loss in listener.lost}
    # Sampler and learner agree, also after the first update has been published.
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert max(step["parity_logprob_max_abs_error"] for step in metrics) <= 1e-3
    assert metrics[0]["grad_norm"] > 0
    # The lost attempts are in no average: the mean is over the eight episodes that were finished.
    assert summary["reward_first"] == pytest.approx(sum(t.reward for t in first) / 8)
    record_property("episodes_lost", len(listener.lost))
    record_property("server_restarts", summary["server_restarts"])

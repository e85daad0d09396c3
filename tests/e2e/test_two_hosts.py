"""A learner whose processes are in two network namespaces, with a link between them that can be cut.

Both namespaces are on this machine and see the same files, so only the traffic of torch.distributed is between hosts.
"""
# R23

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_two_processes import five_episodes, model_folder, saved, updates  # noqa: F401 - a fixture

from mcprl.learning import TorchLearner, distributed
from mcprl.learning.distributed import DistributedLearner
from mcprl.records import LostEpisode, Trajectory
from mcprl.training.loop import train
from mcprl.training.run import open_run

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "learning"))
sys.path.append(str(Path(__file__).parents[2] / "bench"))
from small_models import small_batch, small_config

from crashing.small_runs import small_run

pytestmark = [
    pytest.mark.process,
    pytest.mark.full,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]

CUT_S = 20.0
SETTINGS: dict[str, Any] = {"tuning": "full", "learning_rate": 1e-3, "tokens_per_pack": 1}
# Processes with an even rank are on the first host.
ON_ITS_HOST = 'host=mcprl-{0}-$((RANK % 2)); export GLOO_SOCKET_IFNAME=eth0; exec ip netns exec $host "$@"'


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Hosts:
    """Two network namespaces, joined by a link."""

    def __init__(self) -> None:
        self.names = [f"mcprl-{os.getpid()}-{number}" for number in (0, 1)]

    def open(self) -> None:
        for name in self.names:
            ip("netns", "add", name)
        first, second = self.names
        ip("link", "add", "eth0", "netns", first, "type", "veth", "peer", "name", "eth0", "netns", second)
        for number, name in enumerate(self.names, start=1):
            ip("-n", name, "address", "add", f"10.213.0.{number}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "eth0", "up")

    def link(self, state: str) -> None:
        ip("-n", self.names[1], "link", "set", "eth0", state)

    def close(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Generator[Hosts]:
    made = Hosts()
    try:
        made.open()
        command = ("sh", "-c", ON_ITS_HOST.format(os.getpid()), "sh", sys.executable, "-m", "mcprl.learning.worker")
        monkeypatch.setattr(distributed, "_WORKER", command)
        yield made
    finally:
        made.close()


def states(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of a saved state, put together from all processes by other means than the learner's."""
    files = sorted(folder.glob("learner-*.safetensors"), key=lambda file: int(file.name.split("-")[1]))
    parts = [load_file(file) for file in files]
    by_rows = [name for name in parts[0] if parts[0][name].ndim and not name.startswith("rng/")]
    return {name: torch.cat([part[name] for part in parts]) for name in by_rows}


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


async def test_two_and_three_processes_on_two_hosts_train_as_one_and_load_what_the_others_saved(
    hosts,
    model_folder,  # noqa: F811
    tmp_path,
    record_property,
):
    folder = model_folder("qwen3")
    config = small_config(folder, **SETTINGS)
    alone = TorchLearner(config, folder=tmp_path / "one" / "weights", grammars=None)
    expected = saved((await updates(alone, config, range(3)))[-1].weights)
    earlier: Path | None = None
    for number, processes in enumerate((2, 3, 2)):
        config = small_config(folder, processes=processes, **SETTINGS)
        state, weights = tmp_path / f"state-{number}", tmp_path / f"{number}" / "weights"
        state.mkdir()
        async with DistributedLearner(config, folder=weights, grammars=None) as learner:
            if earlier is None or processes == 3:
                trained = saved((await updates(learner, config, range(3)))[-1].weights)
                differs = max(float((expected[name] - trained[name]).abs().max()) for name in expected)
                record_property(f"largest difference of a weight, {processes} processes", differs)
                assert differs < 1e-5
            if earlier is not None:
                await learner.load_state(earlier)
            await learner.save_state(state)
        if earlier is not None:
            assert same(states(earlier), states(state))
        earlier = state


async def test_an_update_waits_for_a_link_that_is_cut_for_20_seconds(hosts, model_folder, tmp_path):  # noqa: F811
    config = small_config(model_folder("qwen3"), processes=2, **SETTINGS)
    batch = small_batch(config, five_episodes())
    async with DistributedLearner(config, folder=tmp_path / "calm" / "weights", grammars=None) as learner:
        expected = saved((await learner.update(batch)).weights)
    async with DistributedLearner(config, folder=tmp_path / "cut" / "weights", grammars=None) as learner:
        hosts.link("down")
        update = asyncio.create_task(learner.update(batch))
        await asyncio.wait({update}, timeout=CUT_S)
        assert not update.done()
        hosts.link("up")
        found = saved((await asyncio.wait_for(update, 300)).weights)
    assert same(expected, found)


class Heard:
    """Keeps the metrics of each step."""

    def __init__(self) -> None:
        self.metrics: list[dict[str, float]] = []

    def stage(self, text: str) -> None:
        pass

    def episode_finished(self, step: int, outcome: Trajectory | LostEpisode) -> None:
        pass

    def step_finished(self, step: int, metrics: Any, verdicts: Any) -> None:
        self.metrics.append(dict(metrics))


@pytest.mark.parametrize("processes", [2, 3])
async def test_a_run_whose_learner_is_on_two_hosts_makes_all_its_steps(hosts, small_qwen3, tmp_path, processes):
    config = small_run(tmp_path, "critic", model=small_qwen3, steps=2)
    learner = config.learner.model_copy(update={"processes": processes, "sharding": "fsdp2"})
    heard = Heard()
    async with open_run(config.model_copy(update={"learner": learner}), heard) as run:
        await train(run)
    assert [metrics["update_skipped"] for metrics in heard.metrics] == [0.0, 0.0]
    assert all(metrics["parity_logprob_max_abs_error"] <= 1e-4 for metrics in heard.metrics)

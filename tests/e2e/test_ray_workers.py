"""Ray workers on two simulated nodes, with real MCP servers: what is killed is played again, limits hold over all."""

from __future__ import annotations

import asyncio
import bisect
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mcprl.config import RewardFunctionConfig, RewardsConfig
from mcprl.episodes import Collector
from mcprl.episodes.reward_functions import code_of
from mcprl.errors import ServerStartError
from mcprl.functions import Code
from mcprl.records import Trajectory

pytest.importorskip("ray", reason="ray is missing: pip install 'mcprl[ray]'")
sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from working.killing import killed, two_nodes
from working.playing import arrivals, by_name, make_config, make_tasks, open_local, open_workers

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

SERVER = Path(__file__).resolve().parents[2] / "bench" / "working" / "waiting_server.py"
WORKERS = 2  # one on each node
RATE = (40, 2.0)


@pytest.fixture(scope="module")
def cluster():
    with two_nodes(cpus=1):
        yield


async def collect(runner, config, tasks):
    heard = []
    groups = await Collector(runner, config.episodes).collect(tasks, 0, heard.append)
    return [trajectory for group in groups for trajectory in group.trajectories], heard


async def test_episodes_of_killed_workers_come_back_once_and_are_those_of_this_process_under_one_rate(
    cluster, small_qwen3, tmp_path
):
    options: dict[str, Any] = {"workers": WORKERS, "at_once": 24, "tool_s": 0.1, "model": small_qwen3}
    tasks = make_tasks(48, 4)
    alone = make_config(tmp_path, **options)  # without a rate, which would only take time
    async with open_local(alone, tmp_path / "local") as runner:
        expected, _ = await collect(runner, alone, tasks)
    (tmp_path / "calls").unlink()
    config = make_config(tmp_path, **options, rate=RATE)
    async with open_workers(config, tmp_path / "logs") as workers:
        async with killed(workers, every_s=2.0, most=2) as dead:
            played, heard = await collect(workers, config, tasks)
        stats = workers.stats()["servers"]["waiting"]
    assert len(dead) == 2
    assert by_name(played) == by_name(expected)
    assert set(Counter((t.task_id, t.member) for t in heard if isinstance(t, Trajectory)).values()) == {1}
    assert len(heard) == len(played) == 48  # nothing was lost
    came = arrivals(tmp_path)
    assert len(came) >= 48 * 4
    # What was spent on calls that a killed worker had under way is spent; nothing else is counted.
    assert len(came) <= stats["calls"] <= len(came) + 24
    calls, per_s = RATE
    most = max(bisect.bisect_left(came, begin + per_s) - place for place, begin in enumerate(came))
    assert 0.9 * calls <= most <= calls
    assert {path.name for path in (tmp_path / "logs").iterdir()} >= {f"worker-{number}" for number in range(WORKERS)}


REWARDS = """
import mcprl
from scale import FACTOR

@mcprl.reward(per="turn")
def even(episode):
    return [FACTOR * (turn.calls[0].arguments["number"] % 2 == 0) for turn in episode.turns]

async def asked(episode):
    seen = await episode.probe("wait", number=episode.calls[0].arguments["number"])
    return int(seen.text) % 100 / 100
"""


def remove(code: Code) -> None:
    for file in code.files:
        Path(file).unlink()


async def test_the_code_of_reward_functions_travels_to_workers_that_lack_its_files(cluster, small_qwen3, tmp_path):
    (tmp_path / "rewards.py").write_text(REWARDS)
    (tmp_path / "scale.py").write_text("FACTOR = 0.5\n")
    functions = {
        name: RewardFunctionConfig(function=f"{tmp_path}/rewards.py:{name}", weight=1.0, probes=probes)
        for name, probes in (("even", ()), ("asked", ("wait",)))
    }
    config = make_config(tmp_path, workers=1, at_once=4, tool_s=0.0, model=small_qwen3)
    config = config.model_copy(update={"rewards": RewardsConfig(functions=functions)})
    tasks = make_tasks(8, 3)
    async with open_local(config, tmp_path / "local") as runner:
        expected, _ = await collect(runner, config, tasks)
    code = code_of(config.rewards, tasks)
    remove(code)
    async with open_workers(config, tmp_path / "logs", code) as workers:
        played, _ = await collect(workers, config, tasks)
    assert by_name(played) == by_name(expected)
    assert all(len({trajectory.reward_parts[name] for trajectory in played}) > 1 for name in functions)
    assert {trajectory.code for trajectory in played} == {code.digest}


async def test_a_cancelled_episode_ends_on_its_worker_while_a_tool_call_is_under_way(cluster, small_qwen3, tmp_path):
    config = make_config(tmp_path, workers=1, at_once=1, tool_s=100.0, model=small_qwen3)
    [task] = make_tasks(1, 1)
    async with open_workers(config, tmp_path / "logs") as workers:
        run = asyncio.ensure_future(workers.run(task, step=0, member=0, attempt=0))
        async with asyncio.timeout(60):
            while not arrivals(tmp_path):  # noqa: ASYNC110 - a process of its own writes the file
                await asyncio.sleep(0.05)
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
        assert len(workers.pids) == 1


async def test_a_server_that_does_not_start_on_a_worker_is_named_by_its_own_error(cluster, small_qwen3, tmp_path):
    config = make_config(tmp_path, workers=1, at_once=4, tool_s=0.1, model=small_qwen3)
    # The run's own server starts, and the second one to be started fails: it finds the mark of the first.
    script = tmp_path / "once.py"
    mark = tmp_path / "mark"
    script.write_text(
        f"import pathlib, runpy, sys\nmark = pathlib.Path({str(mark)!r})\n"
        "if mark.exists(): sys.exit('the licence allows one')\nmark.touch()\n"
        f"sys.argv = ['', '0', {str(tmp_path / 'calls')!r}]\nrunpy.run_path({str(SERVER)!r}, run_name='__main__')\n"
    )
    text = config.servers.file.read_text().replace(str(SERVER), str(script))
    config.servers.file.write_text(text)
    with pytest.raises(ServerStartError, match="the licence allows one"):
        async with open_workers(config, tmp_path / "logs"):
            pytest.fail("it must not open")

"""A server that keeps a state for each episode in one process: who sees what, and what its death costs."""
# R15

import asyncio
import os
import signal
import time

import pytest
from live_servers import eventually, script_spec

from mcprl.errors import ServerBusyError, ServerLostError
from mcprl.records import Source, ToolCall
from mcprl.tools import Toolbox
from mcprl.tools.cassette import Cassette

pytestmark = pytest.mark.process


def spec(**settings):
    return script_spec("remembering_server.py", name="remembering", **settings)


async def call(lease, name, /, **arguments):
    return await lease.call(ToolCall(name=name, arguments=arguments))


async def notes(lease):
    return (await call(lease, "read")).text.partition(": ")[2]


async def test_episodes_share_a_process_and_never_see_each_others_notes(tmp_path):
    async with Toolbox([spec()], log_dir=tmp_path) as toolbox:
        async with toolbox.lease(None) as one, toolbox.lease(None) as two:
            await call(one, "write", text="mine")
            assert await notes(two) == ""
            await call(two, "write", text="yours")
            assert (await notes(one), await notes(two)) == ("mine", "yours")
        async with toolbox.lease(None) as three:
            assert await notes(three) == ""
        assert len(toolbox.pids("remembering")) == 1


async def test_an_episode_stays_with_one_replica_and_episodes_spread_over_all(tmp_path):
    async with (
        Toolbox([spec(replicas=2)], log_dir=tmp_path) as toolbox,
        toolbox.lease(None) as one,
        toolbox.lease(None) as two,
    ):
        seen = [{(await call(lease, "read")).text for _ in range(4)} for lease in (one, two)]
    assert [len(texts) for texts in seen] == [1, 1]
    assert seen[0] != seen[1]


async def test_reading_the_same_at_the_same_time_is_not_shared_between_episodes(tmp_path):
    async with (
        Toolbox([spec(cache_s=60.0)], log_dir=tmp_path) as toolbox,
        toolbox.lease(None) as one,
        toolbox.lease(None) as two,
    ):
        await call(one, "write", text="mine")
        texts = await asyncio.gather(*(notes(lease) for lease in (one, two, one, two)))
        await call(one, "write", text="more")
        assert texts == ["mine", "", "mine", ""]
        assert await notes(one) == "mine,more"


async def test_what_belongs_to_an_episode_is_not_recorded(tmp_path):
    cassette = Cassette.open(tmp_path / "calls.sqlite", writable=True)
    box = Toolbox([spec()], log_dir=tmp_path, cassette=cassette, cassette_mode="replay_else_live")
    async with box as toolbox:
        for text in ("first", "second"):
            async with toolbox.lease(None) as lease:
                await call(lease, "write", text=text)
                observation = await call(lease, "read")
                assert observation.text.endswith(f": {text}")
                assert observation.source is Source.LIVE
    cassette.close()


async def test_an_episode_whose_state_died_with_the_server_is_lost_and_others_go_on(tmp_path):
    async with Toolbox([spec()], log_dir=tmp_path) as toolbox:
        async with toolbox.lease(None) as begun, toolbox.lease(None) as untouched:
            await call(begun, "write", text="mine")
            (pid,) = toolbox.pids("remembering")
            os.kill(pid, signal.SIGKILL)
            await eventually(lambda: toolbox.pids("remembering") not in {(), (pid,)})
            with pytest.raises(ServerLostError, match="died earlier in this episode"):
                await notes(begun)
            assert await notes(untouched) == ""
        assert toolbox.restarts == 1


async def test_a_probe_looks_at_the_episodes_own_state_with_a_tool_that_is_not_on_offer(tmp_path):
    async with Toolbox([spec()], log_dir=tmp_path) as toolbox, toolbox.lease(["write"], probes=["read"]) as lease:
        await call(lease, "write", text="mine")
        refused = await call(lease, "read")
        probed = await lease.probe(ToolCall(name="read", arguments={}))
    assert "There is no tool 'read'" in refused.text
    assert probed.text.endswith(": mine")
    assert [tool.name for tool in lease.tools] == ["write"]


async def test_a_server_that_asks_for_patience_in_its_error_gets_it(tmp_path, untraced):
    async with Toolbox([spec()], log_dir=tmp_path) as toolbox, toolbox.lease(None) as lease:
        await call(lease, "refuse", seconds=[0.3])
        started = time.monotonic()
        observation = await call(lease, "look")
        assert time.monotonic() - started >= 0.3
        assert (observation.text, observation.attempts) == ("seen", 2)


async def test_a_server_that_asks_for_more_patience_than_there_is_is_busy_not_broken(tmp_path):
    async with Toolbox([spec()], log_dir=tmp_path) as toolbox, toolbox.lease(None) as lease:
        await call(lease, "refuse", seconds=[60.0])
        with pytest.raises(ServerBusyError, match="upstream is busy") as caught:
            await call(lease, "look")
    assert caught.value.retry_after_s == 60.0
    assert not caught.value.delivered

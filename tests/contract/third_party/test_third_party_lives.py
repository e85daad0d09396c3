"""Third-party servers that are killed come back, and none is left when the toolbox closes."""
# R15

import os
import signal

import psutil
import pytest
from third_party_servers import call

from mcprl.config import ServerSettings
from mcprl.tools import ServerSpec, Toolbox

pytestmark = pytest.mark.process


def family(pid: int) -> list[psutil.Process]:
    """A process and all that it started."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


async def test_a_killed_server_is_back_for_the_next_call_and_gone_when_the_toolbox_closes(
    server, folder, spec, tmp_path
):
    expected = server.read(folder, 5)
    async with Toolbox([spec], log_dir=tmp_path) as toolbox, toolbox.lease(None) as lease:
        assert expected.text in (await lease.call(expected.call)).text
        (killed,) = toolbox.pids(server.name)
        os.kill(killed, signal.SIGKILL)

        observation = await lease.call(expected.call)
        assert expected.text in observation.text
        assert (observation.fault, toolbox.restarts) == (None, 1)
        (pid,) = toolbox.pids(server.name)
        assert pid != killed
        processes = family(pid)
    assert [process for process in processes if process.is_running()] == []
    assert not psutil.pid_exists(killed)


async def test_episodes_with_servers_of_their_own_do_not_see_each_others_entities(third_party_program, tmp_path):
    """The server keeps its entities in the file that MEMORY_FILE_PATH names, so each process needs another one."""
    script = 'MEMORY_FILE_PATH=$(mktemp --tmpdir memory-XXXXXX.jsonl) exec "$0"'
    spec = ServerSpec(
        name="memory",
        command="/bin/sh",
        args=("-c", script, str(third_party_program("memory"))),
        env={"TMPDIR": str(tmp_path)},
        settings=ServerSettings(isolation="per_episode"),
    )
    async with Toolbox([spec], log_dir=tmp_path / "logs") as toolbox:
        async with toolbox.lease(None) as one, toolbox.lease(None) as other:
            for lease, name in ((one, "Ana"), (other, "Bo")):
                entity = {"name": name, "entityType": "person", "observations": []}
                assert (await lease.call(call("create_entities", entities=[entity]))).fault is None
            seen = [(await lease.call(call("read_graph"))).text for lease in (one, other)]
            assert [("Ana" in text, "Bo" in text) for text in seen] == [(True, False), (False, True)]
        async with toolbox.lease(None) as third:
            assert '"entities": []' in (await third.call(call("read_graph"))).text
        processes = [process for pid in toolbox.pids("memory") for process in family(pid)]
    assert [process for process in processes if process.is_running()] == []

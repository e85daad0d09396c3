"""Third-party servers work in a sandbox that shows them their own program and the folder that they work in."""
# R26

from dataclasses import replace

import pytest

from mcprl.config import SandboxSettings
from mcprl.tools import Toolbox

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("bubblewrap")]


async def test_a_series_of_calls_is_answered_from_a_sandbox(server, folder, spec, tmp_path):
    sandbox = SandboxSettings(write=(folder,))
    settings = spec.settings.model_copy(update={"sandbox": sandbox})
    confined = replace(spec, settings=settings)
    async with Toolbox([confined], log_dir=tmp_path) as toolbox, toolbox.lease(None) as lease:
        for expected in server.series(folder):
            observation = await lease.call(expected.call)
            assert expected.text in observation.text
            assert observation.fault is None
    assert server.evidence(folder)

"""The list of tools in these tests is that of the shipped servers."""
# R14

from __future__ import annotations

from functools import partial

import pytest

from mcprl.servers import make_server
from mcprl.tools import ServerSpec, Toolbox
from shipped_tools import SHIPPED_TOOLS

pytestmark = pytest.mark.process


async def test_the_shipped_servers_keep_their_contract(tmp_path):
    names = dict.fromkeys(tool.server for tool in SHIPPED_TOOLS)
    specs = [ServerSpec(name=name, make=partial(make_server, name, world=7)) for name in names]
    async with Toolbox(specs, log_dir=tmp_path) as toolbox:
        listed = {
            tool.name: (tool.server, set(tool.parameters["properties"]), set(tool.parameters.get("required", [])))
            for tool in toolbox.catalog
        }
    assert listed == {
        tool.name: (tool.server, set(tool.parameters["properties"]), set(tool.parameters["required"]))
        for tool in SHIPPED_TOOLS
    }

"""A server receives the keys of its own entry and no others, wherever else keys are set."""
# R26

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from mcp.client.stdio import DEFAULT_INHERITED_ENV_VARS

from mcprl.config import ServerSettings
from mcprl.processes import CHILD_MARK, OWNER_MARK
from mcprl.protocol import TOKEN_VARIABLE
from mcprl.records import ToolCall
from mcprl.tools import Toolbox, load_server_specs

pytestmark = pytest.mark.process

SERVER = str(Path(__file__).parent / "environment_server.py")
ENTRIES = {
    "stdio": {"command": sys.executable, "args": [SERVER]},
    "http": {"url": "http://127.0.0.1:{port}/mcp"},
}
SETTINGS = {"stdio": ServerSettings(), "http": ServerSettings(start=(sys.executable, SERVER, "--http", "{port}"))}


@pytest.mark.parametrize("transport", ENTRIES)
async def test_a_server_sees_the_keys_of_its_own_entry_only(transport, tmp_path, monkeypatch):
    monkeypatch.setenv("FMP_API_KEY", "key-of-another-server-1")
    monkeypatch.setenv("OWN_KEY", "key-of-this-server-2")
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("TAVILY_API_KEY=key-of-another-server-3\nOWN_REGION=lima\n")
    environment = {"RENAMED": "${OWN_KEY}", "OWN_REGION": "${OWN_REGION}", "LITERAL": "7"}
    servers = {
        transport: {**ENTRIES[transport], "env": environment},
        "other": {"command": "never-started", "env": {"A": "${FMP_API_KEY}", "B": "${TAVILY_API_KEY}"}},
    }
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": servers}))
    specs = load_server_specs(tmp_path / "servers.json", {transport: SETTINGS[transport]})
    async with Toolbox(specs[:1], log_dir=tmp_path / "logs") as toolbox, toolbox.lease(None) as lease:
        observation = await lease.call(ToolCall(name="environment", arguments={}))
    seen = dict(line.split("=", 1) for line in observation.text.splitlines() if "=" in line)
    # LC_CTYPE is Python's own, which sets it for itself where there is no locale.
    given = set(seen) - {*DEFAULT_INHERITED_ENV_VARS, OWNER_MARK, CHILD_MARK, TOKEN_VARIABLE, "LC_CTYPE"}
    assert given == {"RENAMED", "OWN_REGION", "LITERAL"}
    assert (seen["RENAMED"], seen["OWN_REGION"], seen["LITERAL"]) == ("[redacted OWN_KEY]", "lima", "7")

"""Real servers for the tests: a faulty one of our own over both transports, our directory, and a third-party one."""

import sys
from pathlib import Path

import pytest
from live_servers import HERE, PATIENT, script_spec

from mcprl.config import ServerSettings
from mcprl.tools import ServerConnection, ServerSpec


@pytest.fixture(autouse=True)
def patient_cancelling(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long the SDK waits for a cancellation to be written, and we for it to be received.

    Of 5 s, a busy machine may take as much itself; what is given up then hangs on the server for ever.
    """
    monkeypatch.setattr("mcp.shared.jsonrpc_dispatcher._ABANDON_WRITE_TIMEOUT", 300.0)
    monkeypatch.setattr("mcprl.tools.transports.http._NOTIFY_S", 300.0)


@pytest.fixture(scope="session")
def stdio_spec() -> ServerSpec:
    return script_spec("faulty_server.py")


@pytest.fixture(scope="session")
def http_spec() -> ServerSpec:
    start = (sys.executable, str(HERE / "faulty_server.py"), "--http", "{port}")
    return ServerSpec(name="faulty", url="http://127.0.0.1:{port}/mcp", settings=ServerSettings(start=start, **PATIENT))


@pytest.fixture(scope="session", params=["stdio", "http"])
def faulty_spec(request: pytest.FixtureRequest) -> ServerSpec:
    return request.getfixturevalue(f"{request.param}_spec")


@pytest.fixture
async def faulty(faulty_spec: ServerSpec, tmp_path: Path):
    async with ServerConnection(faulty_spec, log=tmp_path / "faulty.log") as connection:
        yield connection

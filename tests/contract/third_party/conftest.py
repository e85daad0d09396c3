"""Toolboxes of third-party servers, each with a folder of its own that holds what the calls expect."""

from pathlib import Path

import pytest
import pytest_asyncio
from third_party_servers import SERVERS, ThirdParty

from mcprl.tools import ServerSpec, Toolbox


@pytest.fixture(scope="module", params=SERVERS, ids=lambda server: server.name)
def server(request: pytest.FixtureRequest) -> ThirdParty:
    return request.param


@pytest.fixture(scope="module")
def folder(server: ThirdParty, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the server works in."""
    folder = tmp_path_factory.mktemp(server.name)
    server.prepare(folder)
    return folder


@pytest.fixture(scope="module")
def spec(server: ThirdParty, folder: Path, third_party_program) -> ServerSpec:
    return server.spec(third_party_program(server.name), folder)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def toolbox(spec: ServerSpec, tmp_path_factory: pytest.TempPathFactory):
    """One toolbox for the tests that leave the server as it was."""
    async with Toolbox([spec], log_dir=tmp_path_factory.mktemp("logs")) as toolbox:
        yield toolbox

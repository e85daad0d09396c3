"""Tool servers: what they are, live connections to them, their catalog, and the one way a call goes.

Usable without any training:

    async with Toolbox(load_server_specs(Path("servers.json"), {}), log_dir=Path("logs")) as toolbox: ...
"""

from mcprl.tools.cassettes.cassette import Cassette
from mcprl.tools.catalog import Catalog, Tool, ToolDefinition
from mcprl.tools.connection import ServerConnection
from mcprl.tools.limits import LimitsService, SharedLimits, limit_settings, limits_lost
from mcprl.tools.specs import ServerSpec, load_server_specs
from mcprl.tools.toolbox import Toolbox, ToolLease, open_toolbox

__all__ = [
    "Cassette",
    "Catalog",
    "LimitsService",
    "ServerConnection",
    "ServerSpec",
    "SharedLimits",
    "Tool",
    "ToolDefinition",
    "ToolLease",
    "Toolbox",
    "limit_settings",
    "limits_lost",
    "load_server_specs",
    "open_toolbox",
]

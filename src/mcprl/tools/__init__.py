"""Tool servers: their specs, live connections, the catalog of their tools, and the pipeline that runs a tool call.

Usable without training:

    async with Toolbox(load_server_specs(Path("servers.json"), {}), log_dir=Path("logs")) as toolbox: ...
"""

from mcprl.tools.cassette import Cassette
from mcprl.tools.catalog import Catalog, Tool, ToolDefinition
from mcprl.tools.connection import ServerConnection
from mcprl.tools.limits import LimitsService, SharedLimits, limit_settings
from mcprl.tools.specs import ServerSpec, load_server_specs, load_specs
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
    "load_server_specs",
    "load_specs",
    "open_toolbox",
]

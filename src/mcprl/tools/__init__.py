"""Tool servers: what they are, live connections to them, their catalog, and the one way a call goes.

Usable without any training:

    async with Toolbox(load_server_specs(Path("servers.json"), {}), log_dir=Path("logs")) as toolbox: ...
"""

from mcprl.tools.catalog import Catalog, Tool
from mcprl.tools.connection import ServerConnection
from mcprl.tools.specs import ServerSpec, load_server_specs
from mcprl.tools.toolbox import Toolbox, ToolLease

__all__ = ["Catalog", "ServerConnection", "ServerSpec", "Tool", "ToolLease", "Toolbox", "load_server_specs"]

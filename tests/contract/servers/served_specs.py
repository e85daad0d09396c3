"""Specs of servers that ship with mcprl, over either transport, set up so that a failed call is seen at once."""

import sys

from mcprl.config import ServerSettings
from mcprl.tools import ServerSpec

PATIENT = {"call_deadline_s": 60.0}
"""Settings for servers that answer, however busy the machine."""


def served_spec(name, transport, *options, env, attempts=1):
    """The server `mcprl serve NAME OPTIONS` over "stdio" or "http", in its own process."""
    serve = ("-m", "mcprl", "serve", name, *options)
    if transport == "stdio":
        settings = ServerSettings(attempts=attempts, **PATIENT)
        return ServerSpec(name=name, command=sys.executable, args=serve, env=env, settings=settings)
    start = (sys.executable, *serve, "--http", "--port", "{port}")
    settings = ServerSettings(attempts=attempts, start=start, **PATIENT)
    return ServerSpec(name=name, url="http://127.0.0.1:{port}/mcp", env=env, settings=settings)

"""What mcprl and MCP servers written for it say to each other beyond MCP, in the metadata that MCP leaves free.

A server can keep a state for each episode in one process: it marks the tools that read or write that state, and finds
in the metadata of each call which episode it belongs to. Servers that know nothing of this are called as ever.
"""

from __future__ import annotations

from typing import Final

__all__ = ["EPISODE", "EPISODE_LIVES_S", "EPISODE_SCOPE", "RETRY_AFTER_S", "SCOPE", "TOKEN_HEADER", "TOKEN_VARIABLE"]

SCOPE: Final = "mcprl/scope"
"""In the metadata of a tool's definition. With `EPISODE_SCOPE`, the tool works on the state of one episode."""
EPISODE_SCOPE: Final = "episode"

EPISODE: Final = "mcprl/episode"
"""In the metadata of a call of such a tool: which episode it belongs to."""
EPISODE_LIVES_S: Final = "mcprl/episode_lives_s"
"""Beside it: seconds after which that episode is certainly over and its state may be dropped."""

RETRY_AFTER_S: Final = "retry_after_s"
"""In the data of a JSON-RPC error: the call did nothing, and may be made again after so many seconds."""

TOKEN_VARIABLE: Final = "MCPRL_SERVER_TOKEN"
"""In the environment of a server that mcprl starts and reaches over HTTP: it should refuse requests without it."""
TOKEN_HEADER: Final = "x-mcprl-token"
"""The header in which requests to such a server carry the token. A web page cannot send it."""

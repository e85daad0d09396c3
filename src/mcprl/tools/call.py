"""The one way a call goes: known tool, valid arguments, the server under its deadline, a text for the policy.

What the policy did wrong becomes an observation it can read. What the infrastructure did wrong is raised.
"""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Mapping
from typing import Any, Protocol

from mcp import MCPError
from mcp_types import (
    INVALID_PARAMS,
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from mcprl.errors import Fault, ServerFaultError
from mcprl.records import Observation, ToolCall
from mcprl.tools.catalog import Catalog, Tool

__all__ = ["CallableServer", "run_call", "text_of"]

_MAX_NAMES_SHOWN = 12


class CallableServer(Protocol):
    """What the pipeline needs of a server: a live connection, or anything that stands in for one."""

    async def call(self, tool: str, arguments: Mapping[str, Any], deadline_s: float) -> CallToolResult: ...


async def run_call(
    call: ToolCall,
    *,
    offered: Mapping[str, Tool],
    catalog: Catalog,
    servers: Mapping[str, CallableServer],
    deadline_s: Mapping[str, float],
) -> Observation:
    """Run one call of the policy. `servers` and `deadline_s` go by server name."""
    if call.problem is not None:
        return Observation(tool=call.name, server=None, text=call.problem, fault=Fault.POLICY)
    tool = offered.get(call.name)
    if tool is None:
        return Observation(tool=call.name, server=None, text=_unknown_tool(call.name, offered), fault=Fault.POLICY)
    problem = catalog.check(tool.name).problem(call.arguments)
    if problem is not None:
        return Observation(tool=tool.name, server=tool.server, text=problem, fault=Fault.POLICY)

    started = time.perf_counter()
    try:
        result = await servers[tool.server].call(tool.name, call.arguments, deadline_s[tool.server])
    except MCPError as error:
        if error.code != INVALID_PARAMS:
            raise ServerFaultError(
                f"server {tool.server!r} answered a call of {tool.name!r} with error {error.code}: {error.message}",
                fix="see the server's log; the call itself fits the tool's schema",
            ) from error
        text, fault = error.message, Fault.POLICY
    else:
        text, fault = text_of(result), Fault.POLICY if result.is_error else None
    latency_s = time.perf_counter() - started
    return Observation(tool=tool.name, server=tool.server, text=text, fault=fault, latency_s=latency_s)


def text_of(result: CallToolResult) -> str:
    """A result as text: its text parts, or else its structured content as JSON; other parts are named, not shown."""
    texts: list[str] = []
    omitted: list[str] = []
    for part in result.content:
        match part:
            case TextContent():
                texts.append(part.text)
            case EmbeddedResource(resource=TextResourceContents() as resource):
                texts.append(resource.text)
            case ImageContent():
                omitted.append("[image omitted]")
            case AudioContent():
                omitted.append("[audio omitted]")
            case ResourceLink():
                omitted.append(f"[resource {part.uri} omitted]")
            case EmbeddedResource():
                omitted.append(f"[resource {part.resource.uri} omitted]")
    if not texts and result.structured_content is not None:
        texts.append(json.dumps(result.structured_content, ensure_ascii=False, separators=(",", ":")))
    return "\n".join([*texts, *omitted])


def _unknown_tool(name: str, offered: Mapping[str, Tool]) -> str:
    close = difflib.get_close_matches(name, offered, n=1)
    if close:
        return f"There is no tool '{name}'. Did you mean '{close[0]}'?"
    names = ", ".join(list(offered)[:_MAX_NAMES_SHOWN])
    return f"There is no tool '{name}'. The tools are: {names}."

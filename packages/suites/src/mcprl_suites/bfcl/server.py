"""The MCP server `bfcl`: the simulators of one BFCL task for one episode.

The server lists all documented functions, because tools are listed before the task is known. Two more tools are only
for the runtime and never offered to the policy: `bfcl_begin` sets the task and its world, and `bfcl_state` shows that
world. Calls before `bfcl_begin`, and calls to simulators that the task does not use, are rejected.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase, FuncMetadata
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field

from mcprl.errors import BadValueError
from mcprl.servers.episode_state import EPISODIC, EpisodeStates
from mcprl_suites.bfcl.simulators import DocumentedTool, Simulators, all_tools, state_digest
from mcprl_suites.bfcl.wheel import VERSION, entry_of

BEGIN = "bfcl_begin"
STATE = "bfcl_state"

CallContext = Context[Any, Any]
_LOOKS = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
_ACTS = ToolAnnotations(read_only_hint=False, idempotent_hint=False, open_world_hint=False)


class _World:
    """The state of an episode. It is empty until the task is known."""

    def __init__(self) -> None:
        self.simulators: Simulators | None = None


class _SimulatorTool(Tool):
    """A documented function. Its arguments are passed to the simulator unchanged, not converted to Python types."""

    async def run(self, arguments: dict[str, Any], context: CallContext, convert_result: bool = False) -> Any:
        return self.fn(arguments, context)


class _Server:
    """The tools. Each tool works on the state of the calling episode."""

    def __init__(self) -> None:
        self._worlds = EpisodeStates(_World)

    def begin(
        self, context: CallContext, task_id: Annotated[str, Field(description="Id of the task.")]
    ) -> CallToolResult:
        """Set up the world of a task. Once per episode, before any other call."""
        world = self._worlds.of(context)
        if world.simulators is not None:
            raise ToolError(f"This episode already has the task {world.simulators.entry.id}.")
        try:
            world.simulators = Simulators(entry_of(task_id))
        except BadValueError as error:
            raise ToolError(str(error)) from error
        return _text(task_id)

    def state(self, context: CallContext) -> CallToolResult:
        """The current world: its digest, then the world as JSON."""
        state = self._simulators(context).state()
        return _text(f"{state_digest(state)}\n{json.dumps(state)}")

    def tool(self, documented: DocumentedTool) -> _SimulatorTool:
        def call(arguments: Mapping[str, Any], context: CallContext) -> CallToolResult:
            simulators = self._simulators(context)
            if not simulators.knows(documented.name):
                raise ToolError(f"This task has no tool {documented.name!r}.")
            outcome = simulators.call(documented.name, arguments)
            return _text(outcome.text, is_error=outcome.is_error)

        return _SimulatorTool(
            fn=call,
            name=documented.name,
            title=None,
            description=documented.description,
            parameters=dict(documented.parameters),
            fn_metadata=FuncMetadata(arg_model=ArgModelBase),
            is_async=False,
            context_kwarg=None,
            annotations=_ACTS,
            meta=EPISODIC,
        )

    def _simulators(self, context: CallContext) -> Simulators:
        simulators = self._worlds.of(context).simulators
        if simulators is None:
            raise ToolError(f"No task has been started: call {BEGIN} first.")
        return simulators


def make_server() -> MCPServer:
    """Create the server without starting it. Raises MissingExtraError if the wheel is not installed."""
    served = _Server()
    server = MCPServer(
        "bfcl",
        version=f"1+bfcl-{VERSION}",
        log_level="WARNING",
        tools=[served.tool(documented) for documented in all_tools().values()],
    )
    server.add_tool(served.begin, name=BEGIN, annotations=_ACTS, meta=EPISODIC)
    server.add_tool(served.state, name=STATE, annotations=_LOOKS, meta=EPISODIC)
    return server


def _text(text: str, *, is_error: bool = False) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=is_error)

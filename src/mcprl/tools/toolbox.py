"""The tool servers of a run, open together: one catalog, and leases that episodes call tools through."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Self

from mcprl.records import Observation, ToolCall
from mcprl.tools.call import run_call
from mcprl.tools.catalog import Catalog, Tool
from mcprl.tools.connection import ServerConnection
from mcprl.tools.specs import ServerSpec

__all__ = ["ToolLease", "Toolbox"]


class Toolbox:
    """All servers of a run. Entering starts them and builds the catalog; leaving ends them.

    async with Toolbox(load_server_specs(Path("servers.json"), {}), log_dir=Path("logs")) as toolbox:
        async with toolbox.lease(["find_person"]) as lease:
            observation = await lease.call(ToolCall(name="find_person", arguments={"name": "Ana"}))
    """

    def __init__(self, specs: Sequence[ServerSpec], *, log_dir: Path) -> None:
        self.connections: Mapping[str, ServerConnection] = {
            spec.name: ServerConnection(spec, log_dir=log_dir) for spec in specs
        }
        if len(self.connections) != len(specs):
            raise ValueError("two servers have the same name")
        self._deadline_s = {spec.name: spec.call_deadline_s for spec in specs}
        self._stack = AsyncExitStack()
        self._catalog: Catalog | None = None

    @property
    def catalog(self) -> Catalog:
        if self._catalog is None:
            raise RuntimeError("the toolbox is not open: use `async with`")
        return self._catalog

    @property
    def restarts(self) -> int:
        """How often any server had to be started again."""
        return sum(connection.restarts for connection in self.connections.values())

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._close)
            await self._open()
            self._catalog = Catalog(self._listed())
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._catalog = None
        await self._stack.aclose()

    def lease(self, tool_names: Sequence[str] | None) -> AbstractAsyncContextManager[ToolLease]:
        """The named tools (all for None) for one episode. Any other tool is unknown to it."""
        return self._lease(tool_names)

    @asynccontextmanager
    async def _lease(self, tool_names: Sequence[str] | None) -> AsyncGenerator[ToolLease]:
        # Episodes share the connections. Isolation of an episode's servers belongs here, around the yield.
        yield ToolLease(self.catalog.select(tool_names), self.catalog, self.connections, self._deadline_s)

    async def _open(self) -> None:
        openings = [connection.open() for connection in self.connections.values()]
        errors = [error for error in await asyncio.gather(*openings, return_exceptions=True) if error is not None]
        if errors:
            for other in errors[1:]:
                errors[0].add_note(f"Also: {other}")
            raise errors[0]

    async def _close(self) -> None:
        closings = [connection.close() for connection in self.connections.values()]
        for error in await asyncio.gather(*closings, return_exceptions=True):
            if error is not None:
                raise error

    def _listed(self) -> Iterator[Tool]:
        for name, connection in self.connections.items():
            for tool in connection.tools:
                yield Tool(
                    name=tool.name, description=tool.description or "", parameters=tool.input_schema, server=name
                )


class ToolLease:
    """The tools that one episode may call."""

    def __init__(
        self,
        tools: tuple[Tool, ...],
        catalog: Catalog,
        connections: Mapping[str, ServerConnection],
        deadline_s: Mapping[str, float],
    ) -> None:
        self.tools = tools
        self._offered = {tool.name: tool for tool in tools}
        self._catalog = catalog
        self._connections = connections
        self._deadline_s = deadline_s

    async def call(self, call: ToolCall) -> Observation:
        """Run one call. Faults of the policy are observations; an InfrastructureError is raised."""
        return await run_call(
            call,
            offered=self._offered,
            catalog=self._catalog,
            servers=self._connections,
            deadline_s=self._deadline_s,
        )

"""A service that is asked over a line, as from another process, and short names for what the tests say to it."""

from __future__ import annotations

import asyncio
import pickle

from mcprl.config import BudgetSettings, RateSettings, ServerSettings
from mcprl.errors import McprlError
from mcprl.tools.limits import LimitsService, RemoteLimits, SharedLimits

__all__ = ["Wire", "budgeted", "clients_of", "rated"]


class Wire:
    """A line to a service in another process: what is said is pickled, and takes its time each way."""

    def __init__(self, service: SharedLimits, delay_s: float = 0.0) -> None:
        self._service = service
        self._delay_s = delay_s
        self.problem: Exception | None = None

    async def _carry(self, method: str, *arguments: object):
        await asyncio.sleep(self._delay_s)
        if self.problem is not None:
            raise self.problem
        try:
            answer = await getattr(self._service, method)(*pickle.loads(pickle.dumps(arguments)))
        except McprlError as error:
            answer = error
        await asyncio.sleep(self._delay_s)
        copy = pickle.loads(pickle.dumps(answer))
        if isinstance(copy, McprlError):
            raise copy
        return copy

    async def spend(self, server: str) -> None:
        await self._carry("spend", server)

    async def refund(self, server: str) -> None:
        await self._carry("refund", server)

    async def take_place(self, server: str) -> int | None:
        return await self._carry("take_place", server)

    async def free_place(self, server: str, ticket: int) -> None:
        await self._carry("free_place", server, ticket)

    async def pause(self, server: str, seconds: float) -> None:
        await self._carry("pause", server, seconds)

    async def spent(self, server: str) -> tuple[int, float]:
        return await self._carry("spent", server)


def rated(calls: int, per_s: float) -> ServerSettings:
    return ServerSettings(rate=RateSettings(calls=calls, per_s=per_s))


def budgeted(**fields) -> ServerSettings:
    return ServerSettings(budget=BudgetSettings(**fields))


def clients_of(service: LimitsService, count: int, **fields) -> list[RemoteLimits]:
    return [RemoteLimits(service, "fmp", **fields) for _ in range(count)]

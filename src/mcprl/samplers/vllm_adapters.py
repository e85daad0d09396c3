"""The adapters that a vLLM server holds, and the turns in flight under each.

Each version is an adapter with a name and a path of its own: vLLM keys its prefix cache on both, and a path that is
overwritten would be answered from stale cache. A turn keeps the adapter it began with. vLLM would even go on with one
whose name is taken from it, but it would read it from its folder again, turn by turn, once more are in use than it has
places for. So a name goes only when its last turn has ended, and there are never more names than places.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from mcprl.records import Weights
from mcprl.samplers.vllm_process import VllmProcess
from mcprl.samplers.vllm_server import BASE_NAME, MAX_ADAPTERS

__all__ = ["Adapters", "adapter_name"]


def adapter_name(weights: Weights) -> str:
    """What the server calls these weights.

    >>> adapter_name(Weights(version=0))
    'base'
    """
    return BASE_NAME if weights.adapter is None else f"v{weights.version}"


class Adapters:
    """Those of the server that runs now: `restore` begins anew with another."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._turns: Counter[str] = Counter()
        self._turn_ended = asyncio.Event()

    @contextmanager
    def in_use(self, weights: Weights) -> Generator[str]:
        """A turn under `weights`. Meanwhile their name stands."""
        name = adapter_name(weights)
        self._turns[name] += 1
        try:
            yield name
        finally:
            self._turns[name] -= 1
            self._turn_ended.set()

    async def load(self, server: VllmProcess, weights: Weights, *, in_force: Weights) -> None:
        """Have the server hold `weights` too, once there is a place for them. Those in force keep theirs."""
        name = adapter_name(weights)
        if weights.adapter is None or name in self._names:
            return
        while len(self._names) >= MAX_ADAPTERS:
            self._turn_ended.clear()
            await self.unload_idle(server, in_force=in_force)
            if len(self._names) >= MAX_ADAPTERS:
                await self._turn_ended.wait()
        await server.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(weights.adapter.resolve())})
        self._names.add(name)

    async def unload_idle(self, server: VllmProcess, *, in_force: Weights) -> None:
        """Take the names of adapters that no turn uses, nor will."""
        for name in sorted(self._names - {adapter_name(in_force)}):
            if not self._turns[name]:
                await server.post("/v1/unload_lora_adapter", {"lora_name": name})
                self._names.discard(name)

    async def restore(self, server: VllmProcess, in_force: Weights) -> None:
        """Have a server that was just started hold the weights in force, and no others."""
        self._names.clear()
        await self.load(server, in_force, in_force=in_force)

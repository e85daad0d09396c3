"""Workers on two simulated nodes that are killed one after the other while they play."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from random import Random
from typing import Any

from mcprl.episodes.ray_workers import RayWorkers

__all__ = ["killed", "two_nodes"]


@contextmanager
def two_nodes(cpus: int = 2) -> Generator[None]:
    """Inside, RAY_ADDRESS is that of a Ray cluster of two nodes on this machine."""
    for setting in ("RAY_USAGE_STATS_ENABLED", "RAY_enable_metrics_collection", "RAY_worker_niceness"):
        os.environ.setdefault(setting, "0")
    from ray.cluster_utils import Cluster

    node: dict[str, Any] = {"num_cpus": cpus, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    cluster: Any = Cluster(initialize_head=True, head_node_args=node)
    try:
        cluster.add_node(num_cpus=cpus, object_store_memory=80 * 2**20)
        os.environ["RAY_ADDRESS"] = cluster.address
        yield
    finally:
        os.environ.pop("RAY_ADDRESS", None)
        cluster.shutdown()


@asynccontextmanager
async def killed(workers: RayWorkers, *, every_s: float, most: int | None = None) -> AsyncGenerator[list[int]]:
    """Inside, a worker gets SIGKILL every so often, `most` of them in all. Gives those that did."""
    dead: list[int] = []

    async def keep_killing() -> None:
        draw = Random(3)
        while most is None or len(dead) < most:
            await asyncio.sleep(every_s)
            alive = [pid for pid in workers.pids if pid not in dead]
            if alive:
                pid = draw.choice(alive)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                dead.append(pid)

    killer = asyncio.create_task(keep_killing())
    try:
        yield dead
    finally:
        killer.cancel()
        await asyncio.gather(killer, return_exceptions=True)

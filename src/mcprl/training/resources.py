"""What a run takes of its machine: memory of its processes, and of the GPUs where there are any."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping

import psutil

__all__ = ["resource_metrics"]

_GIB = 2**30
_GPU_QUERY = ("--query-gpu=memory.used,memory.total,utilization.gpu", "--format=csv,noheader,nounits")
_GPU_DEADLINE_S = 5.0


async def resource_metrics() -> Mapping[str, float]:
    """Memory of this process and of all that it started, what the machine has left, and the GPUs taken together.

    {"memory_trainer_gib": 2.1, "memory_children_gib": 3.4, "memory_free_gib": 12.8, "cpu_load": 1.9}
    """
    own = psutil.Process()
    children = [_rss(child) for child in own.children(recursive=True)]
    return {
        "memory_trainer_gib": own.memory_info().rss / _GIB,
        "memory_children_gib": sum(children) / _GIB,
        "memory_free_gib": psutil.virtual_memory().available / _GIB,
        "cpu_load": psutil.getloadavg()[0],
        **await _gpu_metrics(),
    }


def _rss(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.NoSuchProcess:  # it has ended since it was listed
        return 0


async def _gpu_metrics() -> dict[str, float]:
    """By NVIDIA's own program, which comes with the driver; without it, nothing is known of GPUs.

    `gpu_silent` is 1 where the program is there and does not tell.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    process = await asyncio.create_subprocess_exec(
        program, *_GPU_QUERY, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(_GPU_DEADLINE_S):
            said, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return {"gpu_silent": 1.0}
    rows = _rows(said.decode()) if process.returncode == 0 else None
    if not rows:
        return {"gpu_silent": 1.0}
    used, total, busy = (sum(column) for column in zip(*rows, strict=True))
    return {
        "gpu_memory_gib": used / 1024,
        "gpu_memory_total_gib": total / 1024,
        "gpu_busy_share": busy / len(rows) / 100,
    }


def _rows(said: str) -> list[list[float]] | None:
    """A row a GPU; None where one does not tell, as small boards and virtual ones do."""
    try:
        return [[float(cell) for cell in line.split(",")] for line in said.splitlines() if line.strip()]
    except ValueError:
        return None

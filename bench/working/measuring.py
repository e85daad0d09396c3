"""What processes take: their processor time and their memory, with all their children."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import psutil

from mcprl.episodes.ray_actor import Request, Response
from mcprl.records import Task, Trajectory
from mcprl.samplers import Completion, SampleRequest

__all__ = ["Measured", "Usage", "measured", "relayed_bytes"]

_LOOK_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one collection of episodes took. Processor time and memory of workers include their tool servers.

    Memory is the most that was seen at once, in bytes, and what there was before; tokens are all those of the episodes,
    prompts included.
    """

    seconds: float
    driver_cpu_s: float
    worker_cpu_s: float
    driver_rss: int
    worker_rss: int
    relayed_bytes: int
    calls: int
    tokens: int
    driver_rss_before: int
    worker_rss_before: int


@dataclass(slots=True)
class Usage:
    """Grows while it is measured."""

    driver_cpu_s: float = 0.0
    worker_cpu_s: float = 0.0
    driver_rss: int = 0
    worker_rss: int = 0
    driver_rss_before: int = 0
    worker_rss_before: int = 0


@asynccontextmanager
async def measured(workers: Callable[[], Sequence[int]]) -> AsyncGenerator[Usage]:
    """Inside, processor time and the most memory of this process alone, and of the workers with their children."""
    usage = Usage()
    driver_before, workers_before = _cpu_s([_process(os.getpid())]), _cpu_s(_trees(workers()))
    usage.driver_rss_before, usage.worker_rss_before = _rss([_process(os.getpid())]), _rss(_trees(workers()))

    def look() -> None:
        usage.driver_rss = max(usage.driver_rss, _rss([_process(os.getpid())]))
        usage.worker_rss = max(usage.worker_rss, _rss(_trees(workers())))

    async def keep_looking() -> None:
        while True:
            look()
            await asyncio.sleep(_LOOK_S)

    looking = asyncio.create_task(keep_looking())
    try:
        yield usage
    finally:
        looking.cancel()
        look()
        usage.driver_cpu_s = _cpu_s([_process(os.getpid())]) - driver_before
        usage.worker_cpu_s = _cpu_s(_trees(workers())) - workers_before


def relayed_bytes(tasks: Iterable[Task], trajectories: Iterable[Trajectory]) -> int:
    """What these episodes sent between driver and workers: task, requests and responses of each turn, trajectory.

    Computed from the episodes, without Ray's own headers, so that nothing is counted while the time is measured.
    """
    sizes = {task.id: _size(task) for task in tasks}
    total = 0
    for each in trajectories:
        total += sizes[each.task_id] + _size(each)
        for number, turn in enumerate(each.turns):
            begin, end = each.turn_index.index(number), len(each.turn_index) - each.turn_index[::-1].index(number)
            request = SampleRequest(
                prompt_ids=each.token_ids[:begin],
                max_tokens=1,
                temperature=each.temperature,
                stop=(),
                stop_token_ids=each.stop_token_ids,
                seed=0,
                grammar=each.grammar,
            )
            completion = Completion(
                token_ids=each.token_ids[begin:end],
                logprobs=each.logprobs[begin:end],
                finish=turn.finish,
                weights_versions=each.weights_version[begin:end],
            )
            total += _size(Request(number, "sample", (request,))) + _size(Response(number, completion))
    return total


def _size(message: object) -> int:
    return len(pickle.dumps(message, protocol=5))


def _process(pid: int) -> psutil.Process:
    return psutil.Process(pid)


def _trees(pids: Iterable[int]) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            found += [root, *root.children(recursive=True)]
    return found


def _cpu_s(processes: Iterable[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _rss(processes: Iterable[psutil.Process]) -> int:
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total

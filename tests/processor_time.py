"""How long something takes, in the processor time of this thread: what other processes do meanwhile is not counted."""

from __future__ import annotations

import time
from collections.abc import Callable


def least_s(work: Callable[[], object], *, looks: int = 3) -> float:
    """The least of some looks: a garbage collection, or whatever else the machine does, can only add to it."""
    taken: list[float] = []
    for _ in range(looks):
        started = time.thread_time()
        work()
        taken.append(time.thread_time() - started)
    return min(taken)

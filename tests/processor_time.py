"""How long something takes, in the processor time of this thread: what other processes do meanwhile is not counted."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def least_s(work: Callable[[], object], *, looks: int = 3) -> float:
    """The least of some looks: a garbage collection, or whatever else the machine does, can only add to it."""
    taken: list[float] = []
    for _ in range(looks):
        started = time.thread_time()
        work()
        taken.append(time.thread_time() - started)
    return min(taken)


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage is collected meanwhile: among the objects of all other tests that takes as long as a second."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

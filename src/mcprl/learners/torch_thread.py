"""The one thread in which a learner computes.

The GPU in use is a property of a thread. So is the heap that memory goes back to: were updates made now in this thread
and now in that one, each would keep as much as its largest update ever took.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

__all__ = ["in_torch_thread"]

P = ParamSpec("P")
T = TypeVar("T")

_THREAD = ThreadPoolExecutor(1, thread_name_prefix="torch")


async def in_torch_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` gives, once all that was asked for before it is done."""
    return await asyncio.get_running_loop().run_in_executor(_THREAD, partial(work, *args, **kwargs))

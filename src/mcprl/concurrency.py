"""Runs coroutines concurrently. Returns all results, or raises the first failure."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def run_all(coroutines: Iterable[Coroutine[Any, Any, T]]) -> tuple[T, ...]:
    """Run coroutines concurrently and return their results in order.

    If one fails, the others are cancelled and awaited, and its exception is raised unchanged: `asyncio.gather` would
    leave the others running, and `asyncio.TaskGroup` would wrap the exception in a group.
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    if not tasks:
        return ()
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failed = [task for task in tasks if task in done and not task.cancelled() and task.exception() is not None]
        return tuple([task.result() for task in failed or tasks])
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

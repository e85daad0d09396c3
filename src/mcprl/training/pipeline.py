"""Steps that are collected ahead of the one that is being learned from.

Step s may be collected once the weights are at most `ahead` updates behind those that it will train. With `ahead` 0,
collecting and learning take turns. Else, while the learner is busy with step s:

    step s          ■■■■■■■□□□□□□□        ■ collected   □ learned from
    step s + 1            ■■■■■■■■□□□□□□
    step s + 2                    ■■■■■■■■□□□□□□

So no token is ever older than `ahead` versions when it is learned from: not by a check, but since its step was not open
before. A step is dealt when it is opened, at a fixed place in the order of updates: which tasks it gets does not depend
on how fast anything was.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from mcprl.tasks import Deal
from mcprl.training.collecting import CollectedStep

__all__ = ["Pipeline", "TakenStep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenStep:
    """A collected step, and the seconds it took: to be collected, and until it was handed over to whoever waited.

    TakenStep(collected=…, collect_s=41.2, wait_s=3.5)     # most of it was collected while an update was made
    """

    collected: CollectedStep
    collect_s: float
    wait_s: float


class Pipeline:
    """Opens steps in their order and hands them over in their order."""

    def __init__(
        self,
        collect: Callable[[int, Deal], Awaitable[CollectedStep]],
        deal: Callable[[int], Deal],
        *,
        steps: int,
        ahead: int,
        known_deals: Mapping[int, Deal],
    ) -> None:
        self._collect = collect
        self._deal = deal
        self._steps = steps
        self._ahead = ahead
        self._deals = dict(known_deals)
        self._open: dict[int, asyncio.Task[tuple[CollectedStep, float]]] = {}

    @property
    def open_deals(self) -> Mapping[int, Deal]:
        """The deals of steps that are open and not yet taken."""
        return dict(self._deals)

    async def take(self, step: int) -> TakenStep:
        """The groups of a step, all of them. Opens it, and as many after it as may be open with it."""
        started = time.monotonic()
        self.open_for(step)
        collected, collect_s = await asyncio.shield(self._open[step])
        del self._open[step], self._deals[step]
        return TakenStep(collected=collected, collect_s=collect_s, wait_s=time.monotonic() - started)

    def open_for(self, step: int) -> None:
        """Open the steps that may be collected while `step` is the next to be learned from."""
        for coming in range(step, min(step + self._ahead + 1, self._steps)):
            if coming not in self._open:
                if coming not in self._deals:
                    self._deals[coming] = self._deal(coming)
                self._open[coming] = asyncio.create_task(self._timed(coming))

    async def close(self) -> None:
        """Give up what is under way. Finished episodes are in the journal."""
        for task in self._open.values():
            task.cancel()
        await asyncio.gather(*self._open.values(), return_exceptions=True)

    async def _timed(self, step: int) -> tuple[CollectedStep, float]:
        started = time.monotonic()
        collected = await self._collect(step, self._deals[step])
        return collected, time.monotonic() - started

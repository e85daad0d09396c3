"""How long the sampler and the learner were busy: what is left of a step is time in which they stood idle."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import TracebackType

from mcprl.records import Weights
from mcprl.samplers import Completion, Sampler, SampleRequest

__all__ = ["MeteredSampler", "Occupancy"]


class Occupancy:
    """Seconds in which at least one piece of work was under way.

    Work from 0 s to 3 s and from 2 s to 5 s is 5 s of occupancy, not 6.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._under_way = 0
        self._busy_since = 0.0
        self._busy_s = 0.0

    @contextmanager
    def working(self) -> Generator[None]:
        if not self._under_way:
            self._busy_since = self._clock()
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._busy_s += self._clock() - self._busy_since

    def take(self) -> float:
        """The seconds since they were last taken, those of work that still goes on included."""
        if self._under_way:
            now = self._clock()
            self._busy_s += now - self._busy_since
            self._busy_since = now
        taken, self._busy_s = self._busy_s, 0.0
        return taken


class MeteredSampler:
    """A sampler whose occupancy is measured."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self.occupancy = Occupancy()

    async def __aenter__(self) -> MeteredSampler:
        await self._sampler.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._sampler.__aexit__(kind, error, trace)

    @property
    def restarts(self) -> int:
        return self._sampler.restarts

    async def sample(self, request: SampleRequest) -> Completion:
        with self.occupancy.working():
            return await self._sampler.sample(request)

    async def publish(self, weights: Weights) -> Weights:
        return await self._sampler.publish(weights)

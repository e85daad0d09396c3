"""When a run did what: the spans that a picture of its pipeline is drawn from."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

__all__ = ["Activity", "Span", "Timeline"]

Activity = Literal["collect", "update", "publish", "save"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something that a run did for a step, in seconds since 1970.

    Span(step=3, activity="update", start=1763280000.25, end=1763280004.5)
    """

    step: int
    activity: Activity
    start: float
    end: float


class Timeline:
    """Gathers spans until they are taken, to be recorded. Those of one activity may overlap those of another."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._ended: list[Span] = []

    @contextmanager
    def span(self, step: int, activity: Activity) -> Generator[None]:
        """What is done inside of it, also where it is broken off."""
        start = self._clock()
        try:
            yield
        finally:
            self._ended.append(Span(step=step, activity=activity, start=start, end=self._clock()))

    def take(self) -> list[Span]:
        """The spans that have ended since they were last taken."""
        taken, self._ended = self._ended, []
        return taken

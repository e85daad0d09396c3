"""How a run tells what it is doing, without knowing who listens: a terminal, a log, a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from mcprl.records import LostEpisode, Trajectory
from mcprl.verdicts import Verdict

__all__ = ["Silent", "Watcher"]


class Watcher(Protocol):
    """Hears of a run's progress. Calls come from the run's own event loop and must return at once."""

    def stage(self, text: str) -> None:
        """The run is busy with something that takes a while, such as starting vLLM."""
        ...

    def episode_finished(self, step: int, outcome: Trajectory | LostEpisode) -> None:
        """An attempt at an episode ended."""
        ...

    def step_finished(self, step: int, metrics: Mapping[str, float], verdicts: Sequence[Verdict]) -> None:
        """A step is done and recorded. The verdicts on it come with the most severe first."""
        ...


class Silent:
    """A watcher that says nothing."""

    def stage(self, text: str) -> None:
        pass

    def episode_finished(self, step: int, outcome: Trajectory | LostEpisode) -> None:
        pass

    def step_finished(self, step: int, metrics: Mapping[str, float], verdicts: Sequence[Verdict]) -> None:
        pass

"""An interface for reporting the progress of a run to a terminal, a log or a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mcprl.records import LostEpisode, Trajectory
from mcprl.verdicts import Severity, Verdict


@dataclass(frozen=True, slots=True)
class Step:
    """A finished step of a run: its index from 0, its metrics, and the verdicts on it, the most severe first.

    Step(index=3, metrics={"reward": 0.25, …}, verdicts=(Verdict(severity=Severity.WARN, …),))
    """

    index: int
    metrics: Mapping[str, float]
    verdicts: tuple[Verdict, ...]

    @property
    def verdict(self) -> Severity:
        """Return the severity of the most severe verdict, or OK if there is none."""
        return self.verdicts[0].severity if self.verdicts else Severity.OK


class Watcher(Protocol):
    """Receives the progress of a run. Methods are called in the run's event loop and must return at once."""

    def stage(self, text: str) -> None:
        """Called when the run starts something slow, such as vLLM. `text` says what."""
        ...

    def episode_finished(self, step: int, outcome: Trajectory | LostEpisode) -> None:
        """Called when an attempt at an episode has ended."""
        ...

    def step_finished(self, step: int, metrics: Mapping[str, float], verdicts: Sequence[Verdict]) -> None:
        """Called when a step is done and recorded. Its verdicts are sorted by severity, the most severe first."""
        ...


@runtime_checkable
class PackWatcher(Protocol):
    """A watcher that is also told how far an update is."""

    def pack_finished(self, done: int, total: int) -> None:
        """Called when the learner has scored another pack: `done` of the `total` packs of a pass over the episodes."""
        ...


class Silent:
    """A watcher that ignores everything."""

    def stage(self, text: str) -> None:
        pass

    def episode_finished(self, step: int, outcome: Trajectory | LostEpisode) -> None:
        pass

    def step_finished(self, step: int, metrics: Mapping[str, float], verdicts: Sequence[Verdict]) -> None:
        pass

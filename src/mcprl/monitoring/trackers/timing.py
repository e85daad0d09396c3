"""When the turns and calls of an episode happened, as far as its record tells.

Measured are the end of the episode, its duration, and the latency of each call. The calls of a turn are made together,
so a turn waits for its longest. What is left of the duration was spent on sampling; each turn gets a share of it by the
tokens it sampled. So calls have their true length, and turns one that is estimated. Where the waits add up to more than
the episode took, they are scaled down to fit.
"""

from __future__ import annotations

from dataclasses import dataclass

from mcprl.monitoring.trackers.reports import EpisodeReport, TurnReport

__all__ = ["Period", "TurnTimes", "times_of"]


@dataclass(frozen=True, slots=True)
class Period:
    """From when to when, in seconds since 1970: Period(1763280002.6, 1763280004.5)."""

    start: float
    end: float


@dataclass(frozen=True, slots=True)
class TurnTimes:
    """When a turn was, from its first token to the answer of its last call, and when each of its calls."""

    whole: Period
    calls: tuple[Period, ...]


def times_of(episode: EpisodeReport) -> tuple[Period, tuple[TurnTimes, ...]]:
    """The time of an episode, and of each of its turns."""
    duration_s = max(0.0, episode.duration_s)
    waiting_s = sum(_wait_s(turn) for turn in episode.turns)
    scale = min(1.0, duration_s / waiting_s) if waiting_s > 0 else 1.0
    tokens = sum(turn.tokens for turn in episode.turns)
    second_a_token = (duration_s - waiting_s * scale) / tokens if tokens else 0.0
    start = now = episode.ended_at - duration_s
    turns: list[TurnTimes] = []
    for turn in episode.turns:
        called = now + turn.tokens * second_a_token
        answered = called + _wait_s(turn) * scale
        calls = tuple(Period(called, called + call.latency_s * scale) for call in turn.calls)
        turns.append(TurnTimes(Period(now, answered), calls))
        now = answered
    return Period(start, episode.ended_at), tuple(turns)


def _wait_s(turn: TurnReport) -> float:
    return max((call.latency_s for call in turn.calls), default=0.0)

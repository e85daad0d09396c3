"""What the courses of a soak show: memory, descriptors, and what became of the episodes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from crashing.evidence import all_trajectories, log_line, played_again, recorded_twice
from mcprl.runs.journal import EpisodeJournal
from soaking.course import Course, Life, Moment
from soaking.soak_runs import MAX_STALENESS

__all__ = ["episodes_found", "leaked_descriptors", "longest_life", "rss_slope_mb_per_min", "settled"]

_WARM_UP_SHARE, _WARM_UP_S = 0.25, 180.0


def longest_life(course: Course) -> Life:
    return max(course.lives, key=lambda life: life.moments[-1].at - life.moments[0].at if life.moments else 0.0)


def settled(life: Life) -> list[Moment]:
    """The moments after the first minutes, in which buffers grow to their size; of a short life, after a quarter."""
    first, last = life.moments[0].at, life.moments[-1].at
    warm = first + min(_WARM_UP_S, _WARM_UP_SHARE * (last - first))
    return [moment for moment in life.moments if moment.at >= warm]


def rss_slope_mb_per_min(moments: Sequence[Moment]) -> float:
    """By least squares."""
    minutes = [moment.at / 60 for moment in moments]
    sizes = [moment.rss_bytes / 1e6 for moment in moments]
    mean_minute, mean_size = sum(minutes) / len(minutes), sum(sizes) / len(sizes)
    covariance = sum((m - mean_minute) * (s - mean_size) for m, s in zip(minutes, sizes, strict=True))
    return covariance / sum((m - mean_minute) ** 2 for m in minutes)


def leaked_descriptors(moments: Sequence[Moment]) -> int:
    """How far the fewest at the end of a step have risen, from the first third to the last.

    Steps that are being collected meanwhile hold some more, now and then; what is leaked is held in every moment.
    """
    third = max(1, len(moments) // 3)
    return min(m.descriptors for m in moments[-third:]) - min(m.descriptors for m in moments[:third])


def episodes_found(course: Course) -> dict[str, int]:
    """Counts over all episodes of a run: those that were durable and are gone, used twice, played again, too stale."""
    recorded = all_trajectories(course.run)
    steps = sum(1 for _ in (course.run / "metrics.jsonl").open())
    journal = EpisodeJournal(course.run / "journal")
    waiting = [t for step in range(steps + MAX_STALENESS + 1) for t in journal.finished(step).values()]
    kept = {log_line(trajectory).decode().rstrip("\n") for trajectory in (*recorded, *waiting)}
    lost = set(course.log.read_text().splitlines()) - kept
    return {
        "episodes": len(recorded),
        "finished_lost": len(lost),
        "used_twice": len(recorded_twice(course.run)),
        "played_again": len(played_again(course.log)),
        "too_stale": _too_stale(course.run),
    }


def _too_stale(run: Path) -> int:
    """Episodes with a token of weights that were more versions behind than allowed when it was learned from."""
    after = [json.loads(line)["weights_version"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    learned_by = [0.0, *after[:-1]]
    return sum(
        min(v for v, sampled in zip(t.weights_version, t.sampled, strict=True) if sampled)
        < learned_by[t.step] - MAX_STALENESS
        for t in all_trajectories(run)
    )

"""The figure of docs/pipeline.md: how much of the time learner and sampler idle, and what is learned meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from pipelining.running import Course

__all__ = ["draw"]

_COLOURS = {"sync": "#b45309", "async": "#0f766e"}
_INK, _PALE = "#334155", "#cbd5e1"


def draw(courses: Mapping[str, Sequence[Course]], file: Path) -> None:
    """Three panels. Bars are means over the seeds; lines are medians, bands reach from the lowest to the highest."""
    style = {"font.size": 10, "text.color": _INK, "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK}
    with rc_context({**style, "axes.edgecolor": _PALE, "svg.fonttype": "path", "svg.hashsalt": "pipeline"}):
        figure = Figure(figsize=(11, 3.5), layout="constrained", facecolor="white")
        idle, by_update, by_time = figure.subplots(1, 3)
        _bars(idle, courses)
        for pipeline, own in courses.items():
            rows = list(zip(*(course.rewards for course in own), strict=True))
            ends = list(zip(*(_minutes(course) for course in own), strict=True))
            _band(by_update, pipeline, list(range(1, len(rows) + 1)), rows)
            _band(by_time, pipeline, [median(at_once) for at_once in ends], rows)
        by_update.legend(loc="lower right", frameon=False)
        _label(idle, "Share of the time that it idles", "")
        _label(by_update, "Reward by updates", "update")
        _label(by_time, "Reward by time", "minutes")
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None, dpi=110)


def _bars(axes: Any, courses: Mapping[str, Sequence[Course]]) -> None:
    parts = ("learner", "sampler")
    for place, (pipeline, own) in enumerate(courses.items()):
        heights = [fmean(course.share(f"{part}_idle_share") for course in own) for part in parts]
        drawn = axes.bar(
            [number + 0.36 * (place - 0.5) for number in range(len(parts))],
            heights,
            width=0.34,
            color=_COLOURS[pipeline],
            label=pipeline,
        )
        axes.bar_label(drawn, [f"{height:.0%}" for height in heights], padding=2, fontsize=9)
    axes.set_xticks(range(len(parts)), parts)
    axes.set_ylim(0.0, 1.05)
    axes.legend(loc="upper left", frameon=False)


def _minutes(course: Course) -> list[float]:
    """When each step ended, from the beginning of the first."""
    return [sum(step["step_s"] for step in course.steps[: number + 1]) / 60 for number in range(len(course.steps))]


def _band(axes: Any, pipeline: str, places: Sequence[float], rows: Sequence[Sequence[float]]) -> None:
    lowest, highest = [min(row) for row in rows], [max(row) for row in rows]
    axes.fill_between(places, lowest, highest, color=_COLOURS[pipeline], alpha=0.18, linewidth=0)
    axes.plot(places, [median(row) for row in rows], color=_COLOURS[pipeline], linewidth=2, label=pipeline)


def _label(axes: Any, title: str, below: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.set_xlabel(below)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=_PALE, linewidth=0.5)
    axes.set_axisbelow(True)

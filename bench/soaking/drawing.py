"""The figure of the soak: updates over time with the faults marked, and the memory of the trainer below."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from soaking.course import Course
from soaking.faults import ENDING, SAMPLER_KILL

__all__ = ["draw"]

_CALM, _SOAKED = "#b45309", "#0f766e"
_INK, _PALE = "#334155", "#cbd5e1"
_MARKS = {"trainer killed": "X", "SIGTERM": "s", "disk full": "D", SAMPLER_KILL: "^"}


def draw(calm: Course, soaked: Course, file: Path) -> None:
    """Two panels over one axis of minutes."""
    style = {"font.size": 10, "text.color": _INK, "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK}
    with rc_context({**style, "axes.edgecolor": _PALE, "svg.fonttype": "path", "svg.hashsalt": "soak"}):
        figure = Figure(figsize=(9, 5.5), layout="constrained", facecolor="white")
        updates, memory = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, 1))
        for course, colour, name in ((calm, _CALM, "without faults"), (soaked, _SOAKED, "with faults")):
            _lines(updates, course, colour, name, lambda moment: moment.step)
            _lines(memory, course, colour, name, lambda moment: moment.rss_bytes / 1e6)
        _faults(updates, soaked)
        updates.legend(loc="upper left", frameon=False, fontsize=9)
        memory.set_ylim(bottom=0.0)
        memory.set_xlabel("minutes")
        for axes, title in ((updates, "Updates"), (memory, "Memory of the trainer, MB")):
            axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="y", color=_PALE, linewidth=0.5)
            axes.margins(x=0.01)
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None, dpi=110)


def _lines(axes: Any, course: Course, colour: str, name: str, of: Any) -> None:
    """A line for each process."""
    for number, life in enumerate(course.lives):
        moments = [moment for moment in life.moments if course.began <= moment.at <= course.ended]
        minutes = [(moment.at - course.began) / 60 for moment in moments]
        label = name if number == 0 else None
        axes.plot(minutes, [of(moment) for moment in moments], color=colour, linewidth=1.6, label=label)


def _faults(axes: Any, course: Course) -> None:
    steps = [(moment.at - course.began, moment.step) for life in course.lives for moment in life.moments]
    for kind, mark in _MARKS.items():
        times = [at for at, done in course.done if done == kind]
        heights = [max((step for at, step in steps if at <= time), default=0) for time in times]
        if times:
            minutes = [time / 60 for time in times]
            axes.scatter(minutes, heights, marker=mark, s=46, color=_INK, zorder=3, label=kind)
    small = [time / 60 for time, kind in course.done if kind not in (*ENDING, SAMPLER_KILL)]
    axes.scatter(small, [0] * len(small), marker="|", s=60, color=_INK, linewidth=0.7, label="a tool server or a call")

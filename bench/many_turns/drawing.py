"""The pictures of bench/multi_turn.py: success by the number of calls, and success and recovery over the budget."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib

from many_turns.held_out import recovery, success
from many_turns.spending import ROOT
from mcprl.evaluation.statistics import Estimate

matplotlib.use("svg")
from matplotlib import pyplot

__all__ = ["STYLE", "draw_course", "draw_success", "finish"]

ASSETS = ROOT / "docs" / "assets"
INK = "#334155"
STYLE = {"svg.hashsalt": "mcprl", "font.size": 9, "text.color": INK, "axes.labelcolor": INK}
GROUPS = (("all tasks", "#0f766e"), ("2 calls", "#4338ca"), ("3 calls", "#b45309"))
LINES = {"long": ("SFT for the whole budget", "#b45309"), "rl": ("SFT, then RL", "#0f766e")}
Point = tuple[float, list[Mapping[str, Any]], list[Mapping[str, Any]]]


def draw_success(phases: Mapping[str, Sequence[Estimate]]) -> None:
    """Success of each phase: all tasks, those of two calls, those of three, with intervals."""
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(figsize=(7, 3.2))
        for place, estimates in enumerate(phases.values()):
            for offset, (estimate, (label, colour)) in enumerate(zip(estimates, GROUPS, strict=True)):
                at = place + (offset - 1) * 0.26
                axes.bar(at, estimate.value, 0.24, color=colour, label=label if place == 0 else None)
                low, high = estimate.low or 0.0, estimate.high or 1.0
                error = [[max(0.0, estimate.value - low)], [max(0.0, high - estimate.value)]]
                axes.errorbar(at, estimate.value, error, color=INK, capsize=3, lw=1)
        axes.set_xticks(range(len(phases)), [textwrap.fill(name, 18) for name in phases])
        axes.set(ylabel="success on held-out tasks", ylim=(0, 1))
        axes.legend(frameon=False, fontsize=8, loc="upper left")
        finish(figure, [axes], "multi-turn-success.svg")


def draw_course(stages: Mapping[str, Sequence[Point]]) -> None:
    """Success without errors, success with them, and recovered errors, over the processor time of training."""
    with pyplot.rc_context(STYLE):
        figure, panels = pyplot.subplots(1, 3, figsize=(9, 3), sharey=True)
        for stage, points in stages.items():
            label, colour = LINES[stage]
            measures = (
                [(cpu_s, success(plain)) for cpu_s, plain, _ in points],
                [(cpu_s, success(errors)) for cpu_s, _, errors in points if errors],
                [(cpu_s, recovery(errors)) for cpu_s, _, errors in points if errors],
            )
            for axes, measured in zip(panels, measures, strict=True):
                times = [cpu_s / 60 for cpu_s, _ in measured]
                axes.plot(times, [one.value for _, one in measured], "o-", color=colour, label=label, ms=3, lw=1.5)
                lows, highs = [one.low or 0.0 for _, one in measured], [one.high or 1.0 for _, one in measured]
                axes.fill_between(times, lows, highs, color=colour, alpha=0.15, lw=0)
        for axes, title in zip(panels, ("success", "success with errors", "errors recovered"), strict=True):
            axes.set(title=title, xlabel="CPU minutes of training", ylim=(0, 1))
        panels[0].legend(frameon=False, fontsize=8)
        finish(figure, panels, "multi-turn-course.svg")


def finish(figure: pyplot.Figure, panels: Sequence[pyplot.Axes], name: str) -> None:
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(ASSETS / name, metadata={"Date": None})
    pyplot.close(figure)

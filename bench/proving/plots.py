"""The two plots of docs/benchmarks.md."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import matplotlib

from mcprl.evaluation.statistics import Estimate
from proving.arms import ARMS, WARM_STEPS
from proving.runs import ROOT

matplotlib.use("svg")
from matplotlib import pyplot

__all__ = ["draw_curves", "draw_success"]

ASSETS = ROOT / "docs" / "assets"
COLOURS = {"finance": "#0f766e", "no-grammar": "#b45309", "ppo": "#4338ca"}
INK, PALE = "#334155", "#cbd5e1"
SMOOTHING = 5


def draw_curves(courses: Mapping[str, Sequence[Sequence[Mapping[str, float]]]]) -> None:
    """Success of the training episodes over the steps: each seed pale, smoothed in colour."""
    with pyplot.rc_context({"svg.hashsalt": "mcprl", "font.size": 9, "text.color": INK, "axes.labelcolor": INK}):
        figure, axes = pyplot.subplots(figsize=(7, 3.6))
        axes.axvspan(0, WARM_STEPS, color=PALE, alpha=0.4, lw=0)
        axes.text(0.2, 0.97, "warm start", va="top", fontsize=8, transform=axes.get_xaxis_transform())
        for name, seeds in courses.items():
            for place, steps in enumerate(seeds):
                success = [step["success_rate"] for step in steps]
                smooth = [_mean(success[max(0, at - SMOOTHING + 1) : at + 1]) for at in range(len(success))]
                axes.plot(success, color=COLOURS[name], alpha=0.15, lw=1)
                axes.plot(smooth, color=COLOURS[name], lw=1.6, label=ARMS[name].says if place == 0 else None)
        axes.set(xlabel="step", ylabel="success of the step's episodes", ylim=(0, 1))
        axes.legend(frameon=False, loc="lower right", fontsize=8)
        _finish(figure, axes, "proof-curves.svg")


def draw_success(untrained: Estimate, warm: Mapping[str, Estimate], final: Mapping[str, Estimate]) -> None:
    """Validation success of each arm with its intervals: untrained, after the warm start, after RL."""
    with pyplot.rc_context({"svg.hashsalt": "mcprl", "font.size": 9, "text.color": INK, "axes.labelcolor": INK}):
        figure, axes = pyplot.subplots(figsize=(7, 3.2))
        for place, name in enumerate(final):
            for offset, (estimate, alpha, label) in enumerate(
                ((untrained, 0.25, "untrained"), (warm[name], 0.55, "warm start"), (final[name], 1.0, "after RL"))
            ):
                at = place + (offset - 1) * 0.26
                low, high = estimate.low or 0.0, estimate.high or 1.0
                axes.bar(at, estimate.value, 0.24, color=COLOURS[name], alpha=alpha)
                error = [[estimate.value - low], [high - estimate.value]]
                axes.errorbar(at, estimate.value, error, color=INK, capsize=3, lw=1)
                axes.text(at, -0.04, label, ha="center", va="top", fontsize=6.5)
        axes.set_xticks(range(len(final)), [textwrap.fill(ARMS[name].says, 24) for name in final])
        axes.tick_params(axis="x", pad=18, length=0)
        axes.set(ylabel="validation success", ylim=(0, 1))
        _finish(figure, axes, "proof-success.svg")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _finish(figure: pyplot.Figure, axes: pyplot.Axes, name: str) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(ASSETS / name, metadata={"Date": None})
    pyplot.close(figure)

"""The figure of docs/toy-task.md: what the policies earn, and what the value head learns, update by update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from toy.learning import Moment

__all__ = ["draw"]

_COLOURS = {"grpo": "#b45309", "ppo": "#0f766e"}
_NAMES = {"grpo": "GRPO", "ppo": "PPO with a value head"}
_INK, _PALE = "#334155", "#cbd5e1"


def draw(runs: Mapping[str, Sequence[Sequence[Moment]]], best: float, file: Path) -> None:
    """Three panels. Lines are medians over the seeds, bands reach from the lowest to the highest."""
    style = {"font.size": 10, "text.color": _INK, "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK}
    with rc_context({**style, "axes.edgecolor": _PALE, "svg.fonttype": "path", "svg.hashsalt": "toy"}):
        figure = Figure(figsize=(11, 3.5), layout="constrained", facecolor="white")
        returns, variance, loss = figure.subplots(1, 3)
        returns.axhline(best, color=_INK, linewidth=1, linestyle=(0, (4, 3)))
        returns.annotate("best possible", (1, best), xytext=(0, 4), textcoords="offset points", fontsize=9)
        for name in ("grpo", "ppo"):
            _band(returns, name, runs[name], lambda moment: moment.mean_return)
        _bar(returns, 0.9 * best, len(runs["grpo"][0]))
        returns.legend(loc="lower right", frameon=False)
        returns.set_ylim(top=best * 1.12)
        _label(returns, "Return of an episode")
        _band(variance, "ppo", runs["ppo"], lambda moment: moment.explained_variance)
        _bar(variance, 0.5, len(runs["ppo"][0]))
        variance.set_ylim(top=1.05)
        _label(variance, "Explained variance (PPO)")
        _band(loss, "ppo", runs["ppo"], lambda moment: moment.value_loss)
        loss.set_ylim(bottom=0.0)
        _label(loss, "Value loss (PPO)")
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None, dpi=110)


def _band(axes: Any, name: str, runs: Sequence[Sequence[Moment]], of: Callable[[Moment], Any]) -> None:
    columns = [[of(moment) for moment in at_once] for at_once in zip(*runs, strict=True)]
    updates = range(1, len(columns) + 1)
    lowest, highest = [min(column) for column in columns], [max(column) for column in columns]
    axes.fill_between(updates, lowest, highest, color=_COLOURS[name], alpha=0.18, linewidth=0)
    axes.plot(updates, [median(column) for column in columns], color=_COLOURS[name], linewidth=2, label=_NAMES[name])


def _bar(axes: Any, height: float, last: int) -> None:
    """What the bench asks for at the end."""
    axes.axhline(height, color=_INK, linewidth=1, linestyle=(0, (1, 2)))
    place = {"xytext": (0, -4), "textcoords": "offset points", "ha": "right", "va": "top"}
    axes.annotate("asked for at the end", (last, height), fontsize=9, **place)


def _label(axes: Any, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.set_xlabel("update")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=_PALE, linewidth=0.5)
    axes.margins(x=0.01)

"""What is made of the results of bench/multi_turn_race.py: figures, a table and a picture, from files that exist."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib import pyplot

from many_turns.drawing import STYLE, finish
from many_turns.held_out import success
from many_turns.spending import Spent, read_lines, read_spending
from pages import write_between_markers
from race.sides import RESULTS, SIDES

__all__ = ["write_report"]

LEVELS = (30, 40, 50)
CONDITIONS = ("plain", "free")
COLOURS = {"ours": "#0f766e", "shipped": "#b45309", "patched": "#4338ca", "vllm": "#be185d"}
Point = tuple[Spent, int, float]
"""What was spent, episodes, success on the held-out tasks."""


def write_report(name: str, page: Path | None) -> dict[str, Any]:
    sides = [side for side in SIDES if _folders(name, side)]
    table = _table(name, sides)
    if page is None:
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / f"report-{name}.md").write_text(table + "\n")
    else:
        write_between_markers(page, "race", table)
        _draw(name, sides)
    return _figures(name, sides)


def _folders(name: str, side: str) -> list[Path]:
    return sorted(path for path in RESULTS.glob(f"{name}-{side}-[0-9]*") if (path / "metrics.jsonl").exists())


def _points(folder: Path, condition: str) -> list[Point]:
    """The evaluated adapters, the one at the start first."""
    spent = {0: Spent(steps=0, cpu_s=0.0, wall_s=0.0)} | {
        one.steps: one for one in read_spending(folder / "spending.jsonl")
    }
    episodes = [0]
    for row in read_lines(folder / "metrics.jsonl"):
        episodes.append(episodes[-1] + round(row["episodes"]))
    found: list[Point] = []
    for file in sorted(folder.glob(f"{condition}-*.json")):
        step = int(file.stem.rpartition("-")[2])
        if step in spent:
            found.append((spent[step], episodes[step], success([json.loads(file.read_text())]).value))
    return found


def _reached(points: list[Point], level: int) -> Point | None:
    return next((point for point in points if point[2] >= level / 100), None)


def _figures(name: str, sides: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for side in sides:
        folders = _folders(name, side)
        ends = [read_spending(folder / "spending.jsonl")[-1] for folder in folders]
        found[f"{side}_seeds"] = len(folders)
        found[f"{side}_cpu_s"] = fmean(end.cpu_s for end in ends)
        found[f"{side}_wall_s"] = fmean(end.wall_s for end in ends)
        found[f"{side}_trials"] = len({path.name.split("-")[0] for path in RESULTS.glob(f"*-{side}-[0-9]*")})
        for condition in CONDITIONS:
            runs = [points for folder in folders if (points := _points(folder, condition))]
            if not runs:
                continue
            found[f"{side}_{condition}_final"] = fmean(points[-1][2] for points in runs)
            for level in LEVELS:
                at = [_reached(points, level) for points in runs]
                first = [point for point in at if point is not None]
                if len(first) == len(runs):
                    found[f"{side}_{condition}_cpu_s_{level}"] = fmean(point[0].cpu_s for point in first)
                    found[f"{side}_{condition}_wall_s_{level}"] = fmean(point[0].wall_s for point in first)
                    found[f"{side}_{condition}_episodes_{level}"] = fmean(point[1] for point in first)
    return found


def _table(name: str, sides: list[str]) -> str:
    """CPU minutes, minutes and episodes until each level, by side and condition."""
    heads = " | ".join(f"{level}%: CPU min, min, episodes" for level in LEVELS)
    rows = [f"| trainer | evaluated | seeds | {heads} | at the end | CPU min | min |", "|" + "---|" * (6 + len(LEVELS))]
    figures = _figures(name, sides)
    for side in sides:
        for condition in CONDITIONS:
            if f"{side}_{condition}_final" not in figures:
                continue
            cells: list[str] = []
            for level in LEVELS:
                key = f"{side}_{condition}"
                if f"{key}_cpu_s_{level}" in figures:
                    times = [figures[f"{key}_{what}_s_{level}"] / 60 for what in ("cpu", "wall")]
                    cells.append(f"{times[0]:.0f}, {times[1]:.0f}, {figures[f'{key}_episodes_{level}']:.0f}")
                else:
                    cells.append("not reached")
            said = "with grammar" if condition == "plain" else "without"
            final = f"{figures[f'{side}_{condition}_final']:.1%}"
            whole = [f"{figures[f'{side}_{what}_s'] / 60:.0f}" for what in ("cpu", "wall")]
            start = f"| {SIDES[side]} | {said} | {figures[f'{side}_seeds']} "
            rows.append(f"{start}| {' | '.join([*cells, final, *whole])} |")
    return "\n".join(rows)


def _draw(name: str, sides: list[str]) -> None:
    """Held-out success over processor time, and over episodes."""
    with pyplot.rc_context(STYLE):
        figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.2), sharey=True)
        for side in sides:
            for place, folder in enumerate(_folders(name, side)):
                points = _points(folder, "plain")
                label = SIDES[side] if place == 0 else None
                values = [value for _, _, value in points]
                look = {"color": COLOURS[side], "ms": 3, "lw": 1.5}
                panels[0].plot([spent.cpu_s / 60 for spent, _, _ in points], values, "o-", label=label, **look)
                panels[1].plot([episodes for _, episodes, _ in points], values, "o-", **look)
        panels[0].set(xlabel="CPU minutes", ylabel="success on held-out tasks", ylim=(0, 1))
        panels[1].set(xlabel="episodes")
        panels[0].legend(frameon=False, fontsize=8)
        finish(figure, panels, "race.svg")

"""The plots of a report as inline SVG: no script, no style of their own, colours by class from the page.

All are 440 units wide and scale to the page; labels stand above their bars, so that long ones fit on a phone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape

from mcprl.evaluation.comparing import Comparison
from mcprl.evaluation.figures import Figures
from mcprl.evaluation.statistics import Estimate
from mcprl.evaluation.wording import amount, percent, points, share, visible

__all__ = ["category_changes", "failure_kinds", "reliability", "success_by_category", "task_changes", "turn_counts"]

_WIDTH = 440
_LEFT, _RIGHT = 8.0, 432.0
_ROW = 42
_MAX_BARS = 24


def success_by_category(figures: Figures) -> str:
    """Success with its interval for each category, and of all."""
    rows = [(name, part.success, part.tasks) for name, part in figures.categories.items()][:_MAX_BARS]
    if len(rows) > 1:
        rows.append(("all", figures.success, figures.tasks))
    marks: list[str] = []
    for row, (name, success, tasks) in enumerate(rows):
        y = 28 + row * _ROW
        counted = f"{name} · {amount(tasks)} task{'s' if tasks != 1 else ''}"
        marks += [
            _text(_LEFT, y - 8, visible(counted)),
            _text(_RIGHT, y - 8, percent(success), "end num"),
            _rect(_LEFT, y, _RIGHT - _LEFT, 12, "track"),
            _rect(_LEFT, y, _along(success.value) - _LEFT, 12, "bar all" if name == "all" else "bar"),
            *_whisker(success, y + 6),
        ]
    return _svg("Success by category, with 95% intervals", 28 + len(rows) * _ROW, [*marks, _axis(len(rows))])


def _whisker(success: Estimate, y: float) -> list[str]:
    if success.low is None or success.high is None:
        return []
    low, high = _along(success.low), _along(success.high)
    return [_line(low, y, high, y, "whisker"), *(_line(x, y - 5, x, y + 5, "whisker") for x in (low, high))]


def _axis(rows: int) -> str:
    y = 22 + rows * _ROW
    marks = [(0.0, "start"), (0.5, "middle"), (1.0, "end")]
    return "".join(_text(_along(value), y, f"{value:.0%}", f"{anchor} dim") for value, anchor in marks)


def failure_kinds(failures: Mapping[str, int], episodes: int) -> str:
    """Failed episodes by kind, the most frequent first."""
    kinds = list(failures.items())[:_MAX_BARS]
    most = max(count for _, count in kinds)
    marks: list[str] = []
    for row, (kind, count) in enumerate(kinds):
        y = 26 + row * _ROW
        marks += [
            _text(_LEFT, y - 8, visible(kind)),
            _text(_RIGHT, y - 8, f"{amount(count)} · {share(count / episodes)} of episodes", "end num"),
            _rect(_LEFT, y, _RIGHT - _LEFT, 10, "track"),
            _rect(_LEFT, y, (_RIGHT - _LEFT) * count / most, 10, "bar bad"),
        ]
    return _svg("Failed episodes by kind of failure", 8 + len(kinds) * _ROW, marks)


def turn_counts(counts: Mapping[int, int]) -> str:
    """Episodes by their number of turns."""
    turns = list(range(min(counts), max(counts) + 1))
    bins = -(-len(turns) // _MAX_BARS)  # turns to a column
    columns = [turns[start : start + bins] for start in range(0, len(turns), bins)]
    heights = [sum(counts.get(turn, 0) for turn in column) for column in columns]
    width = min(64.0, (_RIGHT - _LEFT) / len(columns))
    left = (_WIDTH - width * len(columns)) / 2
    marks: list[str] = []
    for place, (column, count) in enumerate(zip(columns, heights, strict=True)):
        x, height = left + place * width, 130 * count / max(heights)
        label = str(column[0]) if len(column) == 1 else f"{column[0]}–{column[-1]}"
        marks += [
            _rect(x + 3, 160 - height, width - 6, height, "bar"),
            _text(x + width / 2, 152 - height, amount(count), "middle num") if count else "",
            _text(x + width / 2, 178, label, "middle dim") if place % (1 + len(columns) // 12) == 0 else "",
        ]
    marks += [_line(left, 160, left + width * len(columns), 160, "rule"), _text(_WIDTH / 2, 198, "turns", "middle dim")]
    return _svg("Episodes by their number of turns", 206, marks)


def reliability(figures: Figures) -> str:
    """pass@k and pass^k over k: how far they are apart tells how much luck there is."""
    ks = list(figures.pass_at)

    def at(k: int) -> float:
        return 44 + (k - 1) * (330 / max(1, len(ks) - 1))

    def up(value: float) -> float:
        return 170 - 150 * value

    marks = [_line(44, up(v), 374, up(v), "grid") + _text(36, up(v) + 4, f"{v:.0%}", "end dim") for v in (0, 0.5, 1)]
    for values, style, name in ((figures.pass_at, "one", "pass@k"), (figures.pass_all, "two", "pass^k")):
        band = [(at(k), up(_high(values[k]))) for k in ks] + [(at(k), up(_low(values[k]))) for k in reversed(ks)]
        path = [(at(k), up(values[k].value)) for k in ks]
        marks += [
            f'<polygon class="band {style}" points="{_points(band)}"/>',
            f'<polyline class="path {style}" points="{_points(path)}"/>',
            *(f'<circle class="dot {style}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in path),
        ]
        marks.append(_text(384, path[-1][1] + 4, name, f"start ink-{style}"))
    every = 1 + len(ks) // 12
    marks += [_text(at(k), 190, str(k), "middle dim") for k in ks if (k - 1) % every == 0]
    return _svg("pass@k and pass^k over k, with 95% intervals", 198, marks)


def category_changes(comparison: Comparison) -> str:
    """Success before and after for each category, as two dots and the way between them."""
    rows = [(name, part.before, part.after, part.difference) for name, part in comparison.categories.items()]
    rows = rows[:_MAX_BARS]
    if len(rows) > 1:
        rows.append(("all", comparison.before, comparison.after, comparison.difference))
    marks: list[str] = []
    for row, (name, before, after, difference) in enumerate(rows):
        y, style = 28 + row * _ROW, "good" if after >= before else "bad"
        marks += [
            _text(_LEFT, y - 8, visible(name)),
            _text(_RIGHT, y - 8, points(difference), "end num"),
            _rect(_LEFT, y + 4, _RIGHT - _LEFT, 4, "track"),
            _line(_along(before), y + 6, _along(after), y + 6, f"way {style}"),
            f'<circle class="before" cx="{_along(before):.1f}" cy="{y + 6}" r="5"/>',
            f'<circle class="after {style}" cx="{_along(after):.1f}" cy="{y + 6}" r="6"/>',
        ]
    return _svg("Success before and after, by category", 28 + len(rows) * _ROW, [*marks, _axis(len(rows))])


def task_changes(comparison: Comparison) -> str:
    """Each task by its success before and after; those above the diagonal were won. The area tells how many."""
    places = Counter((change.before, change.after) for change in comparison.changes)
    most = max(places.values())
    # Circles at the edges stay within the frame.
    side, left, top, inset = 350.0, 62.0, 30.0, 30.0

    def spot(before: float, after: float) -> tuple[float, float]:
        reach = side - 2 * inset
        return left + inset + reach * before, top + inset + reach * (1 - after)

    marks = [
        _rect(left, top, side, side, "frame"),
        _line(*spot(0, 0), *spot(1, 1), "grid"),
        _text(left + side / 2, top + side + 40, "solved before", "middle dim"),
        _text(left, top - 12, "solved after", "start dim"),
    ]
    for value in (0.0, 0.5, 1.0):
        x, y = spot(value, value)
        marks.append(_text(x, top + side + 20, f"{value:.0%}", "middle dim"))
        marks.append(_text(left - 10, y + 4, f"{value:.0%}", "end dim"))
    for (before, after), count in sorted(places.items(), key=lambda place: -place[1]):
        x, y = spot(before, after)
        style = "good" if after > before else "bad" if after < before else "same"
        radius = max(4.0, 24 * (count / most) ** 0.5)
        tasks = f"{count} task{'s' if count > 1 else ''}"
        title = f"<title>{tasks}: {share(before)} before, {share(after)} after</title>"
        marks.append(f'<circle class="spot {style}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}">{title}</circle>')
        if radius >= 9:
            marks.append(_text(x, y + 4, str(count), "middle on-spot"))
    return _svg("Tasks by their success before and after", 432, marks)


def _low(estimate: Estimate) -> float:
    return estimate.value if estimate.low is None else estimate.low


def _high(estimate: Estimate) -> float:
    return estimate.value if estimate.high is None else estimate.high


def _along(value: float) -> float:
    return _LEFT + (_RIGHT - _LEFT) * value


def _points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _svg(title: str, height: float, marks: Sequence[str]) -> str:
    label = escape(title)
    return f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{label}">{"".join(marks)}</svg>'


def _text(x: float, y: float, text: str, style: str = "start") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _rect(x: float, y: float, width: float, height: float, style: str) -> str:
    size = f'width="{max(0.0, width):.1f}" height="{max(0.0, height):.1f}"'
    return f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" {size} rx="2"/>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'

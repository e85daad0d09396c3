"""How numbers and foreign texts are written in reports: the same in Markdown, HTML and on the terminal."""

from __future__ import annotations

from mcprl.evaluation.statistics import Estimate

__all__ = ["amount", "duration", "number", "percent", "points", "share", "signed", "visible"]

_LONGEST = 160


def visible(text: str) -> str:
    r"""Text that others wrote, on one line: what commands a terminal or turns the direction of writing is spelt out.

    >>> visible("a\x1b[31m\n\u202eb")
    'a\\x1b[31m \\u202eb'
    """
    line = " ".join(text.split())
    line = line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def share(value: float | None) -> str:
    """`42.0%`, or a dash where there is nothing to take a share of."""
    return "–" if value is None else f"{value:.1%}"


def percent(estimate: Estimate) -> str:
    """`42.0% (31.2–54.0)`: a share and its interval."""
    if estimate.low is None or estimate.high is None:
        return share(estimate.value)
    return f"{estimate.value:.1%} ({100 * estimate.low:.1f}–{100 * estimate.high:.1f})"


def points(estimate: Estimate) -> str:
    """`+12.5 points (−3.1 to +28.0)`: a difference of shares and its interval."""
    if estimate.low is None or estimate.high is None:
        return f"{_signed(100 * estimate.value, 1)} points"
    low, high = _signed(100 * estimate.low, 1), _signed(100 * estimate.high, 1)
    return f"{_signed(100 * estimate.value, 1)} points ({low} to {high})"


def number(estimate: Estimate) -> str:
    """`0.312 (0.120 to 0.504)`: a mean and its interval."""
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.3f}".replace("-", "−")
    return f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f})".replace("-", "−")


def signed(estimate: Estimate) -> str:
    """`+0.102 (−0.020 to +0.224)`: a difference of means and its interval."""
    if estimate.low is None or estimate.high is None:
        return _signed(estimate.value, 3)
    return f"{_signed(estimate.value, 3)} ({_signed(estimate.low, 3)} to {_signed(estimate.high, 3)})"


def amount(value: float) -> str:
    """`1,204` or `2.4`: a count, or a mean of counts."""
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:.1f}"


def duration(seconds: float | None) -> str:
    """`3 ms`, `2.1 s` or `4 min 05 s`."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms" if seconds >= 0.0095 else f"{1000 * seconds:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def _signed(value: float, digits: int) -> str:
    # Rounded first: no "−0.0".
    value = round(value, digits) + 0.0
    return f"{value:+.{digits}f}".replace("-", "−")

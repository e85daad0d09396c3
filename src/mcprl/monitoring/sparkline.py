"""A course of figures in one line of blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["sparkline"]

_BLOCKS = "▁▂▃▄▅▆▇█"
_NO_NUMBER = "×"


def sparkline(values: Sequence[float], width: int) -> str:
    """Values as blocks from the lowest to the highest, at most `width` of them, each the mean of its neighbours.

    Where a value is no number, a cross stands for it and its neighbours.

    >>> sparkline([0.0, 0.5, 1.0], 8)
    '▁▅█'
    """
    count = min(max(width, 0), len(values))
    means = [_mean(values[i * len(values) // count : (i + 1) * len(values) // count]) for i in range(count)]
    known = [mean for mean in means if math.isfinite(mean)]
    if not known:
        return _NO_NUMBER * count
    low, high = min(known), max(known)
    return "".join(_block(mean, low, high) if math.isfinite(mean) else _NO_NUMBER for mean in means)


def _block(value: float, low: float, high: float) -> str:
    # Halves, because the difference of two huge values may be more than a float can hold.
    span = high / 2 - low / 2
    # Where nothing changes, there is no lowest or highest: a line in the middle.
    return _BLOCKS[round((value / 2 - low / 2) / span * (len(_BLOCKS) - 1))] if span else _BLOCKS[3]


def _mean(values: Sequence[float]) -> float:
    # Divided before they are summed: not even the largest floats overflow, and infinities of both signs give NaN.
    return sum(value / len(values) for value in values)

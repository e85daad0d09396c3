"""Random streams that are the same on every machine and in every version of Python.

Only `Random.random()` is guaranteed across versions of Python, and only + − × ÷ across machines (a logarithm or a sine
may differ in its last digit). So draws use only these.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from mcprl.seeds import derive_seed

# Part of every seed of the world. Increase it with any change to what a seed generates.
FORMAT = 1

_Item = TypeVar("_Item")


class Draws:
    """The random stream for one purpose in the world of `seed`.

    >>> Draws(7, "prices", "VLKN").integer(1, 6) == Draws(7, "prices", "VLKN").integer(1, 6)
    True
    """

    def __init__(self, seed: int, *purpose: str | int) -> None:
        self._fraction = random.Random(derive_seed(seed, "world", FORMAT, *purpose)).random

    def fraction(self) -> float:
        """Return a number from 0 up to, but not including, 1."""
        return self._fraction()

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self._fraction()

    def integer(self, low: int, high: int) -> int:
        """Return an integer from `low` to `high`, both included."""
        return low + int(self._fraction() * (high - low + 1))

    def chance(self, probability: float) -> bool:
        return self._fraction() < probability

    def bell(self) -> float:
        """Return an approximately normal number (mean 0, variance 1): a sum of four uniform numbers, at most 3.47."""
        draw = self._fraction
        return (draw() + draw() + draw() + draw() - 2.0) * 1.7320508075688772

    def choice(self, items: Sequence[_Item]) -> _Item:
        return items[int(self._fraction() * len(items))]

    def some(self, items: Sequence[_Item], count: int) -> list[_Item]:
        """Return `count` different items, in random order."""
        left = list(items)
        return [left.pop(int(self._fraction() * len(left))) for _ in range(min(count, len(left)))]

    def shuffled(self, items: Sequence[_Item]) -> list[_Item]:
        return self.some(items, len(items))

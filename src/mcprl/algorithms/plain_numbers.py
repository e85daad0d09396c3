"""From tensors to the plain numbers that records hold."""

from __future__ import annotations

from typing import cast

from torch import Tensor

__all__ = ["floats", "ints"]


def floats(number_N: Tensor) -> list[float]:
    """The numbers of a tensor of one dimension, as Python's."""
    return cast("list[float]", number_N.tolist())  # pyright: ignore[reportUnknownMemberType]


def ints(number_N: Tensor) -> list[int]:
    """The whole numbers of a tensor of one dimension, as Python's."""
    return cast("list[int]", number_N.tolist())  # pyright: ignore[reportUnknownMemberType]

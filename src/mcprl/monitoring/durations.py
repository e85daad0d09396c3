"""Lengths of time in a few characters."""

from __future__ import annotations

__all__ = ["duration"]


def duration(seconds: float) -> str:
    """A length of time in its two largest units.

    >>> duration(45.2), duration(570), duration(7500), duration(200_000)
    ('45s', '9m30s', '2h05m', '2d07h')
    """
    whole = round(seconds)
    for unit, length_s, smaller, smaller_s in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= length_s:
            return f"{whole // length_s}{unit}{whole % length_s // smaller_s:02d}{smaller}"
    return f"{whole}s"

"""How long an HTTP server asks to be left alone."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

__all__ = ["retry_after_s"]


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """How long the server asks to be left alone, or None where it does not say so in a way that has one meaning."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0), ("x-ratelimit-reset-after", 1.0)):
        value = headers.get(name)
        seconds = None if value is None else _number(value)
        if seconds is not None:
            return seconds * unit_s
    moment = _moment(headers.get("retry-after"))
    if moment is None:
        return None
    # Seen from the server's own clock, where it tells the time: ours may be another.
    now = _moment(headers.get("date"))
    return max(moment - (time.time() if now is None else now), 0.0)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _moment(text: str | None) -> float | None:
    try:
        return None if text is None else parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None

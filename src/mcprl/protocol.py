"""mcprl's extensions of MCP for servers written for it, and parsing of HTTP `Retry-After`.

A server can keep a state per episode in one process: it marks the tools that read or write that state, and gets the
episode's id in the metadata of each call. Other servers are called as usual.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Final

__all__ = [
    "EPISODE",
    "EPISODE_LIVES_S",
    "EPISODE_SCOPE",
    "RETRY_AFTER_S",
    "SCOPE",
    "TOKEN_HEADER",
    "TOKEN_VARIABLE",
    "retry_after_s",
]


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The wait that the server asks for; None if there is none, or none that can be parsed."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0), ("x-ratelimit-reset-after", 1.0)):
        value = headers.get(name)
        seconds = None if value is None else _number(value)
        if seconds is not None:
            return seconds * unit_s
    moment = _moment(headers.get("retry-after"))
    if moment is None:
        return None
    # Relative to the server's clock, if it sends the time: ours may differ.
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


SCOPE: Final = "mcprl/scope"
"""In the metadata of a tool. With the value `EPISODE_SCOPE`, the tool works on the state of one episode."""
EPISODE_SCOPE: Final = "episode"

EPISODE: Final = "mcprl/episode"
"""In the metadata of a call to such a tool: the id of its episode."""
EPISODE_LIVES_S: Final = "mcprl/episode_lives_s"
"""Also there: the seconds after which that episode is certainly over and its state may be dropped."""

RETRY_AFTER_S: Final = "retry_after_s"
"""In the data of a JSON-RPC error: the call did nothing, and may be retried after this many seconds."""

TOKEN_VARIABLE: Final = "MCPRL_SERVER_TOKEN"
"""In the environment of a server that mcprl starts and reaches over HTTP: requests must have this token."""
TOKEN_HEADER: Final = "x-mcprl-token"
"""The header in which requests to such a server carry the token. A web page cannot send it."""

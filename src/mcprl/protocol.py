"""mcprl's extensions of MCP, for servers written for mcprl, and parsing of the HTTP header `Retry-After`.

A server can keep separate state for each episode in one process. It marks the tools that use this state, and receives
the episode's id in the metadata of each call. Other servers are called as usual.
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
    """Return how long the server asks us to wait, or None if it does not ask or the header cannot be parsed."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0), ("x-ratelimit-reset-after", 1.0)):
        value = headers.get(name)
        seconds = None if value is None else _number(value)
        if seconds is not None:
            return seconds * unit_s
    moment = _moment(headers.get("retry-after"))
    if moment is None:
        return None
    # If the server sends a date, compare it with the server's clock: ours may differ.
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
"""Key in the metadata of a tool. The value `EPISODE_SCOPE` means that the tool works on the state of one episode."""
EPISODE_SCOPE: Final = "episode"

EPISODE: Final = "mcprl/episode"
"""Key in the metadata of a call to such a tool: the id of its episode."""
EPISODE_LIVES_S: Final = "mcprl/episode_lives_s"
"""Key in the metadata of a call that belongs to an episode: the seconds after which the episode is over and its state
can be dropped."""

RETRY_AFTER_S: Final = "retry_after_s"
"""Key in the data of a JSON-RPC error: the call had no effect, and may be retried after this many seconds."""

TOKEN_VARIABLE: Final = "MCPRL_SERVER_TOKEN"
"""Environment variable of a server that mcprl starts and reaches over HTTP: requests must carry this token."""
TOKEN_HEADER: Final = "x-mcprl-token"
"""Header in which requests to such a server carry the token. A web page cannot send this header."""

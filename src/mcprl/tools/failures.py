"""What failures say: an error, or the end of a server's log, made fit for a sentence; and the wait one asks for."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

from mcp import MCPError

from mcprl.protocol import RETRY_AFTER_S
from mcprl.redact import SECRETS

__all__ = ["asked_wait_s", "log_size", "log_tail", "one_line", "shortened"]

_LOG_TAIL_LINES = 20
_MAX_DETAIL_CHARS = 500


def log_size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def log_tail(path: Path, offset: int) -> str:
    """The last lines that this attempt wrote."""
    if not path.exists():
        return ""
    with path.open("rb") as log:
        log.seek(offset)
        lines = log.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-_LOG_TAIL_LINES:])


def one_line(error: Exception) -> str:
    """An error for a sentence: of a group, the first cause; without secrets, and not too long."""
    while isinstance(error, ExceptionGroup):
        error = cast("ExceptionGroup[Exception]", error).exceptions[0]
    text = shortened(" ".join(SECRETS.redact(str(error)).split()))
    if isinstance(error, MCPError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def shortened(text: str) -> str:
    return text if len(text) <= _MAX_DETAIL_CHARS else f"{text[: _MAX_DETAIL_CHARS - 1]}…"


def asked_wait_s(error: MCPError) -> float | None:
    """The seconds after which a server, by the data of its error, wants to be called again; None where it says none."""
    data: Any = error.data
    asked: Any = cast("dict[str, Any]", data).get(RETRY_AFTER_S) if isinstance(data, dict) else None
    if isinstance(asked, bool) or not isinstance(asked, int | float) or not math.isfinite(asked):
        return None
    return max(0.0, float(asked))

"""Responses: JSON that every browser can parse, whatever an episode contains, and error responses with a fix."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, cast

from starlette.responses import Response

_MAX_DEPTH = 64
_TOO_DEEP = f"[nested more than {_MAX_DEPTH} levels deep]"


class Refusal(Exception):
    """A rejected request: {"error": {"code": "not-found", "what": "there is no run x", "fix": "…"}}.

    It is not an McprlError, because it says nothing about the health of a run.
    """

    def __init__(self, status: int, code: str, what: str, fix: str) -> None:
        super().__init__(what)
        self.status, self.code, self.what, self.fix = status, code, what, fix

    def answer(self) -> Answer:
        return Answer({"error": {"code": self.code, "what": self.what, "fix": self.fix}}, status_code=self.status)


class Answer(Response):
    """JSON in ASCII, with null for NaN and infinity."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return encoded(content)


def encoded(content: Any) -> bytes:
    """Encode JSON without NaN and infinity, which browsers cannot parse. Lone surrogates are kept as escapes."""
    try:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        return json.dumps(level(content), allow_nan=False, separators=(",", ":")).encode()


def level(value: Any, depth: int = 0) -> Any:
    """Replace NaN and infinity in a JSON value with null, and parts that are nested too deeply with a note.

    >>> level({"loss": math.nan, "steps": [1, math.inf]})
    {'loss': None, 'steps': [1, None]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        if depth >= _MAX_DEPTH:
            return _TOO_DEEP
        items = cast("Mapping[str, Any]", value).items()
        return {str(key): level(item, depth + 1) for key, item in items}
    if isinstance(value, list | tuple):
        if depth >= _MAX_DEPTH:
            return _TOO_DEEP
        return [level(item, depth + 1) for item in cast("list[Any]", value)]
    return value

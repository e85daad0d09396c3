"""Lines of metrics.jsonl, health.jsonl and timeline.jsonl: one JSON object each, with the step that it belongs to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from mcprl.training.timeline import Span
from mcprl.verdicts import Severity, Verdict

__all__ = ["read_entry", "span_of", "verdict_of"]


def read_entry(line: bytes) -> dict[str, Any] | None:
    """The object of a line, its step among the fields; None where a crash, or a hand, left something else.

    >>> read_entry(b'{"step": 3, "reward": 0.25}')
    {'step': 3, 'reward': 0.25}
    """
    try:
        entry: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict):
        return None
    fields = cast("dict[str, Any]", entry)
    return fields if isinstance(fields.get("step"), int) else None


def verdict_of(entry: Mapping[str, Any]) -> Verdict:
    """The verdict of a line of health.jsonl. Raises KeyError or ValueError where it is none."""
    return Verdict(
        severity=Severity(entry["severity"]), what=str(entry["what"]), fix=str(entry["fix"]), name=str(entry["name"])
    )


def span_of(entry: Mapping[str, Any]) -> Span:
    """The span of a line of timeline.jsonl. Raises KeyError or ValueError where it is none."""
    return Span(step=entry["step"], activity=entry["activity"], start=float(entry["start"]), end=float(entry["end"]))

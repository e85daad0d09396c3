"""How the tools of a run behave: tool_stats.json, with the figures of each server put together from those of its tools.

The file is read here, and not by `mcprl.tools`, since that would load all that speaks to servers.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

__all__ = ["TOOL_FIGURES_FILE", "read_tool_figures"]

TOOL_FIGURES_FILE = "tool_stats.json"
_BUCKET_GROWTH = 1.01


def read_tool_figures(run: Path, settings: Any) -> list[dict[str, Any]]:
    """One entry a server. `settings` are those of servers.settings, for the budgets."""
    try:
        document: object = json.loads((run / TOOL_FIGURES_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return []  # no step has ended yet, or a hand has been here
    servers = _mapping(_mapping(document).get("servers"))
    return [_server(name, _mapping(found), _mapping(_mapping(settings).get(name))) for name, found in servers.items()]


def _server(name: str, found: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    tools = {tool: _mapping(figures) for tool, figures in _mapping(found.get("tools")).items()}
    calls = sum(_number(tool, "calls") for tool in tools.values())
    errors = sum(_errors(tool) for tool in tools.values())
    cached = sum(_number(tool, "cached") for tool in tools.values())
    buckets: Counter[int] = Counter()
    for tool in tools.values():
        buckets.update(_buckets(tool))
    return {
        "server": name,
        "calls": calls,
        "errors": errors,
        "error_rate": errors / calls if calls else 0.0,
        "cache_rate": cached / calls if calls else 0.0,
        "p50_s": _percentile_s(buckets, 50),
        "p95_s": _percentile_s(buckets, 95),
        "restarts": _number(found, "restarts"),
        "breaker_openings": _number(found, "breaker_openings"),
        "usd": _number(found, "usd"),
        "budget": _budget(found, _mapping(settings.get("budget"))),
        "tools": [_tool(tool, figures) for tool, figures in tools.items()],
    }


def _tool(name: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    calls, errors = _number(figures, "calls"), _errors(figures)
    latency = _mapping(figures.get("latency_ms"))
    return {
        "tool": name,
        "calls": calls,
        "errors": errors,
        "policy_faults": _number(figures, "policy_faults"),
        "failures": _mapping(figures.get("failures")),
        "error_rate": errors / calls if calls else 0.0,
        "cache_rate": _number(figures, "cached") / calls if calls else 0.0,
        "retries": _number(figures, "retries"),
        "truncated": _number(figures, "truncated"),
        "p50_s": _number(latency, "p50") / 1000 if latency else None,
        "p95_s": _number(latency, "p95") / 1000 if latency else None,
        "max_s": _number(latency, "max") / 1000 if latency else None,
    }


def _errors(figures: Mapping[str, Any]) -> float:
    failures = _mapping(figures.get("failures"))
    return _number(figures, "policy_faults") + sum(_number(failures, code) for code in failures)


def _budget(found: Mapping[str, Any], budget: Mapping[str, Any]) -> dict[str, Any] | None:
    """What limits the server: its calls, or the money they cost where that is nearer to its limit."""
    limits = {"calls": budget.get("calls"), "usd": budget.get("usd")}
    parts: list[dict[str, Any]] = [
        {"unit": unit, "used": _number(found, unit), "limit": limit}
        for unit, limit in limits.items()
        if isinstance(limit, int | float)
    ]
    return max(parts, key=lambda part: part["used"] / part["limit"] if part["limit"] else math.inf, default=None)


def _buckets(figures: Mapping[str, Any]) -> dict[int, int]:
    """Calls by latency; bucket n ends at 1.01ⁿ microseconds."""
    found = _mapping(_mapping(figures.get("latency_ms")).get("buckets"))
    return {int(name): count for name, count in found.items() if name.lstrip("-").isdigit() and isinstance(count, int)}


def _percentile_s(buckets: Mapping[int, int], percent: int) -> float | None:
    """Nearest rank."""
    wanted, reached = math.ceil(sum(buckets.values()) * percent / 100), 0
    for bucket in sorted(buckets):
        reached += buckets[bucket]
        if reached >= wanted:
            return _BUCKET_GROWTH ** min(bucket, 5000) / 1e6
    return None


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def _number(figures: Mapping[str, Any], name: str) -> float:
    value = figures.get(name)
    return value if isinstance(value, int | float) and math.isfinite(value) else 0

"""The tables of docs/metrics.md, for the tests that compare them with the metrics that the code writes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["METRICS", "Metric", "metric_named"]

_PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"
_ROW = re.compile(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|(?: ([^|]+))? \|$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Metric:
    """A row: a metric, or a family of metrics whose name ends in a placeholder in capitals.

    Metric(name="stop_REASON", unit="share", says="Episodes that ended for that reason …", written="every step")
    """

    name: str
    unit: str
    says: str
    written: str

    @property
    def prefix(self) -> str | None:
        """The common prefix of a family: "stop_" for stop_REASON. None for a single metric."""
        kept = self.name.rstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
        return kept if kept != self.name else None

    def covers(self, name: str) -> bool:
        return name == self.name if self.prefix is None else name.startswith(self.prefix) and name != self.prefix


METRICS = [
    Metric(name=name, unit=unit, says=says, written=written or "every step")
    for name, unit, says, written in _ROW.findall(_PAGE.read_text())
]


def metric_named(name: str) -> Metric | None:
    """The row that describes a metric, if there is one."""
    return next((one for one in METRICS if one.covers(name)), None)

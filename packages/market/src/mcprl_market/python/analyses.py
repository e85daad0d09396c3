"""Standard analyses of a table of prices. They run inside the sandbox: this file is sent there as code.

It accepts what policies send: a list of records, a list of numbers, columns by name, or one of these inside an object.
"""

from __future__ import annotations

# pyright: basic
# (pandas does not declare most of its types.)
from typing import Any

import numpy as np
import pandas as pd

_TIMES = ("date", "datetime", "timestamp", "time", "day", "t")


def summary(data: Any) -> dict[str, Any]:
    """Return count, mean, standard deviation, extremes and quartiles of each numeric column."""
    table = _table(data)
    columns = {str(name): {key: _rounded(entry) for key, entry in table[name].describe().items()} for name in table}
    return {"rows": len(table), "columns": columns}


def trend(data: Any) -> dict[str, Any]:
    """Return the trend of each numeric column: change from first to last row, slope per row, and R²."""
    table = _table(data)
    found: dict[str, Any] = {}
    for name in table:
        values = table[name].dropna().to_numpy(dtype=float)
        if len(values) < 2:
            raise ValueError(f"column {name!r} has {len(values)} values; a trend needs 2")
        steps = np.arange(len(values))
        slope, start = np.polyfit(steps, values, 1)
        spread = float(np.sum((values - values.mean()) ** 2))
        missed = float(np.sum((values - (slope * steps + start)) ** 2))
        change = float(values[-1] - values[0])
        found[str(name)] = {
            "first": _rounded(values[0]),
            "last": _rounded(values[-1]),
            "change": _rounded(change),
            "change_percent": _rounded(100 * change / values[0]) if values[0] else None,
            "slope": _rounded(slope),
            "r_squared": _rounded(1 - missed / spread) if spread else None,
            "direction": "up" if change > 0 else "down" if change < 0 else "flat",
        }
    return {"rows": len(table), "columns": found}


def correlation(data: Any) -> dict[str, Any]:
    """Return Pearson's correlation of each pair of numeric columns."""
    table = _table(data)
    if table.shape[1] < 2:
        raise ValueError(f"a correlation needs 2 columns of numbers, but there is only {', '.join(map(str, table))}")
    matrix = table.corr()
    found = {str(a): {str(b): _rounded(matrix.loc[a, b]) for b in matrix} for a in matrix}
    return {"rows": len(table), "correlation": found}


def _table(data: Any) -> pd.DataFrame:
    """Return the numeric columns, sorted by time if there is a time column."""
    if isinstance(data, dict) and len(data) == 1:
        only = next(iter(data.values()))
        data = only if isinstance(only, list) and only and isinstance(only[0], dict) else data
    if isinstance(data, dict) and not any(isinstance(entry, (list, dict)) for entry in data.values()):
        data = [data]
    if isinstance(data, list) and data and not isinstance(data[0], (dict, list)):
        data = {"value": data}
    if not isinstance(data, (list, dict)) or not data:
        raise ValueError("data must be a list of records, a list of numbers, or columns by name")
    table = pd.DataFrame(data)
    for name in table:
        if str(name).lower() in _TIMES:
            table = table.sort_values(name, kind="stable").drop(columns=[name])
            break
    numbers: Any = table.apply(pd.to_numeric, errors="coerce").dropna(axis="columns", how="all")
    if numbers.empty:
        raise ValueError("data has no column of numbers")
    return numbers


def _rounded(value: Any) -> float | int | None:
    number = float(value)
    if not np.isfinite(number):
        return None
    return int(number) if number.is_integer() and abs(number) < 1e15 else round(number, 6)

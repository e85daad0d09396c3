"""What every bench needs around its servers: where they are, a place for logs, progress, and the last line."""

from __future__ import annotations

import argparse
import asyncio
import json
import operator
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from mcprl.config import ServerSettings
from mcprl.tools import ServerSpec

__all__ = [
    "Bars",
    "exit_status",
    "http_spec",
    "missed_bars",
    "percentile",
    "run_bench",
    "say",
    "stdio_spec",
]

ONLY_SPEED = 4
Bars = Mapping[str, tuple[str, float]]

HERE = Path(__file__).resolve().parent
_STARTED = time.monotonic()
_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {"<=": operator.le, ">=": operator.ge, "==": operator.eq}


def stdio_spec(name: str, script: str, *args: str, settings: ServerSettings) -> ServerSpec:
    """A script of this folder, spoken to over its standard streams."""
    return ServerSpec(name=name, command=sys.executable, args=(str(HERE / script), *args), settings=settings)


def http_spec(name: str, script: str, *args: str, settings: ServerSettings) -> ServerSpec:
    """A script of this folder, started on a free port and spoken to over streamable HTTP."""
    start = (sys.executable, str(HERE / script), "--http", "{port}", *args)
    return ServerSpec(
        name=name, url="http://127.0.0.1:{port}/mcp", settings=settings.model_copy(update={"start": start})
    )


def percentile(values: list[float], percent: float) -> float:
    """The smallest value that is not below `percent` percent of all: a value that was measured, never a mean of two."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def say(text: str) -> None:
    """Progress, for a person who waits."""
    print(f"{time.monotonic() - _STARTED:6.1f} s  {text}", file=sys.stderr, flush=True)


def run_bench(
    description: str | None,
    measure: Callable[[bool, Path], Coroutine[Any, Any, dict[str, Any]]],
    bars: Bars,
    *,
    at_full_size: Bars | None = None,
    speed: Bars | None = None,
) -> int:
    """Measure, print the figures as the last line, and give the exit status: 0 if all bars are met.

    Bars `at_full_size` are of what the small size does not measure. Bars on `speed`, or on memory, are held to at full
    size only, too: the small size runs on whatever else the machine does. If only such bars are missed, the status is
    ONLY_SPEED, else 1.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ci", action="store_true", help="the small size, for every change")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mcprl-bench-") as folder:
        figures = asyncio.run(measure(arguments.ci, Path(folder)))
    missed = missed_bars(figures, bars if arguments.ci else {**bars, **(at_full_size or {})})
    slow = [] if arguments.ci else missed_bars(figures, speed or {})
    print(json.dumps(figures), flush=True)
    return exit_status(missed, slow)


def missed_bars(figures: Mapping[str, Any], bars: Bars) -> list[str]:
    """A sentence for each figure that is on the wrong side of its bar."""
    return [
        f"{name} is {figures[name]:.4g}, its bar is {comparison} {bound:.4g}"
        for name, (comparison, bound) in bars.items()
        if not _COMPARISONS[comparison](figures[name], bound)
    ]


def exit_status(missed: Sequence[str], slow: Sequence[str]) -> int:
    """Say what is missed. `slow` is what is about speed or memory alone."""
    for sentence in (*missed, *slow):
        say(f"MISSED: {sentence}")
    return 1 if missed else ONLY_SPEED if slow else 0

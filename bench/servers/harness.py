"""What every bench needs around its servers: where they are, a place for logs, progress, and the last line."""

from __future__ import annotations

import argparse
import asyncio
import json
import operator
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from mcprl.config import ServerSettings
from mcprl.tools import ServerSpec

__all__ = ["http_spec", "percentile", "run_bench", "say", "stdio_spec"]

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
    bars: Mapping[str, tuple[str, float]],
    *,
    at_full_size: Mapping[str, tuple[str, float]] | None = None,
) -> int:
    """Measure, print the figures as the last line, and give the exit status: 1 where a figure misses its bar.

    Bars `at_full_size` are not held to at the small size: it does not measure them, or on a shared machine the minute
    would decide.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ci", action="store_true", help="the small size, for every change")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mcprl-bench-") as folder:
        figures = asyncio.run(measure(arguments.ci, Path(folder)))
    held_to = bars if arguments.ci else {**bars, **(at_full_size or {})}
    missed = [
        f"{name} is {figures[name]}, its bar is {comparison} {bound:g}"
        for name, (comparison, bound) in held_to.items()
        if not _COMPARISONS[comparison](figures[name], bound)
    ]
    for sentence in missed:
        say(f"MISSED: {sentence}")
    print(json.dumps(figures), flush=True)
    return 1 if missed else 0

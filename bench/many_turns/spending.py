"""A training in a process of its own: what it has spent after each step, and the adapter after some of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from servers.harness import say

__all__ = [
    "ROOT",
    "Spent",
    "keep_adapters",
    "mcprl_command",
    "read_lines",
    "read_spending",
    "run_watched",
    "saved_steps",
]

ROOT = Path(__file__).resolve().parents[2]
POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Processor and wall-clock seconds up to the end of a step, start and servers included.

    Spent(steps=3, cpu_s=412.0, wall_s=230.5)
    """

    steps: int
    cpu_s: float
    wall_s: float


def mcprl_command(*words: object) -> list[str]:
    return [sys.executable, "-m", "mcprl", *map(str, words)]


def program_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The market's servers are `mcprl serve`, so `mcprl` must be found."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, **(more or {})}


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines, without one that is being written."""
    if not file.exists():
        return []
    whole, _, _ = file.read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def read_spending(file: Path) -> list[Spent]:
    return [Spent(**row) for row in read_lines(file)]


def run_watched(
    command: Sequence[str],
    rows: Path,
    spending: Path,
    each: Callable[[int], None] = lambda steps: None,
    *,
    saved: int = 0,
    log: Path | None = None,
    more: Mapping[str, str] | None = None,
) -> None:
    """Run a training that adds a line to the file `rows` per step. After each step, add one to `spending`, call `each`.

    A training that resumes after `saved` steps continues the spending of those; what an interrupted attempt spent
    after them is not counted, since that work was lost. On SIGTERM and Ctrl-C the training is stopped too. Its output
    is appended to `log`, or shown.
    """
    earlier = [spent for spent in read_spending(spending) if spent.steps <= saved]
    _write_spending(spending, earlier)
    base = earlier[-1] if earlier else Spent(steps=0, cpu_s=0.0, wall_s=0.0)
    stale = _changed(rows)  # until the training has removed the lines after its checkpoint
    say(" ".join(map(str, command)))
    with nullcontext(sys.stderr) if log is None else log.open("a") as out:
        process = subprocess.Popen(command, cwd=ROOT, env=program_environment(more), stdout=out, stderr=out)
    handler = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    began, cpu_s, steps = time.monotonic(), 0.0, base.steps
    try:
        running = True
        while running:
            running = process.poll() is None
            cpu_s = max(cpu_s, tree_cpu_s(process.pid))
            now = len(read_lines(rows)) if _changed(rows) != stale else 0
            if now > steps:
                steps, wall_s = now, time.monotonic() - began
                earlier.append(Spent(steps=steps, cpu_s=base.cpu_s + cpu_s, wall_s=base.wall_s + wall_s))
                _write_spending(spending, earlier)
                each(steps)
            time.sleep(POLL_S if running else 0)
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()
        signal.signal(signal.SIGTERM, handler)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def _changed(file: Path) -> int:
    return file.stat().st_mtime_ns if file.exists() else 0


def _write_spending(file: Path, spent: Sequence[Spent]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(asdict(one)) + "\n" for one in spent))


def saved_steps(run: Path) -> int:
    """The steps that the newest checkpoint of a run of mcprl covers; 0 without one."""
    return max((int(folder.name.removeprefix("step-")) for folder in run.glob("checkpoints/step-?????")), default=0)


def tree_cpu_s(pid: int) -> float:
    """Processor seconds of a process and all its descendants, those that have ended included; 0 if it is gone."""
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0.0
    return sum(map(_own_cpu_s, processes))


def _own_cpu_s(process: psutil.Process) -> float:
    try:
        return float(sum(process.cpu_times()[:4]))  # of itself, and of its children that have ended
    except psutil.NoSuchProcess:
        return 0.0


def keep_adapters(run: Path, kept: Path, marks: Collection[int], start: Path | None = None) -> Callable[[int], None]:
    """Return a function that copies the adapter after each step of `marks` to kept/STEP, while it still exists.

    The run began with the adapter `start`, which is its version 0.
    """

    def keep(steps: int) -> None:
        rows = read_lines(run / "metrics.jsonl")
        for mark in sorted(mark for mark in marks if mark <= steps and not (kept / str(mark)).exists()):
            version = round(rows[mark - 1]["weights_version"])
            found = [folder for folder in (run / "weights").glob("v*") if folder.name.lstrip("v0") == str(version)]
            if version == 0 and start is not None:
                found = [start]
            if not found:
                raise SystemExit(f"the adapter of step {mark} of {run} is gone; delete {run} and start it again")
            shutil.copytree(found[0], kept / f"{mark}.partial", dirs_exist_ok=True)
            (kept / f"{mark}.partial").rename(kept / str(mark))

    return keep

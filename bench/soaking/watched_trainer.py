"""The command `mcprl`, watched: python watched_trainer.py DESCRIPTOR train … or resume …

It does what the command does, and besides writes lines to the descriptor, a pipe: each episode that the journal says is
durable, as crash.py logs them; the mark of its children; and, once all is started and then after each step, its vitals:

    {"mark": "5f0c…"}
    {"at": 1033.2, "step": 12, "rss_bytes": 612000000, "descriptors": 41}
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from crashing.nursery import log_finished
from mcprl.cli import main
from mcprl.cli.console import TrainingConsole
from mcprl.processes.guard import GUARD
from mcprl.runs.summary import Summary
from mcprl.training import loop
from mcprl.training.loop import Run

__all__: list[str] = []

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def note(descriptor: int, step: int) -> None:
    """`step` counts those that are done."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    open_now = len(os.listdir("/proc/self/fd")) - 1  # one is the list's own
    line = {"at": time.monotonic(), "step": step, "rss_bytes": resident, "descriptors": open_now}
    os.write(descriptor, json.dumps(line).encode() + b"\n")


def watch(descriptor: int) -> None:
    log_finished(Path(f"/dev/fd/{descriptor}"))
    os.write(descriptor, json.dumps({"mark": GUARD.start()}).encode() + b"\n")
    plain_train, plain_finished = loop.train, TrainingConsole.step_finished

    async def train(run: Run) -> Summary:
        note(descriptor, run.step)
        return await plain_train(run)

    def step_finished(self: TrainingConsole, step: int, metrics: Any, verdicts: Any) -> None:
        plain_finished(self, step, metrics, verdicts)
        note(descriptor, step + 1)

    loop.train = train
    TrainingConsole.step_finished = step_finished


if __name__ == "__main__":
    watch(int(sys.argv.pop(1)))
    main()

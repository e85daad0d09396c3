"""Starts processes that train and are killed. It has imported all they need, and nothing else, when it forks them.

Reads one JSON object a line: {"place": … or null, "time": 2, "variant": …, "folder": …, "run": … or null, "log": …,
"engine": …}, and answers each with a line, the exit status of the process: −9 where it killed itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from crashing.evidence import log_line
from crashing.places import arm, place_called
from crashing.small_runs import small_run
from crashing.speaking import calling_tools
from mcprl.records import LostEpisode, Trajectory
from mcprl.runs.folder import RunFolder
from mcprl.runs.journal import EpisodeJournal
from mcprl.runs.resuming import find_resume_point
from mcprl.tools import connection
from mcprl.training.loop import train
from mcprl.training.run import open_run

_ALSO_IMPORTED = ("mcprl.samplers.vllm", "mcprl.learning.torch_learner", "transformers.models.qwen3.modeling_qwen3")
_LONGEST_S = 1800
_SERVER_START_S = 900.0  # a busy machine is not a broken server


class Silent:
    """Watches a run and says what it is busy with, into the process's own log."""

    def stage(self, text: str) -> None:
        print(text, flush=True)

    def episode_finished(self, step: int, outcome: Trajectory | LostEpisode) -> None: ...

    def step_finished(self, step: int, metrics: Any, verdicts: Any) -> None:
        print(f"step {step} finished", flush=True)


def log_finished(path: Path) -> None:
    """Write down each episode as soon as the journal says that it is durable."""
    plain, log = EpisodeJournal.add, os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    async def add(self: EpisodeJournal, trajectory: Trajectory, *, instead: bool = False) -> None:
        await plain(self, trajectory, instead=instead)
        if not instead:
            os.write(log, log_line(trajectory))

    EpisodeJournal.add = add


async def go(job: dict[str, Any]) -> None:
    """Begin a run, or resume one, and go on to its end."""
    folder = resume_point = None
    config = small_run(Path(job["folder"]), job["variant"], engine=job["engine"])
    if job["run"] is not None:
        folder = RunFolder.open(Path(job["run"]))
        resume_point = find_resume_point(folder)
        config = resume_point.config
    async with open_run(config, Silent(), folder=folder, resume_point=resume_point) as run:
        await train(run)


def work(job: dict[str, Any]) -> int:
    """In a process of its own: its exit status, unless it is killed."""
    signal.alarm(_LONGEST_S)
    Path(job["folder"]).mkdir(exist_ok=True)
    output = os.open(job["log"] + ".output", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    print(f"--- {job}", flush=True)
    try:
        connection.START_S = _SERVER_START_S
        log_finished(Path(job["log"]))
        with calling_tools():
            if job["place"] is not None:
                arm(place_called(job["place"]), job["time"])
            asyncio.run(go(job))
    except BaseException:  # noqa: BLE001 - whatever it is, it ends this process and is told
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    for name in _ALSO_IMPORTED:
        importlib.import_module(name)
    print("ready", flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BrokenPipeError):
                status = work(json.loads(line))
            os._exit(status)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()

"""Starts processes that train as the command does and send themselves a signal at a chosen place.

The nursery of the crash bench forks them. A job has, besides what the nursery says: "call" and "when", the place, or
null; "number", the signal; "again_s", seconds until the same signal comes a second time, or null; "sleeps", a call that
takes a minute, or null. A process writes what happened, and when on the monotonic clock, to the file "events".
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from crashing import nursery, places
from crashing.places import Place
from crashing.small_runs import small_run
from crashing.speaking import calling_tools
from mcprl.cli.running import run_to_the_end
from mcprl.processes.guard import GUARD
from mcprl.runs.checkpoints import Checkpoints
from mcprl.runs.folder import RunFolder
from mcprl.runs.resuming import find_resume_point

__all__: list[str] = []

_SLEEP_S = 60.0


def note(job: dict[str, Any], event: str, value: float | str = 0.0) -> None:
    line = json.dumps({"event": event, "at": time.monotonic(), "value": value})
    descriptor = os.open(job["events"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(descriptor, line.encode() + b"\n")
    os.close(descriptor)


def arm(job: dict[str, Any]) -> None:
    """The place sends a signal instead of ending the process; all else goes on."""
    sent = threading.Event()

    def send() -> None:
        if sent.is_set():  # a place "before" a call comes by once more after it, now that it can
            return
        sent.set()
        note(job, "signal")
        os.kill(os.getpid(), job["number"])
        if job["again_s"] is not None:
            threading.Thread(target=send_again, daemon=True).start()

    def send_again() -> None:
        time.sleep(job["again_s"])
        note(job, "again")
        os.kill(os.getpid(), job["number"])

    setattr(places, "_end", send)  # noqa: B010
    places.arm(Place(phase="", call=job["call"], when=job["when"]), job["time"])


def make_slow(call: str) -> None:
    """A method that takes a minute, in whatever thread it is called."""
    module_name, _, path = call.partition(":")
    owner_name, name = path.split(".")
    owner = getattr(importlib.import_module(module_name), owner_name)
    plain = getattr(owner, name)

    def slow(*args: Any, **options: Any) -> Any:
        time.sleep(_SLEEP_S)
        return plain(*args, **options)

    setattr(owner, name, slow)


def note_saves(job: dict[str, Any]) -> None:
    plain = Checkpoints.commit

    def commit(self: Checkpoints, step: int) -> Any:
        made = plain(self, step)
        note(job, "saved", step)
        return made

    Checkpoints.commit = commit


def work(job: dict[str, Any]) -> int:
    """In a process of its own, which ends as a command does: by leaving the interpreter."""
    signal.alarm(300)
    Path(job["folder"]).mkdir(exist_ok=True)
    output = os.open(job["log"] + ".output", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    print(f"--- {job}", flush=True)
    nursery.log_finished(Path(job["log"]))
    note(job, "mark", GUARD.start())
    note_saves(job)
    if job["sleeps"] is not None:
        make_slow(job["sleeps"])
    if job["call"] is not None:
        arm(job)
    resume_point = None
    config = small_run(Path(job["folder"]), job["variant"])
    if job["run"] is None:
        folder = RunFolder.create(config)
    else:
        folder = RunFolder.open(Path(job["run"]))
        resume_point = find_resume_point(folder)
        config = resume_point.config
    with calling_tools():
        run_to_the_end(config, folder, resume_point)
    sys.exit(0)


if __name__ == "__main__":
    setattr(nursery, "work", work)  # noqa: B010
    nursery.main()

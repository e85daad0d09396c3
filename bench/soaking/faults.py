"""The faults of the soak: how often each, when, and how it is made."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
from dataclasses import dataclass
from pathlib import Path

import psutil

from soaking.soak_runs import SERVER

__all__ = [
    "ENDING",
    "RATES_PER_HOUR",
    "SAMPLER_KILL",
    "Fault",
    "fill_disk",
    "kill_sampler",
    "kill_tool_server",
    "order",
    "schedule",
]

SAMPLER_KILL = "vLLM killed"
ENDING = ("trainer killed", "SIGTERM", "disk full")
"""Faults after which the run has to be resumed."""

RATES_PER_HOUR = {
    "trainer killed": 1,
    "SIGTERM": 1,
    "disk full": 1,
    SAMPLER_KILL: 2,
    "tool server killed": 60,
    "call hangs": 90,
    "garbage": 30,
}
_EARLIEST, _LATEST = 0.04, 0.92  # of the time; what comes too late shows nothing of how the run goes on
_DISK_LEFT_BYTES = 2048


@dataclass(frozen=True, slots=True)
class Fault:
    """What is to happen, and how many seconds after the beginning.

    Fault(1312.4, "trainer killed")
    """

    at_s: float
    kind: str


def schedule(length_s: float, *, seed: int, with_vllm: bool) -> list[Fault]:
    """Each kind as often as its rate says, and once at least. Those that cost a start lie apart from each other."""
    draw = random.Random(seed)
    first, last = _EARLIEST * length_s, _LATEST * length_s
    numbers = {kind: max(1, round(rate * length_s / 3600)) for kind, rate in RATES_PER_HOUR.items()}
    if not with_vllm:
        del numbers[SAMPLER_KILL]
    heavy = [kind for kind in numbers if kind in (*ENDING, SAMPLER_KILL) for _ in range(numbers[kind])]
    draw.shuffle(heavy)
    slot = (last - first) / len(heavy)
    faults = [Fault(first + slot * (place + draw.uniform(0.1, 0.6)), kind) for place, kind in enumerate(heavy)]
    light = [kind for kind in numbers if kind not in heavy for _ in range(numbers[kind])]
    faults += [Fault(draw.uniform(first, last), kind) for kind in light]
    return sorted(faults, key=lambda fault: fault.at_s)


def order(folder: Path, kind: str, number: int) -> None:
    """Have the next call of a tool go wrong, see key_server.py."""
    name = "hang" if kind == "call hangs" else "garbage"
    (folder / "orders" / f"{name}-{number:05d}").touch()


def kill_tool_server(trainer: int, draw: random.Random) -> bool:
    """Whether there was one to kill."""
    return _kill_one(trainer, str(SERVER), draw)


def kill_sampler(trainer: int, draw: random.Random) -> bool:
    return _kill_one(trainer, "vllm.entrypoints", draw)


def fill_disk(trainer: int) -> None:
    """From now on no file of the trainer can grow beyond a few bytes; processes that run already can write on."""
    _, hard = resource.prlimit(trainer, resource.RLIMIT_FSIZE)
    resource.prlimit(trainer, resource.RLIMIT_FSIZE, (_DISK_LEFT_BYTES, hard))


def _kill_one(trainer: int, in_command: str, draw: random.Random) -> bool:
    found: list[int] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(trainer).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if any(in_command in part for part in process.cmdline()):
                    found.append(process.pid)
    if found:
        os.kill(draw.choice(sorted(found)), signal.SIGKILL)
    return bool(found)

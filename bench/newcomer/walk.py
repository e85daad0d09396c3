"""Walking through the quickstart: each block of the page in turn, with a clock; the dashboard beside the training."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from newcomer.page import Block
from servers.harness import say

__all__ = ["Walk", "walk"]

_BESIDE = "dashboard"
_TYPED = {"play": "solution\nquit\n"}
_DEADLINE_S = 1800  # only a hang takes so long
_ADDRESS_S = 60
_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")


@dataclass
class Walk:
    """What each block printed and how long it took, and the runs that the dashboard knew while one was trained."""

    seconds: dict[str, float] = field(default_factory=dict)
    printed: dict[str, str] = field(default_factory=dict)
    seen_runs: list[str] = field(default_factory=list)


def walk(blocks: Sequence[Block], place: Path, environment: Mapping[str, str]) -> Walk:
    """Run all blocks in `place`, where NAME.txt is what one printed. Raises RuntimeError with that where one fails."""
    made = Walk()
    beside = {block.name: block for block in blocks}.get(_BESIDE)
    for block in blocks:
        if block.name == _BESIDE:
            continue
        if block.name == "train" and beside is not None:
            with _dashboard(beside, place, environment) as address:
                _run(block, place, environment, made)
                made.seen_runs = _runs_shown(address)
        else:
            _run(block, place, environment, made)
    return made


def _run(block: Block, place: Path, environment: Mapping[str, str], made: Walk) -> None:
    started = time.monotonic()
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.code],
        cwd=place,
        env=environment,
        input=_TYPED.get(block.name, ""),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    made.seconds[block.name] = time.monotonic() - started
    made.printed[block.name] = done.stdout
    (place / f"{block.name}.txt").write_text(done.stdout)
    say(f"{block.name}: {made.seconds[block.name]:.0f} s")
    if done.returncode:
        raise RuntimeError(f"`{block.code.strip()}` ended with {done.returncode}:\n{done.stdout}")


@contextmanager
def _dashboard(block: Block, place: Path, environment: Mapping[str, str]) -> Generator[str]:
    """The dashboard, while something else goes on; its address."""
    log = place / "dashboard.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {block.code.strip()} --no-open"],
            cwd=place,
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield _address_in(log)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)


def _address_in(log: Path) -> str:
    deadline = time.monotonic() + _ADDRESS_S
    while (found := _ADDRESS.search(log.read_text())) is None:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the dashboard did not say where it is:\n{log.read_text()}")
        time.sleep(0.2)
    return found[0]


def _runs_shown(address: str) -> list[str]:
    with urllib.request.urlopen(f"{address}/api/runs", timeout=30) as answer:
        return [run["id"] for run in json.load(answer)["runs"]]

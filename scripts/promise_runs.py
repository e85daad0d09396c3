"""How promises are measured: commands and tests that are run, and what they showed."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from promises import Promise

__all__ = ["Outcome", "read_junit", "run_beside", "run_command", "run_tests"]

ROOT = Path(__file__).resolve().parent.parent
LANES = 2
ONLY_SPEED = 4  # how a bench ends that missed bars on speed or memory and no other: bench/servers/harness.py


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run showed: `problem` is None where it succeeded; `figures` are what it recorded."""

    problem: str | None
    figures: Mapping[str, object]
    seconds: float
    only_speed: bool = False


def run_command(command: str, timeout_s: float, *, said: IO[str] | None = None) -> Outcome:
    """Run a shell command in the repository, with its environment's programs on PATH.

    What it says on stderr, and all that it printed where it failed, goes to ours or to the file `said`.
    """
    started = time.monotonic()
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    process = subprocess.Popen(
        command, shell=True, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said,
        text=True, start_new_session=True,
    )  # fmt: skip
    problem = None
    try:
        stdout, _ = process.communicate(timeout=timeout_s)
        if process.returncode:
            problem = f"exit {process.returncode}"
    except subprocess.TimeoutExpired:
        problem = f"no end after {timeout_s:g} s"
        os.killpg(process.pid, signal.SIGKILL)
        stdout, _ = process.communicate()
    except KeyboardInterrupt:  # it has a session of its own, so Ctrl-C reaches only us
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    if problem:
        print(f"$ {command}\n{stdout}\n({problem})", file=said or sys.stderr, flush=True)
    return Outcome(
        problem=problem,
        figures=last_json(stdout),
        seconds=time.monotonic() - started,
        only_speed=process.returncode == ONLY_SPEED,
    )


def last_json(stdout: str) -> Mapping[str, object]:
    """The object on the last line that is not empty, or nothing where there is none."""
    lines = stdout.strip().splitlines()
    try:
        value = json.loads(lines[-1]) if lines else {}
    except json.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def read_junit(path: Path, test: str) -> Outcome:
    """What a pytest report says about a test id: a function (with all its parameters), a class or a file."""
    cases = [case for case in ET.parse(path).iter("testcase") if is_of(case, test)]
    seconds = sum(float(case.get("time", "0")) for case in cases)
    problem = None if cases else "did not run"
    figures: dict[str, object] = {}
    for case in cases:
        for outcome in ("failure", "error", "skipped"):
            if case.find(outcome) is not None:
                problem = f"{case.get('name')}: {outcome}"
        for item in case.iter("property"):
            figures[item.get("name", "")] = item.get("value")
    return Outcome(problem=problem, figures=figures, seconds=seconds)


def is_of(case: ET.Element, test: str) -> bool:
    """Whether a test case of a report belongs to a pytest node id."""
    path, *names = test.split("::")
    module = path.removesuffix(".py").replace("/", ".")
    full_name = f"{case.get('classname')}.{case.get('name')}"
    wanted = ".".join([module, *names])
    return full_name == wanted or full_name.startswith((wanted + ".", wanted + "["))


def run_tests(tests: list[str], timeout_s: float) -> dict[str, Outcome]:
    """Run tests in one pytest and read what its report says about each."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "junit.xml")
        arguments = ["pytest", "-q", f"--junit-xml={report}", *dict.fromkeys(tests)]
        run = run_command(shlex.join(arguments), timeout_s)
        if not report.exists():
            return {test: Outcome(problem=run.problem, figures={}, seconds=run.seconds) for test in tests}
        return {test: read_junit(report, test) for test in tests}


def run_beside(promises: Iterable[Promise]) -> dict[str, Outcome]:
    """Run the commands of these promises two at a time; not those that another of their promises wants alone."""
    commands: dict[str, list[Promise]] = {}
    for promise in promises:
        if promise.command:
            commands.setdefault(promise.command, []).append(promise)
    shared = {command: own for command, own in commands.items() if all(promise.beside for promise in own)}

    def run(command: str) -> tuple[str, Outcome, str]:
        # A file, not a pipe: what a command leaves running would hold a pipe open.
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
            outcome = run_command(command, max(promise.timeout_s for promise in shared[command]), said=said)
            said.seek(0)
            return command, outcome, said.read()

    outcomes: dict[str, Outcome] = {}
    with ThreadPoolExecutor(LANES) as lanes:
        longest_first = sorted(shared, key=lambda command: -max(promise.about_s for promise in shared[command]))
        for done in as_completed([lanes.submit(run, command) for command in longest_first]):
            command, outcomes[command], said = done.result()
            print(f"{shared[command][0].id}: {command}\n{said}", end="", file=sys.stderr, flush=True)
    return outcomes

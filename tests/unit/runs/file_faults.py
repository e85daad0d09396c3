"""Saves of a checkpoint in which each change of a file in turn fails, stays half done, or kills the process.

`run_cases` compiles file_faults.c and starts this file as a program, which has the faults installed and forks a child
for each case; so the cases cost a fork each and not a start of Python each.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy
import pytest
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from mcprl.errors import StorageError
from mcprl.files import storage_faults, write_file
from mcprl.runs.checkpoints import Checkpoints

OLD, NEW = 1, 2
"""What the tensor and the state of a checkpoint hold, by which two saves are told apart."""

_SOURCE = Path(__file__).with_name("file_faults.c")
# The numbers of x86-64. A call that is not here and touches the folder is a KeyError, so that none goes unnoticed.
_CALLS = {
    1: "write",
    74: "fsync",
    77: "ftruncate",
    82: "rename",
    83: "mkdir",
    84: "rmdir",
    257: "openat",
    263: "unlinkat",
    264: "renameat",
}
_EXIT_SAVED, _EXIT_STORAGE_ERROR = 0, 3


@dataclass(frozen=True)
class Scenario:
    """The step whose checkpoint is there, and the one that is saved; one is kept, so that a save also removes."""

    there: int
    saved: int
    aside: bool = False
    """The one that is there had stepped aside for another when the run was killed."""


SCENARIOS = {
    "the next step": Scenario(there=1, saved=2),
    "a step done again": Scenario(there=2, saved=2),
    "a step done again, twice killed": Scenario(there=2, saved=2, aside=True),
}


@dataclass(frozen=True)
class Fault:
    """What happens at one change of a file: an error number, or a kill where it is 0."""

    at: int = 0
    error: int = 0
    half: bool = False
    lasts: bool = False


@dataclass(frozen=True)
class Case:
    """A fault, and what came of it.

    >>> case = Case(call="fsync", fault=Fault(at=9, error=5), outcome="storage error", step=1, holds=1, again="saved")
    """

    call: str
    fault: Fault
    outcome: str
    """saved, storage error, killed, or the traceback of anything else."""
    step: int | None
    """The newest whole checkpoint afterwards."""
    holds: int | None
    """OLD or NEW."""
    again: str
    """What came of a save without a fault, from there."""


def run_cases(folder: Path) -> dict[str, list[Case]]:
    """Of each scenario, every fault at every change of a file that its save makes."""
    if shutil.which("gcc") is None or sys.platform != "linux" or os.uname().machine != "x86_64":
        pytest.skip("the faults of a disk need gcc, Linux and x86-64")
    library = folder / "file_faults.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, _SOURCE], check=True)
    command = [sys.executable, __file__, str(library), str(folder / "runs")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return {name: [Case(**{**row, "fault": Fault(**row["fault"])}) for row in rows] for name, rows in found.items()}


def save(checkpoints: Checkpoints, step: int, holds: int) -> None:
    """A save as the run does it: files of a library, of Python, and of `write_file`, then `commit` and `retain`."""
    folder = checkpoints.begin(step)
    with storage_faults(f"writing {folder}", SafetensorError):
        save_file({"weight": numpy.full(5000, holds, dtype="float32")}, folder / "policy.safetensors")
        (folder / "learner").mkdir()
        (folder / "learner" / "settings.json").write_text(json.dumps({"rank": 8}))
    write_file(folder / "state.json", json.dumps({"holds": holds}).encode())
    checkpoints.commit(step)
    checkpoints.retain(keep=1)


def held(path: Path) -> int | None:
    """What a checkpoint holds; None where its files do not say the same."""
    in_state = json.loads((path / "state.json").read_text())["holds"]
    in_weights = set(load_file(path / "policy.safetensors")["weight"].tolist())
    return in_state if in_weights == {float(in_state)} else None


class _Faults:
    """The compiled library, installed in this process and its children."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.library = ctypes.CDLL(str(library))
        problem = self.library.faults_install(str(folder).encode())
        if problem:
            raise OSError(problem, f"seccomp: {os.strerror(problem)}")

    def calls_of_a_clean_save(self, checkpoints: Checkpoints, step: int) -> list[str]:
        self.library.faults_arm(0, 0, 0, 0)
        save(checkpoints, step, NEW)
        count = self.library.faults_disarm()
        return [_CALLS[self.library.faults_call(index)] for index in range(count)]

    def outcome(self, fault: Fault, checkpoints: Checkpoints, step: int) -> str:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            self._save_and_exit(fault, checkpoints, step, writing)
        os.close(writing)
        with open(reading) as pipe:
            text = pipe.read()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return {_EXIT_SAVED: "saved", _EXIT_STORAGE_ERROR: "storage error", -signal.SIGKILL: "killed"}.get(
            code, f"exit code {code}\n{text}"
        )

    def _save_and_exit(self, fault: Fault, checkpoints: Checkpoints, step: int, report: int) -> None:
        code = 1
        self.library.faults_arm(fault.at, fault.error, fault.half, fault.lasts)
        try:
            save(checkpoints, step, NEW)
            code = _EXIT_SAVED
        except StorageError:
            code = _EXIT_STORAGE_ERROR
        except BaseException:  # noqa: BLE001  whatever it is, the test shows it
            os.write(report, traceback.format_exc().encode())
        finally:
            os._exit(code)


def _faults_at(at: int, call: str) -> list[Fault]:
    faults = [Fault(at=at)]
    for error in (errno.EIO, errno.ENOSPC):
        faults.append(Fault(at=at, error=error))
        if call == "write":
            faults.append(Fault(at=at, error=error, half=True))
    return [*faults, Fault(at=at, error=errno.ENOSPC, lasts=True)]


def _save_again(folder: Path, step: int) -> str:
    """A save without a fault, from whatever was left: "saved", or what is wrong with it."""
    try:
        save(Checkpoints(folder), step, NEW)
    except StorageError as error:
        return str(error)
    newest, damaged = Checkpoints(folder).newest()
    left = sorted(path.name for path in folder.iterdir())
    if newest is None or held(newest.path) != NEW or damaged or left != [f"step-{step:05d}"]:
        return f"newest is {newest}, left is {left}"
    return "saved"


def _cases_of(scenario: Scenario, faults: _Faults, folder: Path) -> list[Case]:
    before, now = folder / "before", folder / "now"
    save(Checkpoints(before), scenario.there, OLD)
    if scenario.aside:
        name = f"step-{scenario.there:05d}"
        (before / name).rename(before / f"{name}.replaced")
        (before / f".{name}.partial").mkdir()
    shutil.copytree(before, now)
    calls = faults.calls_of_a_clean_save(Checkpoints(now), scenario.saved)
    cases: list[Case] = []
    for at, call in enumerate(calls, start=1):
        for fault in _faults_at(at, call):
            shutil.rmtree(now)
            shutil.copytree(before, now)
            outcome = faults.outcome(fault, Checkpoints(now), scenario.saved)
            newest, _ = Checkpoints(now).newest()
            step, holds = (newest.step, held(newest.path)) if newest else (None, None)
            again = _save_again(now, scenario.saved)
            cases.append(Case(call=call, fault=fault, outcome=outcome, step=step, holds=holds, again=again))
    return cases


def _main(library: Path, folder: Path) -> None:
    folder.mkdir()
    faults = _Faults(library, folder)
    found = {name: _cases_of(scenario, faults, folder / name) for name, scenario in SCENARIOS.items()}
    print(json.dumps({name: [asdict(case) for case in cases] for name, cases in found.items()}))


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]))

"""Starts a worker: in the sandbox, or as a plain process if the user allows that."""

from __future__ import annotations

import functools
import logging
import marshal
import os
import platform
import re
import secrets
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath
from typing import Any

from mcprl.errors import MissingExtraError, SandboxMissingError
from mcprl.processes import CHILD_MARK, OWNER_MARK
from mcprl.processes.bubblewrap import ALLOW_NAMESPACES, MACHINES, NAMESPACES, NO_NETWORK, find_bubblewrap
from mcprl.processes.guard import GUARD, kill_marked
from mcprl_market.python import worker as worker_module
from mcprl_market.python.programs import Limits
from mcprl_market.python.seccomp import make_filter

_UNSAFE = "start the server with allow_unsafe if you trust the code"
_FIRST_USER = 0x70000000
_NUM_USERS = 0x0FFFFFFF
_ENVIRONMENT = {
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "LD_LIBRARY_PATH": "/lib",
    "PYTHONHOME": "/python",
    "PYTHONHASHSEED": "0",  # so that sets of strings have the same order in every run
    "MALLOC_ARENA_MAX": "2",  # an arena reserves 64 MiB of address space, which counts towards RLIMIT_AS
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}


class Isolation(StrEnum):
    """How the worker drops its privileges."""

    OWN_USER = "own_user"
    USER_NAMESPACE = "user_namespace"


def likely_isolation() -> Isolation:
    """Return OWN_USER if we are root and fresh user ids exist here. A container that maps few ids has none."""
    if os.geteuid() != 0:
        return Isolation.USER_NAMESPACE
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = map(int, line.split())
        if first <= _FIRST_USER and first + count >= _FIRST_USER + _NUM_USERS:
            return Isolation.OWN_USER
    return Isolation.USER_NAMESPACE


def find_usable_bubblewrap() -> str:
    """Return the path of `bwrap`. Raises SandboxMissingError if this machine cannot run a sandbox."""
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        raise SandboxMissingError(
            f"the Python sandbox needs Linux on {' or '.join(MACHINES)}, but this machine is {sys.platform} "
            f"{platform.machine()}",
            fix=f"run the Python server on such a machine, or {_UNSAFE}",
        )
    if not Path("/proc/sys/kernel/seccomp").exists():
        raise SandboxMissingError(
            "this kernel has no seccomp, which the Python sandbox needs",
            fix=f"use a kernel with CONFIG_SECCOMP_FILTER, or {_UNSAFE}",
        )
    return find_bubblewrap("the Python sandbox", _UNSAFE)


def sandbox_command(
    bubblewrap: str, runtime: Runtime, isolation: Isolation, limits: Limits, *, result_pipe: int, info_file: int
) -> list[str]:
    """Return the command line of one worker.

    It omits --die-with-parent on purpose: if that killed bubblewrap during setup, the sandbox's first process would
    stay behind and wait forever.
    """
    command = [bubblewrap, *NAMESPACES, NO_NETWORK, "--new-session", "--clearenv"]
    command += ["--info-fd", str(info_file), "--cap-drop", "ALL"]
    if isolation is Isolation.OWN_USER:
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        command += ["--unshare-user", "--uid", "1000", "--gid", "1000", "--disable-userns"]
    for folder in runtime.folders:
        # Create the folders first: bubblewrap would create them for its own user only.
        command += ["--perms", "0755", "--dir", folder]
    for inside, outside in runtime.shown.items():
        command += ["--ro-bind", str(outside), inside]
    for folder in runtime.hidden:
        command += ["--perms", "0555", "--tmpfs", folder]
    for device in DEVICES:
        # bubblewrap cannot bind a device read-only. If the code owned the device, it could chmod it for the whole
        # machine.
        if isolation is Isolation.OWN_USER or Path(device).stat().st_uid != os.geteuid():
            command += ["--dev-bind", device, device]
    command += ["--perms", "1777", "--size", str(limits.disk_bytes), "--tmpfs", "/tmp", "--chdir", "/tmp"]
    command += ["--remount-ro", "/"]
    for folder in runtime.hidden:
        command += ["--remount-ro", folder]
    for name, value in _ENVIRONMENT.items():
        command += ["--setenv", name, value]
    return [*command, "--", INTERPRETER, "-P", "-s", "-S", "-B", "-X", "utf8", runtime.worker, str(result_pipe)]


_logger = logging.getLogger(__name__)

_PROBE_S = 30.0


class Kind(StrEnum):
    """What a worker imports in advance. This affects how fast a program starts, not what it can do."""

    PLAIN = "plain"
    PANDAS = "pandas"


_PRELOAD = {Kind.PLAIN: {}, Kind.PANDAS: {"np": "numpy", "pd": "pandas"}}


def framed(message: bytes) -> bytes:
    """Encode a message to a worker: its length in four bytes, then its bytes."""
    return len(message).to_bytes(4, "big") + message


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to start workers. Without `bubblewrap`, they are plain processes with resource limits only.

    Launch(limits=Limits(), bubblewrap="/usr/bin/bwrap", isolation=Isolation.OWN_USER)
    """

    limits: Limits
    bubblewrap: str | None
    isolation: Isolation = Isolation.USER_NAMESPACE

    @property
    def is_sandboxed(self) -> bool:
        return self.bubblewrap is not None

    def start(
        self, mark: str, *, stdin: int, stdout: int, stderr: int, result_pipe: int, info_file: int
    ) -> subprocess.Popen[bytes]:
        """Start a worker with these ends of its pipes. This process keeps them open too.

        Its environment has the marks that let the guard of `mcprl.processes` kill it after our process ends. The code
        inside never sees them. A worker that waits for a program ends on its own when our process ends.
        """
        if self.bubblewrap is None:
            command = _plain_command(result_pipe)
        else:
            files = {"result_pipe": result_pipe, "info_file": info_file}
            command = sandbox_command(self.bubblewrap, find_runtime(), self.isolation, self.limits, **files)
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=(result_pipe, info_file),
            env={"PYTHONHASHSEED": "0", OWNER_MARK: GUARD.start(), CHILD_MARK: mark},
            cwd="/",
            start_new_session=True,
        )

    def setup(self, kind: Kind) -> bytes:
        """Encode the first message to a worker: its limits, its filter, and what to import."""
        limits = self.limits
        bounds = {
            "RLIMIT_CPU": limits.cpu_s,
            "RLIMIT_AS": limits.memory_bytes,
            "RLIMIT_FSIZE": limits.disk_bytes,
            "RLIMIT_NOFILE": limits.open_files,
            "RLIMIT_CORE": 0,
        }
        if self.is_sandboxed:  # outside the sandbox, the limit would count all processes of the user
            bounds["RLIMIT_NPROC"] = limits.threads + 2
        message: dict[str, Any] = {
            "limits": bounds,
            # from a range that distributions leave unused
            "user": _FIRST_USER + secrets.randbelow(_NUM_USERS)
            if self.is_sandboxed and self.isolation is Isolation.OWN_USER
            else None,
            "filter": make_filter(platform.machine()) if self.is_sandboxed else None,
            "packages": [PACKAGES] if self.is_sandboxed else list(package_folders()),
            "preload": _PRELOAD[kind],
            "result_bytes": limits.result_bytes,
        }
        return framed(marshal.dumps(message))


def choose_launch(limits: Limits, *, allow_unsafe: bool) -> Launch:
    """Return the sandbox if a trial start works. Otherwise, use plain processes if the user allows that, else raise."""
    try:
        launch = Launch(limits=limits, bubblewrap=find_usable_bubblewrap(), isolation=likely_isolation())
        find_runtime()
        _probe(launch)
    except SandboxMissingError as error:
        if not allow_unsafe:
            raise
        _logger.warning(
            "THE PYTHON SERVER RUNS WITHOUT A SANDBOX (%s). Code written by a policy can read and change all files "
            "of this user, including tasks and keys, use the network, leave processes behind, and send signals to "
            "other processes. Only CPU time, memory, file sizes and output are limited.",
            error.what,
        )
        return Launch(limits=limits, bubblewrap=None)
    return launch


def _probe(launch: Launch) -> None:
    """Start one worker and wait until it is ready. If it fails, raise SandboxMissingError with its error output."""
    result_read, result_write = os.pipe()
    with open(os.devnull, "wb") as nowhere, os.fdopen(result_read, "rb") as result:
        process = launch.start(
            mark := secrets.token_hex(16),
            stdin=subprocess.PIPE,
            stdout=nowhere.fileno(),
            stderr=subprocess.PIPE,
            result_pipe=result_write,
            info_file=nowhere.fileno(),
        )
        os.close(result_write)
        try:
            # Its input ends after this message, so the worker ends too.
            _, said = process.communicate(launch.setup(Kind.PLAIN), timeout=_PROBE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            kill_marked(mark)
            said = process.communicate()[1]
        is_ready = result.read() == framed(b"ready")
    if not is_ready:
        lines = said.decode(errors="replace").strip().splitlines()
        raise SandboxMissingError(
            f"this machine cannot create the Python sandbox: {lines[-1] if lines else 'a worker did not become ready'}",
            fix=f"{ALLOW_NAMESPACES}, or {_UNSAFE}",
        )


def _plain_command(result_pipe: int) -> Sequence[str]:
    worker = Path(__file__).with_name("worker.py")
    return [sys.executable, "-P", "-s", "-S", "-B", "-X", "utf8", str(worker), str(result_pipe)]


PACKAGES = "/packages"
"""Path of numpy, pandas and their dependencies inside the sandbox."""
INTERPRETER = "/python/bin/python"
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")

_OFFERED = ("numpy", "pandas")
_LIBRARIES = "/lib"
_SURVEY_S = 120.0
# Left out because they need a display, a network or a terminal, and each would need a dozen more libraries.
_LEFT_OUT = ("_tkinter", "nis", "readline", "_curses", "_curses_panel", "_dbm", "_gdbm")
_SURVEY = """
import ctypes, importlib, pathlib, sys

class Only:
    # Packages that are not shown inside must not be found here, or their libraries would be shown.
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {*sys.stdlib_module_names, *sys.argv[3].split(",")}:
            raise ModuleNotFoundError(name=name)

sys.meta_path.insert(0, Only())
for file in pathlib.Path(sys.argv[1]).glob("*.so"):
    name = file.name.partition(".")[0]
    if name not in sys.argv[2].split(","):
        try:
            importlib.import_module(name)
        except ImportError:
            pass
import numpy, pandas

class Loaded(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]

@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Loaded), ctypes.c_size_t, ctypes.c_void_p)
def show(library, size, data):
    print(library.contents.name.decode())
    return 0

ctypes.CDLL(None).dl_iterate_phdr(show, None)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The bind mounts of the sandbox, the folders that must look empty, and the script that the interpreter runs.

    Runtime(worker="/python/worker.pyc",
            shown={"/python/lib/python3.11": Path("/usr/lib/python3.11"), "/packages/numpy": Path(…), …},
            folders=("/dev", "/lib", …),
            hidden=("/python/lib/python3.11/site-packages",))

    It has the interpreter, its standard library, numpy, pandas and the libraries they load, and nothing else: no other
    packages, no home folder and no /etc.
    """

    worker: str
    shown: dict[str, Path]
    folders: tuple[str, ...]
    hidden: tuple[str, ...]


@functools.cache
def find_runtime() -> Runtime:
    """Determine once which files this interpreter needs. Raises MissingExtraError if numpy or pandas is missing."""
    standard_library = Path(sysconfig.get_path("stdlib"))
    inside = f"/python/{sys.platlibdir}/{standard_library.name}"
    packages = {f"{PACKAGES}/{path.name}": path for path in _packages()}
    # Use the compiled file if there is one: it saves a sixth of the start time of every worker.
    worker, compiled = Path(worker_module.__file__), Path(worker_module.__cached__ or "")
    stat = worker.stat()
    # Only if it is up to date: an old file would be a different worker with different limits.
    if compiled.is_file() and compiled.read_bytes()[8:16] == struct.pack("<II", int(stat.st_mtime), stat.st_size):
        worker = compiled
    shown = {
        INTERPRETER: Path(sys.executable).resolve(),
        f"/python/worker{worker.suffix}": worker,
        inside: standard_library,
        **packages,
    }
    roots = (standard_library, *packages.values())
    for library in _loaded_libraries(standard_library, [path.stem for path in packages.values()]):
        if not any(library.is_relative_to(root) for root in roots):
            # The interpreter contains the path of the loader; all other libraries are found by name.
            is_loader = library.name.startswith("ld-")
            shown[str(library) if is_loader else f"{_LIBRARIES}/{library.name}"] = library.resolve()
    hidden = tuple(
        f"{inside}/{name}" for name in ("site-packages", "dist-packages") if (standard_library / name).is_dir()
    )
    return Runtime(
        worker=f"/python/worker{worker.suffix}", shown=shown, folders=_parents([*shown, *DEVICES]), hidden=hidden
    )


def _parents(paths: list[str]) -> tuple[str, ...]:
    """Return every parent folder of the paths except the root, parents before children."""
    return tuple(sorted({str(parent) for path in paths for parent in PurePosixPath(path).parents} - {"/"}))


def package_folders() -> tuple[str, ...]:
    """Return the folders of numpy and pandas outside the sandbox, for running without one."""
    return tuple(sorted({str(path.parent) for path in _packages()}))


def _packages() -> Iterator[Path]:
    """Yield the folders and modules of numpy, pandas and their dependencies."""
    wanted, seen = list(_OFFERED), set[str]()
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        found = _distribution(name)
        for top in sorted({PurePosixPath(file).parts[0] for file in found.files or ()}):
            path = Path(str(found.locate_file(top)))
            if top not in ("..", "__pycache__") and not top.endswith(".dist-info") and path.exists():
                yield path
        wanted += [
            re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
            for requirement in found.requires or ()
            if "extra ==" not in requirement and "platform" not in requirement
        ]
    yield from _time_zones()


def _time_zones() -> Iterator[Path]:
    """Yield the time zones of the tzdata package, because there is no /usr/share/zoneinfo inside."""
    try:
        yield Path(str(distribution("tzdata").locate_file("tzdata")))
    except PackageNotFoundError:
        return


def _distribution(name: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError as error:
        raise MissingExtraError(
            f"the Python server offers numpy and pandas, but {name} is not installed", fix="pip install 'mcprl[market]'"
        ) from error


def _loaded_libraries(standard_library: Path, packages: list[str]) -> list[Path]:
    arguments = (str(standard_library / "lib-dynload"), ",".join(_LEFT_OUT), ",".join(packages))
    command = [sys.executable, "-c", _SURVEY, *arguments]
    survey = subprocess.run(command, capture_output=True, text=True, timeout=_SURVEY_S)
    if survey.returncode != 0:
        raise SandboxMissingError(
            f"the interpreter cannot load its own modules: {survey.stderr.strip().splitlines()[-1:]}",
            fix="reinstall Python, numpy and pandas",
        )
    return [Path(line) for line in survey.stdout.splitlines() if line.startswith("/") and ".so" in line]

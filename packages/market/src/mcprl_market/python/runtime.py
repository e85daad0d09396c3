"""The files that the sandbox sees: the interpreter, its standard library, numpy, pandas and the libraries they load.

It sees nothing else: not mcprl, no other packages of this environment, no home folder and no /etc. The shared libraries
are those that a process has loaded after importing all of this.
"""

from __future__ import annotations

import functools
import re
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

from mcprl.errors import MissingExtraError, SandboxMissingError
from mcprl_market.python import worker as worker_module

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

"""The bubblewrap sandbox of a third-party server: the files that the server can read, and the command that starts it.

A server sees its own program, the interpreter and packages that the program needs, the system's programs and libraries,
the folders that the recipe declares, and a private /tmp. It runs as our user without capabilities, and PATH is
the only variable that it gets from our environment. `installation` finds the program's files.
"""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mcprl.config import SandboxSettings
from mcprl.errors import SandboxMissingError, ServerFileError
from mcprl.processes import CHILD_MARK, OWNER_MARK
from mcprl.processes.bubblewrap import (
    ALLOW_NAMESPACES,
    MACHINES,
    NAMESPACES,
    NO_NETWORK,
    denying_filter,
    find_bubblewrap,
)

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store")
# Not all of /etc, because root can read its passwords and private keys.
_ETC = (
    *("alternatives", "ca-certificates", "crypto-policies", "group", "hosts", "ld.so.cache", "ld.so.conf"),
    *("ld.so.conf.d", "localtime", "mime.types", "nsswitch.conf", "os-release", "passwd", "pki/ca-trust"),
    *("pki/tls/certs", "pki/tls/cert.pem", "protocols", "resolv.conf", "services", "ssl/cert.pem", "ssl/certs"),
    *("ssl/openssl.cnf", "timezone"),
)
# Folders of an installation next to its `bin`. Not `share`, because ~/.local/share has keyrings.
_BESIDE_BIN = ("bin", "lib", "lib64", "libexec", "ssl", "pyvenv.cfg")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_TMP_BYTES = 256 * 1024 * 1024
_PROBE_S = 30.0
_OTHERWISE = "remove `sandbox` if you trust the server"
_SHEBANG_BYTES = 4096
# For root, who owns the devices and could change their modes for the whole machine. bubblewrap can bind a device only
# writable or unusable, but a device on a read-only mount can still be written to.
_READ_ONLY_DEVICES = """
for device in "$@"; do
    [ "$device" = -- ] && break
    mount --bind "$device" "$device" && mount -o remount,bind,ro "$device" || exit 1
done
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""


def sandbox_command(
    server: str, settings: SandboxSettings, argv: Sequence[str], *, path: str, cwd: str | None, filter_fd: int
) -> list[str]:
    """Return the command that runs `argv` in a server's sandbox. It must inherit `filter_fd` (see `filter_file`).

    `path` is the server's PATH. Raises SandboxMissingError if this machine cannot run a sandbox, and
    ServerFileError if a declared folder is missing, or if the server could write to its own program.
    """
    _probe()
    command = [*_bubblewrap_command(filter_fd), *([] if settings.network else [NO_NETWORK]), *_system_files()]
    command += ["--perms", "1777", "--size", str(_TMP_BYTES), "--tmpfs", "/tmp"]
    modes = dict.fromkeys(map(str, installation(Path(argv[0]), path)), "--ro-bind")
    modes |= dict.fromkeys(map(str, settings.read), "--ro-bind")
    for folder in settings.write:
        # Otherwise the server could put a link there, and the next sandbox would show it the target of the link.
        if (inside := next((each for each in modes if Path(each).is_relative_to(folder)), None)) is not None:
            raise ServerFileError(
                f"server {server!r} may write to {folder}, but this folder contains {inside}: the server's own program "
                "or a folder that must stay read-only",
                fix=f"list a smaller folder in servers.settings.{server}.sandbox.write",
            )
    modes |= dict.fromkeys(map(str, settings.write), "--bind")
    for shown in sorted(modes, key=lambda each: len(Path(each).parts)):  # mount a folder before its content
        if not os.path.exists(shown):
            raise ServerFileError(
                f"the sandbox of server {server!r} should show {shown}, but this path does not exist",
                fix=f"create the path, or correct servers.settings.{server}.sandbox",
            )
        command += [modes[shown], shown, shown]
    folder = "/tmp" if cwd is None else os.path.abspath(cwd)
    return [*command, "--remount-ro", "/", "--chdir", folder, "--", *argv]


def installation(program: Path, path: str) -> set[Path]:
    """Return the files and folders that a program needs, except those of the system.

    It follows every link on the way to the program, the interpreter in the program's first line, and the Python of its
    virtual environment. If a file is in a `bin` folder, the folders next to `bin` (`lib` and so on) are included. If it
    is in `node_modules`, the whole `node_modules` is included. Any other file is included alone, so a script in the
    folder of a recipe does not expose the recipe's .env.
    """
    shown: set[Path] = set()
    seen: set[Path] = set()
    left = [program]
    while left:
        file = left.pop()
        if file in seen or not file.exists():
            continue
        seen.add(file)
        left.append(Path(os.path.realpath(file)))
        if file.is_symlink():
            left.append(Path(os.path.normpath(file.parent / os.readlink(file))))
        if (interpreter := _interpreter(file, path)) is not None:
            left.append(interpreter)
        if any(file.is_relative_to(folder) for folder in _SYSTEM):
            continue
        prefix = file.parent.parent
        if "node_modules" in file.parts:
            shown.add(Path(*file.parts[: file.parts.index("node_modules") + 1]))
        elif file.parent.name == "bin":
            shown |= {prefix / name for name in _BESIDE_BIN if (prefix / name).exists()}
            if (prefix / "pyvenv.cfg").exists():
                left.append(prefix / "bin" / "python")
        else:
            shown.add(file)
    return shown


def _interpreter(file: Path, path: str) -> Path | None:
    """Return the interpreter named in the first line of a script; None if the file is not a script."""
    with file.open("rb") as script:
        first = script.readline(_SHEBANG_BYTES)
    words = os.fsdecode(first[2:]).split() if first.startswith(b"#!") else []
    if words and os.path.basename(words[0]) == "env":
        words = [found for word in words[1:] if (found := shutil.which(word, path=path)) is not None]
    return Path(words[0]) if words else None


def _system_files() -> Iterator[str]:
    """Yield bubblewrap options that mount the system's programs, libraries, public settings, processes and devices."""
    for name in (*_SYSTEM, *(f"/etc/{name}" for name in _ETC)):
        file = Path(name)
        if file.is_symlink() and file.resolve().is_relative_to("/usr"):
            yield from ("--symlink", os.readlink(file), name)
        elif file.exists():
            yield from ("--ro-bind", name, name)
    yield from ("--proc", "/proc", "--remount-ro", "/proc", "--perms", "0755", "--dir", "/dev")
    for device in _DEVICES:
        yield from ("--dev-bind", f"/dev/{device}", f"/dev/{device}")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        yield from ("--symlink", f"/proc/self/fd/{number}", f"/dev/{name}")
    yield from ("--symlink", "/proc/self/fd", "/dev/fd")
    yield from ("--perms", "1777", "--size", str(_TMP_BYTES), "--tmpfs", "/dev/shm")


@contextmanager
def filter_file() -> Generator[int]:
    """Open a file with the seccomp filter of one sandbox. bubblewrap reads it to the end, so use it once."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in MACHINES:
        raise SandboxMissingError(
            f"the sandbox for tool servers needs Linux on {' or '.join(MACHINES)}, but this machine is {sys.platform} "
            f"{machine}",
            fix=f"run the servers on such a machine, or {_OTHERWISE}",
        )
    fd = os.memfd_create("filter")
    try:
        os.write(fd, denying_filter(machine))
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def _bubblewrap_command(filter_fd: int) -> list[str]:
    """Return the first part of the command, which is the same for every sandbox.

    It leaves out --new-session, because each child already has its own session, and the sandbox's first process must
    stay in the child's group, which is killed with the child. --die-with-parent makes the kernel kill the sandbox
    even if that fails.
    """
    bubblewrap = find_bubblewrap("the sandbox for tool servers", _OTHERWISE)
    command = [bubblewrap, *NAMESPACES, "--unshare-user", "--disable-userns", "--cap-drop", "ALL", "--die-with-parent"]
    command += ["--seccomp", str(filter_fd), "--unsetenv", OWNER_MARK, "--unsetenv", CHILD_MARK]
    if os.geteuid() != 0:
        return command
    devices = [f"/dev/{device}" for device in _DEVICES]
    return [
        shutil.which("unshare") or "unshare",
        "--map-root-user",
        "--mount",
        "/bin/sh",
        "-c",
        _READ_ONLY_DEVICES,
        "sh",
        *devices,
        "--",
        *command,
    ]


@functools.cache
def _probe() -> None:
    """Build a sandbox once and run `true` in it. Raises SandboxMissingError if that fails."""
    try:
        with filter_file() as fd:
            command = [*_bubblewrap_command(fd), NO_NETWORK, *_system_files(), "--remount-ro", "/", "--", "true"]
            tried = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=_PROBE_S, cwd="/", pass_fds=(fd,)
            )
        problem = None if tried.returncode == 0 else (tried.stderr.strip().splitlines() or ["no message"])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem is not None:
        raise SandboxMissingError(
            f"this machine cannot run a server in a sandbox: {problem}", fix=f"{ALLOW_NAMESPACES}, or {_OTHERWISE}"
        )

"""A tool server with descendants. It starts them, writes down every pid, and then serves the tools of another script.

    python bench/servers/family.py FOLDER KINDS SCRIPT [its arguments]

KINDS is a list with commas of: child (stays in the process group), session (leaves it), daemon (leaves it and its
parent). FOLDER gets an empty file named after the pid of each process. None of them listens to SIGTERM.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time
from pathlib import Path


def write_down(folder: Path) -> None:
    (folder / str(os.getpid())).touch()


def live_on(folder: Path) -> None:
    write_down(folder)
    while True:
        time.sleep(600)


def start(kind: str, folder: Path) -> None:
    if os.fork() != 0:
        return
    if kind in ("session", "daemon"):
        os.setsid()
    if kind == "daemon" and os.fork() != 0:
        os._exit(0)
    live_on(folder)


def main() -> None:
    folder, kinds, script = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    write_down(folder)
    for kind in filter(None, kinds.split(",")):
        start(kind, folder)
    sys.argv = sys.argv[3:]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()

"""What the gate took: the engines it started, and its slowest tests, fixtures and promises.

    scripts/gate.py watch            note every engine that starts, until it is ended (beside the gate)
    scripts/gate.py starts           how many there were, by kind; the last line is JSON
    scripts/gate.py slowest          the ten slowest tests, fixtures and promises

An engine is a vLLM server, a SkyRL server, a Ray cluster, a browser, or a process that trains. The watch looks at /proc
twice a second and counts the processes that have MCPRL_GATE in their environment, as all that the gate starts have. The
number of starts does not depend on how fast the machine is, so a promise can bound it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".cache" / "ci"
STARTS, TESTS, PROMISES = FOLDER / "engines.jsonl", FOLDER / "junit.xml", FOLDER / "promises.json"
MARK = "MCPRL_GATE"
KINDS = ("vllm", "skyrl", "ray", "chromium", "trainer")
POLL_S = 0.5
MOST = 10


def kind_of(argv: Sequence[str]) -> str | None:
    """The engine that a command line starts, or None.

    kind_of(["python", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"]) == "vllm"
    """
    names = [Path(word).name for word in argv[:4]]
    if "vllm.entrypoints.openai.api_server" in argv:
        return "vllm"
    if "serve.py" in names[:3] and "api" in argv:  # later in a command, it is what a stand-in was given
        return "skyrl"
    if names[:1] == ["gcs_server"]:
        return "ray"
    if names[:1] == ["chromium"] and not any(word.startswith("--type=") for word in argv):
        return "chromium"
    if "mcprl.learning.worker" in argv or ("mcprl" in names and {"train", "resume"} & set(argv[1:5])):
        return "trainer"
    return None


def argv_of(pid: str) -> list[str]:
    return Path("/proc", pid, "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]


def is_of_gate(pid: str, mark: str) -> bool:
    return f"{MARK}={mark}".encode() in Path("/proc", pid, "environ").read_bytes().split(b"\0")


def look(seen: set[tuple[str, str]], mark: str) -> list[dict[str, str]]:
    """The engines that were not there at the last look."""
    found: list[dict[str, str]] = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            argv = argv_of(pid)
            kind = kind_of(argv)
            if kind is None or not is_of_gate(pid, mark):
                continue
            fields = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
            parent, started = fields[1], fields[19]
            if (pid, started) in seen or argv_of(parent) == argv:  # a fork of it is no other engine
                continue
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended meanwhile
        seen.add((pid, started))
        found.append({"kind": kind, "pid": pid, "command": " ".join(argv)[:200]})
    return found


def watch() -> None:
    mark = os.environ[MARK]
    seen: set[tuple[str, str]] = set()
    FOLDER.mkdir(parents=True, exist_ok=True)
    with STARTS.open("w") as file:
        while True:
            for start in look(seen, mark):
                print(json.dumps(start), file=file, flush=True)
            time.sleep(POLL_S)


def starts() -> int:
    if not STARTS.exists():
        print(f"no {STARTS.relative_to(ROOT)}: run bash .ci/run, which watches what it starts", file=sys.stderr)
        return 1
    counts = Counter(json.loads(line)["kind"] for line in STARTS.read_text().splitlines())
    print(json.dumps({kind: counts[kind] for kind in KINDS} | {"starts": counts.total()}))
    return 0


def slowest() -> int:
    tests: list[tuple[float, str]] = []
    fixtures: list[tuple[float, str]] = []
    for case in ET.parse(TESTS).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        set_up = [(float(item.get("value", "0")), item.get("name", "")) for item in case.iter("property")
                  if item.get("name", "").startswith("fixture ")]  # fmt: skip
        fixtures += [(seconds, f"{what.removeprefix('fixture ')} of {name}") for seconds, what in set_up]
        tests.append((float(case.get("time", "0")) - sum(seconds for seconds, _ in set_up), name))
    show("tests, without their fixtures", tests)
    show("fixtures", fixtures)
    if PROMISES.exists():
        runs: dict[float, list[str]] = {}  # promises that share a run have its time
        for verdict in json.loads(PROMISES.read_text()):
            runs.setdefault(verdict["seconds"], []).append(verdict["id"])
        show("promises", [(seconds, ", ".join(ids)) for seconds, ids in runs.items()])
    return 0


def show(title: str, timed: list[tuple[float, str]]) -> None:
    print(f"\nSlowest {title}")
    for seconds, name in sorted(timed, reverse=True)[:MOST]:
        print(f"{seconds:8.1f} s  {name}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("watch", "starts", "slowest"))
    command = parser.parse_args().command
    if command == "watch":
        watch()
    return starts() if command == "starts" else slowest()


if __name__ == "__main__":
    sys.exit(main())

"""Seven servers that mcprl was never tried with: what `mcprl tasks synthesize` reaches, with and without hints.

    python bench/synthesis_strangers.py [--count 40] [NAME …]

Each is installed from PyPI or npm into an environment of its own, .cache/strangers/NAME, and gets a folder of made-up
data. Results are in bench/results/synthesis_strangers.json, and the last line has, by server, and then without and with
hints:

  tools_reached         tools that answered a call
  unreached             read-only tools that answered none, and their arguments
  tasks, shapes         tasks, and their shapes
  wrong                 what `bench/synthesis.py` counts as wrong in these tasks, on fresh servers
  rejected, volatile    rejected candidates by reason; fields that change
  error                 the named error, if there are no tasks
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from servers.harness import say
from synthesis_servers import people

ROOT = Path(__file__).resolve().parents[1]
HOMES = ROOT / ".cache" / "strangers"
RESULTS = ROOT / "bench" / "results" / "synthesis_strangers.json"
PEOPLE = people()[:16]
PORT = 8907


def pages(folder: Path, address: str, suffix: str) -> list[str]:
    """Write a page for each person; return their addresses."""
    addresses = [f"{address}/{row['name'].lower()}.{suffix}" for row in PEOPLE]
    for place, row in enumerate(PEOPLE):
        lines = (f"Town: {row['town']}", f"Born: {row['born']}", f"Friend: {addresses[place - 7]}")
        html = f"<h1>{row['name']}</h1>" + "".join(f"<p>{line}</p>\n" for line in lines)
        text = html if suffix == "html" else "\n".join(lines)
        (folder / f"{row['name'].lower()}.{suffix}").write_text(text)
    return addresses


def duckdb(folder: Path) -> dict[str, Any]:
    statements = [f"CREATE TABLE {row['name'].lower()} ({row['town'].lower()} INTEGER, born DATE)" for row in PEOPLE]
    script = "import duckdb, sys; [duckdb.connect('shop.duckdb').execute(each) for each in sys.argv[1:]]"
    python = HOMES / "motherduck" / "bin" / "python"
    subprocess.run([python, "-c", script, *statements], cwd=folder, check=True)
    count = [f"SELECT count(*) FROM {row['name'].lower()}" for row in PEOPLE[:5]]
    return {"values": {"sql": count}}


def markdown(folder: Path) -> dict[str, Any]:
    values = {"uri": pages(folder, f"file://{folder}", "html")}
    return {"values": values, "settings": {"markitdown": {"read_only": ["convert_to_markdown"]}}}


def web(folder: Path) -> dict[str, Any]:
    # For HTML, the server starts a Node program whose parts its package does not bring.
    return {"values": {"url": pages(folder, f"http://127.0.0.1:{PORT}", "txt")}}


def thoughts(folder: Path) -> dict[str, Any]:
    return {"values": {"thought": ["add the tens", "add the ones"], "totalThoughts": [2, 3], "thoughtNumber": [1, 2]}}


def scripts(folder: Path) -> dict[str, Any]:
    (folder / "eslint.config.mjs").write_text("export default [{rules: {'no-unused-vars': 'error'}}]\n")
    for number, row in enumerate(PEOPLE):
        unused = "".join(f"let {each['town'].lower()} = {each['born']}\n" for each in PEOPLE[: number + 1])
        (folder / f"{row['name'].lower()}.js").write_text(unused)
    files = [str(folder / f"{row['name'].lower()}.js") for row in PEOPLE]
    return {"values": {"filePaths": files}, "settings": {"eslint": {"read_only": ["lint-files"]}}}


def workbook(folder: Path) -> dict[str, Any]:
    rows = [[row["name"], row["town"], row["born"]] for row in PEOPLE]
    sheets = {row["name"]: [["name", "town", "born"], *rows[place - 5 : place]] for place, row in enumerate(PEOPLE, 5)}
    script = (
        "import json, openpyxl, sys; book = openpyxl.Workbook(); book.remove(book.active)\n"
        "for name, rows in json.loads(sys.argv[1]).items():\n"
        "    sheet = book.create_sheet(name); [sheet.append(row) for row in rows]\n"
        "book.save('shop.xlsx')"
    )
    subprocess.run([HOMES / "excel" / "bin" / "python", "-c", script, json.dumps(sheets)], cwd=folder, check=True)
    return {"values": {"path": ["shop.xlsx"]}}


def board(folder: Path) -> dict[str, Any]:
    words = ["init", "shop", "--defaults", "--no-git", "--integration-mode", "none"]
    program = HOMES / "backlog" / "node_modules/.bin/backlog"
    subprocess.run([program, *words], cwd=folder, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    for place, row in enumerate(PEOPLE):
        front = {
            "id": f"TASK-{place + 1}",
            "title": f"Call {row['name']}",
            "status": ("To Do", "In Progress", "Done")[place % 3],
            "assignee": [PEOPLE[place - 7]["name"].lower()],
            "created_date": f"{row['born']}-03-04 05:06",
            "labels": [row["town"].lower()],
            "dependencies": [f"TASK-{row['born'] % place + 1}"] if place else [],
            "ordinal": 1000 * place + row["born"],
        }
        text = f"---\n{yaml.safe_dump(front)}---\n\n## Description\n\n{row['name']} lives in {row['town']}.\n"
        (folder / "backlog" / "tasks" / f"task-{place + 1} - Call-{row['name']}.md").write_text(text)
    return {"values": {"query": [row["name"] for row in PEOPLE]}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranger:
    """A server: the index that has it, its package and version, its program, and what makes its data and hints."""

    index: str
    package: str
    version: str
    program: str
    prepare: Callable[[Path], dict[str, Any]]
    arguments: tuple[str, ...] = ()


STRANGERS = {
    "motherduck": Stranger(
        index="PyPI",
        package="mcp-server-motherduck",
        version="1.1.0",
        program="mcp-server-motherduck",
        prepare=duckdb,
        arguments=("--db-path", "shop.duckdb"),
    ),
    "markitdown": Stranger(
        index="PyPI", package="markitdown-mcp", version="0.0.1a7", program="markitdown-mcp", prepare=markdown
    ),
    "fetch": Stranger(
        index="PyPI",
        package="mcp-server-fetch",
        version="2026.10.24",
        program="mcp-server-fetch",
        prepare=web,
        arguments=("--allow-private-ips",),  # the pages are on this machine
    ),
    "thinking": Stranger(
        index="npm",
        package="@modelcontextprotocol/server-sequential-thinking",
        version="2026.8.31",
        program="mcp-server-sequential-thinking",
        prepare=thoughts,
    ),
    "eslint": Stranger(index="npm", package="@eslint/mcp", version="0.3.13", program="mcp", prepare=scripts),
    "excel": Stranger(
        index="PyPI",
        package="excel-mcp-server",
        version="2.2.2",
        program="excel-mcp-server",
        prepare=workbook,
        arguments=("stdio", "--allow-dir", "."),  # paths in its folder
    ),
    "backlog": Stranger(
        index="npm",
        package="backlog.md",
        version="1.52.0",
        program="backlog",
        prepare=board,
        arguments=("mcp", "start"),
    ),
}


def install(name: str) -> Path:
    """Install a server, unless it is; return its program."""
    stranger, home = STRANGERS[name], HOMES / name
    is_npm = stranger.index == "npm"
    program = home / ("node_modules/.bin" if is_npm else "bin") / stranger.program
    if not program.exists():
        home.mkdir(parents=True, exist_ok=True)
        if is_npm:
            words = ["npm", "install", "--prefix", str(home), "--ignore-scripts", "--no-audit", "--no-fund"]
            subprocess.run([*words, f"{stranger.package}@{stranger.version}"], check=True, stdout=sys.stderr)
        else:
            uv = Path(sys.executable).with_name("uv")
            subprocess.run([uv, "venv", "--allow-existing", "--python", "3.11", home], check=True)
            wanted = [f"{stranger.package}=={stranger.version}"]
            subprocess.run([uv, "pip", "install", "--python", home / "bin" / "python", *wanted], check=True)
    return program


def synthesize(folder: Path, servers: Path, hints: Path | None, count: int) -> dict[str, Any]:
    """Make tasks and recount them; return what came of it."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    given = [] if hints is None else ["--hints", str(hints)]
    words = ["--servers", str(servers), "--out", str(folder), "--count", str(count), "--yes", *given]
    command = [sys.executable, "-m", "mcprl", "tasks", "synthesize", *words]
    made = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    if made.returncode:
        last = made.stderr.strip().rpartition("\n" if "Traceback" in made.stderr else "mcprl: ")[2]
        return {"tasks": 0, "error": " ".join(last.split()).replace(str(folder.parent), "FOLDER")}
    report = json.loads((folder / "report.json").read_text())
    hinted: dict[str, Any] = {} if hints is None else yaml.safe_load(hints.read_text())
    settings: dict[str, Any] = hinted.get("settings", {})
    for name in json.loads(servers.read_text())["mcpServers"]:  # a busy machine must not end the recount
        settings[name] = {**settings.get(name, {}), "call_deadline_s": 600}
    patient = folder.parent / "patient.yaml"
    patient.write_text(yaml.safe_dump({"settings": settings}))
    recount = [sys.executable, str(ROOT / "bench" / "synthesis.py"), "--servers", str(servers), "--tasks", str(folder)]
    recount += ["--hints", str(patient)]
    shown = subprocess.run(recount, env={**os.environ, "PATH": path}, stdout=subprocess.PIPE, text=True)
    wrong = json.loads(shown.stdout.splitlines()[-1])["wrong"]
    kept = ("tasks", "tools_reached", "links", "rejected", "volatile", "unreached", "linked_share")
    return {name: report[name] for name in kept} | {"shapes": report["by_shape"], "wrong": wrong}


def measure(name: str, count: int) -> dict[str, Any]:
    stranger, program = STRANGERS[name], install(name)
    row: dict[str, Any] = {"package": stranger.package, "version": stranger.version, "index": stranger.index}
    with tempfile.TemporaryDirectory(prefix="m-", dir="/tmp") as temporary:
        folder = Path(temporary).resolve()
        data = folder / "d"
        data.mkdir()
        given = stranger.prepare(data)
        server = {"command": str(program), "args": list(stranger.arguments), "cwd": str(data)}
        servers, hints = folder / "servers.json", folder / "hints.yaml"
        servers.write_text(json.dumps({"mcpServers": {name: server}}))
        hints.write_text(yaml.safe_dump(given))
        handler = partial(_Quiet, directory=str(data))
        with ThreadingHTTPServer(("127.0.0.1", PORT), handler) as server_of_pages:
            threading.Thread(target=server_of_pages.serve_forever, daemon=True).start()
            row["without_hints"] = synthesize(folder / "plain", servers, None, count)
            row["with_hints"] = synthesize(folder / "hinted", servers, hints, count)
            server_of_pages.shutdown()
    return row


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(STRANGERS), metavar="NAME")
    parser.add_argument("--count", type=int, default=40)
    options = parser.parse_args()
    rows: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in options.names:
        rows[name] = measure(name, options.count)
        say(f"{name}: {json.dumps(rows[name])}")
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()

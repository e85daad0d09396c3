"""Write a servers file and hints for `bench/synthesis.py`: the market offline, five public servers with made-up data.

    python bench/synthesis_servers.py FOLDER     # FOLDER/servers.json, FOLDER/hints.yaml and FOLDER/NAME

Each process copies its data into a folder of its own, so that writes of one episode are not seen by another. Two
processes in different folders answer alike: paths are relative.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

_ROOT = Path(__file__).resolve().parents[1]
_SYLLABLES = [first + last for first in "bdfgklmnprstvz" for last in "aeiou"]
_PEOPLE = 40
_TYPES = ("TEXT", "INTEGER", "REAL", "BLOB", "DATE")


def people() -> list[dict[str, Any]]:
    """Return made-up people, each with a town, a year and a friend."""
    stream = random.Random(7)
    names = ["".join(stream.sample(_SYLLABLES, 3)).title() for _ in range(_PEOPLE)]
    towns = ["".join(stream.sample(_SYLLABLES, 2)).title() + "ville" for _ in range(_PEOPLE)]
    rows = [
        {"name": name, "town": town, "born": stream.randrange(1930, 2005)}
        for name, town in zip(names, towns, strict=True)
    ]
    return [{**row, "friend": rows[place - 7]["name"]} for place, row in enumerate(rows)]


def _filesystem(folder: Path) -> None:
    for row in people():
        text = "".join(f"{name.title()}: {value}\n" for name, value in row.items() if name != "friend")
        (folder / f"{row['name'].lower()}.txt").write_text(text + f"Friend: {row['friend'].lower()}.txt\n")


def _memory(folder: Path) -> None:
    lines = [
        {
            "type": "entity",
            "name": row["name"],
            "entityType": "person",
            "observations": [f"Town: {row['town']}", f"Born: {row['born']}"],
        }
        for row in people()
    ]
    lines += [
        {"type": "relation", "from": row["name"], "to": row["friend"], "relationType": "knows"} for row in people()
    ]
    (folder / "memory.jsonl").write_text("\n".join(map(json.dumps, lines)))


def _sqlite(folder: Path) -> None:
    stream = random.Random(7)
    with closing(sqlite3.connect(folder / "shop.db")) as connection:
        for row in people()[:24]:
            columns = [f"{stream.choice(_SYLLABLES)}{stream.choice(_SYLLABLES)} {kind}" for kind in _TYPES]
            connection.execute(f"CREATE TABLE {row['name'].lower()} ({', '.join(stream.sample(columns, 4))})")
        connection.commit()


def _git(folder: Path) -> None:
    def git(*words: str) -> None:
        when = "2024-01-02T03:04:05Z"
        environment = {"PATH": os.defpath, "HOME": str(folder), "GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when}
        subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True, env=environment)

    git("init", "--initial-branch", "main")
    for row in people():
        (folder / f"{row['name'].lower()}.txt").write_text(f"Town: {row['town']}\n")
        git("add", ".")
        name = ("-c", f"user.name={row['friend']}", "-c", f"user.email={row['friend'].lower()}@example.com")
        git(*name, "commit", "--message", f"{row['name']}{row['born']}")
    for row in people()[:8]:
        git("branch", row["town"].lower(), f"main~{row['born'] % 30}")


def _server(name: str, folder: Path, program: str, *, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Return a server that copies its data into a new folder, works there, and is then removed with it."""
    script = f"cp -r {shlex.quote(str(folder))}/. {{folder}} && cd {{folder}} && exec {program}"
    return {name: {"command": "/bin/sh", "args": ["-c", script]} | ({"env": env} if env else {})}


_PREPARE = {"filesystem": _filesystem, "memory": _memory, "sqlite": _sqlite, "git": _git, "everything": lambda _: None}
_NPM = ("filesystem", "memory", "everything")
_SETTINGS: dict[str, Any] = {
    "filesystem": {"errors": [{"match": r"^\S+: Error - "}]},
    "sqlite": {
        "errors": [{"match": "^(Database error|Error): "}],
        "read_only": ["read_query", "list_tables", "describe_table"],
    },
    "git": {"read_only": ["git_status", "git_log", "git_show", "git_branch", "git_diff", "git_diff_unstaged"]},
}
_VALUES: dict[str, list[Any]] = {
    "repo_path": ["."],
    "path": ["."],
    "branch_type": ["local"],
}


_MARKET = ("fmp", "polygon", "tavily", "slack")
WRITING = ("filesystem", "memory")
"""The servers whose writes a fresh process undoes, and which are allowed to write."""


def write_servers(out: Path) -> tuple[Path, Path]:
    """Write the data of all servers; return the servers file and the hints."""
    servers: dict[str, Any] = {name: {"command": "mcprl", "args": ["serve", name, "--world", "7"]} for name in _MARKET}
    for name, prepare in _PREPARE.items():
        folder = out.resolve() / name
        folder.mkdir(parents=True)
        prepare(folder)
        home = _ROOT / ".cache/npm" / name / "node_modules/.bin" if name in _NPM else _ROOT / f".venv-{name}/bin"
        words = {"filesystem": " .", "sqlite": " --db-path shop.db"}.get(name, "")
        env = {"MEMORY_FILE_PATH": "{folder}/memory.jsonl"} if name == "memory" else None
        servers |= _server(name, folder, f"{home / f'mcp-server-{name}'}{words}", env=env)
    files = out / "servers.json", out / "hints.yaml"
    files[0].write_text(json.dumps({"mcpServers": servers}, indent=2))
    files[1].write_text(yaml.safe_dump({"values": _VALUES, "settings": _SETTINGS}))
    return files


if __name__ == "__main__":
    write_servers(Path(sys.argv[1]))

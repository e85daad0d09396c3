"""What the tests know about each third-party server: how it is started, what it offers, and calls with known answers.

The versions are pinned, so the tools are listed exactly: a server that changes what it offers is seen here.
"""

import json
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcprl.config import ErrorRule, ServerSettings
from mcprl.records import ToolCall
from mcprl.tools import ServerSpec

NUM_READS = 16


@dataclass(frozen=True, kw_only=True)
class Expected:
    """A call and a text that its answer holds.

    Expected(call=call("echo", message="hi"), text="Echo: hi")
    """

    call: ToolCall
    text: str


@dataclass(frozen=True, kw_only=True)
class ThirdParty:
    """One server. Its functions are given the folder that it works in.

    `series` are calls in order, some of which change something; `evidence` looks at what they left without asking the
    server. `read` changes nothing and has another answer for each number below NUM_READS. `refused` are calls that fit
    the schema of their tool and that the tool itself turns down.
    """

    name: str
    tools: tuple[str, ...]
    series: Callable[[Path], tuple[Expected, ...]]
    evidence: Callable[[Path], bool] = lambda folder: True
    read: Callable[[Path, int], Expected]
    bad_arguments: Expected
    refused: Callable[[Path], tuple[Expected, ...]]
    args: Callable[[Path], tuple[str, ...]] = lambda folder: ()
    env: Callable[[Path], dict[str, str]] = lambda folder: {}
    prepare: Callable[[Path], None] = lambda folder: None
    settings: ServerSettings = field(default_factory=ServerSettings)

    def spec(self, program: Path, folder: Path) -> ServerSpec:
        """The server on a folder that was prepared for it."""
        return ServerSpec(
            name=self.name, command=str(program), args=self.args(folder), env=self.env(folder), settings=self.settings
        )


def call(name: str, /, **arguments: Any) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True, text=True).stdout


def make_repository(folder: Path) -> None:
    git(folder, "init", "--initial-branch", "main")
    git(folder, "config", "user.name", "Ana")
    git(folder, "config", "user.email", "ana@example.com")
    for number in range(NUM_READS):
        git(folder, "commit", "--allow-empty", "--message", f"commit number {number}.")
    (folder / "draft.txt").write_text("A thought.")


def write_notes(folder: Path) -> None:
    for number in range(NUM_READS):
        (folder / f"note-{number}.txt").write_text(f"This is note {number}.")


def write_graph(folder: Path) -> None:
    """A file as the memory server keeps it: one entity a line."""
    entities = [
        {"type": "entity", "name": f"person-{number}", "entityType": "person", "observations": [f"lives at {number}."]}
        for number in range(NUM_READS)
    ]
    (folder / "memory.jsonl").write_text("\n".join(map(json.dumps, entities)))


def rows_of(database: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute("SELECT * FROM notes").fetchall()


TIME = ThirdParty(
    name="time",
    tools=("get_current_time", "convert_time"),
    args=lambda folder: ("--local-timezone", "UTC"),
    series=lambda folder: (
        Expected(
            call=call("convert_time", source_timezone="Asia/Kolkata", time="09:30", target_timezone="Asia/Tokyo"),
            text='"time_difference": "+3.5h"',
        ),
        Expected(call=call("get_current_time", timezone="Asia/Tokyo"), text="+09:00"),
    ),
    read=lambda folder, number: Expected(
        call=call("convert_time", source_timezone="UTC", time=f"12:{number:02}", target_timezone="Asia/Tokyo"),
        text=f"T21:{number:02}:00+09:00",
    ),
    bad_arguments=Expected(
        call=call("convert_time", source_timezone="UTC", time="12:00"), text="missing argument 'target_timezone'"
    ),
    refused=lambda folder: (
        Expected(
            call=call("convert_time", source_timezone="Mars/Olympus", time="12:00", target_timezone="UTC"),
            text="Invalid timezone",
        ),
    ),
)

GIT = ThirdParty(
    name="git",
    tools=(
        *("git_status", "git_diff_unstaged", "git_diff_staged", "git_diff", "git_commit", "git_add", "git_reset"),
        *("git_log", "git_create_branch", "git_checkout", "git_show", "git_branch"),
    ),
    prepare=make_repository,
    series=lambda folder: (
        Expected(call=call("git_status", repo_path=str(folder)), text="Untracked files:"),
        Expected(call=call("git_create_branch", repo_path=str(folder), branch_name="idea"), text="'idea'"),
        Expected(call=call("git_checkout", repo_path=str(folder), branch_name="idea"), text="'idea'"),
        Expected(call=call("git_add", repo_path=str(folder), files=["draft.txt"]), text="staged"),
        Expected(call=call("git_commit", repo_path=str(folder), message="Add a thought"), text="committed"),
        Expected(call=call("git_status", repo_path=str(folder)), text="On branch idea\nnothing to commit"),
    ),
    evidence=lambda folder: git(folder, "show", "--format=%s", "--name-only", "idea") == "Add a thought\n\ndraft.txt\n",
    read=lambda folder, number: Expected(
        call=call("git_show", repo_path=str(folder), revision=f"main~{number}"),
        text=f"commit number {NUM_READS - 1 - number}.",
    ),
    bad_arguments=Expected(call=call("git_status", repo_path=7), text="argument 'repo_path' must be string"),
    refused=lambda folder: (
        Expected(call=call("git_show", repo_path=str(folder), revision="no-such"), text="'no-such' did not resolve"),
        Expected(call=call("git_status", repo_path=str(folder / "nowhere")), text="nowhere"),
    ),
)

# Every error of this server is a success on the wire, and it says of no tool whether it changes anything.
SQLITE = ThirdParty(
    name="sqlite",
    tools=("read_query", "write_query", "create_table", "list_tables", "describe_table", "append_insight"),
    args=lambda folder: ("--db-path", str(folder / "notes.db")),
    series=lambda folder: (
        Expected(call=call("create_table", query="CREATE TABLE notes (id INTEGER, text TEXT)"), text="created"),
        Expected(call=call("list_tables"), text="[{'name': 'notes'}]"),
        Expected(call=call("write_query", query="INSERT INTO notes VALUES (7, 'Lima')"), text="[{'affected_rows': 1}]"),
        Expected(call=call("read_query", query="SELECT * FROM notes"), text="[{'id': 7, 'text': 'Lima'}]"),
    ),
    evidence=lambda folder: rows_of(folder / "notes.db") == [(7, "Lima")],
    read=lambda folder, number: Expected(
        call=call("read_query", query=f"SELECT {number} * {number} AS square"), text=f"[{{'square': {number**2}}}]"
    ),
    bad_arguments=Expected(call=call("read_query", sql="SELECT 1"), text="missing argument 'query'"),
    refused=lambda folder: (
        Expected(call=call("read_query", query="SELECT * FROM nowhere"), text="Database error: no such table: nowhere"),
        Expected(call=call("read_query", query="DROP TABLE notes"), text="Error: Only SELECT queries are allowed"),
    ),
    settings=ServerSettings(
        errors=(ErrorRule(match=r"^(Database error|Error): "),),
        read_only=("read_query", "list_tables", "describe_table"),
    ),
)

EVERYTHING = ThirdParty(
    name="everything",
    tools=(
        *("echo", "get-annotated-message", "get-env", "get-resource-links", "get-resource-reference"),
        *("get-structured-content", "get-sum", "get-tiny-image", "gzip-file-as-resource", "toggle-simulated-logging"),
        *("toggle-subscriber-updates", "trigger-long-running-operation", "simulate-research-query"),
    ),
    series=lambda folder: (
        Expected(call=call("echo", message="¿Qué tal?"), text="Echo: ¿Qué tal?"),
        Expected(call=call("get-sum", a=0.5, b=-2), text="The sum of 0.5 and -2 is -1.5."),
        Expected(call=call("get-tiny-image"), text="[image omitted]"),
        Expected(call=call("trigger-long-running-operation", duration=0.2, steps=2), text="completed"),
    ),
    read=lambda folder, number: Expected(
        call=call("get-sum", a=number, b=1000), text=f"The sum of {number} and 1000 is {number + 1000}."
    ),
    bad_arguments=Expected(call=call("get-sum", a="two", b=3), text="argument 'a' must be number, not string"),
    refused=lambda folder: (
        Expected(
            call=call("get-resource-reference", resourceType="Text", resourceId=-5), text="Invalid resourceId: -5."
        ),
    ),
)

# Reading several files is a success even where none of them may be read: see the rule.
FILESYSTEM = ThirdParty(
    name="filesystem",
    tools=(
        *("read_file", "read_text_file", "read_media_file", "read_multiple_files", "write_file", "edit_file"),
        *("create_directory", "list_directory", "list_directory_with_sizes", "directory_tree", "move_file"),
        *("search_files", "get_file_info", "list_allowed_directories"),
    ),
    args=lambda folder: (str(folder),),
    prepare=write_notes,
    series=lambda folder: (
        Expected(call=call("create_directory", path=str(folder / "box")), text="created"),
        Expected(call=call("write_file", path=str(folder / "box/ñ.txt"), content="one\ntwo"), text="wrote"),
        Expected(call=call("read_text_file", path=str(folder / "box/ñ.txt"), head=1), text="one"),
        Expected(call=call("list_directory", path=str(folder / "box")), text="[FILE] ñ.txt"),
    ),
    evidence=lambda folder: (folder / "box/ñ.txt").read_text() == "one\ntwo",
    read=lambda folder, number: Expected(
        call=call("read_text_file", path=str(folder / f"note-{number}.txt")), text=f"This is note {number}."
    ),
    bad_arguments=Expected(call=call("read_text_file", path=["a.txt"]), text="argument 'path' must be string"),
    refused=lambda folder: (
        Expected(call=call("read_text_file", path=str(folder / "none.txt")), text="no such file or directory"),
        Expected(call=call("read_text_file", path="/etc/passwd"), text="Access denied"),
        Expected(call=call("write_file", path=str(folder.parent / "x"), content=""), text="Access denied"),
        Expected(call=call("read_multiple_files", paths=["/etc/passwd"]), text="/etc/passwd: Error - Access denied"),
    ),
    settings=ServerSettings(errors=(ErrorRule(match=r"^/\S+: Error - "),)),
)

MEMORY = ThirdParty(
    name="memory",
    tools=(
        *("create_entities", "create_relations", "add_observations", "delete_entities", "delete_observations"),
        *("delete_relations", "read_graph", "search_nodes", "open_nodes"),
    ),
    env=lambda folder: {"MEMORY_FILE_PATH": str(folder / "memory.jsonl")},
    prepare=write_graph,
    series=lambda folder: (
        Expected(
            call=call("create_entities", entities=[{"name": "Ana", "entityType": "person", "observations": []}]),
            text='"name": "Ana"',
        ),
        Expected(
            call=call("add_observations", observations=[{"entityName": "Ana", "contents": ["speaks Quechua"]}]),
            text="speaks Quechua",
        ),
        Expected(call=call("read_graph"), text="speaks Quechua"),
    ),
    evidence=lambda folder: "speaks Quechua" in (folder / "memory.jsonl").read_text(),
    read=lambda folder, number: Expected(call=call("open_nodes", names=[f"person-{number}"]), text=f"at {number}."),
    bad_arguments=Expected(call=call("open_nodes", names="person-1"), text="argument 'names' must be array"),
    refused=lambda folder: (
        Expected(
            call=call("add_observations", observations=[{"entityName": "Nobody", "contents": ["is nowhere"]}]),
            text="Entity with name Nobody not found",
        ),
    ),
)

SERVERS = (TIME, GIT, SQLITE, EVERYTHING, FILESYSTEM, MEMORY)

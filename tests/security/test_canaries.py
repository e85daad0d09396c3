"""25 canary secrets, servers that leak them in every way, and not a byte of them in what a run leaves behind."""
# R26

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import random
import string
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

import pytest

from mcprl.config import ServerSettings
from mcprl.errors import McprlError, ServerStartError
from mcprl.goals import Goal
from mcprl.recipe import load_recipe
from mcprl.records import FinishReason, Group, Observation, StopReason, Task, ToolCall, Trajectory, Turn
from mcprl.runs.folder import RunFolder
from mcprl.runs.trajectories import read_trajectories
from mcprl.tools import ServerSpec, Toolbox, load_server_specs
from mcprl.tools.cassette import Cassette
from step_records import step_record

pytestmark = pytest.mark.process

SERVER = str(Path(__file__).parent / "leaky_server.py")
RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "hello-cpu.yaml"

_generator = random.Random(20)


def random_text(length: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    return "".join(_generator.choices(alphabet, k=length))


IN_FILE = {
    "CANARY_01_KEY": random_text(32, "0123456789abcdef"),
    "CANARY_02_KEY": random_text(40, string.ascii_letters + string.digits + "+/="),
    "CANARY_03_TOKEN": "sk-" + random_text(48),
    "CANARY_04_PASSWORD": random_text(8),
    "CANARY_05_PASSWORD": f"{random_text(6)} {random_text(6)}&<{random_text(5)}>'{random_text(5)}",
    "CANARY_06_SECRET": f"{random_text(6)}$${random_text(6)}%{random_text(5)}",
    "CANARY_07_SECRET": f"{random_text(6)}ö€{random_text(8)}ß",
    "CANARY_08": random_text(24),
}
IN_ENVIRONMENT = {
    "CANARY_09_KEY": random_text(64),
    "CANARY_10_KEY": f"{random_text(8)}-{random_text(4)}-{random_text(12)}",
    "CANARY_11_PASSWORD": f'{random_text(6)}"{random_text(6)}\\{random_text(6)}/{random_text(4)}',
    "CANARY_12": random_text(20),
}
IN_ENTRY = {
    "CANARY_13_KEY": random_text(16),
    "CANARY_14_TOKEN": random_text(36, string.ascii_lowercase),
    "CANARY_15_CREDENTIALS": random_text(9),
}
BEARER, HEADER, PARAMETER, URL_PASSWORD, OPTION = (random_text(28) for _ in range(5))
# Nobody registers these: only what they look like, or what stands before them, tells.
UNREGISTERED = {
    "github": "ghp_" + random_text(36),
    "jwt": f"eyJ{random_text(20)}.{random_text(40)}.{random_text(43)}",
    "parameter": random_text(32),
    "basic": base64.b64encode(f"ada:{random_text(12)}".encode()).decode(),
    "pem": "MII" + random_text(61),
}
LEAKED_TOO = [
    *(BEARER, HEADER, PARAMETER, URL_PASSWORD, OPTION, UNREGISTERED["github"], UNREGISTERED["jwt"]),
    f"404 Not Found for url: https://api.test/v3?symbol=A&apikey={UNREGISTERED['parameter']}",
    f"Authorization: Basic {UNREGISTERED['basic']}",
    f"-----BEGIN PRIVATE KEY-----\n{UNREGISTERED['pem']}\n-----END PRIVATE KEY-----",
]
REGISTERED = {**IN_FILE, **IN_ENVIRONMENT, **IN_ENTRY}
CANARIES = [*REGISTERED.values(), BEARER, HEADER, PARAMETER, URL_PASSWORD, OPTION, *UNREGISTERED.values()]

STDIO_CALLS = [
    ("leak_text", {"note": IN_FILE["CANARY_01_KEY"]}),
    ("leak_structured", {}),
    ("leak_link", {}),
    *(("leak_at_the_cut", {"before": before}) for before in (4000, 4060, 4090)),
    ("leak_too_much", {"before": 8150}),
    ("leak_tool_error", {}),
    ("leak_exception", {}),
    ("leak_disguised_error", {}),
    *(("leak_protocol_error", {"code": code}) for code in (-32000, -32602, -32603, 7)),
    ("leak_malformed", {}),
    ("leak_stderr", {}),
    ("leak_wrapped", {}),
    ("leak_stdout", {}),
    ("no_such_tool", {}),
    ("leak_at_the_cut", {"before": "no number"}),
    ("leak_and_crash", {}),
]
HTTP_CALLS = [
    ("leak_text", {"note": BEARER}),
    ("leak_protocol_error", {"code": -32000}),
    ("leak_tool_error", {}),
    ("leak_too_much", {"before": 10}),
    *(("leak_status", {"status": status}) for status in (200, 400, 401, 404, 429, 500, 503)),
    ("leak_and_crash", {}),
]


@dataclass
class Remains:
    """What is left of the run: texts by where they were found, and the folder."""

    folder: Path
    observations: list[Observation] = field(default_factory=list)
    errors: list[McprlError] = field(default_factory=list)
    descriptions: str = ""
    stats: str = ""
    logged: str = ""


def write_servers(folder: Path) -> tuple[Path, Path, dict[str, ServerSettings]]:
    """An mcpServers file and the settings of its servers, with a file of keys beside it."""
    environment = {name: f"${{{name}}}" for name in {**IN_FILE, **IN_ENVIRONMENT}}
    environment |= {**IN_ENTRY, "LEAK_MORE": base64.b64encode(json.dumps(LEAKED_TOO).encode()).decode()}
    servers = {
        "leaky": {"command": sys.executable, "args": [SERVER, "--api-key", OPTION], "env": environment},
        "web": {
            "url": f"http://ada:{URL_PASSWORD}@127.0.0.1:{{port}}/mcp?api_key={quote(PARAMETER)}",
            "headers": {"X-Proxy-Auth": f"Bearer {BEARER}", "X-Api-Key": HEADER},
            "env": environment,
        },
        "dying": {"command": sys.executable, "args": [SERVER, "--die"], "env": environment},
        "dying_web": {"url": "http://127.0.0.1:{port}/mcp", "env": environment},
        "dumb": {
            "command": "/bin/sh",
            "args": ["-c", 'unset LEAK_MORE; env; env >&2; echo "$CANARY_01_KEY"'],
            "env": environment,
        },
        "missing": {"command": f"/nowhere/{IN_FILE['CANARY_01_KEY']}", "env": environment},
        "nobody": {"url": f"http://ada:{URL_PASSWORD}@127.0.0.1:9/mcp?api_key={PARAMETER}"},
    }
    file, keys = folder / "servers.json", folder / ".env"
    file.write_text(json.dumps({"mcpServers": servers}))
    keys.write_text("".join(f'{name}="{value}"\n' for name, value in IN_FILE.items()))
    shared = {"attempts": 1, "max_result_bytes": 8192, "read_only": ["leak_text"]}
    start = [sys.executable, SERVER, "--http", "{port}"]
    rule = {"match": "upstream failed", "fault": "infrastructure"}
    settings = {
        "leaky": ServerSettings.model_validate({**shared, "errors": [rule]}),
        "web": ServerSettings.model_validate({**shared, "start": start, "deny": []}),
        "dying_web": ServerSettings.model_validate({"start": [*start, "--die"]}),
    }
    return file, settings


async def live(specs: dict[str, ServerSpec], remains: Remains, folder: RunFolder) -> None:
    cassette = Cassette.open(folder.path / "cassette.sqlite", writable=True)
    for name, calls in (("leaky", STDIO_CALLS), ("web", HTTP_CALLS)):
        async with Toolbox([specs[name]], log_dir=folder.logs, cassette=cassette, cassette_mode="record") as toolbox:
            remains.descriptions += "".join(f"{tool.description} {tool.parameters}" for tool in toolbox.catalog)
            async with toolbox.lease(None) as lease:
                for tool, arguments in calls:
                    try:
                        remains.observations.append(await lease.call(ToolCall(name=tool, arguments=arguments)))
                    except McprlError as error:
                        logging.getLogger("test").exception("call %s of %r failed: %s", tool, specs[name], error)
                        remains.errors.append(error)
            remains.stats += json.dumps(toolbox.stats(), default=str)
    cassette.close()
    for name in ("dying", "dying_web", "dumb", "missing", "nobody"):
        with pytest.raises(ServerStartError) as caught:
            async with Toolbox([specs[name]], log_dir=folder.logs):
                pass
        logging.getLogger("test").error("start", exc_info=caught.value)
        remains.errors.append(caught.value)


def record(folder: RunFolder, observations: list[Observation]) -> None:
    call = ToolCall(name="leak_text", arguments={})
    turn = Turn(
        text="<tool_call>",
        sampled_ids=(1,),
        finish=FinishReason.STOP,
        weights_version=0,
        calls=(call,) * len(observations),
        observations=tuple(observations),
    )
    trajectory = Trajectory(
        task_id="t",
        step=0,
        member=0,
        attempt=0,
        temperature=1.0,
        token_ids=(1,),
        sampled=(True,),
        forced=(False,),
        fixed=(False,),
        logprobs=(-0.5,),
        turn_index=(0,),
        weights_version=(0,),
        turns=(turn,),
        stop=StopReason.ANSWERED,
        reward=0.0,
        reward_parts={},
    )
    task = Task(id="t", prompt=({"role": "user", "content": "?"},), goal=Goal())
    group = Group(task=task, trajectories=(trajectory, replace(trajectory, member=1)))
    folder.record_step(0, step_record([group], {"reward": 0.0}))


@pytest.fixture(scope="module")
def remains(tmp_path_factory: pytest.TempPathFactory) -> Remains:
    """One run with all the leaks."""
    folder = tmp_path_factory.mktemp("canaries")
    file, settings = write_servers(folder)
    config = load_recipe(RECIPE, [f"training.outputs={folder / 'outputs'}"])
    run_folder = RunFolder.create(config)
    remains = Remains(run_folder.path)
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    root, factory = logging.getLogger(), logging.getLogRecordFactory()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in IN_ENVIRONMENT.items():
                patch.setenv(name, value)
            patch.chdir(folder)
            patch.setattr("mcprl.tools.calls.FAILURES", 1000)  # every call is made, however many fail
            specs = {spec.name: spec for spec in load_server_specs(file, settings)}
            asyncio.run(live(specs, remains, run_folder))
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        logging.setLogRecordFactory(factory)
    remains.logged = stream.getvalue()
    record(run_folder, remains.observations)
    return remains


def leaks(where: str, content: str | bytes) -> list[str]:
    """Which canaries a text holds, also in part: half a key is a leak, too."""
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    found = []
    for number, canary in enumerate(CANARIES, start=1):
        raw = canary.encode()
        half = len(raw) // 2
        needles = {
            raw,
            raw[: max(8, half)],
            raw[-max(8, half) :],
            base64.b64encode(raw)[: len(raw)],
            quote(canary).encode(),
        }
        places = [data.find(needle) for needle in needles if needle in data]
        if places:
            around = data[max(0, places[0] - 60) : places[0] + 60]
            found.append(f"{where}: canary {number} in {around!r}")
    return found


def test_there_are_25_canaries_and_the_servers_know_them_all(remains):
    assert len(CANARIES) == len(set(CANARIES)) == 25
    log = (remains.folder / "logs" / "leaky.log").read_text()
    # What was struck out was there: each name stands in the log of the server.
    assert [name for name in REGISTERED if f"[redacted {name}]" not in log] == []


def test_observations_show_none(remains):
    assert len(remains.observations) >= 12
    assert [leak for seen in remains.observations for leak in leaks(seen.tool, repr(seen))] == []
    first = remains.observations[0].text
    assert [name for name in REGISTERED if f"[redacted {name}]" not in first] == []


def test_errors_show_none(remains):
    assert len(remains.errors) >= 12
    told = [
        (error.code, "\n".join([str(error), repr(error), *getattr(error, "__notes__", [])])) for error in remains.errors
    ]
    assert [leak for code, text in told for leak in leaks(code, text)] == []
    assert sum("[redacted " in text for _, text in told) >= 6


def test_logging_shows_none_at_any_level(remains):
    assert leaks("logging", remains.logged) == []
    assert "[redacted " in remains.logged


def test_descriptions_of_tools_show_none(remains):
    assert leaks("descriptions", remains.descriptions) == []


def test_stats_show_none(remains):
    assert leaks("stats", remains.stats) == []


def test_the_folder_of_the_run_holds_none(remains):
    files = [path for path in remains.folder.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {"config.yaml", "metrics.jsonl", "step-00000.parquet", "leaky.log", "web.log", "cassette.sqlite"} <= names
    assert [leak for path in files for leak in leaks(path.name, path.read_bytes())] == []
    # Parquet may compress.
    trajectories = read_trajectories(remains.folder / "trajectories" / "step-00000.parquet")
    assert leaks("trajectories", repr(trajectories)) == []


def test_the_cassette_holds_the_recorded_calls_without_the_canaries(remains):
    data = (remains.folder / "cassette.sqlite").read_bytes()
    assert b"[redacted CANARY_01_KEY]" in data
    assert leaks("cassette", data) == []

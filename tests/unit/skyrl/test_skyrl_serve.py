"""The command line of SkyRL's server, its start, and its files, with fakes that start fast."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
import threading
import typing
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from mcprl.config import LearnerConfig, ModelConfig, SkyrlConfig
from mcprl.errors import EngineStartError, StorageError, UnfitEngineError
from mcprl.processes import ChildProcess
from mcprl.skyrl import serve
from mcprl.skyrl.serve import UNFIT_EXIT_CODE
from mcprl.skyrl.server import ServerState, SkyrlServer, server_argv, server_env

MODEL = ModelConfig(path="/models/small", dtype="float32")

# The tables that SkyRL 0.3.0 makes, as far as they matter here.
SCHEMA = """
CREATE TABLE futures (request_id INTEGER NOT NULL, request_type VARCHAR(24) NOT NULL, model_id VARCHAR,
    request_data JSON NOT NULL, result_data JSON, status VARCHAR(9) NOT NULL, created_at DATETIME NOT NULL,
    completed_at DATETIME, PRIMARY KEY (request_id));
CREATE TABLE sessions (session_id VARCHAR NOT NULL, status VARCHAR NOT NULL, PRIMARY KEY (session_id));
CREATE TABLE models (model_id VARCHAR NOT NULL, status VARCHAR NOT NULL, PRIMARY KEY (model_id));
CREATE TABLE sampling_sessions (sampling_session_id VARCHAR NOT NULL, model_path VARCHAR,
    PRIMARY KEY (sampling_session_id));
CREATE TABLE checkpoints (model_id VARCHAR NOT NULL, checkpoint_id VARCHAR NOT NULL,
    checkpoint_type VARCHAR(8) NOT NULL, status VARCHAR(9) NOT NULL,
    PRIMARY KEY (model_id, checkpoint_id, checkpoint_type));
"""


def argv_of(config: SkyrlConfig, **learner: object) -> list[str]:
    learning = LearnerConfig.model_validate({"lora_rank": 8, "tokens_per_pack": 2 * MODEL.context_tokens} | learner)
    return server_argv(config, model=MODEL, learner=learning, folder=Path("/runs/one/engine"), port=8123)


def option(argv: list[str], name: str) -> str:
    return argv[argv.index(name) + 1]


def test_the_server_runs_in_the_environment_that_is_named_or_else_in_ours():
    named = argv_of(SkyrlConfig(python=Path("/opt/skyrl/bin/python")))
    assert named[:2] == ["/opt/skyrl/bin/python", "-P"]
    assert Path(named[2]).is_file()
    assert named[3] == "api"
    assert argv_of(SkyrlConfig())[0] == sys.executable


def test_the_server_listens_on_loopback_and_keeps_all_in_its_folder():
    argv = argv_of(SkyrlConfig())
    assert (option(argv, "--host"), option(argv, "--port")) == ("127.0.0.1", "8123")
    assert option(argv, "--database-url") == "sqlite:////runs/one/engine/skyrl.db"
    assert option(argv, "--checkpoints-base") == "/runs/one/engine/checkpoints"
    assert (option(argv, "--base-model"), option(argv, "--dtype")) == ("/models/small", "float32")


def test_a_session_that_is_silent_for_minutes_keeps_its_model():
    argv = argv_of(SkyrlConfig())
    assert option(argv, "--session-timeout-sec") == "-1"
    assert option(argv, "--session-cleanup-interval-sec") == "-1"


def test_the_backend_gets_the_learners_settings_and_the_recipe_overrides_them():
    config = SkyrlConfig(backend_config={"sample_max_num_sequences": 32, "tensor_parallel_size": 2})
    assert json.loads(option(argv_of(config, checkpointing=True), "--backend-config")) == {
        "max_lora_adapters": 4,
        "max_lora_rank": 8,
        "train_micro_batch_size": 2,
        "gradient_checkpointing": True,
        "sample_max_num_sequences": 32,
        "tensor_parallel_size": 2,
    }


def test_another_python_is_not_sent_to_our_packages_and_its_settings_of_jax_stand(tmp_path):
    ours = {"PATH": "/bin", "PYTHONPATH": "/ours", "VIRTUAL_ENV": "/ours", "JAX_PLATFORMS": "cuda,cpu"}
    env = server_env(SkyrlConfig(python=Path("/opt/skyrl/bin/python")), ours, folder=tmp_path)
    assert (env["PATH"], env["JAX_PLATFORMS"]) == ("/bin", "cuda,cpu")
    assert "PYTHONPATH" not in env
    assert "VIRTUAL_ENV" not in env
    assert Path(env["JAX_COMPILATION_CACHE_DIR"]).parent == tmp_path
    assert server_env(SkyrlConfig(), ours, folder=tmp_path)["PYTHONPATH"] == "/ours"


@pytest.mark.skipif(
    any(Path("/dev", name).exists() for name in ("nvidia0", "nvidiactl", "kfd", "accel0", "vfio")),
    reason="this machine has an accelerator: run it on one without",
)
def test_without_an_accelerator_jax_is_not_left_to_look_for_one(tmp_path):
    assert server_env(SkyrlConfig(), {}, folder=tmp_path)["JAX_PLATFORMS"] == "cpu"


# A server that is up at once. {answers} are what its engine answers, one after the other, and then nothing more.
STAND_IN = """#!{python}
import http.server, json, sys, threading

answers = {answers}

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200, "ok")
    def do_POST(self):
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.endswith("asample"):
            Handler.model = question["base_model"]
            self.answer({asked}, json.dumps({{"request_id": "7"}}))
        elif not answers:
            threading.Event().wait()
        else:
            status = answers.pop(0)
            self.answer(status, "no model " + Handler.model if status == 400 else "something else")
    def answer(self, status, text):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def stand_in(folder: Path, *, asked: int = 200, answers: tuple[int, ...] = (400,)) -> Path:
    return program(folder, STAND_IN.format(python=sys.executable, asked=asked, answers=list(answers)))


def program(folder: Path, text: str) -> Path:
    path = folder / "python"
    path.write_text(text)
    path.chmod(0o755)
    return path


async def start(folder: Path, python: Path | None) -> SkyrlServer:
    return await SkyrlServer.start(
        SkyrlConfig(python=python),
        model=MODEL,
        learner=LearnerConfig(),
        folder=folder / "engine",
        log=folder / "engine.log",
    )


async def test_a_server_gets_no_key_of_a_tool(tmp_path, monkeypatch):
    given: dict[str, str] = {}

    async def refuse(argv: list[str], *, env: dict[str, str], log: Path) -> None:
        given.update(env)
        raise OSError(2, "not started in this test")

    monkeypatch.setattr("mcprl.skyrl.server.ChildProcess.start", refuse)
    monkeypatch.setenv("FMP_API_KEY", "key-of-a-tool")
    monkeypatch.setenv("HF_TOKEN", "token-of-the-hub")
    with pytest.raises(EngineStartError, match="not started in this test"):
        await start(tmp_path, None)
    assert given["HF_TOKEN"] == "token-of-the-hub"
    assert "FMP_API_KEY" not in given


@pytest.mark.process
async def test_a_server_is_ready_once_its_engine_answers_and_can_be_stopped_twice(tmp_path):
    server = await start(tmp_path, stand_in(tmp_path))
    assert not server.ended
    assert server.url.startswith("http://127.0.0.1:")
    await server.stop()
    await server.stop()
    assert server.ended
    assert await server.wait() == server.exit_code


@pytest.mark.process
async def test_a_server_that_was_killed_has_ended_and_may_be_killed_again(tmp_path):
    server = await start(tmp_path, stand_in(tmp_path))
    server.kill()
    assert await server.wait() == -9
    server.kill()
    await server.stop()


@pytest.mark.process
async def test_a_server_that_is_up_without_an_engine_that_answers_is_not_ready_and_is_ended(tmp_path, monkeypatch):
    started: list[ChildProcess] = []
    start_child = ChildProcess.start

    async def noted(argv: list[str], **options: Any) -> ChildProcess:
        started.append(await start_child(argv, **options))
        return started[-1]

    monkeypatch.setattr(ChildProcess, "start", noted)
    monkeypatch.setattr("mcprl.skyrl.server.START_S", 1.5)
    with pytest.raises(EngineStartError, match=r"did not respond within 1\.5 s"):
        await start(tmp_path, stand_in(tmp_path, answers=()))
    [process] = started
    assert process.exit_code is not None


@pytest.mark.process
@pytest.mark.parametrize(
    ("asked", "answer", "complaint"), [(422, 400, "asample with 422"), (200, 500, "retrieve_future with 500")]
)
async def test_a_server_that_does_not_understand_the_question_is_not_taken_for_ready(
    tmp_path, asked, answer, complaint
):
    with pytest.raises(EngineStartError, match=complaint):
        await start(tmp_path, stand_in(tmp_path, asked=asked, answers=(answer,)))


@pytest.mark.process
async def test_a_server_that_is_tired_of_waiting_for_its_engine_is_asked_again(tmp_path):
    server = await start(tmp_path, stand_in(tmp_path, answers=(408, 400)))
    await server.stop()


@pytest.mark.process
async def test_a_failed_start_is_reported_with_the_last_lines_of_the_log(tmp_path):
    with pytest.raises(EngineStartError, match=r"(?s)exited with code 3 while starting:.*no such thing"):
        await start(tmp_path, program(tmp_path, "#!/bin/sh\necho no such thing\nexit 3\n"))


@pytest.mark.process
async def test_a_model_with_another_dtype_is_reported_with_a_fix(tmp_path):
    with pytest.raises(
        UnfitEngineError,
        match=r"/models/small's config\.json, which differs from model\.dtype \(float32\).*set model\.dtype",
    ):
        await start(tmp_path, program(tmp_path, f"#!/bin/sh\nexit {UNFIT_EXIT_CODE}\n"))


@pytest.mark.process
async def test_a_missing_python_is_reported_with_the_setting_that_names_it(tmp_path):
    with pytest.raises(EngineStartError, match=r"/python.*set skyrl\.python"):
        await start(tmp_path, tmp_path / "python")


# Asked of the installed packages: a folder of tests that is on the path has that name, too.
@pytest.mark.process
@pytest.mark.skipif(
    any(metadata.distributions(name="skyrl")), reason="SkyRL is installed beside mcprl: run it where it is not"
)
async def test_an_environment_without_skyrl_is_reported_with_what_to_install(tmp_path):
    with pytest.raises(EngineStartError, match=r"has no skyrl: install skyrl\[jax,tinker\]==0\.3\.0"):
        await start(tmp_path, None)


@pytest.mark.parametrize("argv", [[], ["sample"]])
def test_the_script_says_how_it_is_used(argv, monkeypatch):
    monkeypatch.setattr(typing, "TypedDict", typing.TypedDict)  # which it exchanges, for the whole process
    with pytest.raises(SystemExit, match=r"usage: serve\.py api\|engine"):
        serve.main(argv)


class Kept:
    """The folder of a server that is not there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = ServerState(folder)
        folder.mkdir()
        with self.database() as database:
            database.executescript(SCHEMA)

    @contextlib.contextmanager
    def database(self):
        with contextlib.closing(sqlite3.connect(self.folder / "skyrl.db")) as database, database:
            yield database

    def add_future(self, number: int, status: str, *, age_s: float = 0.0) -> None:
        then = (datetime.now(UTC) - timedelta(seconds=age_s)).strftime("%Y-%m-%d %H:%M:%S.%f")
        with self.database() as database:
            row = (number, "OPTIM_STEP", "model_1", "{}", None, status, then, None if status == "PENDING" else then)
            database.execute("INSERT INTO futures VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def add_checkpoint(self, name: str, kind: str, status: str = "COMPLETED") -> Path:
        with self.database() as database:
            database.execute("INSERT INTO checkpoints VALUES ('model_1', ?, ?, ?)", (name, kind, status))
        if kind == "SAMPLER":
            path = self.folder / "checkpoints" / "model_1" / "sampler_weights" / f"{name}.tar.gz"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"weights")
            path.with_name(f"{path.name}.probe").write_bytes(b"")
        else:
            path = self.folder / "checkpoints" / "model_1" / f"{name}.tar.gz"
            (path / "checkpoint_0").mkdir(parents=True)
        return path

    def column(self, query: str) -> list[object]:
        with self.database() as database:
            return [row[0] for row in database.execute(query)]


@pytest.fixture
def kept(tmp_path) -> Kept:
    return Kept(tmp_path / "engine")


def test_old_answers_are_forgotten_and_what_is_pending_or_fresh_is_kept(kept):
    for number, status, age_s in [(1, "COMPLETED", 900), (2, "PENDING", 900), (3, "FAILED", 900), (4, "COMPLETED", 1)]:
        kept.add_future(number, status, age_s=age_s)
    kept.add_future(5, "COMPLETED")
    assert kept.state.prune(older_than_s=60) == 2
    assert kept.column("SELECT request_id FROM futures ORDER BY 1") == [2, 4, 5]


def test_the_newest_is_kept_however_old_for_its_number_must_not_be_given_again(kept):
    for number in (1, 2, 3):
        kept.add_future(number, "COMPLETED", age_s=900)
    assert kept.state.prune(older_than_s=60) == 2
    assert kept.column("SELECT request_id FROM futures") == [3]
    with kept.database() as database:
        database.execute(
            "INSERT INTO futures (request_type, request_data, status, created_at) "
            "VALUES ('SAMPLE', '{}', 'PENDING', '')"
        )
    assert kept.column("SELECT max(request_id) FROM futures") == [4]


def test_pruning_waits_while_the_engine_writes(kept):
    kept.add_future(1, "COMPLETED", age_s=900)
    kept.add_future(2, "PENDING")
    with contextlib.closing(sqlite3.connect(kept.folder / "skyrl.db", check_same_thread=False)) as engine:
        engine.execute("PRAGMA journal_mode=WAL")
        engine.execute("UPDATE futures SET status = 'COMPLETED' WHERE request_id = 2")
        pruned: list[int] = []
        pruning = threading.Thread(target=lambda: pruned.append(kept.state.prune(older_than_s=60)))
        pruning.start()
        pruning.join(0.2)
        assert pruning.is_alive()
        engine.commit()
        pruning.join(60)
    assert pruned == [1]


def test_a_new_server_does_not_do_what_was_asked_of_the_one_before(kept):
    kept.add_future(1, "COMPLETED", age_s=900)
    kept.add_future(2, "PENDING")
    kept.add_future(3, "PENDING")
    with kept.database() as database:
        database.execute("INSERT INTO sessions VALUES ('session_1', 'active')")
        database.execute("INSERT INTO models VALUES ('model_1', 'created')")
    kept.state.begin()
    assert kept.column("SELECT request_id FROM futures WHERE status = 'PENDING'") == []
    assert [json.loads(str(data))["error"] for data in kept.column("SELECT result_data FROM futures")] == [
        "The server that received this request has ended."
    ]
    assert kept.column("SELECT max(request_id) FROM futures") == [3]
    assert kept.column("SELECT status FROM models") == ["unloaded"]
    assert kept.column("SELECT status FROM sessions") == ["expired"]


def test_a_new_server_keeps_checkpoints_that_were_finished_and_no_other(kept):
    whole, half = kept.add_checkpoint("whole", "TRAINING"), kept.add_checkpoint("half", "TRAINING", "PENDING")
    failed, sampled = kept.add_checkpoint("failed", "SAMPLER", "FAILED"), kept.add_checkpoint("v1", "SAMPLER")
    kept.state.begin()
    assert [path.exists() for path in (whole, half, failed, sampled)] == [True, False, False, True]
    assert not failed.with_name(f"{failed.name}.probe").exists()
    assert kept.column("SELECT checkpoint_id FROM checkpoints ORDER BY 1") == ["v1", "whole"]


def test_a_folder_without_a_server_before_is_made_and_needs_nothing_else(tmp_path):
    state = ServerState(tmp_path / "runs" / "engine")
    state.begin()
    assert (tmp_path / "runs" / "engine").is_dir()
    assert state.prune(older_than_s=0) == 0
    assert state.keep_only([]) == 0
    assert list((tmp_path / "runs" / "engine").iterdir()) == []


def test_only_the_checkpoints_that_are_named_and_those_being_written_are_kept(kept):
    old, new = kept.add_checkpoint("old", "TRAINING"), kept.add_checkpoint("new", "TRAINING")
    v1, v2, v3 = (kept.add_checkpoint(name, "SAMPLER") for name in ("v1", "v2", "v3"))
    writing = kept.add_checkpoint("writing", "TRAINING", "PENDING")
    with kept.database() as database:
        for name in ("v1", "v2"):
            database.execute(
                "INSERT INTO sampling_sessions VALUES (?, ?)", (name, f"tinker://model_1/sampler_weights/{name}")
            )
    paths = ["tinker://model_1/weights/new", "tinker://model_1/sampler_weights/v2", "tinker://model_1/v3"]
    assert kept.state.keep_only(paths) == 2
    assert [path.exists() for path in (old, new, v1, v2, v3, writing)] == [False, True, False, True, True, True]
    assert not v1.with_name(f"{v1.name}.probe").exists()
    assert kept.column("SELECT checkpoint_id FROM checkpoints ORDER BY 1") == ["new", "v2", "v3", "writing"]
    assert kept.column("SELECT sampling_session_id FROM sampling_sessions") == ["v2"]


def test_a_training_state_and_weights_of_the_same_name_are_told_apart(kept):
    state, weights = kept.add_checkpoint("same", "TRAINING"), kept.add_checkpoint("same", "SAMPLER")
    assert kept.state.keep_only(["tinker://model_1/weights/same"]) == 1
    assert (state.exists(), weights.exists()) == (True, False)


@pytest.mark.parametrize("path", ["new", "tinker://model_1/else/new", "http://model_1/weights/new"])
def test_an_invalid_checkpoint_path_deletes_nothing(kept, path):
    new = kept.add_checkpoint("new", "TRAINING")
    with pytest.raises(ValueError, match="is not the path of a checkpoint"):
        kept.state.keep_only([path])
    assert new.exists()


def test_an_invalid_database_is_reported_with_its_path(tmp_path):
    (tmp_path / "skyrl.db").write_bytes(b"this is no database, and long enough to be looked at as one" * 20)
    with pytest.raises(StorageError, match=r"skyrl\.db cannot be used"):
        ServerState(tmp_path).begin()


def test_a_checkpoint_takes_as_much_room_as_all_its_files(kept):
    state, weights = kept.add_checkpoint("new", "TRAINING"), kept.add_checkpoint("v1", "SAMPLER")
    (state / "checkpoint_0" / "a").write_bytes(b"12345")
    (state / "checkpoint_0" / "b").write_bytes(b"123")
    assert kept.state.bytes_of("tinker://model_1/weights/new") == 8
    assert kept.state.bytes_of("tinker://model_1/v1") == weights.stat().st_size

"""SkyRL's real server with its JAX engine: started, robbed of its engine, started again over the same folder, killed.

Each start takes half a minute or more, so there are two for all tests.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from mcprl.config import LearnerConfig, ModelConfig, SkyrlConfig
from mcprl.errors import UnfitEngineError
from mcprl.skyrl.serve import KEY_HEADER
from mcprl.skyrl.server import SkyrlServer

sys.path.append(str(Path(__file__).resolve().parents[1] / "security"))
from second_user import Listeners, as_stranger, listeners, web_requests

pytestmark = [pytest.mark.process, pytest.mark.timeout(900), pytest.mark.full]

ANSWER_S = 120.0
RANK = 4


@dataclass
class Observed:
    """What happened in two lives of a server over one folder."""

    health: list[int] = field(default_factory=list)
    listeners: Listeners | None = None
    stranger: dict[str, list[Any]] = field(default_factory=dict)
    ended_after_engine_s: float = -1.0
    exit_code: int = 0
    pruned_to: list[tuple[str, str]] = field(default_factory=list)
    fetched_after_pruning: int = 0
    kept_of_checkpoints: int = 0
    kept_on_disk: set[str] = field(default_factory=set)
    in_second_life: list[tuple[str, str]] = field(default_factory=list)
    withdrawn_on_disk: bool = True
    loaded: Mapping[str, object] = field(default_factory=dict)
    engine_ended_with_server: bool = False


class Client:
    """The API as it is, without the SDK."""

    def __init__(self, server: SkyrlServer) -> None:
        self._http = httpx2.AsyncClient(
            base_url=f"{server.url}/api/v1", headers={KEY_HEADER: server.key}, timeout=ANSWER_S, trust_env=False
        )

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def health(self) -> int:
        return (await self._http.get("/healthz")).status_code

    async def ask(self, route: str, /, **body: object) -> dict[str, str]:
        response = await self._http.post(route, json=body)
        response.raise_for_status()
        return response.json()

    async def fetch(self, request_id: str) -> httpx2.Response:
        return await self._http.post("/retrieve_future", json={"request_id": request_id})

    async def do(self, route: str, /, **body: object) -> dict[str, str]:
        """Ask, and wait for the engine's answer."""
        answer = await self.fetch((await self.ask(route, **body))["request_id"])
        assert answer.is_success, answer.text
        return answer.json()

    async def create_model(self, base: Path) -> str:
        session = await self.ask("/create_session", tags=[], sdk_version="0")
        lora = {"rank": RANK, "seed": 0}
        made = await self.do("/create_model", session_id=session["session_id"], base_model=str(base), lora_config=lora)
        return made["model_id"]


def engine_of(server: SkyrlServer) -> psutil.Process:
    """The process behind the server."""
    (engine,) = psutil.Process(server.pid).children()
    return engine


def futures_in(folder: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(folder / "skyrl.db", timeout=30)) as database:
        return list(database.execute("SELECT request_type, status FROM futures ORDER BY request_id"))


async def start(model: Path, folder: Path, python: Path, dtype: str = "float32") -> SkyrlServer:
    return await SkyrlServer.start(
        SkyrlConfig(python=python),
        model=ModelConfig.model_validate({"path": str(model), "dtype": dtype}),
        learner=LearnerConfig(lora_rank=RANK),
        folder=folder,
        log=folder.with_suffix(".log"),
    )


async def live_until_the_engine_is_killed(server: SkyrlServer, base: Path, folder: Path, seen: Observed) -> str:
    """The first life. Returns where its checkpoint is."""
    async with Client(server) as client:
        seen.health.append(await client.health())
        seen.listeners = listeners([server.pid])
        paths = ("/api/v1/healthz", "/api/v1/training_runs", "/api/v1/create_session", "/docs", "/")
        asked = [one for a in seen.listeners.tcp for path in paths for one in web_requests(a, path)]
        environ = f"/proc/{server.pid}/environ"
        if os.geteuid() == 0:
            seen.stranger = await asyncio.to_thread(as_stranger, http=asked, files=[environ])
        model = await client.create_model(base)
        for name in ("first", "second"):
            await client.do("/save_weights", model_id=model, path=name)
        await client.do("/save_weights_for_sampler", model_id=model, path="weights-1")
        checkpoint = f"tinker://{model}/weights/second"
        seen.kept_of_checkpoints = server.state.keep_only([checkpoint])
        seen.kept_on_disk = {path.name for path in (folder / "checkpoints" / model).rglob("*.tar.gz*")}

        engine = engine_of(server)
        engine.suspend()
        await client.ask("/save_weights", model_id=model, path="withdrawn")
        last = await client.ask("/optim_step", model_id=model, adam_params={"learning_rate": 1.0})
        server.state.prune(older_than_s=0)
        seen.pruned_to = futures_in(folder)
        waiting = asyncio.create_task(client.fetch(last["request_id"]))
        killed = time.monotonic()
        engine.kill()
        seen.exit_code = await server.wait()
        seen.ended_after_engine_s = time.monotonic() - killed
        with pytest.raises(httpx2.TransportError):
            await waiting
        return checkpoint


async def live_until_killed(server: SkyrlServer, base: Path, folder: Path, seen: Observed, checkpoint: str) -> None:
    """The second life, over what the first has left."""
    async with Client(server) as client:
        seen.health.append(await client.health())
        model = await client.create_model(base)
        seen.loaded = await client.do("/load_weights", model_id=model, path=checkpoint)
        asked = await client.ask("/save_weights", model_id=model, path="fresh")
        assert (await client.fetch(asked["request_id"])).is_success
        server.state.prune(older_than_s=600)
        seen.fetched_after_pruning = (await client.fetch(asked["request_id"])).status_code
        seen.in_second_life = futures_in(folder)
        seen.withdrawn_on_disk = any((folder / "checkpoints").rglob("withdrawn*"))
        engine = engine_of(server)
        os.kill(server.pid, signal.SIGKILL)
        await server.wait()
        gone, _ = await asyncio.to_thread(psutil.wait_procs, [engine], 10)
        seen.engine_ended_with_server = gone == [engine]


async def observe(base: Path, folder: Path, python: Path) -> Observed:
    seen = Observed()
    server = await start(base, folder, python)
    try:
        checkpoint = await live_until_the_engine_is_killed(server, base, folder, seen)
    finally:
        await server.stop()
    server = await start(base, folder, python)
    try:
        await live_until_killed(server, base, folder, seen, checkpoint)
    finally:
        await server.stop()
    return seen


@pytest.fixture(scope="module")
def python(root) -> Path:
    """The environment with SkyRL."""
    path = root / ".venv-skyrl" / "bin" / "python"
    if not path.exists():
        pytest.skip(".venv-skyrl is missing: run scripts/setup skyrl")
    return path


@pytest.fixture(scope="module")
def observed(tiny_qwen3, python, tmp_path_factory) -> Observed:
    return asyncio.run(observe(tiny_qwen3, tmp_path_factory.mktemp("skyrl") / "engine", python))


def test_the_server_answers_in_both_lives(observed):
    assert observed.health == [200, 200]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_or_page_gets_nothing_from_the_server(observed):
    assert [address for address, _ in observed.listeners.tcp] == ["127.0.0.1"]
    assert observed.listeners.unix == frozenset()
    assert set(observed.stranger["http"]) == {401}
    assert observed.stranger["files"][0].startswith("PermissionError")


def test_a_server_whose_engine_was_killed_ends_at_once_also_while_someone_waits_for_an_answer(
    observed, record_property
):
    record_property("ended_after_engine_s", round(observed.ended_after_engine_s, 3))
    assert observed.exit_code == os.EX_SOFTWARE
    assert observed.ended_after_engine_s < 5


def test_a_server_that_was_killed_takes_its_engine_along(observed):
    assert observed.engine_ended_with_server


def test_pruning_a_running_server_leaves_what_is_pending(observed):
    assert observed.pruned_to == [("SAVE_WEIGHTS", "PENDING"), ("OPTIM_STEP", "PENDING")]


def test_pruning_a_running_server_leaves_fresh_answers_to_be_fetched(observed):
    assert observed.fetched_after_pruning == 200


def test_only_the_checkpoint_that_was_named_is_left_on_disk(observed):
    assert observed.kept_of_checkpoints == 2
    assert observed.kept_on_disk == {"second.tar.gz"}


def test_what_was_pending_when_the_engine_died_is_not_done_by_the_next(observed):
    assert observed.in_second_life == [
        ("OPTIM_STEP", "FAILED"),
        ("SAMPLE", "FAILED"),  # the question whether the engine is there
        ("CREATE_MODEL", "COMPLETED"),
        ("LOAD_WEIGHTS", "COMPLETED"),
        ("SAVE_WEIGHTS", "COMPLETED"),
    ]
    assert not observed.withdrawn_on_disk


def test_a_checkpoint_of_the_first_life_is_loaded_in_the_second(observed):
    assert observed.loaded["type"] == "load_weights"


async def test_a_model_in_another_number_format_is_refused_before_it_is_loaded(tiny_qwen3, python, tmp_path):
    with pytest.raises(UnfitEngineError, match=r"which differs from model\.dtype \(bfloat16\)"):
        await start(tiny_qwen3, tmp_path / "engine", python, dtype="bfloat16")

"""SkyRL's server as a local process, the engine behind it, and its files."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import platform
import secrets
import shutil
import signal
import sqlite3
import sys
from collections.abc import Collection, Generator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import httpx2

from mcprl.config import LearnerConfig, ModelConfig, SkyrlConfig
from mcprl.errors import EngineStartError, StorageError, UnfitEngineError
from mcprl.processes import ChildProcess, free_port
from mcprl.secrets import HUB_VARIABLES, SECRETS, environment_without_keys
from mcprl.skyrl.serve import KEY_HEADER, KEY_VARIABLE, UNFIT_EXIT_CODE

ADAPTERS = 4
"""How many adapters the engine can hold: one for the base model, one in training, and snapshots of it."""

_SCRIPT = Path(__file__).parent / "serve.py"
_SEQUENCES_AT_ONCE = 8
_NEVER = -1
_LOG_COLUMNS = 200
# With these variables, the Python of another environment would import our packages.
_OURS_ALONE = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
_ACCELERATORS = ("nvidia0", "nvidiactl", "kfd", "accel0", "vfio")


def server_argv(
    config: SkyrlConfig, *, model: ModelConfig, learner: LearnerConfig, folder: Path, port: int
) -> list[str]:
    """Return the server's command line. Its database and checkpoints are in `folder`."""
    backend: dict[str, int | float | bool | str] = {
        "max_lora_adapters": ADAPTERS,
        "max_lora_rank": learner.lora_rank,
        "train_micro_batch_size": max(1, learner.tokens_per_pack // model.context_tokens),
        "gradient_checkpointing": learner.checkpointing,
        "sample_max_num_sequences": _SEQUENCES_AT_ONCE,
    }
    arguments: dict[str, object] = {
        "--dtype": model.dtype,
        "--host": "127.0.0.1",
        "--port": port,
        "--base-model": model.path,
        "--backend": config.backend,
        "--backend-config": json.dumps(backend | config.backend_config),
        "--checkpoints-base": ServerState(folder).checkpoints,
        "--database-url": f"sqlite:///{ServerState(folder).database}",
        # By default, a session without requests for five minutes loses its model, but a trainer may wait longer for its
        # tools. This server has only one trainer and ends with it, so nobody else needs the memory.
        "--session-cleanup-interval-sec": _NEVER,
        "--session-timeout-sec": _NEVER,
    }
    pairs = [str(part) for pair in arguments.items() for part in pair]
    return [str(config.python or sys.executable), "-P", str(_SCRIPT), "api", *pairs]


def server_env(config: SkyrlConfig, ours: Mapping[str, str], *, folder: Path) -> dict[str, str]:
    """Return the server's environment: that of mcprl, without Python's variables if the server uses another Python.

    JAX's compilation cache is in `folder`, so that the next server starts faster.
    """
    dropped = _OURS_ALONE if config.python is not None else ()
    env = {name: value for name, value in ours.items() if name not in dropped}
    if not any(os.path.exists(f"/dev/{name}") for name in _ACCELERATORS):
        # Searching for an accelerator is slow and logs warnings.
        env.setdefault("JAX_PLATFORMS", "cpu")
    env.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder.absolute() / f"compiled-{_instructions_of_cpu()}"))
    # Cache small programs too: there are hundreds.
    env.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    env.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
    # SkyRL wraps its log lines to the width of the terminal.
    env["COLUMNS"] = str(_LOG_COLUMNS)
    return env


def _instructions_of_cpu() -> str:
    """Return a hash of this CPU's instruction set. A program compiled for another CPU may not run here."""
    flags = ""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as info:
        flags = next((line for line in info if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(f"{platform.machine()} {flags}".encode()).hexdigest()[:8]


# Seconds to wait for a lock. The server and its engine both write, but only briefly.
_BUSY_S = 30.0
_SAMPLER_FOLDER = "sampler_weights"
_PROBE = ".probe"
_WITHDRAWN = json.dumps({"error": "The server that received this request has ended.", "status": "failed"})


class ServerState:
    """The files of a server. All methods except `begin` may be called while the server runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.database = folder.absolute() / "skyrl.db"
        self.checkpoints = folder.absolute() / "checkpoints"

    def begin(self) -> None:
        """Before a server starts, cancel unanswered requests to the previous one and remove incomplete checkpoints.

        Otherwise the new engine would apply gradients and steps from before the run was resumed.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._connection() as database:
            if database is None:
                return
            database.execute(
                "UPDATE futures SET status = 'FAILED', result_data = ?, completed_at = ? WHERE status = 'PENDING'",
                (_WITHDRAWN, _as_stored(datetime.now(UTC))),
            )
            database.execute("DELETE FROM checkpoints WHERE status != 'COMPLETED'")
            # No client can use these models again, because a new engine has none.
            database.execute("UPDATE models SET status = 'unloaded'")
            database.execute("UPDATE sessions SET status = 'expired'")
        self.prune(older_than_s=0)
        self._remove_unlisted()

    def prune(self, *, older_than_s: float) -> int:
        """Delete responses older than this, with their requests. Return how many were deleted.

        Pending requests stay, and so does the newest request: SQLite would reuse its number, and a client that still
        waits for the old request would get the wrong response.
        """
        with self._connection() as database:
            if database is None:
                return 0
            oldest = datetime.now(UTC) - timedelta(seconds=older_than_s)
            return database.execute(
                "DELETE FROM futures WHERE status != 'PENDING' AND completed_at < ? "
                "AND request_id < (SELECT max(request_id) FROM futures)",
                (_as_stored(oldest),),
            ).rowcount

    def keep_only(self, paths: Collection[str]) -> int:
        """Delete all checkpoints except these and those that are being written. Return how many were deleted.

        The path of a training state is tinker://MODEL/weights/NAME. The path of weights to sample from is
        tinker://MODEL/sampler_weights/NAME or tinker://MODEL/NAME.
        """
        kept = {_key(path) for path in paths}
        deleted = 0
        with self._connection() as database:
            if database is None:
                return 0
            listed = "SELECT model_id, checkpoint_id, checkpoint_type FROM checkpoints WHERE status != 'PENDING'"
            for key in set(database.execute(listed)) - kept:
                model, name, kind = key
                database.execute(
                    "DELETE FROM checkpoints WHERE model_id = ? AND checkpoint_id = ? AND checkpoint_type = ?", key
                )
                if kind == "SAMPLER":
                    database.execute(
                        "DELETE FROM sampling_sessions WHERE model_path IN (?, ?)",
                        (f"tinker://{model}/{_SAMPLER_FOLDER}/{name}", f"tinker://{model}/{name}"),
                    )
                deleted += 1
        self._remove_unlisted()
        return deleted

    def sampled_in(self, session: str) -> str:
        """Return the path of the weights that a session samples from."""
        with self._connection() as database:
            assert database is not None
            found = database.execute(
                "SELECT model_path FROM sampling_sessions WHERE sampling_session_id = ?", (session,)
            ).fetchone()
        return found[0]

    def bytes_of(self, path: str) -> int:
        """Return the size of a checkpoint in bytes."""
        place = self._place(*_key(path))
        return sum(file.stat().st_size for file in (place, *place.rglob("*")) if file.is_file())

    def _remove_unlisted(self) -> None:
        """Remove files that have no row in the database. A row is written before its file, so list the files first."""
        present = [*self.checkpoints.glob("*/*.tar.gz"), *self.checkpoints.glob(f"*/{_SAMPLER_FOLDER}/*.tar.gz*")]
        with self._connection() as database:
            if database is None:
                return
            rows = list(database.execute("SELECT model_id, checkpoint_id, checkpoint_type FROM checkpoints"))
        listed = {self._place(*row) for row in rows}
        for path in present:
            if path.with_name(path.name.removesuffix(_PROBE)) in listed:
                continue
            try:
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            except OSError as error:
                raise StorageError(
                    f"the checkpoint {path} cannot be removed: {error.strerror}", fix="check the disk, then try again"
                ) from error

    def _place(self, model: str, name: str, kind: str) -> Path:
        folder = self.checkpoints / model
        return (folder / _SAMPLER_FOLDER if kind == "SAMPLER" else folder) / f"{name}.tar.gz"

    @contextlib.contextmanager
    def _connection(self) -> Generator[sqlite3.Connection | None]:
        """Open a transaction. Waits while another one writes. Yields None if no server has created the database yet."""
        if not self.database.exists():
            yield None
            return
        try:
            with contextlib.closing(sqlite3.connect(self.database, timeout=_BUSY_S)) as database, database:
                made = database.execute("SELECT count(*) FROM sqlite_master WHERE name = 'futures'").fetchone()[0]
                yield database if made else None
        except sqlite3.Error as error:
            raise StorageError(
                f"the database of SkyRL's server at {self.database} cannot be used: {error}",
                fix="use skyrl 0.3.0; if the database is damaged, delete it and its checkpoints",
            ) from error


def _key(path: str) -> tuple[str, str, str]:
    parts = urlsplit(path)
    match parts.scheme, parts.path.split("/"):
        case "tinker", ["", "weights", name]:
            return parts.netloc, name, "TRAINING"
        case "tinker", ["", "sampler_weights", name] | ["", name]:
            return parts.netloc, name, "SAMPLER"
        case _:
            raise ValueError(f"{path} is not the path of a checkpoint, such as tinker://MODEL/weights/NAME")


def _as_stored(moment: datetime) -> str:
    """Format a time as SQLAlchemy writes it into SQLite: in UTC, without a time zone."""
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")


START_S = 900.0
_POLL_S = 0.25
_ANSWER_DEADLINE_S = 5.0
_STILL_WAITING = 408
# The name of a model that does not exist. The engine refuses to sample from it, which costs nothing.
_NO_MODEL = "is-the-engine-there"
_QUESTION = {
    "base_model": _NO_MODEL,
    "prompt": {"chunks": [{"type": "encoded_text", "tokens": [0]}]},
    "sampling_params": {"max_tokens": 1, "seed": 0},
}


class SkyrlServer:
    """A SkyRL server on the loopback interface, and its engine. Both end together, at the latest when this process
    ends. `state` manages their files.

    The server accepts only requests with its `key`, because every user of this machine can connect to it. After a
    failed request, `ended` says whether the server has ended and will never respond again.
    """

    def __init__(self, process: ChildProcess, url: str, key: str, state: ServerState) -> None:
        self.url = url
        self.key = key
        self.state = state
        self._process = process

    @classmethod
    async def start(
        cls, config: SkyrlConfig, *, model: ModelConfig, learner: LearnerConfig, folder: Path, log: Path
    ) -> SkyrlServer:
        """Start a server with its files in `folder`. Return it when its engine responds.

        The server can load checkpoints that an earlier server saved in the same folder. Unanswered requests to that
        server are cancelled. Raises UnfitEngineError or EngineStartError; no process is then left running.
        """
        state = ServerState(folder)
        await asyncio.to_thread(state.begin)
        port, key = free_port(), f"tml-{secrets.token_hex(32)}"  # the SDK sends only keys with this prefix
        SECRETS.add(KEY_VARIABLE, key)
        env = server_env(config, environment_without_keys(*HUB_VARIABLES), folder=folder) | {KEY_VARIABLE: key}
        argv = server_argv(config, model=model, learner=learner, folder=folder, port=port)
        try:
            process = await ChildProcess.start(argv, env=env, log=log)
        except OSError as error:
            raise EngineStartError(
                f"SkyRL's server cannot be started with {argv[0]}: {error.strerror}",
                fix="set skyrl.python to the Python executable of an environment with SkyRL",
            ) from error
        server = cls(process, f"http://127.0.0.1:{port}", key, state)
        async with contextlib.AsyncExitStack() as on_failure:
            on_failure.push_async_callback(server.stop)
            await server._wait_until_ready(model)
            on_failure.pop_all()
        return server

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> Path:
        return self._process.log

    @property
    def exit_code(self) -> int | None:
        """The exit code: None while the server runs, the negative signal number if a signal ended it."""
        return self._process.exit_code

    @property
    def ended(self) -> bool:
        return self._process.exit_code is not None

    async def wait(self) -> int:
        """Wait until the server ends. Return its exit code."""
        return await self._process.wait()

    def kill(self) -> None:
        """Kill the server. Its engine ends with it. Idempotent."""
        self._process.send(signal.SIGKILL)

    async def stop(self) -> None:
        """Stop the server and all its processes. Idempotent."""
        await self._process.stop()

    async def _wait_until_ready(self, model: ModelConfig) -> None:
        headers = {KEY_HEADER: self.key}
        try:
            async with (
                asyncio.timeout(START_S),
                httpx2.AsyncClient(
                    base_url=self.url, headers=headers, timeout=_ANSWER_DEADLINE_S, trust_env=False
                ) as client,
            ):
                while not await self._engine_answers(client):
                    if await self._process.ends_within(_POLL_S):
                        raise self._failed_start(model)
        except TimeoutError as error:
            raise EngineStartError(
                f"SkyRL's engine did not respond within {START_S:g} s:\n{self._process.log_tail()}",
                fix=f"read the complete log at {self.log}",
            ) from error

    async def _engine_answers(self, client: httpx2.AsyncClient) -> bool:
        """Return True if the engine responded to a cheap request. The HTTP server is up much sooner than the engine."""
        try:
            if not (await client.get("/api/v1/healthz")).is_success:
                return False
            asked = await client.post("/api/v1/asample", json=_QUESTION)
            if not asked.is_success:
                raise self._misunderstood(asked)
            # The server holds the connection until the engine answers, or for some minutes.
            reference = {"request_id": asked.json()["request_id"]}
            answer = await client.post("/api/v1/retrieve_future", json=reference, timeout=None)
        except httpx2.TransportError:
            return False
        if answer.status_code == _STILL_WAITING:
            return False
        if _NO_MODEL not in answer.text:
            raise self._misunderstood(answer)
        return True

    def _failed_start(self, model: ModelConfig) -> UnfitEngineError | EngineStartError:
        if self.exit_code == UNFIT_EXIT_CODE:
            return UnfitEngineError(
                f"SkyRL computes in the dtype of {model.path}'s config.json, which differs from model.dtype "
                f"({model.dtype})",
                fix=f"set model.dtype to the dtype in config.json, or change that dtype to {model.dtype}",
            )
        return EngineStartError(
            f"SkyRL's server exited with code {self.exit_code} while starting:\n{self._process.log_tail()}",
            fix=f"read the complete log at {self.log}",
        )

    def _misunderstood(self, answer: httpx2.Response) -> EngineStartError:
        return EngineStartError(
            f"SkyRL's server responded to {answer.request.url.path} with {answer.status_code}: {answer.text[:300]}",
            fix=f"install skyrl==0.3.0 in its environment, or read its log at {self.log}",
        )

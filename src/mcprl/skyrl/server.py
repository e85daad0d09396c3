"""SkyRL's server, started here: its process, and the engine behind it. See `server_state` for what it keeps."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from pathlib import Path

import httpx2

from mcprl.config import LearnerConfig, ModelConfig
from mcprl.config.engines import SkyrlConfig
from mcprl.errors import EngineStartError, UnfitEngineError
from mcprl.processes import ChildProcess, free_port
from mcprl.redact import SECRETS
from mcprl.skyrl.serve import KEY_HEADER, KEY_VARIABLE, UNFIT_EXIT_CODE
from mcprl.skyrl.server_command import server_argv, server_env
from mcprl.skyrl.server_state import ServerState

__all__ = ["SkyrlServer"]

_POLL_S = 0.25
_ANSWER_DEADLINE_S = 5.0
_STILL_WAITING = 408
# The engine refuses to sample from a model that it does not have, and computes nothing for it.
_NO_MODEL = "is-the-engine-there"
_QUESTION = {
    "base_model": _NO_MODEL,
    "prompt": {"chunks": [{"type": "encoded_text", "tokens": [0]}]},
    "sampling_params": {"max_tokens": 1, "seed": 0},
}


class SkyrlServer:
    """A server on loopback and the engine behind it, which end together, and with us. `state` is what they keep.

    It answers only requests with its `key`, because every user of this machine can connect to it.
    Where a request fails, `ended` tells whether the server did; if so, it never answers again.
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
        """Start a server over `folder` and return it once its engine answers.

        Checkpoints of an earlier server over the same folder can be loaded; what was asked of it and not answered is
        forgotten. Raises UnfitEngineError or EngineStartError, and then nothing of it remains.
        """
        state = ServerState(folder)
        await asyncio.to_thread(state.begin)
        port, key = free_port(), f"tml-{secrets.token_hex(32)}"  # the SDK sends only keys that begin so
        SECRETS.add(KEY_VARIABLE, key)
        env = server_env(config, os.environ, folder=folder) | {KEY_VARIABLE: key}
        argv = server_argv(config, model=model, learner=learner, folder=folder, port=port)
        try:
            process = await ChildProcess.start(argv, env=env, log=log)
        except OSError as error:
            raise EngineStartError(
                f"SkyRL's server cannot be started with {argv[0]}: {error.strerror}",
                fix="set skyrl.python to the Python of an environment with SkyRL",
            ) from error
        server = cls(process, f"http://127.0.0.1:{port}", key, state)
        async with contextlib.AsyncExitStack() as on_failure:
            on_failure.push_async_callback(server.stop)
            await server._wait_until_ready(config.start_deadline_s, model)
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
        """None while the server runs; minus the signal where one ended it."""
        return self._process.exit_code

    @property
    def ended(self) -> bool:
        return self._process.exit_code is not None

    def log_tail(self) -> str:
        return self._process.log_tail()

    async def wait(self) -> int:
        """Its exit code, as soon as it has one."""
        return await self._process.wait()

    def kill(self) -> None:
        """End it at once, because of the state it is in. Its engine ends with it. Safe to call again."""
        if not self.ended:
            # Until we are told of its end, no other process can have its number.
            os.kill(self.pid, signal.SIGKILL)

    async def stop(self) -> None:
        """End it and all that belongs to it. Safe to call again."""
        await self._process.stop()

    async def _wait_until_ready(self, deadline_s: float, model: ModelConfig) -> None:
        headers = {KEY_HEADER: self.key}
        try:
            async with (
                asyncio.timeout(deadline_s),
                httpx2.AsyncClient(
                    base_url=self.url, headers=headers, timeout=_ANSWER_DEADLINE_S, trust_env=False
                ) as client,
            ):
                while not await self._engine_answers(client):
                    if await self._process.ends_within(_POLL_S):
                        raise self._failed_start(model)
        except TimeoutError as error:
            raise EngineStartError(
                f"SkyRL's engine did not answer within {deadline_s:g} s:\n{self.log_tail()}",
                fix=f"read its whole log at {self.log}, or raise skyrl.start_deadline_s",
            ) from error

    async def _engine_answers(self, client: httpx2.AsyncClient) -> bool:
        """Whether the engine has answered a question that costs it nothing. The server alone is up much sooner."""
        try:
            if not (await client.get("/api/v1/healthz")).is_success:
                return False
            asked = await client.post("/api/v1/asample", json=_QUESTION)
            if not asked.is_success:
                raise self._misunderstood(asked)
            # The server holds the connection until it has the engine's answer, or for some minutes.
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
                f"SkyRL computes in the number format that {model.path} names, which is not {model.dtype}",
                fix=f"set model.dtype to the one it names, or dtype in its config.json to {model.dtype}",
            )
        return EngineStartError(
            f"SkyRL's server left with exit code {self.exit_code} at its start:\n{self.log_tail()}",
            fix=f"read its whole log at {self.log}",
        )

    def _misunderstood(self, answer: httpx2.Response) -> EngineStartError:
        return EngineStartError(
            f"SkyRL's server answered {answer.request.url.path} with {answer.status_code}: {answer.text[:300]}",
            fix=f"install skyrl==0.3.0 in its environment, or read its log at {self.log}",
        )

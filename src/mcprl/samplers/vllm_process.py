"""One vLLM server: its process, the way to ask it, its end. See `vllm_supervisor` for what follows the end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from pathlib import Path
from typing import Any

import httpx2

from mcprl.config import LearnerConfig, ModelConfig, SamplingConfig
from mcprl.errors import GrammarError, SamplerLostError, SamplerStartError
from mcprl.processes import ChildProcess, private_folder
from mcprl.samplers.vllm_server import server_argv, server_env
from mcprl.samplers.vllm_turns import GENERATE_PATH

__all__ = ["VllmProcess"]

_POLL_S = 0.25  # while it starts
_ANSWER_S = 5.0  # while it starts
_WATCH_POLL_S = 2.0
# A server that answers nothing for so long is stuck: health is told by the process that takes requests.
_STUCK_S = 60.0
# A process that ends closes its connections a moment before we are told of its end.
_END_FOLLOWS_S = 2.0
_REFUSED_GRAMMAR = re.compile(r"structural[ _]tag|structured[ _]outputs?|JSON schema", re.IGNORECASE)


class VllmProcess:
    """A server on a Unix socket that only this user can reach. If a request fails, `may_be_asked` tells whether to ask
    it again: a server whose engine has ended, or that is stuck, is ended too, and never answers again.
    """

    def __init__(self, process: ChildProcess, socket: Path, *, deadline_s: float) -> None:
        self.socket = socket
        self._process = process
        self._client = httpx2.AsyncClient(
            base_url="http://vllm",
            timeout=deadline_s,
            transport=httpx2.AsyncHTTPTransport(uds=str(socket), limits=httpx2.Limits(max_connections=None)),
        )
        self._killed = False
        self._after_stop = contextlib.ExitStack()

    @classmethod
    async def start(
        cls, model: ModelConfig, sampling: SamplingConfig, learner: LearnerConfig, *, log: Path
    ) -> VllmProcess:
        """Start a server and return it once it is healthy. Raises SamplerStartError, and then nothing of it remains."""
        async with contextlib.AsyncExitStack() as on_failure:
            after_stop = on_failure.enter_context(contextlib.ExitStack())
            folder = after_stop.enter_context(private_folder())
            socket = folder / "vllm.sock"
            argv = server_argv(model, sampling, learner, socket=socket)
            process = await ChildProcess.start(argv, env=server_env(sampling, learner, folder=folder), log=log)
            server = cls(process, socket, deadline_s=sampling.request_deadline_s)
            on_failure.push_async_callback(server.stop)
            await server._wait_until_healthy(sampling.vllm.start_deadline_s)
            server._after_stop = after_stop.pop_all()
            on_failure.pop_all()
        return server

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> Path:
        return self._process.log

    @property
    def ended(self) -> bool:
        return self._process.exit_code is not None

    @property
    def may_be_asked(self) -> bool:
        return not (self.ended or self._killed)

    def log_tail(self) -> str:
        return self._process.log_tail()

    async def wait(self) -> int:
        """Its exit code, as soon as it has one."""
        return await self._process.wait()

    def kill(self) -> None:
        """End it at once, because of the state it is in. Safe to call again."""
        self._killed = True
        if not self.ended:
            # Until we are told of its end, no other process can have its number.
            os.kill(self.pid, signal.SIGKILL)

    async def stop(self) -> None:
        """End it and all that belongs to it. Safe to call again."""
        with self._after_stop:
            try:
                await self._process.stop()
            finally:
                await self._client.aclose()

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """What the server answers. Raises SamplerLostError where that is nothing, or an error."""
        try:
            response = await self._client.post(path, json=body)
        except httpx2.TransportError as error:
            late = isinstance(error, httpx2.TimeoutException)
            if late and path != GENERATE_PATH:
                self.kill()  # nobody knows which weights it has now
            elif late or not await self._process.ends_within(_END_FOLLOWS_S):
                await self._end_if_broken()
            remedy = "raise sampling.request_deadline_s, lower episodes.max_concurrent, or " if late else ""
            raise SamplerLostError(
                f"vLLM did not answer {path} ({type(error).__name__})", fix=f"{remedy}read its log at {self.log}"
            ) from error
        if response.status_code == 400 and _REFUSED_GRAMMAR.search(response.text):
            raise GrammarError(
                f"vLLM refuses the grammar of the tools on offer: {response.text[:300]}",
                fix="mend the tool's schema, leave the tool out, or set sampling.constrain to off",
            )
        if not response.is_success:
            if response.is_server_error:
                await self._end_if_broken()
            raise SamplerLostError(
                f"vLLM answered {path} with {response.status_code}: {response.text[:300]}",
                fix=f"read its log at {self.log}",
            )
        return response.json() if response.headers.get("content-type", "").startswith("application/json") else None

    async def watch(self) -> int:
        """Ask now and then whether it is well, and end it if it is not. Its exit code, as soon as it has one.

        If its engine has died, the server stays, and some requests would wait for their whole deadline.
        """
        while not await self._process.ends_within(_WATCH_POLL_S):
            await self._end_if_broken()
        return await self.wait()

    async def _end_if_broken(self) -> None:
        if self.may_be_asked and not await self._is_healthy(_STUCK_S):
            self.kill()
            await self.wait()

    async def _wait_until_healthy(self, deadline_s: float) -> None:
        try:
            async with asyncio.timeout(deadline_s):
                while not await self._is_healthy(_ANSWER_S):
                    if await self._process.ends_within(_POLL_S):
                        raise SamplerStartError(
                            f"vLLM left with exit code {self._process.exit_code} at its start:\n{self.log_tail()}",
                            fix=f"read its whole log at {self.log}",
                        )
        except TimeoutError as error:
            raise SamplerStartError(
                f"vLLM was not healthy after {deadline_s:g} s",
                fix=f"read its log at {self.log}, or raise sampling.vllm.start_deadline_s",
            ) from error

    async def _is_healthy(self, deadline_s: float) -> bool:
        try:
            response = await self._client.get("/health", timeout=deadline_s)
        except httpx2.TransportError:
            return False
        return response.is_success

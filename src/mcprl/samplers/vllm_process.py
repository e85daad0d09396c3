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
from mcprl.processes import ChildProcess, free_port
from mcprl.samplers.vllm_server import server_argv, server_env

__all__ = ["VllmProcess"]

_HEALTH_POLL_S = 0.25
_HEALTH_DEADLINE_S = 5.0
# A process that ends closes its connections a moment before we are told of its end.
_END_FOLLOWS_S = 2.0
_REFUSED_GRAMMAR = re.compile(r"structural[ _]tag|structured[ _]outputs?|JSON schema", re.IGNORECASE)


class VllmProcess:
    """A server on loopback. Where a request fails, `ended` tells whether the server did; if so, it never answers again.

    A server whose engine has ended only refuses: it is then ended too.
    """

    def __init__(self, process: ChildProcess, client: httpx2.AsyncClient) -> None:
        self._process = process
        self._client = client
        self._killed = False

    @classmethod
    async def start(
        cls, model: ModelConfig, sampling: SamplingConfig, learner: LearnerConfig, *, log: Path
    ) -> VllmProcess:
        """Start a server and return it once it is healthy. Raises SamplerStartError, and then nothing of it remains."""
        port = free_port()
        argv = server_argv(model, sampling, learner, port=port)
        process = await ChildProcess.start(argv, env=server_env(sampling, learner), log=log)
        client = httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}",
            timeout=sampling.request_deadline_s,
            limits=httpx2.Limits(max_connections=None),
            trust_env=False,
        )
        server = cls(process, client)
        async with contextlib.AsyncExitStack() as on_failure:
            on_failure.push_async_callback(server.stop)
            await server._wait_until_healthy(sampling.vllm.start_deadline_s)
            on_failure.pop_all()
        return server

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def url(self) -> str:
        return str(self._client.base_url).rstrip("/")

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
            if not late and not await self._process.ends_within(_END_FOLLOWS_S):
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

    async def _end_if_broken(self) -> None:
        if not await self._is_healthy():
            self.kill()
            await self.wait()

    async def _wait_until_healthy(self, deadline_s: float) -> None:
        try:
            async with asyncio.timeout(deadline_s):
                while not await self._is_healthy():
                    if await self._process.ends_within(_HEALTH_POLL_S):
                        raise SamplerStartError(
                            f"vLLM left with exit code {self._process.exit_code} at its start:\n{self.log_tail()}",
                            fix=f"read its whole log at {self.log}",
                        )
        except TimeoutError as error:
            raise SamplerStartError(
                f"vLLM was not healthy after {deadline_s:g} s",
                fix=f"read its log at {self.log}, or raise sampling.vllm.start_deadline_s",
            ) from error

    async def _is_healthy(self) -> bool:
        try:
            response = await self._client.get("/health", timeout=_HEALTH_DEADLINE_S)
        except httpx2.TransportError:
            return False
        return response.is_success

"""A fake vLLM server, for all of the sampler that does not need vLLM.

The process that the sampler starts and watches is a real one that does nothing. What it would answer is answered from
here, at the socket that it was given, until it ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from socket import AF_UNIX
from socket import socket as Socket

import pytest

from mcprl.config import LearnerConfig, ModelConfig, SamplingConfig, VllmConfig
from mcprl.samplers import SampleRequest, vllm_server
from mcprl.samplers.vllm import VllmSampler

MODEL = ModelConfig(path="some/model", dtype="float32", context_tokens=512)
SAMPLING = SamplingConfig(vllm=VllmConfig(memory_fraction=0.4))
MERGING = SAMPLING.model_copy(update={"vllm": SAMPLING.vllm.model_copy(update={"merge_adapters": True})})
LORA, FULL = LearnerConfig(lora_rank=4), LearnerConfig(tuning="full")
REQUEST = SampleRequest(
    prompt_ids=(1, 2, 3), max_tokens=4, temperature=0.7, stop=("</x>",), stop_token_ids=(9,), seed=5
)
ANSWER = {
    "choices": [
        {
            "token_ids": [7, 8],
            "finish_reason": "stop",
            "stop_reason": "</x>",
            "logprobs": {"content": [{"token_id": 7, "logprob": -0.5}, {"token_id": 8, "logprob": -0.25}]},
        }
    ],
    "usage": {"prompt_tokens": 3},
}
GENERATE = "/inference/v1/generate"

Answer = Callable[[str, dict], bytes | Awaitable[bytes | None] | None]


def altered(**fields: object) -> dict:
    answer = json.loads(json.dumps(ANSWER))
    answer["choices"][0] |= fields
    return answer


def make_sampler(
    folder: Path,
    sampling: SamplingConfig = SAMPLING,
    learner: LearnerConfig = LORA,
    *,
    turn_deadline_s: float = 60.0,
) -> VllmSampler:
    return VllmSampler(
        MODEL, sampling, learner, max_sequences=3, turn_deadline_s=turn_deadline_s, log=folder / "vllm.log"
    )


def response(status: str, body: str, kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    return (head + body).encode()


def usual_answer(path: str, _body: dict) -> bytes:
    return response("200 OK", json.dumps(ANSWER)) if path == GENERATE else response("200 OK", "ok", "text/plain")


class StandIn:
    """All servers of one sampler, one after the other."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.seen: list[tuple[str, dict]] = []
        self.starts = 0
        self.started: asyncio.Queue[int] = asyncio.Queue()
        self.programs: dict[int, str] = {}  # of servers that do not simply wait for their end
        self.unhealthy: set[int] = set()  # servers, counted from 1
        self._listeners: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._opening: list[asyncio.Task[None]] = []

    @property
    def asked(self) -> list[str]:
        """The requests, by path, and by name or method if there is one."""
        return [
            " ".join(part for part in (path, body.get("lora_name") or body.get("model") or body.get("method")) if part)
            for path, body in self.seen
        ]

    def argv(self, *_args: object, socket: Path, **_options: object) -> list[str]:
        """In the place of `server_argv`: a program that does nothing, and our answers at its socket."""
        self.starts += 1
        listening = Socket(AF_UNIX)
        listening.bind(str(socket))
        self._opening.append(asyncio.create_task(self._listen(listening)))
        self.started.put_nowait(self.starts)
        program = self.programs.get(self.starts)
        return ["sleep", "infinity"] if program is None else [sys.executable, "-c", program]

    def end(self, sampler: VllmSampler) -> None:
        """The server dies: its process at once, its connections with it."""
        os.kill(sampler.replicas[0].pid, signal.SIGKILL)
        self.hang_up()

    def hang_up(self) -> None:
        for listener in self._listeners:
            listener.close()
        for connection in self._connections:
            connection.cancel()

    async def close(self) -> None:
        await asyncio.gather(*self._opening)
        self.hang_up()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _listen(self, listening: Socket) -> None:
        self._listeners.append(await asyncio.start_unix_server(self._serve, sock=listening))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            answered = await self._answer(reader)
            if answered is not None:
                writer.write(answered)
                await writer.drain()
        except (asyncio.CancelledError, ConnectionError):
            writer.transport.abort()
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes | None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split()[1]
        if path == "/health":
            return response("503 Engine is dead" if self.starts in self.unhealthy else "200 OK", "", "text/plain")
        lengths = [line.split(":")[1] for line in head.lower().splitlines() if line.startswith("content-length")]
        self.seen.append((path, json.loads(await reader.readexactly(int(lengths[0])))))
        answered = self.answer(*self.seen[-1])
        return answered if answered is None or isinstance(answered, bytes) else await answered


@asynccontextmanager
async def standing_in(
    folder: Path,
    answer: Answer = usual_answer,
    learner: LearnerConfig = LORA,
    sampling: SamplingConfig = SAMPLING,
    *,
    turn_deadline_s: float = 60.0,
) -> AsyncGenerator[tuple[VllmSampler, StandIn]]:
    """A sampler whose servers are ours: `answer` gives the response to a request, or None to hang up."""
    stand_in = StandIn(answer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vllm_server, "server_argv", stand_in.argv)
        patch.setattr(vllm_server, "_ANSWER_S", 60.0)  # one that is well must not seem ill on a busy machine
        try:
            async with make_sampler(folder, sampling, learner, turn_deadline_s=turn_deadline_s) as sampler:
                yield sampler, stand_in
        finally:
            await stand_in.close()


@asynccontextmanager
async def answering(
    folder: Path, answer: Answer, learner: LearnerConfig = LORA, sampling: SamplingConfig = SAMPLING
) -> AsyncGenerator[tuple[VllmSampler, list[tuple[str, dict]]]]:
    """A sampler whose server is ours, and what it was asked."""
    async with standing_in(folder, answer, learner, sampling) as (sampler, stand_in):
        yield sampler, stand_in.seen

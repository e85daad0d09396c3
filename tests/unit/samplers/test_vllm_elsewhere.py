"""vLLM servers that already run, at URLs: their key, their weights, and what happens if one is away for a while."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from vllm_stand_in import ANSWER, GENERATE, LORA, MODEL, REQUEST, SAMPLING, response

from mcprl.errors import SamplerStartError
from mcprl.placement import Placement
from mcprl.records import Weights
from mcprl.samplers.vllm import VllmSampler

KEY = {"Authorization": "Bearer our-key"}


@dataclass
class Server:
    """A server on a TCP port, with the adapters that it was asked to load."""

    adapters: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    offers: str = "base"
    port: int = 0
    _server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None
        self.adapters.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lengths = [line.split(":")[1] for line in head.lower().splitlines() if line.startswith("content-length")]
        body = json.loads(await reader.readexactly(int(lengths[0]))) if lengths else {}
        path = head.split()[1]
        is_guarded = path.startswith(("/v1", "/inference"))
        writer.write(
            response("401 No", "who are you?") if is_guarded and "our-key" not in head else self._say(path, body)
        )
        await writer.drain()
        writer.close()

    def _say(self, path: str, body: dict) -> bytes:
        if path == "/v1/models":
            return response("200 OK", json.dumps({"data": [{"id": self.offers}]}))
        if path == "/v1/load_lora_adapter":
            self.adapters.append(body["lora_name"])
        if path == GENERATE:
            if body["model"] not in ("base", *self.adapters):
                return response("404 Not Found", "no such model", "text/plain")
            self.asked.append(body["model"])
            return response("200 OK", json.dumps(ANSWER))
        return response("200 OK", "ok", "text/plain")


@asynccontextmanager
async def sampling_at(folder: Path, *servers: Server, headers: dict[str, str] = KEY) -> AsyncGenerator[VllmSampler]:
    for server in servers:
        await server.start()
    placement = Placement(replicas=(), urls=tuple(server.url for server in servers), headers=headers)
    try:
        async with VllmSampler(
            MODEL,
            SAMPLING,
            LORA,
            max_sequences=8,
            turn_deadline_s=60.0,
            log=folder / "vllm.log",
            placement=placement,
            group_size=1,
        ) as sampler:
            yield sampler
    finally:
        for server in servers:
            await server.stop()


async def test_turns_are_spread_and_new_weights_reach_every_server(tmp_path):
    first, second = Server(), Server()
    async with sampling_at(tmp_path, first, second) as sampler:
        await asyncio.gather(*(sampler.sample(REQUEST) for _ in range(4)))
        assert [len(server.asked) for server in (first, second)] == [2, 2]
        await sampler.publish(Weights(version=1, adapter=tmp_path / "v1"))
        done = await asyncio.gather(*(sampler.sample(REQUEST) for _ in range(4)))
    assert {version for turn in done for version in turn.weights_versions} == {1}
    assert first.asked[-1] in first.adapters or first.asked[-1] == "v1"


@pytest.mark.slow
async def test_the_turns_of_a_server_that_is_away_go_to_another_and_it_comes_back_with_the_weights(tmp_path):
    first, second = Server(), Server()
    async with sampling_at(tmp_path, first, second) as sampler:
        await sampler.publish(Weights(version=1, adapter=tmp_path / "v1"))
        await first.stop()
        done = [await sampler.sample(replace(REQUEST, seed=seed)) for seed in range(4)]
        assert {turn.weights_versions for turn in done} == {(1, 1)}
        assert len(second.asked) == 4
        await first.start()
        await sampler.replicas[0].ready()
        await asyncio.gather(*(sampler.sample(REQUEST) for _ in range(2)))
        [name] = first.adapters
        # A new name: the server may still have cached tokens of another adapter under the old one.
        assert first.asked == [name]
        assert name.endswith("-v1")


async def test_a_server_that_was_restarted_unnoticed_gets_its_adapter_again(tmp_path):
    server = Server()
    async with sampling_at(tmp_path, server) as sampler:
        await sampler.publish(Weights(version=1, adapter=tmp_path / "v1"))
        server.adapters.clear()
        assert (await sampler.sample(REQUEST)).weights_versions == (1, 1)
        assert sampler.restarts == 1


@pytest.mark.parametrize(("headers", "offers"), [({}, "base"), (KEY, "Qwen/Qwen3-0.6B")])
async def test_a_server_that_does_not_fit_is_refused_with_the_command_to_start_it(tmp_path, headers, offers):
    with pytest.raises(SamplerStartError, match="does not offer a model named base") as caught:
        async with sampling_at(tmp_path, Server(offers=offers), headers=headers):
            pass
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1" in caught.value.fix
    assert "--logprobs-mode processed_logprobs" in caught.value.fix
    assert "--enable-scale-out" in caught.value.fix
    assert "--uds" not in caught.value.fix

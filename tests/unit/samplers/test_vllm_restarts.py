"""Turns and publishing when the server dies: a fake answers requests, the process is real."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from vllm_stand_in import ANSWER, GENERATE, REQUEST, StandIn, response, standing_in, usual_answer

from mcprl.errors import SamplerLostError
from mcprl.records import Weights
from mcprl.samplers.vllm_server import SupervisedVllm

pytestmark = pytest.mark.process

GENERATED = response("200 OK", json.dumps(ANSWER))
OK = response("200 OK", "ok", "text/plain")


class Held:
    """Answers as usual, but holds requests of one path of the first servers until the server ends."""

    def __init__(self, path: str, *, servers: int = 1) -> None:
        self.path, self.servers = path, servers
        self.stand_in: StandIn | None = None
        self.arrived = asyncio.Event()

    async def __call__(self, path: str, body: dict) -> bytes:
        assert self.stand_in is not None
        if path == self.path and self.stand_in.starts <= self.servers:
            self.arrived.set()
            await asyncio.Event().wait()
        return usual_answer(path, body)


async def test_turns_in_flight_when_the_server_ends_are_asked_for_again_and_nobody_notices(tmp_path, caplog):
    held = Held(GENERATE)
    async with standing_in(tmp_path, held) as (sampler, stand_in):
        held.stand_in = stand_in
        first = sampler.replicas[0].pid
        turns = [asyncio.create_task(sampler.sample(REQUEST)) for _ in range(3)]
        await held.arrived.wait()
        with caplog.at_level(logging.WARNING):
            stand_in.end(sampler)
            done = await asyncio.gather(*turns)
        assert sampler.replicas[0].pid != first
    assert [turn.token_ids for turn in done] == [(7, 8)] * 3
    assert (stand_in.starts, sampler.restarts) == (2, 1)
    assert f"vLLM (process {first}) ended with exit code -9" in caplog.text


async def test_no_turn_reaches_a_new_server_before_the_weights_in_force_are_back(tmp_path):
    held = Held(GENERATE)
    async with standing_in(tmp_path, held) as (sampler, stand_in):
        held.stand_in = stand_in
        for version in (1, 2):
            await sampler.publish(Weights(version=version, adapter=tmp_path / f"v{version}"))
        turns = [asyncio.create_task(sampler.sample(REQUEST))]
        await held.arrived.wait()
        before = len(stand_in.seen)
        stand_in.end(sampler)
        turns += [asyncio.create_task(sampler.sample(REQUEST)) for _ in range(3)]
        done = await asyncio.gather(*turns)
    assert stand_in.asked[before:] == ["/v1/load_lora_adapter v2", *[f"{GENERATE} v2"] * 4]
    assert {version for turn in done for version in turn.weights_versions} == {2}


async def test_a_publication_that_the_servers_end_interrupts_is_done_on_the_next_one(tmp_path):
    held = Held("/v1/load_lora_adapter")
    weights = Weights(version=1, adapter=tmp_path / "v1")
    async with standing_in(tmp_path, held) as (sampler, stand_in):
        held.stand_in = stand_in
        publication = asyncio.create_task(sampler.publish(weights))
        await held.arrived.wait()
        stand_in.end(sampler)
        assert await publication == weights
        done = await sampler.sample(REQUEST)
    assert stand_in.asked == ["/v1/load_lora_adapter v1", "/v1/load_lora_adapter v1", f"{GENERATE} v1"]
    assert done.weights_versions == (1, 1)


async def test_a_server_whose_engine_is_dead_is_ended_and_replaced(tmp_path):
    def answer(path: str, body: dict) -> bytes:
        if stand_in.starts == 1:
            stand_in.unhealthy.add(1)
            return response("500 Oops", "EngineDeadError", "text/plain")
        return usual_answer(path, body)

    async with standing_in(tmp_path, answer) as (sampler, stand_in):
        first = sampler.replicas[0].pid
        assert (await sampler.sample(REQUEST)).token_ids == (7, 8)
        assert sampler.replicas[0].pid != first


async def test_a_server_that_ends_while_it_starts_counts_and_the_next_one_is_tried(tmp_path):
    async with standing_in(tmp_path) as (sampler, stand_in):
        stand_in.unhealthy.add(2)
        stand_in.programs[2] = "raise SystemExit(4)"
        stand_in.end(sampler)
        assert (await sampler.sample(REQUEST)).token_ids == (7, 8)
    assert (stand_in.starts, sampler.restarts) == (3, 2)


async def test_a_server_that_keeps_ending_is_given_up_with_the_end_of_its_log(tmp_path):
    def answer(path: str, body: dict) -> bytes | None:
        stand_in.end(sampler)
        return None

    async with standing_in(tmp_path, answer) as (sampler, stand_in):
        (tmp_path / "vllm.log").write_text("out of memory\n")
        turns = await asyncio.gather(*(sampler.sample(REQUEST) for _ in range(3)), return_exceptions=True)
        assert [type(turn) for turn in turns] == [SamplerLostError] * 3
        with pytest.raises(SamplerLostError, match=r"(?s)restarted 3 times .*exit code -9:.*out of memory"):
            await sampler.sample(REQUEST)
        with pytest.raises(SamplerLostError, match="restarted 3 times"):
            await sampler.publish(Weights(version=1, adapter=tmp_path / "v1"))
    assert stand_in.starts == 4


async def test_a_sampled_turn_shows_that_the_server_is_worth_starting_again(tmp_path, monkeypatch):
    monkeypatch.setattr(SupervisedVllm, "MAX_RESTARTS", 1)
    async with standing_in(tmp_path) as (sampler, stand_in):
        for _ in range(3):
            stand_in.end(sampler)
            assert (await sampler.sample(REQUEST)).token_ids == (7, 8)
        stand_in.end(sampler)
        await sampler.publish(Weights(version=1, adapter=tmp_path / "v1"))
        stand_in.end(sampler)
        with pytest.raises(SamplerLostError, match="restarted 1 times"):
            await sampler.sample(REQUEST)


async def test_with_no_restarts_allowed_the_first_end_is_the_last(tmp_path, monkeypatch):
    monkeypatch.setattr(SupervisedVllm, "MAX_RESTARTS", 0)
    async with standing_in(tmp_path) as (sampler, stand_in):
        stand_in.end(sampler)
        with pytest.raises(SamplerLostError, match="restarted 0 times"):
            await sampler.sample(REQUEST)
        with pytest.raises(SamplerLostError, match="is not running at the moment"):
            _ = sampler.replicas[0].pid


async def test_leaving_while_a_server_is_being_started_ends_it_and_all_who_wait(tmp_path):
    async with standing_in(tmp_path) as (sampler, stand_in):
        stand_in.unhealthy.add(2)
        stand_in.end(sampler)
        turn = asyncio.create_task(sampler.sample(REQUEST))
        while await stand_in.started.get() == 1:
            pass
        await sampler.__aexit__(None, None, None)
        with pytest.raises(SamplerLostError, match="will not be restarted"):
            await turn
    assert stand_in.starts == 2


async def test_a_live_server_that_hangs_up_is_not_started_again(tmp_path):
    async with standing_in(tmp_path, lambda *_: None) as (sampler, stand_in):
        with pytest.raises(SamplerLostError, match="did not respond"):
            await sampler.sample(REQUEST)
    assert (stand_in.starts, sampler.restarts) == (1, 0)


async def test_a_turn_whose_connection_breaks_is_sampled_again_by_the_same_server(tmp_path):
    asked: list[str] = []

    def answer(path: str, body: dict) -> bytes | None:
        asked.append(path)
        return None if asked.count(GENERATE) == 1 and path == GENERATE else usual_answer(path, body)

    async with standing_in(tmp_path, answer) as (sampler, stand_in):
        turn = await sampler.sample(REQUEST)
    assert turn.token_ids == (7, 8)
    assert asked.count(GENERATE) == 2
    assert (stand_in.starts, sampler.restarts) == (1, 0)


class TestAdapters:
    """Versions that are published while turns of earlier ones are in flight."""

    async def test_a_turn_keeps_the_version_it_began_with_and_its_adapter_stays_until_it_has_ended(self, tmp_path):
        let_go = asyncio.Event()
        arrived = asyncio.Event()

        async def answer(path: str, body: dict) -> bytes:
            if path == GENERATE and body["model"] == "v1":
                arrived.set()
                await let_go.wait()
            return usual_answer(path, body)

        async with standing_in(tmp_path, answer) as (sampler, stand_in):
            await sampler.publish(Weights(version=1, adapter=tmp_path / "v1"))
            old = asyncio.create_task(sampler.sample(REQUEST))
            await arrived.wait()
            await sampler.publish(Weights(version=2, adapter=tmp_path / "v2"))
            new = await sampler.sample(REQUEST)
            assert not old.done()
            assert "/v1/unload_lora_adapter v1" not in stand_in.asked
            let_go.set()
            assert (await old).weights_versions == (1, 1)
            assert new.weights_versions == (2, 2)
            await sampler.publish(Weights(version=3, adapter=tmp_path / "v3"))
        assert stand_in.asked[-2:] == ["/v1/unload_lora_adapter v1", "/v1/unload_lora_adapter v2"]

    async def test_publishing_waits_if_the_server_has_too_many_adapters(self, tmp_path):
        let_go = {f"v{version}": asyncio.Event() for version in (1, 2, 3)}
        arrived = asyncio.Semaphore(0)

        async def answer(path: str, body: dict) -> bytes:
            if path == GENERATE and body["model"] in let_go:
                arrived.release()
                await let_go[body["model"]].wait()
            return usual_answer(path, body)

        async with standing_in(tmp_path, answer) as (sampler, stand_in):
            turns: list[asyncio.Task] = []
            for version in (1, 2, 3):
                await sampler.publish(Weights(version=version, adapter=tmp_path / f"v{version}"))
                turns.append(asyncio.create_task(sampler.sample(REQUEST)))
                await arrived.acquire()
            fourth = asyncio.create_task(sampler.publish(Weights(version=4, adapter=tmp_path / "v4")))
            # Under the version in force meanwhile, which is the third.
            let_go["v3"].set()
            assert (await sampler.sample(REQUEST)).weights_versions == (3, 3)
            assert not fourth.done()
            let_go["v2"].set()
            await fourth
            assert not turns[0].done()
            let_go["v1"].set()
            done = await asyncio.gather(*turns)
        assert [turn.weights_versions[0] for turn in done] == [1, 2, 3]
        loads = stand_in.asked.index("/v1/load_lora_adapter v4")
        assert stand_in.asked[loads - 1] == "/v1/unload_lora_adapter v2"
        assert "/v1/unload_lora_adapter v1" not in stand_in.asked

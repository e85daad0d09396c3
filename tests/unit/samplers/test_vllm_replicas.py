"""Several vLLM servers behind one sampler: fakes answer requests, the processes are real."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from vllm_stand_in import ANSWER, GENERATE, LORA, MODEL, REQUEST, SAMPLING, Answer, StandIn, response

from mcprl.errors import SamplerLostError
from mcprl.placement import Placement
from mcprl.records import Weights
from mcprl.samplers import vllm_server
from mcprl.samplers.vllm import Replica, VllmSampler
from mcprl.samplers.vllm_server import SupervisedVllm

pytestmark = pytest.mark.process

LONG = replace(REQUEST, prompt_ids=tuple(range(64)))


def usual_answer(path: str, _body: dict) -> bytes:
    answer = ANSWER | {"usage": {"prompt_tokens": len(LONG.prompt_ids)}}
    return response("200 OK", json.dumps(answer)) if path == GENERATE else response("200 OK", "ok", "text/plain")


@dataclass
class Fleet:
    """A sampler and a fake per server that it started, by socket."""

    answer: Answer
    fakes: dict[Path, StandIn] = field(default_factory=dict)
    broken_starts: set[int] = field(default_factory=set)

    def argv(self, *args: object, socket: Path, **options: object) -> list[str]:
        fake = self.fakes[socket] = StandIn(self.answer)
        if len(self.fakes) in self.broken_starts:
            fake.unhealthy.add(1)
        return fake.argv(*args, socket=socket, **options)

    def asked(self, replica: Replica) -> list[str]:
        return self.fakes[replica.socket].asked

    def end(self, replica: Replica) -> None:
        fake = self.fakes[replica.socket]
        os.kill(replica.pid, signal.SIGKILL)
        fake.hang_up()


@asynccontextmanager
async def replicas(folder: Path, fleet: Fleet, count: int = 2) -> AsyncGenerator[VllmSampler]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vllm_server, "server_argv", fleet.argv)
        patch.setattr(vllm_server, "_ANSWER_S", 60.0)
        try:
            async with VllmSampler(
                MODEL,
                SAMPLING,
                LORA,
                max_sequences=64,
                turn_deadline_s=60.0,
                log=folder / "vllm.log",
                placement=Placement(replicas=((),) * count),
                group_size=4,
            ) as sampler:
                yield sampler
        finally:
            for fake in fleet.fakes.values():
                await fake.close()


async def test_each_group_has_a_replica_and_each_replica_a_log(tmp_path):
    fleet = Fleet(usual_answer)
    async with replicas(tmp_path, fleet, 3) as sampler:
        assert len({replica.pid for replica in sampler.replicas}) == 3
        await asyncio.gather(*(sampler.sample(LONG) for _ in range(12)))
        assert [fleet.asked(replica) for replica in sampler.replicas] == [[f"{GENERATE} base"] * 4] * 3
    assert sorted(path.name for path in tmp_path.glob("*.log")) == ["vllm-2.log", "vllm-3.log", "vllm.log"]


async def test_the_turns_of_a_dead_replica_go_to_another_at_once(tmp_path):
    arrived, held = asyncio.Event(), True

    async def answer(path: str, body: dict) -> bytes:
        if path == GENERATE and held:
            arrived.set()
            await asyncio.Event().wait()
        return usual_answer(path, body)

    fleet = Fleet(answer, broken_starts={3})  # so the dead one stays away
    async with replicas(tmp_path, fleet) as sampler:
        turns = [asyncio.create_task(sampler.sample(LONG)) for _ in range(4)]
        await arrived.wait()
        held = False
        first, second = sampler.replicas
        fleet.end(first)
        assert [turn.token_ids for turn in await asyncio.gather(*turns)] == [(7, 8)] * 4
        assert not first.is_up
        assert fleet.asked(second) == [f"{GENERATE} base"] * 4


async def test_new_weights_reach_all_replicas_and_one_that_was_restarted_has_them_too(tmp_path):
    fleet = Fleet(usual_answer)
    async with replicas(tmp_path, fleet) as sampler:
        first, second = sampler.replicas
        fleet.end(second)
        await sampler.publish(Weights(version=1, adapter=tmp_path / "v1"))
        fleet.end(first)
        await first.ready()
        assert [fleet.asked(replica) for replica in sampler.replicas] == [["/v1/load_lora_adapter v1"]] * 2
        done = await asyncio.gather(*(sampler.sample(replace(LONG, seed=n)) for n in range(8)))
    assert {version for turn in done for version in turn.weights_versions} == {1}
    assert sampler.restarts == 2


async def test_a_replica_that_is_given_up_is_left_out_until_none_is_left(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(SupervisedVllm, "MAX_RESTARTS", 0)
    fleet = Fleet(usual_answer)
    async with replicas(tmp_path, fleet) as sampler:
        first, second = sampler.replicas
        fleet.end(first)
        assert (await sampler.sample(LONG)).token_ids == (7, 8)
        await sampler.publish(Weights(version=1, adapter=tmp_path / "v1"))
        assert (await sampler.sample(LONG)).weights_versions == (1, 1)
        assert first.is_over
        assert "restarted 0 times" in caplog.text
        fleet.end(second)
        with pytest.raises(SamplerLostError, match="restarted 0 times"):
            await sampler.sample(LONG)
        with pytest.raises(SamplerLostError, match="restarted 0 times"):
            await sampler.publish(Weights(version=2, adapter=tmp_path / "v2"))


async def test_a_replica_that_is_up_and_refuses_new_weights_ends_the_publication(tmp_path):
    def answer(path: str, body: dict) -> bytes | None:
        return usual_answer(path, body) if path == GENERATE else None

    fleet = Fleet(answer)
    async with replicas(tmp_path, fleet) as sampler:
        fleet.fakes[sampler.replicas[0].socket].answer = usual_answer
        with pytest.raises(SamplerLostError, match="load_lora_adapter"):
            await sampler.publish(Weights(version=1, adapter=tmp_path / "v1"))

"""vLLM and the learner on one GPU: who sleeps when, in which order, and that they never need the card at once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from vllm_stand_in import ANSWER, FULL, REQUEST, response, standing_in, usual_answer

from mcprl.records import Weights
from mcprl.samplers.vllm import VllmSampler
from mcprl.training.loop import GpuTurns

pytestmark = pytest.mark.process

WAKE = ["/wake_up?tags=weights", "/wake_up?tags=kv_cache"]


def obliging_answer(path: str, body: dict) -> bytes:
    """A server that takes whole weights, too."""
    if path == "/collective_rpc":
        return response("200 OK", json.dumps({"results": [{"objections": []}]}))
    return usual_answer(path, body)


async def test_adapters_are_loaded_after_the_server_is_awake_and_its_weights_wait_in_main_memory(tmp_path):
    async with standing_in(tmp_path) as (sampler, fake):
        await sampler.sleep()
        await sampler.wake(Weights(version=1, adapter=tmp_path / "v1"))
        assert fake.asked == ["/sleep?level=1", *WAKE, "/v1/load_lora_adapter v1"]
        assert (await sampler.sample(REQUEST)).weights_versions == (1, 1)


async def test_whole_weights_are_dropped_and_loaded_before_there_is_a_cache_again(tmp_path, monkeypatch):
    monkeypatch.setattr("mcprl.samplers.vllm.check_files", lambda _folder: None)
    async with standing_in(tmp_path, obliging_answer, FULL) as (sampler, fake):
        await sampler.sleep()
        await sampler.wake(Weights(version=1, model=tmp_path / "v1"))
    weights, cache = WAKE
    loaded = ["/collective_rpc compare_model_folder", "/collective_rpc load_model_folder"]
    # Neither /pause nor /resume: a server that is asleep must not be resumed before its cache is there.
    assert fake.asked == ["/sleep?level=2", weights, *loaded, "/update_weight_version", cache]


async def test_after_a_skipped_update_whole_weights_are_loaded_again_because_sleep_dropped_them(tmp_path):
    async with standing_in(tmp_path, obliging_answer, FULL) as (sampler, fake):
        await sampler.sleep()
        await sampler.wake(Weights(version=0))
    assert "/collective_rpc load_model_folder" in fake.asked


async def test_a_server_that_dies_asleep_is_started_only_when_the_learner_has_left(tmp_path):
    async with standing_in(tmp_path) as (sampler, fake):
        await sampler.sleep()
        ended = asyncio.create_task(sampler.replicas[0]._servers.running.wait())
        fake.end(sampler)
        await ended
        assert fake.starts == 1
        await sampler.wake(Weights(version=1, adapter=tmp_path / "v1"))
        assert fake.starts == 2
        assert fake.asked[-1] == "/v1/load_lora_adapter v1"


async def test_a_server_that_cannot_sleep_is_ended_so_that_its_memory_is_free(tmp_path):
    def answer(path: str, body: dict) -> bytes:
        return response("500 Oops", "no", "text/plain") if path.startswith("/sleep") else usual_answer(path, body)

    async with standing_in(tmp_path, answer) as (sampler, fake):
        await sampler.sleep()
        assert not sampler.replicas[0].is_up
        await sampler.wake(Weights(version=0))
        await sampler.replicas[0].ready()
        assert fake.starts == 2


CARD = 24
WEIGHTS, CACHE, LEARNER, ACTIVATIONS = 8, 12, 9, 14  # GB: vLLM's, and the learner's


class Card:
    """The memory of a GPU, with a vLLM on it that does what it is asked, and a learner."""

    def __init__(self) -> None:
        self.held = {"weights": WEIGHTS, "cache": CACHE, "learner": 0}
        self.peak = 0

    def hold(self, **gigabytes: int) -> None:
        self.held |= gigabytes
        self.peak = max(self.peak, sum(self.held.values()))

    def answer(self, path: str, _body: dict) -> bytes:
        if path.startswith("/sleep"):
            self.hold(weights=0, cache=0)
        elif path == "/wake_up?tags=weights":
            self.hold(weights=WEIGHTS)
        elif path == "/wake_up?tags=kv_cache":
            self.hold(cache=CACHE)
        elif "generate" in path:
            assert (self.held["weights"], self.held["cache"]) == (WEIGHTS, CACHE)
            return response("200 OK", json.dumps(ANSWER))
        return response("200 OK", "ok", "text/plain")

    async def leave_gpu(self) -> None:
        self.hold(learner=0)

    async def return_to_gpu(self) -> None:
        self.hold(learner=LEARNER)

    def update(self) -> None:
        assert self.held["learner"] == LEARNER
        self.hold(learner=LEARNER + ACTIVATIONS)
        self.hold(learner=LEARNER)


async def steps(sampler: VllmSampler, card: Card, folder: Path) -> None:
    await sampler.sleep()  # as a run does before it loads the learner
    await card.return_to_gpu()
    turns = GpuTurns(sampler, card)  # pyright: ignore[reportArgumentType]
    weights = Weights(version=0)
    for step in range(1, 4):
        await turns.sample(weights)
        await sampler.sample(REQUEST)
        await turns.learn()
        await turns.learn()  # reading, then the update
        card.update()
        if step != 2:  # whose update is skipped
            weights = Weights(version=step, adapter=folder / f"v{step}")
            await turns.sample(weights)


async def test_both_never_need_more_than_the_card_though_together_they_would(tmp_path):
    assert WEIGHTS + CACHE + LEARNER > CARD
    card = Card()
    async with standing_in(tmp_path, card.answer) as (sampler, fake):
        await steps(sampler, card, tmp_path)
    assert card.peak <= CARD
    assert [path for path in fake.asked if path.startswith("/sleep")] == ["/sleep?level=1"] * 4

"""How the vLLM sampler publishes whole weights to a fake server: the order of requests, and failures."""
# R22, R23

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path

import pytest
from vllm_stand_in import (
    FULL,
    GENERATE,
    LORA,
    MERGING,
    REQUEST,
    SAMPLING,
    altered,
    answering,
    make_sampler,
    response,
    standing_in,
)

from mcprl.errors import BadValueError, SamplerLostError
from mcprl.records import Weights
from mcprl.samplers.sampler import Receiver
from mcprl.samplers.vllm_server import BASE_NAME, read_completion


@pytest.mark.parametrize(("learner", "kind"), [(LORA, "model"), (FULL, "adapter")])
async def test_weights_of_the_other_kind_are_refused(tmp_path, learner, kind):
    sampler = make_sampler(tmp_path, learner=learner)
    with pytest.raises(BadValueError, match=rf"learner\.tuning={learner.tuning} and cannot load .*v1.*Fix: set"):
        await sampler.publish(Weights(version=1, **{kind: tmp_path / "v1"}))


@pytest.fixture
def whole(tmp_path) -> Weights:
    """Version 1: a folder with all that a publication looks at before it asks the server."""
    return make_whole(tmp_path / "v1", version=1)


def make_whole(folder: Path, *, version: int) -> Weights:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    return Weights(version=version, model=folder)


def whole_weights_answer(path: str, body: dict, **objections: list[str]) -> bytes:
    if path == "/collective_rpc":
        wrong = objections.get(body["method"], [])
        return response("200 OK", json.dumps({"results": [{"objections": []}, {"objections": wrong}]}))
    spans = [{"version": "7", "start": 0, "end": 2}]
    return response("200 OK", json.dumps(altered(weight_versions=spans) if path == GENERATE else {}))


DIRECT = SAMPLING.model_copy(update={"vllm": SAMPLING.vllm.model_copy(update={"weight_transfer": "direct"})})
CHANGE = ["/pause?mode=keep&clear_cache=true", "load_model_folder", "/update_weight_version", "/resume"]


@pytest.mark.process
async def test_whole_weights_are_loaded_while_paused_with_an_empty_cache_before_the_server_resumes(tmp_path, whole):
    async with answering(tmp_path, whole_weights_answer, FULL) as (sampler, seen):
        assert await sampler.publish(whole) == whole
        assert await sampler.publish(whole) == whole  # in force already
        await sampler.publish(Weights(version=0))
    assert [body.get("method", path) for path, body in seen] == ["compare_model_folder", *CHANGE, *CHANGE]
    folders = [body["kwargs"]["folder"] for _, body in seen if body.get("method") == "load_model_folder"]
    assert folders == [str(whole.model), None]
    assert [body["new_version"] for path, body in seen if path == "/update_weight_version"] == ["1", "0"]


@pytest.mark.process
async def test_weights_without_a_folder_come_from_the_learner_also_after_a_restart(tmp_path):
    """A restarted server gets what the learner has by then, and is told which version that is."""
    received: list[Receiver] = []
    newest = 1

    async def send(receiver: Receiver) -> int:
        stand_in.seen.append(("send", {}))
        received.append(receiver)
        return newest

    async with standing_in(tmp_path, whole_weights_answer, FULL, DIRECT) as (sampler, stand_in):
        sampler.receive_from(send)
        await sampler.publish(Weights(version=1))
        assert stand_in.asked == [CHANGE[0], "send", *CHANGE[2:]]
        newest = 2
        stand_in.end(sampler)
        for _ in range(2):
            await stand_in.started.get()
        await sampler.replicas[0].ready()
        assert stand_in.asked[4:] == [CHANGE[0], "send", *CHANGE[2:]]
    versions = [body["new_version"] for path, body in stand_in.seen if path == "/update_weight_version"]
    assert versions == ["1", "2"]
    assert [one.backend for one in received] == ["mcprl_memory"] * 2
    assert len({one.socket for one in received}) == 2


@pytest.mark.process
async def test_a_server_that_fails_while_it_receives_is_replaced(tmp_path):
    """It may have layers of both versions."""
    tries: list[int] = []

    async def send(_: Receiver) -> int:
        tries.append(stand_in.starts)
        if len(tries) == 1:
            raise SamplerLostError("vLLM could not receive weights", fix="read its log")
        return 1

    async with standing_in(tmp_path, whole_weights_answer, FULL, DIRECT) as (sampler, stand_in):
        sampler.receive_from(send)
        await sampler.publish(Weights(version=1))
    assert tries == [1, 2]


@pytest.mark.process
async def test_merged_adapters_take_the_place_of_the_weights_and_of_each_other(tmp_path):
    adapter = Weights(version=1, adapter=tmp_path / "v1")
    async with answering(tmp_path, whole_weights_answer, LORA, MERGING) as (sampler, seen):
        assert await sampler.publish(adapter) == adapter
        await sampler.sample(REQUEST)
        await sampler.publish(Weights(version=0))
    assert [body.get("method", path) for path, body in seen] == [*CHANGE, GENERATE, *CHANGE]
    loaded = [body["kwargs"] for _, body in seen if body.get("method") == "load_model_folder"]
    assert loaded == [{"folder": None, "adapter": str(adapter.adapter)}, {"folder": None, "adapter": None}]
    assert next(body["model"] for path, body in seen if path == GENERATE) == BASE_NAME


@pytest.mark.parametrize(
    ("spans", "versions"),
    [
        ([("default", 0, 2)], (0, 0)),
        ([("7", 0, 2)], (7, 7)),
        ([("default", 0, 1), ("1", 1, 2)], (0, 1)),
        ([("1", 0, 1), ("1", 1, 1), ("3", 1, 2)], (1, 3)),
    ],
)
async def test_where_all_weights_are_trained_the_server_says_which_version_sampled_each_token(spans, versions):
    said = [{"version": version, "start": start, "end": end} for version, start, end in spans]
    assert read_completion(altered(weight_versions=said), REQUEST, None).weights_versions == versions


@pytest.mark.parametrize("spans", [[], [("7", 0, 1)], [("7", 1, 2)], [("7", 0, 3)], [("7", 0, 1), ("8", 0, 2)]])
async def test_a_turn_whose_tokens_have_no_version_or_several_is_refused(spans):
    said = [{"version": version, "start": start, "end": end} for version, start, end in spans]
    with pytest.raises(SamplerLostError, match="does not report which weights"):
        read_completion(altered(weight_versions=said), REQUEST, None)


@pytest.mark.process
async def test_another_model_is_refused_before_the_server_comes_to_rest(tmp_path, whole):
    def answer(path: str, body: dict) -> bytes:
        return whole_weights_answer(path, body, compare_model_folder=["hidden_size is 32 instead of 64"])

    async with answering(tmp_path, answer, FULL) as (sampler, seen):
        with pytest.raises(BadValueError, match=r"a different model than some/model: hidden_size is 32 instead of 64"):
            await sampler.publish(whole)
        assert len(seen) == 1
        assert (await sampler.sample(REQUEST)).token_ids == (7, 8)


@pytest.mark.process
async def test_a_publication_of_bad_weights_ends_the_server_and_the_old_weights_stay_in_force(tmp_path, whole):
    """Some layers may be new and others old: nothing is ever sampled from those."""
    later = replace(whole, version=2)

    def answer(path: str, body: dict) -> bytes:
        if body.get("method") == "load_model_folder" and stand_in.starts == 1 and sampler_has_version_1:
            return whole_weights_answer(path, body, load_model_folder=["a", "b", "c", "d"])
        return whole_weights_answer(path, body)

    sampler_has_version_1 = False
    async with standing_in(tmp_path, answer, FULL) as (sampler, stand_in):
        await sampler.publish(whole)
        sampler_has_version_1 = True
        with pytest.raises(BadValueError, match=r"cannot sample from .*v1: a; b; c"):
            await sampler.publish(later)
        assert (await sampler.sample(REQUEST)).weights_versions == (7, 7)
        assert await sampler.publish(later) == later
    assert (stand_in.starts, sampler.restarts) == (2, 1)
    asked = [body.get("method", path) for path, body in stand_in.seen]
    check = "compare_model_folder"
    assert asked == [check, *CHANGE, check, *CHANGE[:2], *CHANGE, GENERATE, check, *CHANGE]
    restored = [body["new_version"] for path, body in stand_in.seen if path == "/update_weight_version"]
    assert restored == ["1", "1", "2"]


@pytest.mark.process
@pytest.mark.parametrize("fault", ["fails", "hangs and its engine is dead", "hangs"])
async def test_a_publication_that_a_server_does_not_take_is_made_on_the_next_one(tmp_path, whole, fault):
    later = replace(whole, version=2)
    hanging = asyncio.Event()

    async def hang() -> bytes:
        if "dead" in fault:
            stand_in.unhealthy.add(1)
        await hanging.wait()
        raise AssertionError

    def answer(path: str, body: dict) -> bytes | Awaitable[bytes]:
        if body.get("method") == "load_model_folder" and stand_in.starts == 1 and sampler_has_version_1:
            return response("500 Oops", "shapes differ", "text/plain") if fault == "fails" else hang()
        return whole_weights_answer(path, body)

    sampler_has_version_1 = False
    # Only for one that hangs, and is well as far as it says itself, the deadline has to pass.
    deadline_s = 1.0 if fault == "hangs" else 600.0
    async with standing_in(tmp_path, answer, FULL, turn_deadline_s=deadline_s) as (sampler, stand_in):
        await sampler.publish(whole)
        sampler_has_version_1 = True
        assert await sampler.publish(later) == later
    assert (stand_in.starts, sampler.restarts) == (2, 1)
    versions = [body["new_version"] for path, body in stand_in.seen if path == "/update_weight_version"]
    assert versions == ["1", "1", "2"]


@pytest.mark.process
async def test_weights_that_no_server_takes_end_the_publication(tmp_path, whole):
    later = make_whole(tmp_path / "v2", version=2)

    def answer(path: str, body: dict) -> bytes:
        if body.get("method") == "load_model_folder" and is_broken and body["kwargs"]["folder"].endswith("v2"):
            return response("500 Oops", "shapes differ", "text/plain")
        return whole_weights_answer(path, body)

    is_broken = False
    async with standing_in(tmp_path, answer, FULL) as (sampler, _):
        await sampler.publish(whole)
        is_broken = True
        with pytest.raises(SamplerLostError, match="shapes differ"):
            await sampler.publish(later)

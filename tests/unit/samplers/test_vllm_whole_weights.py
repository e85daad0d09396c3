"""How the vLLM sampler publishes whole weights, to a stand-in for the server: in which order, and how it fails."""
# R22, R23

from __future__ import annotations

import json

import pytest
from vllm_stand_in import FULL, LORA, REQUEST, altered, answering, make_sampler, response

from mcprl.errors import BadValueError, SamplerLostError
from mcprl.records import Weights


@pytest.mark.parametrize(("learner", "kind"), [(LORA, "model"), (FULL, "adapter")])
async def test_weights_of_the_other_kind_are_refused(tmp_path, learner, kind):
    sampler = make_sampler(tmp_path, learner=learner)
    with pytest.raises(BadValueError, match=rf"learner\.tuning {learner.tuning} and cannot take .*v1.*Fix: set"):
        await sampler.publish(Weights(version=1, **{kind: tmp_path / "v1"}))


@pytest.fixture
def whole(tmp_path) -> Weights:
    """Version 1: a folder with all that a publication looks at before it asks the server."""
    folder = tmp_path / "v1"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    return Weights(version=1, model=folder)


def whole_weights_answer(path: str, body: dict, **objections: list[str]) -> bytes:
    if path == "/collective_rpc":
        wrong = objections.get(body["method"], [])
        return response("200 OK", json.dumps({"results": [{"objections": []}, {"objections": wrong}]}))
    if path == "/reset_prefix_cache":
        return response("200 OK", json.dumps({"success": "keeps_its_cache" not in objections}))
    spans = [{"version": version, "start": 0, "end": 1} for version in objections.get("versions", ["7"])]
    return response("200 OK", json.dumps(altered(weight_versions=spans) if "generate" in path else {}))


async def test_whole_weights_are_loaded_at_rest_and_the_cache_is_forgotten_before_the_server_goes_on(tmp_path, whole):
    async with answering(tmp_path, whole_weights_answer, FULL) as (sampler, seen):
        assert await sampler.publish(whole) == whole
        assert await sampler.publish(whole) == whole  # in force already
        await sampler.publish(Weights(version=0))
    load = "load_model_folder"
    change = ["/pause?mode=wait&clear_cache=false", load, "/reset_prefix_cache", "/update_weight_version", "/resume"]
    assert [body.get("method", path) for path, body in seen] == ["compare_model_folder", *change, *change]
    folders = [body["kwargs"]["folder"] for _, body in seen if body.get("method") == load]
    assert folders == [str(whole.model), None]
    assert [body["new_version"] for path, body in seen if path == "/update_weight_version"] == ["1", "0"]


@pytest.mark.parametrize(("named", "version"), [("default", 0), ("7", 7)])
async def test_where_all_weights_are_trained_the_server_says_which_version_sampled(tmp_path, named, version):
    def answer(path: str, body: dict) -> bytes:
        return whole_weights_answer(path, body, versions=[named])

    async with answering(tmp_path, answer, FULL) as (sampler, seen):
        done = await sampler.sample(REQUEST)
    assert done.weights_version == version
    assert seen[0][1]["model"] == "base"


async def test_a_turn_sampled_by_two_versions_is_refused(tmp_path):
    def answer(path: str, body: dict) -> bytes:
        return whole_weights_answer(path, body, versions=["7", "8"])

    async with answering(tmp_path, answer, FULL) as (sampler, _):
        with pytest.raises(SamplerLostError, match=r"by weights \['7', '8'\]"):
            await sampler.sample(REQUEST)


async def test_another_model_is_refused_before_the_server_comes_to_rest(tmp_path, whole):
    def answer(path: str, body: dict) -> bytes:
        return whole_weights_answer(path, body, compare_model_folder=["hidden_size is 32 instead of 64"])

    async with answering(tmp_path, answer, FULL) as (sampler, seen):
        with pytest.raises(BadValueError, match=r"another model than some/model: hidden_size is 32 instead of 64"):
            await sampler.publish(whole)
        assert len(seen) == 1
        assert (await sampler.sample(REQUEST)).token_ids == (7, 8)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("load_model_folder", "lacks weights .* among them a, b, c"), ("keeps_its_cache", "did not forget")],
)
async def test_after_a_publication_that_failed_half_way_nothing_is_sampled(tmp_path, whole, fault, reason):
    def answer(path: str, body: dict) -> bytes:
        return whole_weights_answer(path, body, **{fault: ["a", "b", "c", "d"]})

    async with answering(tmp_path, answer, FULL) as (sampler, seen):
        with pytest.raises(SamplerLostError, match=reason):
            await sampler.publish(whole)
        asked = len(seen)
        assert "/resume" not in {path for path, _ in seen}
        for attempt in (sampler.sample(REQUEST), sampler.publish(Weights(version=0))):
            with pytest.raises(SamplerLostError, match="a mixture of two versions"):
                await attempt
        assert len(seen) == asked


async def test_a_server_that_fails_while_it_loads_is_not_sampled_from_again(tmp_path, whole):
    def answer(path: str, body: dict) -> bytes:
        if body.get("method") == "load_model_folder":
            return response("500 Oops", "shapes differ", "text/plain")
        return whole_weights_answer(path, body)

    async with answering(tmp_path, answer, FULL) as (sampler, _):
        with pytest.raises(SamplerLostError, match="shapes differ"):
            await sampler.publish(whole)
        with pytest.raises(SamplerLostError, match="a mixture of two versions"):
            await sampler.sample(REQUEST)

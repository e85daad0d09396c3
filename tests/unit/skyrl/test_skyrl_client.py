"""The client of the Tinker API makes each request once, waits no longer than it may, and says what went wrong."""
# R24

from __future__ import annotations

import ast
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tinker_api import TinkerApi, serve

from mcprl.errors import EngineLostError, UnfitEngineError
from mcprl.skyrl.client import AdamStep, ScoredRow, SkyrlClient, require_fit_sdk

pytestmark = pytest.mark.slow

ROWS = [
    ScoredRow(token_ids=(5, 7, 9), scored=(False, True), logprobs=(0.0, -0.4), gradients=(0.0, -0.5)),
    ScoredRow(token_ids=(5, 8, 9, 1), scored=(False, True, True), logprobs=(0.0, -1.0, -2.0), gradients=(0.0, 0.25, 1)),
]


@asynccontextmanager
async def connected(api: TinkerApi, *, deadline_s: float = 60.0) -> AsyncIterator[tuple[SkyrlClient, asyncio.Event]]:
    gone = asyncio.Event()
    with serve(api) as url:
        client = await SkyrlClient.connect(url, key=None, hosted=False, deadline_s=deadline_s, ended=gone.wait)
        try:
            yield client, gone
        finally:
            api.released.set()
            await client.close()


async def test_gradients_reach_the_server_as_the_slopes_of_its_importance_sampling_loss():
    api = TinkerApi()
    async with connected(api) as (client, _):
        model = await client.create_model("base", rank=4, seed=1)
        await client.forward_backward(model, ROWS, lambda scored: 10.0 * scored)
    sent = api.bodies["forward_backward"]["forward_backward_input"]
    first, second = sent["data"]
    assert sent["loss_fn"] == "importance_sampling"
    assert first["model_input"]["chunks"][0]["tokens"] == [5, 7]
    assert first["loss_fn_inputs"]["target_tokens"]["data"] == [7, 9]
    assert first["loss_fn_inputs"]["weights"]["data"] == [0.0, 1.0]
    assert first["loss_fn_inputs"]["advantages"]["data"] == [0.0, 5.0]
    assert second["loss_fn_inputs"]["advantages"]["data"] == [0.0, -5.0, -20.0]
    assert second["loss_fn_inputs"]["logprobs"]["data"] == [0.0, -1.0, -2.0]


async def test_a_step_sends_all_of_adam_and_brings_the_norm_of_the_gradients():
    api = TinkerApi()
    async with connected(api) as (client, _):
        model = await client.create_model("base", rank=4, seed=1)
        told = await client.optim_step(model, AdamStep(learning_rate=0.01))
    assert told == {"skyrl.ai/grad_norm": 2.5}
    adam = api.bodies["optim_step"]["adam_params"]
    assert (adam["learning_rate"], adam["weight_decay"], adam["beta2"], adam["eps"]) == (0.01, 0.0, 0.999, 1e-8)


@pytest.mark.parametrize("status", [409, 500, 503])
async def test_a_request_that_fails_is_not_made_again(status):
    api = TinkerApi()
    api.answers["forward_backward"] = lambda _: (status, {"detail": "no"})
    async with connected(api) as (client, _):
        model = await client.create_model("base", rank=4, seed=1)
        with pytest.raises(EngineLostError) as lost:
            await client.forward_backward(model, ROWS, float)
    assert api.asked["forward_backward"] == 1
    assert "failed to compute gradients" in lost.value.what


async def test_a_result_that_never_comes_is_not_waited_for_beyond_the_deadline():
    api = TinkerApi()
    async with connected(api, deadline_s=0.5) as (client, _):
        api.answers["retrieve_future"] = api.never
        with pytest.raises(EngineLostError, match=r"no response within 0\.5 s"):
            await client.create_model("base", rank=4, seed=1)


async def test_results_that_the_server_fails_to_give_end_in_an_error_and_not_in_silence():
    api = TinkerApi()
    api.answers["retrieve_future"] = lambda _: (500, {"detail": "protobuf?"})
    async with connected(api, deadline_s=0.5) as (client, _):
        with pytest.raises(EngineLostError, match=r"no response within 0\.5 s"):
            await client.create_model("base", rank=4, seed=1)
    api.asked.clear()
    async with connected(api, deadline_s=600) as (client, gone):
        asked = asyncio.create_task(client.create_model("base", rank=4, seed=1))
        while api.asked["retrieve_future"] < 2:  # noqa: ASYNC110 - another thread counts
            await asyncio.sleep(0.01)  # to ask for a result again changes nothing
        gone.set()
        with pytest.raises(EngineLostError, match="the server ended"):
            await asked


async def test_the_end_of_the_server_ends_all_waiting():
    api = TinkerApi()
    async with connected(api, deadline_s=600) as (client, gone):
        api.answers["retrieve_future"] = api.never
        asked = asyncio.create_task(client.create_model("base", rank=4, seed=1))
        while not api.asked["retrieve_future"]:  # noqa: ASYNC110 - another thread counts
            await asyncio.sleep(0.01)
        gone.set()
        with pytest.raises(EngineLostError, match="the server ended"):
            await asked


async def test_a_model_that_the_server_forgot_is_a_loss_to_recover_from():
    api = TinkerApi()
    api.results["optim_step"] = {"error": "Model model not loaded", "category": "unknown"}
    async with connected(api) as (client, _):
        model = await client.create_model("base", rank=4, seed=1)
        with pytest.raises(EngineLostError, match="not loaded"):
            await client.optim_step(model, AdamStep(learning_rate=0.01))


async def test_what_the_server_can_never_do_is_a_fault_of_the_configuration():
    api = TinkerApi()
    api.results["create_model"] = {"error": "LoRA rank 64 must be between 1 and 8", "category": "user"}
    async with connected(api) as (client, _):
        with pytest.raises(UnfitEngineError) as refusal:
            await client.create_model("base", rank=64, seed=1)
    assert "learner.lora_rank" in refusal.value.fix


async def test_a_key_that_is_refused_is_named():
    api = TinkerApi()
    api.answers["create_session"] = lambda _: (401, {"detail": "who are you?"})
    with serve(api) as url, pytest.raises(UnfitEngineError) as refusal:
        await SkyrlClient.connect(url, key=None, hosted=False, deadline_s=60, ended=asyncio.Event().wait)
    assert "TINKER_API_KEY" in refusal.value.fix


async def test_a_hosted_server_is_not_asked_without_a_key(monkeypatch):
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    with pytest.raises(UnfitEngineError, match="needs a key"):
        await SkyrlClient.connect(
            "http://127.0.0.1:1", key=None, hosted=True, deadline_s=60, ended=asyncio.Event().wait
        )


async def test_a_hosted_server_is_sent_the_key_of_the_environment_and_no_error_repeats_it(monkeypatch):
    monkeypatch.setenv("TINKER_API_KEY", "tml-3c1f0d9a77e245b8")
    api = TinkerApi()
    api.results["create_model"] = {"error": "the key tml-3c1f0d9a77e245b8 has no funds", "category": "user"}
    with serve(api) as url:
        client = await SkyrlClient.connect(url, key=None, hosted=True, deadline_s=60, ended=asyncio.Event().wait)
        assert client._service.holder._api_key == "tml-3c1f0d9a77e245b8"
        with pytest.raises(EngineLostError) as lost:
            await client.create_model("base", rank=4, seed=1)
        await client.close()
    assert "has no funds" in str(lost.value)
    assert "3c1f0d9a77e245b8" not in str(lost.value)


def test_an_sdk_that_the_server_does_not_understand_is_refused_before_it_is_used():
    require_fit_sdk("0.24.1")
    with pytest.raises(UnfitEngineError) as refusal:
        require_fit_sdk("0.25.0")
    assert "tinker<=0.24.1" in refusal.value.fix


def test_the_sdks_own_custom_losses_are_used_nowhere(root):
    # On JAX they have the wrong scale, and no error says so.
    names = {
        node.attr
        for file in (root / "src").rglob("*.py")
        for node in ast.walk(ast.parse(Path(file).read_text()))
        if isinstance(node, ast.Attribute)
    }
    assert not [name for name in names if name.startswith("forward_backward_custom")]


async def test_scoring_is_repeated_if_a_connection_broke_and_learning_is_not():
    api = TinkerApi()
    row = {"logprobs": {"data": [-1.0, -2.0], "dtype": "float32", "shape": [2]}}
    api.results["forward"] = {"loss_fn_output_type": "ArrayRecord", "loss_fn_outputs": [row], "metrics": {}}
    told = api.answers["forward"]

    def breaks_once(body):
        if api.asked["forward"] == 1:
            raise ConnectionResetError
        return told(body)

    def breaks(_):
        raise ConnectionResetError

    api.answers["forward"], api.answers["forward_backward"] = breaks_once, breaks
    async with connected(api) as (client, _):
        model = await client.create_model("base", rank=4, seed=1)
        assert await client.forward(model, [(5, 7, 9)]) == [(-1.0, -2.0)]
        with pytest.raises(EngineLostError):
            await client.forward_backward(model, ROWS, float)
    assert (api.asked["forward"], api.asked["forward_backward"]) == (2, 1)

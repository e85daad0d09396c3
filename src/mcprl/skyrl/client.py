"""A client of the Tinker API. Every wait has a deadline, and every failure is an McprlError.

The SDK silently retries failed requests for minutes. If the server received a `forward_backward` and the client repeats
it, its gradients count twice. So requests that change something are sent once, and their result is awaited until the
deadline or until the server ends. Requests that change nothing (scoring and sampling) are repeated if the connection
broke. The caller decides how to handle an EngineLostError.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Protocol, TypeVar, cast

import httpx2
import tinker
from packaging.version import Version
from tinker import types
from tinker.lib.internal_client_holder import InternalClientHolder

from mcprl.errors import EngineLostError, UnfitEngineError
from mcprl.secrets import SECRETS
from mcprl.skyrl.serve import KEY_HEADER

_NEWEST_SDK = Version("0.24.1")
# Used for servers that need no key: without any key, the SDK sends no requests.
_NO_KEY = "tml-local"
# Timeout of one HTTP request. Results that take longer are polled.
_ANSWER_S = 60.0
_CONNECTIONS = 3
_FAILURES = (tinker.TinkerError, OSError, ValueError, RuntimeError, TimeoutError)

T = TypeVar("T")


class Model(Protocol):
    """A trainable adapter on the server."""

    @property
    def model_id(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRow:
    """A trajectory as the server gets it. `gradients[i]` is d loss / d logprob of `token_ids[i + 1]`.

    ScoredRow(token_ids=(5, 7, 9), scored=(False, True), logprobs=(0.0, -0.4), gradients=(0.0, -0.71))
    """

    token_ids: tuple[int, ...]
    scored: tuple[bool, ...]
    logprobs: tuple[float, ...]
    gradients: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamStep:
    """The settings of one optimizer step."""

    learning_rate: float
    eps: float = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A turn that the server sampled."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stopped: bool


def require_fit_sdk(version: str | None = None) -> None:
    """Raise if the server does not support the SDK's version: newer SDKs send protobuf, get status 500, and retry."""
    found = Version(version or metadata.version("tinker"))
    if found > _NEWEST_SDK:
        raise UnfitEngineError(
            f"tinker {found} is installed, but SkyRL's server supports tinker only up to {_NEWEST_SDK}",
            fix=f"pip install 'tinker<={_NEWEST_SDK}'",
        )


class SkyrlClient:
    """A session with a server, kept alive until `close`. `ended` returns when the server is known to have ended."""

    def __init__(
        self, service: Any, *, url: str, key: str, deadline_s: float, ended: Callable[[], Awaitable[object]]
    ) -> None:
        self._service = service
        self._url = url
        self._key = key
        self._deadline_s = deadline_s
        self._ended = ended

    @classmethod
    async def connect(
        cls, url: str, *, key: str | None, hosted: bool, deadline_s: float, ended: Callable[[], Awaitable[object]]
    ) -> SkyrlClient:
        """Open a session. `key` is the key of a server that mcprl started; otherwise TINKER_API_KEY is used."""
        require_fit_sdk()
        os.environ.setdefault("TINKER_TELEMETRY", "0")
        key = key or os.environ.get("TINKER_API_KEY")
        if key:
            SECRETS.add("TINKER_API_KEY", key)
        elif hosted:
            raise UnfitEngineError("a hosted server needs a key", fix="set TINKER_API_KEY")
        key = key or _NO_KEY
        service: Any = tinker.ServiceClient(base_url=url, max_retries=0, timeout=_ANSWER_S, api_key=key)
        client = cls(service, url=url, key=key, deadline_s=deadline_s, ended=ended)

        def open_session() -> None:
            service._session_holder = _SingleAttempts(**service._holder_kwargs)

        try:
            await asyncio.to_thread(open_session)
        except _FAILURES as error:
            raise client._failed("open a session", error) from error
        return client

    async def close(self) -> None:
        """Stop keeping the session alive. After a while, the server unloads its models."""
        await asyncio.to_thread(self._service.holder.close)

    async def create_model(self, base_model: str, *, rank: int, seed: int) -> Model:
        """Create a new adapter. It does not change the model's output yet."""
        return await self._wait(
            f"create an adapter of rank {rank} on {base_model}",
            lambda: self._service._create_lora_training_client_submit(  # the public method waits forever
                base_model, rank, seed, train_mlp=True, train_attn=True, train_unembed=False, user_metadata=None
            ),
        )

    async def forward(self, model: Model, token_ids: Sequence[Sequence[int]]) -> list[tuple[float, ...]]:
        """Return, for each row, the logprobs of all tokens except the first."""
        data = [_datum(ids, weights=[1.0] * (len(ids) - 1)) for ids in token_ids]
        output = await self._reask(lambda: self._train("score trajectories", model, "forward", data, "cross_entropy"))
        return [
            _floats(one["logprobs"], len(ids) - 1) for one, ids in zip(output.loss_fn_outputs, token_ids, strict=True)
        ]

    async def forward_backward(self, model: Model, rows: Sequence[ScoredRow], scale: Callable[[int], float]) -> None:
        """Accumulate Σ gradient · ∇logprob over all rows and scored tokens.

        The importance-sampling loss at a ratio of 1 is linear in the logprobs, and the advantage is its slope.
        `scale(n)` is the factor that undoes the backend's averaging for a row with n scored tokens.
        """
        data = [
            _datum(
                row.token_ids,
                weights=[float(scored) for scored in row.scored],
                logprobs=row.logprobs,
                advantages=[-gradient * scale(sum(row.scored)) for gradient in row.gradients],
            )
            for row in rows
        ]
        await self._train("compute gradients", model, "forward_backward", data, "importance_sampling")

    async def optim_step(self, model: Model, step: AdamStep) -> dict[str, float]:
        """Take one Adam step with the accumulated gradients. Return the server's metrics."""
        adam = types.AdamParams(
            learning_rate=step.learning_rate, beta1=0.9, beta2=0.999, eps=step.eps, weight_decay=0.0
        )
        output = await self._train("take an optimizer step", model, "optim_step", adam)
        return dict(output.metrics or {})

    async def save_state(self, model: Model, name: str) -> str:
        """Save the weights and the optimizer under a new name. Return their path."""
        return (await self._train(f"save {name}", model, "save_state", name)).path

    async def load_state(self, model: Model, path: str) -> None:
        await self._train(f"load {path}", model, "load_state_with_optimizer", path)

    async def save_for_sampler(self, model: Model, name: str) -> str:
        """Save the weights under a new name, for sampling or for download. Return their path."""
        return (await self._train(f"save {name} for the sampler", model, "save_weights_for_sampler", name)).path

    async def hand_to_sampler(self, model: Model) -> str:
        """Make the current weights available for sampling. Only the JAX backend writes them to a file for this.

        Returns the id of the session that samples from these weights.
        """
        # The public method waits forever.
        return await self._train("pass weights to the sampler", model, "_save_weights_for_sampler_impl", None, None)

    async def open_sampler(self, session: str) -> Any:
        """Open a sampling client for a session that `hand_to_sampler` returned."""
        sampler, holder = tinker.SamplingClient, self._service.holder
        return await self._wait("open a sampler", lambda: sampler.create(holder, sampling_session_id=session))

    async def sample(
        self,
        sampler: Any,
        prompt_ids: Sequence[int],
        *,
        max_tokens: int,
        stop: Sequence[int] | Sequence[str],
        temperature: float,
        seed: int,
    ) -> Drawn:
        """Sample one turn. It ends at any of `stop`: all token ids or all strings, as the server rejects a mixture."""
        parameters = types.SamplingParams(
            max_tokens=max_tokens,
            seed=seed,
            stop=cast("list[int] | list[str]", list(stop)),
            temperature=temperature,
            top_k=-1,
            top_p=1.0,
        )
        prompt = types.ModelInput.from_ints(list(prompt_ids))

        def ask() -> Any:
            # Not the public method, because it retries failures.
            drawing = sampler._sample_async_impl(prompt, 1, parameters, include_prompt_logprobs=False)
            return sampler.holder.run_coroutine_threadsafe(drawing)

        answer = await self._reask(lambda: self._wait("sample a turn", ask))
        (sequence,) = answer.sequences
        return Drawn(
            token_ids=tuple(sequence.tokens),
            logprobs=tuple(sequence.logprobs or ()),
            stopped=sequence.stop_reason == "stop",
        )

    async def download(self, path: str) -> bytes:
        """Download weights that `save_for_sampler` saved, as an archive."""
        run, _, checkpoint = path.removeprefix("tinker://").partition("/")
        rest = self._service.create_rest_client()
        where = await self._wait(f"find {path}", lambda: rest._get_checkpoint_archive_url_submit(run, checkpoint))
        try:
            # A URL of another host is signed, and that host must not get the key.
            headers = {KEY_HEADER: self._key} if where.url.startswith(f"{self._url.rstrip('/')}/") else {}
            async with httpx2.AsyncClient(timeout=self._deadline_s, follow_redirects=True) as http:
                answer = await http.get(where.url, headers=headers)
                answer.raise_for_status()
        except httpx2.HTTPError as error:
            raise self._lost(f"send {path}", f"{type(error).__name__} {error}") from error
        return answer.content

    async def _reask(self, asking: Callable[[], Awaitable[Any]]) -> Any:
        """Send a request that changes nothing. Repeat it if the connection broke, as idle connections may."""
        for _ in range(_CONNECTIONS - 1):
            try:
                return await asking()
            except EngineLostError as error:
                if not isinstance(error.__cause__, tinker.APIConnectionError):
                    raise
        return await asking()

    async def _train(self, what: str, model: Model, method: str, *arguments: Any) -> Any:
        return await self._wait(what, lambda: getattr(model, method)(*arguments))

    async def _wait(self, what: str, ask: Callable[[], Any]) -> Any:
        """Send a request. Wait for the response, the server's end or the deadline, whichever comes first."""
        gone = asyncio.ensure_future(self._ended())
        answer: asyncio.Future[Any] | None = None
        try:
            # In a thread: the SDK waits for locks and for its own thread before it returns a future.
            asked = await asyncio.to_thread(ask)
            answer = asyncio.ensure_future(_result(asked))
            done, _ = await asyncio.wait((answer, gone), timeout=self._deadline_s, return_when=asyncio.FIRST_COMPLETED)
            if answer in done:
                return answer.result()
            why = "the server ended" if gone in done else f"no response within {self._deadline_s:g} s"
            raise self._lost(what, why)
        except _FAILURES as error:
            raise self._failed(what, error) from error
        finally:
            gone.cancel()
            if answer is not None:
                answer.cancel()
            await asyncio.gather(*(one for one in (gone, answer) if one is not None), return_exceptions=True)

    def _failed(self, what: str, error: Exception) -> Exception:
        told = SECRETS.redact(f"{type(error).__name__}: {str(error)[:500]}")
        status = getattr(error, "status_code", None)
        if status in (401, 403):
            return UnfitEngineError(f"{self._url} refused to {what} ({told})", fix="check the key in TINKER_API_KEY")
        if "rank" in told and "must be between" in told:
            return UnfitEngineError(
                f"{self._url} refused to {what} ({told})",
                fix="lower learner.lora_rank, or raise max_lora_rank on the server",
            )
        if "Maximum number of LoRA adapters" in told:
            return UnfitEngineError(
                f"{self._url} has no room for another adapter ({told})",
                fix="raise max_lora_adapters on the server, or end runs that have adapters on the server",
            )
        return self._lost(what, told)

    def _lost(self, what: str, why: str) -> EngineLostError:
        return EngineLostError(
            f"the server at {self._url} failed to {what}: {why}",
            fix="read the server's log (logs/skyrl.log in the run's folder, if mcprl started the server)",
        )


class _SingleAttempts(InternalClientHolder):
    """The SDK's connection without its silent retries."""

    async def execute_with_retries(self, func: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        return await func(*args, **kwargs)


async def _result(asked: Any) -> Any:
    if isinstance(asked, Future):
        return await asyncio.wrap_future(cast("Future[Any]", asked))
    return await asked.result_async()


def _datum(token_ids: Sequence[int], **columns: Sequence[float]) -> types.Datum:
    """Make a datum of the Tinker API. Each input token predicts the next one, so the last token is not an input."""
    *inputs, _ = token_ids
    targets = types.TensorData(data=list(token_ids[1:]), dtype="int64", shape=[len(inputs)])
    more = {name: types.TensorData(data=list(c), dtype="float32", shape=[len(inputs)]) for name, c in columns.items()}
    return types.Datum(
        model_input=types.ModelInput.from_ints(inputs), loss_fn_inputs={"target_tokens": targets, **more}
    )


def _floats(data: Any, length: int) -> tuple[float, ...]:
    """Return the first `length` values. The rest is padding, because servers may pad all rows to the same length."""
    return tuple(float(value) for value in data.data[:length])

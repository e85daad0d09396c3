"""The interface of samplers. A sampler takes token ids, returns sampled ids with logprobs, and accepts new weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from mcprl.errors import MissingLogprobError
from mcprl.records import FinishReason, Weights

__all__ = ["AlwaysOpen", "Completion", "Receiver", "SampleRequest", "Sampler", "ScriptedSampler"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """One turn to sample from the model's distribution at `temperature`, without top-p, top-k or penalties.

    With a `grammar` (a structural tag), the distribution is renormalized over the tokens that the grammar allows.
    """

    prompt_ids: tuple[int, ...]
    max_tokens: int
    temperature: float
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    seed: int
    grammar: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A sampled turn. `logprobs[i]` is the logprob of `token_ids[i]` under the distribution that it was sampled from.

    `weights_versions[i]` is the version of the weights that sampled it. A turn has several versions if weights are
    replaced while it is being sampled.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: FinishReason
    weights_versions: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.token_ids or len(self.logprobs) != len(self.token_ids):
            raise MissingLogprobError(
                f"the sampler returned {len(self.token_ids)} tokens and {len(self.logprobs)} logprobs",
                fix="use a sampler that returns the logprob of every sampled token",
            )
        if len(self.weights_versions) != len(self.token_ids):
            raise ValueError("a completion needs a weights version for each token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """A vLLM server with `workers` worker processes that receives weights from the learner.

    Receiver(socket=Path("/tmp/mcprl-x1/vllm.sock"), backend="nccl", workers=1)
    """

    socket: Path
    backend: str
    workers: int

    def receive(self, model: Any, tensors: Callable[[], Iterator[Any]], *, device: Any, dtype: Any, rank: int) -> None:
        """Receive the parameters of a model. `tensors` yields (name, full tensor). Each learner process calls this.

        Raises SamplerLostError if the server fails. The server may then mix old and new layers, and must be killed.
        """
        from mcprl.samplers.vllm_transfer import Source, send_weights

        send_weights(self, Source(model, tensors, device, dtype), rank=rank)


class Sampler(AbstractAsyncContextManager["Sampler"], Protocol):
    """An engine that runs inside its `async with` block. On exit, all of its processes are stopped."""

    @property
    def restarts(self) -> int:
        """Return how often the engine was restarted."""
        ...

    async def sample(self, request: SampleRequest) -> Completion:
        """Sample one turn. Raises SamplerLostError if the engine fails."""
        ...

    async def publish(self, weights: Weights) -> Weights:
        """Use `weights` from the next request on. Returns the weights once they are in use."""
        ...


class AlwaysOpen:
    """Base class of samplers that have nothing to start or stop."""

    restarts = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


class ScriptedSampler(AlwaysOpen):
    """Returns the ids from `script` instead of sampling. All ids have the same logprob. Ignores grammars."""

    def __init__(self, script: Callable[[SampleRequest], tuple[int, ...]], *, logprob: float = -0.5) -> None:
        self._script = script
        self._logprob = logprob
        self._weights = Weights(version=0)

    async def sample(self, request: SampleRequest) -> Completion:
        ids = self._script(request)
        cut = len(ids) > request.max_tokens
        ids = ids[: request.max_tokens]
        return Completion(
            token_ids=ids,
            logprobs=(self._logprob,) * len(ids),
            finish=FinishReason.LENGTH if cut else FinishReason.STOP,
            weights_versions=(self._weights.version,) * len(ids),
        )

    async def publish(self, weights: Weights) -> Weights:
        self._weights = weights
        return weights

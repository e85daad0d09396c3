"""The interface of samplers: ids in, ids and their sampling-time logprobs out, and new weights on demand."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, Self

from mcprl.errors import MissingLogprobError
from mcprl.records import FinishReason, Weights

__all__ = ["AlwaysOpen", "Completion", "SampleRequest", "Sampler", "ScriptedSampler"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """One turn to sample. The distribution is the model's at `temperature`: no top-p, no top-k, no penalty.

    With a `grammar` (a structural tag), it is renormalised over the tokens that the grammar admits.
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
    """A sampled turn. `logprobs[i]` is that of `token_ids[i]` under the distribution it was drawn from.

    `weights_versions[i]` is the version that drew it. If weights are replaced during a turn, its tokens have several.
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
            raise ValueError("a completion needs a weights version for each of its tokens")


class Sampler(AbstractAsyncContextManager["Sampler"], Protocol):
    """Runs while entered. On exit, nothing of it remains."""

    @property
    def restarts(self) -> int:
        """How often its engine was restarted."""
        ...

    async def sample(self, request: SampleRequest) -> Completion:
        """Sample one turn. Raises SamplerLostError if the engine failed."""
        ...

    async def publish(self, weights: Weights) -> Weights:
        """Sample from `weights` from the next request on. Returns them once they are in use."""
        ...


class AlwaysOpen:
    """For samplers with nothing to start or stop."""

    restarts = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


class ScriptedSampler(AlwaysOpen):
    """Answers each request with the ids that `script` returns for it, each with the same logprob. Ignores grammars."""

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

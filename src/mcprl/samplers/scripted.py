"""A sampler that says what it is told, for tests of environments and for worked examples. It learns nothing."""

from __future__ import annotations

from collections.abc import Callable

from mcprl.records import FinishReason, Weights
from mcprl.samplers.sampler import AlwaysOpen, Completion, SampleRequest

__all__ = ["ScriptedSampler"]


class ScriptedSampler(AlwaysOpen):
    """Answers each request with the ids that `script` returns for it, each with the same logprob.

    A request's grammar is ignored: whether a scripted turn keeps to one is up to the script.
    """

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

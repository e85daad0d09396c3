"""Samples with the SkyRL engine, which the learner uses too."""

from __future__ import annotations

from mcprl.errors import EngineLostError, SamplerLostError, UnfitEngineError
from mcprl.records import FinishReason, Weights
from mcprl.samplers.sampler import AlwaysOpen, Completion, SampleRequest
from mcprl.skyrl.engine import SkyrlEngine


class SkyrlSampler(AlwaysOpen):
    """Samples turns with an open engine. The caller closes the engine.

    If the server dies, its turns are sampled again from the same weights and seeds.
    """

    def __init__(self, engine: SkyrlEngine) -> None:
        self._engine = engine

    async def sample(self, request: SampleRequest) -> Completion:
        if request.temperature != 1.0 or request.stop or request.grammar is not None:
            raise ValueError(
                "this sampler supports only temperature 1 and stop ids; the recipe check should have rejected other "
                "settings"
            )
        try:
            drawn, version = await self._engine.attempt(
                lambda: self._engine.sample(
                    request.prompt_ids,
                    max_tokens=request.max_tokens,
                    stop_token_ids=request.stop_token_ids,
                    seed=request.seed,
                )
            )
        except EngineLostError as error:
            raise SamplerLostError(error.what, fix=error.fix) from error
        return Completion(
            token_ids=drawn.token_ids,
            logprobs=drawn.logprobs,
            finish=FinishReason.STOP if drawn.stopped else FinishReason.LENGTH,
            weights_versions=(version,) * len(drawn.token_ids),
        )

    async def publish(self, weights: Weights) -> Weights:
        if weights.adapter is not None:
            raise UnfitEngineError(
                f"the server can sample only from weights that it saved itself, not from {weights.adapter}",
                fix="use the adapter with another engine: --set engine=transformers",
            )
        await self._engine.attempt(lambda: self._engine.publish(weights.version))
        return weights

"""Samples with the SkyRL engine, which the learner uses too."""

from __future__ import annotations

from functools import cached_property
from typing import Any, cast

from mcprl.errors import EngineLostError, SamplerLostError, UnfitEngineError
from mcprl.records import FinishReason, Weights
from mcprl.samplers.sampler import AlwaysOpen, Completion, SampleRequest
from mcprl.skyrl.engine import SkyrlEngine


class SkyrlSampler(AlwaysOpen):
    """Samples turns with an open engine. The caller closes the engine.

    If the server dies, its turns are sampled again from the same weights and seeds. The tokenizer of `model` is
    loaded only for requests with stop strings: the API takes either stop ids or stop strings, so stop ids are decoded.
    """

    def __init__(self, engine: SkyrlEngine, *, model: str) -> None:
        self._engine = engine
        self._model = model

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return cast("Any", AutoTokenizer.from_pretrained(self._model))  # pyright: ignore[reportUnknownMemberType]

    async def sample(self, request: SampleRequest) -> Completion:
        if request.grammar is not None:
            raise ValueError("this sampler does not support grammars; the recipe check should have rejected them")
        ids = request.stop_token_ids
        stop = [*request.stop, *map(self._tokenizer.decode, ids)] if request.stop else list(ids)
        try:
            drawn, version = await self._engine.attempt(
                lambda: self._engine.sample(
                    request.prompt_ids,
                    max_tokens=request.max_tokens,
                    stop=stop,
                    temperature=request.temperature,
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

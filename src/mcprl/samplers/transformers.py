"""Samples with plain transformers: for machines without vLLM, and as a reference that depends only on the seed.

Turns are sampled one at a time, each with its own generator, so the result does not depend on concurrency.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from mcprl.config import ModelConfig
from mcprl.errors import BadValueError, SamplerLostError
from mcprl.records import FinishReason, Weights
from mcprl.samplers.model_folder import check_files, differing_settings
from mcprl.samplers.sampler import Completion, SampleRequest

if TYPE_CHECKING:
    # For types only: this module imports the grammar compiler, which unconstrained turns do not need.
    from mcprl.grammar.masks import Grammars

# Stop texts are searched for in the last tokens, up to this many. No sensible stop text is longer.
_STOP_WINDOW_TOKENS = 32


class TransformersSampler:
    """Samples in this process, on a GPU if there is one. Requests with a grammar need the model's `grammars`."""

    restarts = 0  # the model is in this process

    def __init__(self, model: ModelConfig, grammars: Grammars | None = None) -> None:
        self._config = model
        self._grammars = grammars
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._weights = Weights(version=0)
        self._one_at_a_time = asyncio.Lock()
        self._model: Any = None
        self._tokenizer: Any = None

    async def __aenter__(self) -> TransformersSampler:
        await asyncio.to_thread(self._load)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._model = self._tokenizer = None

    async def sample(self, request: SampleRequest) -> Completion:
        async with self._one_at_a_time:
            return await asyncio.to_thread(self._sample, request)

    async def publish(self, weights: Weights) -> Weights:
        async with self._one_at_a_time:
            await asyncio.to_thread(self._put_in_force, weights)
        return weights

    def _load(self) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(self._config.path)  # pyright: ignore[reportUnknownMemberType]
        self._model = self._read_model(self._config.path)

    def _read_model(self, location: str) -> Any:
        dtype = getattr(torch, self._config.dtype)
        read = cast(Any, AutoModelForCausalLM).from_pretrained
        try:
            model, found = read(location, dtype=dtype, output_loading_info=True)
        except RuntimeError as error:  # tensors whose shapes differ from those of the model
            raise SamplerLostError(
                f"{location} cannot be loaded: {error}", fix="restart the run with a complete model"
            ) from error
        missing = sorted(found["missing_keys"])
        if missing:
            # transformers has initialized them randomly.
            raise SamplerLostError(
                f"{location} is missing weights of the model, for example {', '.join(missing[:3])}",
                fix="write all weights to the folder, and restart from the last checkpoint",
            )
        return model.to(self._device).eval()

    def _put_in_force(self, weights: Weights) -> None:
        if weights.model is not None:
            self._check_same_model(weights.model)
        if isinstance(self._model, PeftModel):
            self._model = self._model.unload()  # pyright: ignore[reportUnknownMemberType]
        if weights.model is not None or self._weights.model is not None:
            self._model = None  # frees the old weights first, because memory may not suffice for both
            self._model = self._read_model(str(weights.model or self._config.path))
        if weights.adapter is not None:
            # PEFT initializes the adapter randomly before it loads the weights. This must not advance the learner's
            # generator.
            devices = [self._device] if self._device.type == "cuda" else []
            try:
                with torch.random.fork_rng(devices):  # pyright: ignore[reportUnknownMemberType]
                    self._model = PeftModel.from_pretrained(self._model, str(weights.adapter)).eval()  # pyright: ignore[reportUnknownMemberType]
            except RuntimeError as error:  # tensors whose shapes differ from those of the model
                self._model = None  # by now the model has adapter layers
                raise BadValueError(
                    f"{weights.adapter} does not match {self._config.path}: {str(error).splitlines()[-1].strip()}",
                    fix="set model.path to the model that the adapter was trained on",
                ) from error
        self._weights = weights

    def _check_same_model(self, folder: Path) -> None:
        check_files(folder)
        read = cast(Any, AutoConfig).from_pretrained
        differences = differing_settings(read(self._config.path).to_dict(), read(folder).to_dict())
        if differences:
            raise BadValueError(
                f"{folder} contains a different model than {self._config.path}: {'; '.join(differences)}",
                fix="use weights of the model that model.path names",
            )

    @torch.inference_mode()
    def _sample(self, request: SampleRequest) -> Completion:
        if self._model is None:
            raise SamplerLostError(
                "the sampler has no weights, because loading new weights failed partway",
                fix="restart from the last checkpoint",
            )
        matcher = None
        if request.grammar is not None:
            if self._grammars is None:
                raise ValueError("the request has a grammar, but the sampler has no grammars")
            matcher = self._grammars.start(request.grammar, request.stop_token_ids)
        generator = torch.Generator(self._device).manual_seed(request.seed)
        inputs = torch.tensor([request.prompt_ids], device=self._device)
        ids: list[int] = []
        logprobs: list[float] = []
        finish = FinishReason.LENGTH
        cache: Any = None
        while len(ids) < request.max_tokens and finish is FinishReason.LENGTH:
            output = self._model(input_ids=inputs, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            logit_V: Tensor = output.logits[0, -1].float() / request.temperature
            if matcher is not None:
                logit_V = matcher.admit_only(logit_V)
            logprob_V = torch.log_softmax(logit_V, dim=-1)
            token = int(torch.multinomial(logprob_V.exp(), 1, generator=generator))
            ids.append(token)
            logprobs.append(float(logprob_V[token]))
            if matcher is not None:
                matcher.accept(token)
            if token in request.stop_token_ids or self._ends_in_stop_text(ids, request.stop):
                finish = FinishReason.STOP
            inputs = torch.tensor([[token]], device=self._device)
        return Completion(
            token_ids=tuple(ids),
            logprobs=tuple(logprobs),
            finish=finish,
            weights_versions=(self._weights.version,) * len(ids),
        )

    def _ends_in_stop_text(self, ids: list[int], stop: tuple[str, ...]) -> bool:
        if not stop:
            return False
        tail = self._tokenizer.decode(ids[-_STOP_WINDOW_TOKENS:], skip_special_tokens=False)
        return any(text in tail for text in stop)

"""A random model never calls a tool. So the calls are put into its mouth, and scored by it as if it had sampled them.

Which turns are calls, and which call, is a function of the turn's own seed, as any other draw is.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch

from mcprl.records import FinishReason
from mcprl.samplers import Completion, SampleRequest
from mcprl.samplers.transformers import TransformersSampler

__all__ = ["calling_tools"]

_CALL = '<tool_call>\n{{"name": "ring", "arguments": {{"bell": "{bell}"}}}}\n</tool_call>'
_CALLS_IN_FOUR = 3


@contextmanager
def calling_tools() -> Generator[None]:
    """Inside, three turns of four that the transformers sampler gives are calls of the tool `ring`."""
    plain: Any = TransformersSampler._sample

    @torch.inference_mode()
    def sample(self: Any, request: SampleRequest) -> Completion:
        if request.seed % 4 >= _CALLS_IN_FOUR:
            return plain(self, request)
        text = _CALL.format(bell=("low", "high")[request.seed // 4 % 2])
        ids = [*self._tokenizer.encode(text, add_special_tokens=False), request.stop_token_ids[0]]
        logit_TV = self._model(input_ids=torch.tensor([[*request.prompt_ids, *ids]])).logits[0]
        logprob_TV = torch.log_softmax(logit_TV[len(request.prompt_ids) - 1 : -1].float() / request.temperature, dim=-1)
        return Completion(
            token_ids=tuple(ids),
            logprobs=tuple(float(logprob_V[token]) for logprob_V, token in zip(logprob_TV, ids, strict=True)),
            finish=FinishReason.STOP,
            weights_versions=(self._weights.version,) * len(ids),
        )

    setattr(TransformersSampler, "_sample", sample)  # noqa: B010
    try:
        yield
    finally:
        setattr(TransformersSampler, "_sample", plain)  # noqa: B010

"""The policy as the learner holds it: a causal language model, its head asked for single tokens, and a value head."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mcprl.learners.lessons import Pack
from mcprl.learners.token_scores import TokenScorer

__all__ = ["Policy", "Scores"]


class Scores(NamedTuple):
    """What the policy says of each scored token: its logprob, the entropy where it stands, the value before it.

    `value_N` is None without a value head.
    """

    logprob_N: Tensor
    entropy_N: Tensor
    value_N: Tensor | None


class Policy(nn.Module):
    """Scores the tokens of a pack under the distribution that each was sampled from.

    That is the model's at the temperature of sampling, renormalised over the tokens that the grammar admitted. Only
    hidden states before a token to score reach the head. `model` is a causal language model of transformers, or a
    PeftModel around one.
    """

    def __init__(
        self, model: Any, *, critic: bool, entropy_gradient: bool, autocast: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.model = model
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._trunk = [base.base_model]  # in a list: registered once only, as a part of the model
        self.scorer = TokenScorer(base.get_output_embeddings().weight, entropy_gradient=entropy_gradient)
        self.value_head = nn.Linear(base.config.hidden_size, 1, dtype=torch.float32) if critic else None
        if self.value_head is not None:
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)
        self._autocast = autocast

    @property
    def trunk(self) -> Any:
        """The model without its head."""
        return self._trunk[0]

    def forward(self, pack: Pack) -> Scores:
        layout = pack.layout
        # Only a tree's attention takes a tree; a model's own would not know the word.
        more = {} if layout.tree is None else {"tree": layout.tree, "position_ids": layout.position_BT}
        with self._computing_in(layout.token_id_BT.device):
            output = self.trunk(input_ids=layout.token_id_BT, use_cache=False, **more)
        hidden_XD: Tensor = output.last_hidden_state.flatten(0, 1)
        hidden_ND = hidden_XD[pack.before_N]
        if self._autocast is not None:
            hidden_ND = hidden_ND.to(self._autocast)
        logprob_N, entropy_N = self.scorer(hidden_ND, pack.targets)
        value_N = None
        if self.value_head is not None:
            value_N = self.value_head(hidden_ND.float()).squeeze(1)
        return Scores(logprob_N, entropy_N, value_N)

    def _computing_in(self, device: torch.device) -> AbstractContextManager[Any]:
        return nullcontext() if self._autocast is None else torch.autocast(device.type, dtype=self._autocast)

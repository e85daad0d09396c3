"""The policy as the learner holds it: a causal language model with a LoRA adapter, and its logprobs of given tokens."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from mcprl.algorithms import inadmissible_tokens
from mcprl.config import LearnerConfig, ModelConfig
from mcprl.learners.rows import Rows

__all__ = ["load_policy", "save_adapter", "token_logprobs"]


def load_policy(model: ModelConfig, learner: LearnerConfig, *, seed: int, device: torch.device) -> Any:
    """The base model, frozen, with a new adapter on every linear layer. The adapter starts as the identity."""
    transformers_logging.disable_progress_bar()  # it would tear the run's own display
    torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]
    base: Any = AutoModelForCausalLM.from_pretrained(model.path, dtype=getattr(torch, model.dtype))  # pyright: ignore[reportUnknownMemberType]
    adapter = LoraConfig(
        r=learner.lora_rank,
        lora_alpha=learner.lora_alpha,
        lora_dropout=0.0,  # dropout would make the learner's logprobs differ from the sampler's
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    return get_peft_model(base.to(device), adapter)


def token_logprobs(policy: Any, rows: Rows) -> Tensor:
    """Logprob of each token of the rows under the distribution that it was sampled from.

    That is the policy's at the temperature of sampling, renormalised over the tokens that the grammar admitted. Only
    positions before a token to score reach the head: for the rest no logits are ever computed.
    """
    before_N = rows.position_N - 1
    kept_K = cast("Tensor", before_N.unique())  # sorted  # pyright: ignore[reportUnknownMemberType]
    place_N = torch.searchsorted(kept_K, before_N)
    logit_BKV: Tensor = policy(input_ids=rows.token_id_BT, logits_to_keep=kept_K, use_cache=False).logits
    logit_NV = logit_BKV[rows.row_N, place_N].float() / rows.temperature_N[:, None]
    if rows.admissible_NW is not None:
        logit_NV.masked_fill_(inadmissible_tokens(rows.admissible_NW, logit_NV.shape[1]), -torch.inf)
    chosen_N = logit_NV.gather(1, rows.target_id_N[:, None]).squeeze(1)
    return chosen_N - torch.logsumexp(logit_NV, dim=1)


def save_adapter(policy: Any, folder: Path) -> Path:
    """Write the adapter so that `folder` is either absent or whole."""
    partial = folder.with_name(f"{folder.name}.partial")
    if partial.exists():
        shutil.rmtree(partial)
    policy.save_pretrained(partial)
    partial.rename(folder)
    return folder

"""The policy of the pipeline's bench: it writes calls and turns any key as soon as another."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from transformers import LlamaConfig, LlamaForCausalLM

from mcprl.config import RunConfig
from pipelining.vaults import KEYS, VAULTS, lessons

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))

import taught_policy

__all__ = ["make_policy"]


async def make_policy(folder: Path, config: RunConfig) -> None:
    """Write model and tokenizer to `folder`, which is the path of the configuration's model."""
    course = taught_policy.Course(
        lessons=lessons(),
        words=(*KEYS, *VAULTS),
        pieces=512,
        architecture=_llama,
        terms=(taught_policy.Term(steps=100),),
    )
    await taught_policy.make_policy(folder, config, course)


def _llama(num_tokens: int, _tokenizer: Any) -> Any:
    """Large enough that an update takes about as long as the tools do."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=num_tokens,
            hidden_size=384,
            intermediate_size=1152,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=1024,
            bos_token_id=None,
            eos_token_id=None,
        )
    )

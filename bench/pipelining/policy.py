"""A small policy that knows how calls are written and nothing else: a random model, taught by demonstrations.

Its vocabulary is made of the conversations themselves, so a call is a handful of tokens and the sampler costs little:
what takes time in a step is the tool and the update.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from mcprl.chat import load_chat
from mcprl.config import RunConfig
from mcprl.episodes import Demonstrator
from mcprl.records import Trajectory
from mcprl.tools import open_toolbox
from pipelining.vaults import KEYS, VAULTS, lessons

__all__ = ["make_policy"]

_MARKERS = ("<|im_start|>", "<|im_end|>")
_VOCABULARY = 512
_LESSON_STEPS, _LESSONS_A_STEP = 100, 8


async def make_policy(folder: Path, config: RunConfig) -> None:
    """Write model and tokenizer to `folder`, which is the path of the configuration's model."""
    transformers_logging.disable_progress_bar()
    roomy = config.model_copy(
        update={
            "model": config.model.model_copy(update={"context_tokens": 4096}),
            "sampling": config.sampling.model_copy(update={"max_tokens": 512}),
        }
    )
    async with open_toolbox(config.servers, log_dir=folder) as toolbox:

        async def demonstrate() -> tuple[list[Trajectory], list[str]]:
            chat = load_chat(config.model.path, config.model.renderer)
            demonstrator = Demonstrator(roomy, chat=chat, leases=toolbox, preamble=(), grammars=None)
            played = await demonstrator.play(lessons(), 0)
            return list(played), [chat.decode(trajectory.token_ids) for trajectory in played]

        _write_tokenizer(folder, ())  # single bytes, for a first look at how conversations are written
        _, texts = await demonstrate()
        _write_tokenizer(folder, texts)
        played, _ = await demonstrate()
    model = _taught_model(played)
    model.save_pretrained(folder)


def _write_tokenizer(folder: Path, texts: tuple[str, ...] | list[str]) -> None:
    """Bytes, and the pieces that these texts have in common, however long; names and keys are tokens of their own."""
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words.decoder = decoders.ByteLevel()
    apart = [AddedToken(text, special=True, normalized=False) for text in _MARKERS]
    apart += [AddedToken(text, special=False, normalized=False) for text in (*KEYS, *VAULTS)]
    pieces = texts
    for text in (*_MARKERS, *KEYS, *VAULTS):
        pieces = [piece for whole in pieces for piece in whole.split(text)]
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    words.train_from_iterator([piece for piece in pieces if piece], trainer)
    words.add_tokens(apart)
    PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<|im_end|>", clean_up_tokenization_spaces=False
    ).save_pretrained(folder)


def _taught_model(demonstrations: list[Trajectory]) -> Any:
    """A random model after some steps of imitation: it writes calls and answers, with any key as likely as another."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=_VOCABULARY + len((*_MARKERS, *KEYS, *VAULTS)),
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
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    length = max(len(d.token_ids) for d in demonstrations)
    ids_BT = torch.tensor([[*d.token_ids, *[0] * (length - len(d.token_ids))] for d in demonstrations])
    said_BT = torch.tensor([[*d.sampled, *[False] * (length - len(d.sampled))] for d in demonstrations])
    label_BT = ids_BT.masked_fill(~said_BT, -100)
    for _ in range(_LESSON_STEPS):
        chosen = torch.randperm(len(demonstrations))[:_LESSONS_A_STEP]
        loss = model(input_ids=ids_BT[chosen], labels=label_BT[chosen]).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model

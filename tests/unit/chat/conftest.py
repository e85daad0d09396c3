"""The tokenizers of the two test models. They load in a second; the weights are never touched."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from mcprl.chat import Chat, load_chat
from mcprl.chat.chatml import ChatmlRenderer


@pytest.fixture(scope="session")
def smol_tokenizer(smollm2):
    return AutoTokenizer.from_pretrained(smollm2)


@pytest.fixture(scope="session")
def qwen_tokenizer(tiny_qwen3):
    return AutoTokenizer.from_pretrained(tiny_qwen3)


@pytest.fixture(scope="session")
def chatml(smol_tokenizer) -> ChatmlRenderer:
    return ChatmlRenderer(smol_tokenizer)


@pytest.fixture(scope="session")
def smol_chat(smollm2) -> Chat:
    return load_chat(str(smollm2), "chatml")


@pytest.fixture(scope="session")
def qwen_chat(tiny_qwen3) -> Chat:
    return load_chat(str(tiny_qwen3), "qwen3")

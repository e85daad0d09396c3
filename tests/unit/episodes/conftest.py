"""The chat of the tiny model, loaded once."""

from __future__ import annotations

import pytest

from mcprl.chat import Chat, load_chat


@pytest.fixture(scope="session")
def chat(tiny_qwen3) -> Chat:
    return load_chat(str(tiny_qwen3), "chatml")


@pytest.fixture(scope="session")
def encode(chat):
    """Text to ids as the model would emit them, special tokens included."""
    return lambda text: chat.tokenizer.encode(text, add_special_tokens=False)

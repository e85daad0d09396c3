"""The tokenizers of the two test models, and chats of many families. The weights are never touched."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from family_tokenizers import FAMILIES, TEMPLATE, write_tokenizer

from mcprl.chat import Chat, load_chat
from mcprl.chat.loading import ChatmlRenderer


@pytest.fixture(scope="session")
def smol_chat(smollm2) -> Chat:
    return load_chat(str(smollm2), "chatml")


@pytest.fixture(scope="session")
def qwen_chat(tiny_qwen3) -> Chat:
    return load_chat(str(tiny_qwen3), "qwen3")


@pytest.fixture(scope="session")
def smol_tokenizer(smol_chat):
    return smol_chat.tokenizer


@pytest.fixture(scope="session")
def qwen_tokenizer(qwen_chat):
    return qwen_chat.tokenizer


@pytest.fixture(scope="session")
def chatml(smol_tokenizer) -> ChatmlRenderer:
    return ChatmlRenderer(smol_tokenizer)


@pytest.fixture(scope="session")
def family_folder(tiny_qwen3, tmp_path_factory) -> Callable[[str], str]:
    """The folder of a family's tokenizer. Families with the same markers share one."""
    folders = tmp_path_factory.mktemp("tokenizers")
    written: dict[object, str] = {}

    def folder_of(family: str) -> str:
        markers = FAMILIES[family]
        if markers not in written:
            written[markers] = str(write_tokenizer(markers, tiny_qwen3, folders / family, template=TEMPLATE))
        return written[markers]

    return folder_of


@pytest.fixture(scope="session")
def chat_of(family_folder) -> Callable[[str], Chat]:
    """The chat of a family, thinking as the family does."""
    loaded: dict[str, Chat] = {}

    def chat_of_family(family: str) -> Chat:
        if family not in loaded:
            loaded[family] = load_chat(family_folder(family), family)
        return loaded[family]

    return chat_of_family

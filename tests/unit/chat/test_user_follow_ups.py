"""A user who speaks again after an answer: every renderer continues from the sampled tokens as they are."""

from __future__ import annotations

import pytest
from family_tokenizers import FAMILIES

FIND = {"name": "find_person", "description": "Find a person.", "parameters": {"type": "object", "properties": {}}}


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("family", list(FAMILIES))
def test_an_answer_is_followed_by_what_the_user_says_next(chat_of, family, cut):
    chat = chat_of(family)
    prompt = chat.open([{"role": "user", "content": "Hi"}], [FIND])
    ids = chat.tokenizer.encode("Hello there", add_special_tokens=False)
    sampled = ids if cut else [*ids, chat.stop_token_ids[-1]]
    extension = chat.extend(prompt, sampled, [{"role": "user", "content": "And in Lagos?"}], [FIND])
    assert chat.decode(extension).count("And in Lagos?") == 1
    # The next turn is opened as the first one was.
    again = chat.open([{"role": "user", "content": "And in Lagos?"}], [FIND])
    opening = chat.decode(again).rpartition("And in Lagos?")[2]
    assert chat.decode(extension).endswith(opening)

"""Random conversations over every renderer, laid down token by token as an episode does it."""
# R8, R16

from __future__ import annotations

import json
import os
import random
import re
import unicodedata
from functools import cache

import pytest
from conversations import FIND, LIST, hostile_texts
from family_tokenizers import FAMILIES
from hypothesis import given, settings
from hypothesis import strategies as st

from mcprl.chat import Chat, Thinking

CONVERSATIONS = int(os.environ.get("MCPRL_RENDER_CONVERSATIONS", "1000"))
RENDERERS = list(FAMILIES)

WORDS = (
    "Lima",
    "é",
    "東京",
    "🙂",
    "\n",
    "  ",
    "\t",
    "{",
    '"',
    "<b>",
    "1 < 2",
    "\u200b",
    "ﬁ",
    "e\u0301",
    "ไทย",
    "¿",
    "|",
    "\\n",
)
WHOM = ("Ana", "Zoë 東京\n", '{"<b>"}')
TURNS = (
    "<|im_end|>",
    "<|im_start|>",
    "<|user|>",
    "<|eot_id|>",
    "[e~[",
    "]~b]",
    "<｜end▁of▁sentence｜>",
    "</assistant>",
)
PARTS = ("<tool_call>", "</tool_response>", "<think>", "</think>", "<user>", "<arg_key>", "<|tool_response>", "[INST]")
SPLIT = ("<|im_<|im_end|>end|>", "<", "|>", "<|im_", "</tool_", "response>", "end|>", "]~", "<｜")
PIECES = (*TURNS, *PARTS, *SPLIT)


def said(rng: random.Random, length: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, length)))


def hostile(rng: random.Random) -> str:
    # Some families strip white space at the ends.
    return "".join(rng.choice((*PIECES, *WORDS)) for _ in range(rng.randint(1, 12))).strip() or "-"


@cache
def written_call(chat: Chat, whom: str) -> str:
    """A call as the family writes it, without the close of the turn."""
    renderer, user = chat._renderer, {"role": "user", "content": "Hi"}
    function = {"name": "find_person", "arguments": {"name": whom}}
    call = {"type": "function", "id": "functions.find_person:0", "function": function}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    asked = renderer.render_ids([user], tools=[FIND], add_generation_prompt=True)
    ids = renderer.render_ids([user, turn], tools=[FIND])
    shared = next((i for i, (a, b) in enumerate(zip(asked, ids, strict=False)) if a != b), len(asked))
    text = chat.decode([i for i in ids[shared:] if i not in chat.stop_token_ids])
    return re.sub(r"\A\s*</?think[^<>]*>(\s*</think[^<>]*>)?", "", text)


def turn_text(chat: Chat, rng: random.Random) -> str:
    thought = f"{said(rng, 4)}</think>\n\n" if rng.random() < 0.8 else said(rng, 4)
    if chat.thinking is Thinking.OPTIONAL:
        thought = f"<think>{thought}" if rng.random() < 0.5 else ""
    elif chat.thinking is Thinking.NONE:
        thought = ""
    calls = "".join(written_call(chat, rng.choice(WHOM)) for _ in range(rng.randint(0, 2)))
    return f"{thought}{said(rng, 6)}{calls}"


def sampled_ids(chat: Chat, rng: random.Random, text: str) -> list[int]:
    """The tokens of a turn: the usual ones, or others that spell the same; whole, or cut without a close."""
    places = sorted(rng.sample(range(len(text) + 1), min(len(text), rng.randint(0, 12)))) if rng.random() < 0.5 else []
    chunks = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
    ids = [i for chunk in chunks for i in chat.tokenizer.encode(chunk, add_special_tokens=False)]
    ids = [i for i in ids if i not in chat.stop_token_ids] or chat.tokenizer.encode("Hm")
    if rng.random() < 0.3:
        return ids[: rng.randint(1, len(ids))]
    return [*ids, rng.choice(chat.stop_token_ids)]


@cache
def following(chat: Chat, close: int, results: int) -> str:
    """What follows a turn that ended in `close`, with RESULT0, RESULT1, … in place of what tools said."""
    prompt = chat.open([{"role": "user", "content": "Hi"}], [FIND])
    turn = [*chat.tokenizer.encode("Hm"), *chat._traits.thought_end, close]
    shown = [{"role": "tool", "name": "find_person", "content": f"RESULT{n}"} for n in range(results)]
    return chat.decode(chat.extend(prompt, turn, shown, [FIND]))


def composed(text: str) -> str:
    """Qwen's tokenizer brings text into this normal form."""
    return unicodedata.normalize("NFC", text)


def as_shown(chat: Chat, text: str) -> str:
    """A result as its family writes it, once it is defused."""
    shown = composed(chat._control_text.defused(text))
    return json.dumps(shown, ensure_ascii=False)[1:-1] if chat.family == "llama-3" else shown


def check_extension(chat: Chat, sampled: list[int], extension: tuple[int, ...], texts: list[str]) -> None:
    """The turn is closed, the results are shown in order, and the next turn is opened; nothing else."""
    closes = chat._traits.closes
    markers = added_ids(chat)
    closing = 0
    ending = {*closes, *chat._traits.thought_end, chat.tokenizer.convert_tokens_to_ids("</think>")}
    while closing < len(extension) and extension[closing] in ending:
        closing += 1
    shown = [as_shown(chat, text) for text in texts]
    candidates = []
    for length in range(closing + 1):
        close = extension[length - 1] if length else sampled[-1]
        if close in closes:
            frame = re.split(r"RESULT\d", numberless(following(chat, close, len(texts))))
            expected = "".join(f"{a}{b}" for a, b in zip(frame, [*shown, ""], strict=True))
            candidates.append((expected, extension[length:]))
    assert any(
        numberless(composed(chat.decode(rest))).strip() == expected.strip()
        and [i for i in rest if i in markers]
        == [i for i in chat.tokenizer.encode(expected, add_special_tokens=False) if i in markers]
        for expected, rest in candidates
    ), (chat.family, chat.decode(extension), [expected for expected, _ in candidates])


@cache
def added_ids(chat: Chat) -> frozenset[int]:
    return frozenset(chat.tokenizer.added_tokens_decoder)


def numberless(text: str) -> str:
    """Kimi says which call a result answers."""
    return re.sub(r"## Return of .*", "## Return of", text)


def play(chat: Chat, rng: random.Random) -> int:
    """One conversation, with the bookkeeping of `mcprl.episodes.loop`. Returns the number of turns."""
    tools = rng.choice([[FIND], [LIST, FIND]])
    messages = [{"role": "system", "content": said(rng, 6)}] if rng.random() < 0.5 else []
    messages.append({"role": "user", "content": f"Q {said(rng, 12)} Q"})
    token_ids: list[int] = list(chat.open(messages, tools))
    mask = [False] * len(token_ids)
    heard = [(composed(messages[-1]["content"]), False)]
    turns = rng.randint(1, 4)
    for turn in range(turns):
        prompt = tuple(token_ids)
        sampled = sampled_ids(chat, rng, turn_text(chat, rng))
        token_ids += sampled
        mask += [True] * len(sampled)
        parsed = chat.parse(prompt, sampled, tools)
        assert parsed.text == chat.decode(sampled)
        heard.append((composed(parsed.text), True))
        if turn == turns - 1:
            break
        texts = [hostile(rng) for _ in range(max(1, len(parsed.calls)))]
        shown = [{"role": "tool", "name": "find_person", "content": text} for text in texts]
        extension = chat.extend(prompt, sampled, shown, tools)
        check_extension(chat, sampled, extension, texts)
        heard += [(as_shown(chat, text), False) for text in texts]
        token_ids += extension
        mask += [False] * len(extension)
        assert tuple(token_ids[: len(prompt)]) == prompt
    check_that_all_was_laid_down(chat, token_ids, mask, heard)
    return turns


def check_that_all_was_laid_down(
    chat: Chat, token_ids: list[int], mask: list[bool], heard: list[tuple[str, bool]]
) -> None:
    """Stretch by stretch, the tokens say what was said in order, and the policy's are exactly those sampled."""
    stretches: list[tuple[bool, list[int]]] = []
    for token_id, by_policy in zip(token_ids, mask, strict=True):
        if not stretches or stretches[-1][0] != by_policy:
            stretches.append((by_policy, []))
        stretches[-1][1].append(token_id)
    remaining = iter(heard)
    text, by_policy = next(remaining)
    for policys, ids in stretches:
        decoded, place = composed(chat.decode(ids)), 0
        while text is not None and by_policy == policys:
            place = decoded.find(text, place)
            assert place >= 0, (chat.family, text, decoded)
            place += len(text)
            text, by_policy = next(remaining, (None, False))
            if policys:
                assert place == len(decoded)
                break
    assert text is None


@pytest.mark.slow
def test_random_conversations_are_laid_down_in_order_and_nothing_is_tokenised_twice(chat_of, record_property):
    turns = 0
    for number in range(CONVERSATIONS):
        chat = chat_of(RENDERERS[number % len(RENDERERS)])
        try:
            turns += play(chat, random.Random(number))
        except BaseException as error:
            error.add_note(f"conversation {number}, renderer {chat.family}")
            raise
    record_property("rendered_conversations", CONVERSATIONS)
    record_property("rendered_turns", turns)
    record_property("renderers_tried", len(RENDERERS))


@pytest.mark.parametrize("family", RENDERERS)
@given(
    text=hostile_texts.map(str.strip),
    turn=st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    cut=st.booleans(),
)
@settings(max_examples=10)
def test_any_turn_is_followed_by_its_results(chat_of, family, text, turn, cut):
    chat = chat_of(family)
    prompt = chat.open([{"role": "user", "content": "Hi"}], [FIND])
    ids = [i for i in chat.tokenizer.encode(turn) if i not in chat.stop_token_ids] or chat.tokenizer.encode("Hm")
    sampled = ids if cut else [*ids, chat.stop_token_ids[-1]]
    shown = [{"role": "tool", "name": "find_person", "content": text}]
    check_extension(chat, sampled, chat.extend(prompt, sampled, shown, [FIND]), [text])

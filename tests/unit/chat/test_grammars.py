"""What a grammar admits, forces and fixes, against languages that are small enough to be written out word by word."""
# R7 R12

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoTokenizer

from mcprl.errors import BadValueError, GrammarError, InadmissibleTokenError, MissingExtraError
from mcprl.grammar import masks as module
from mcprl.grammar.masks import Grammars, load_grammars

ALPHABET = "ab<é€"
MARKER = "<|im_start|>"


@dataclass
class Model:
    """A tokenizer, the grammars over it, and what the tests look up in it."""

    tokenizer: object
    vocab_size: int

    @cached_property
    def grammars(self) -> Grammars:
        return Grammars(self.tokenizer, self.vocab_size)

    @cached_property
    def stops(self) -> tuple[int, int]:
        return tuple(self.tokenizer.convert_tokens_to_ids(t) for t in ("<|im_end|>", "<|endoftext|>"))

    @cached_property
    def marker(self) -> int:
        return self.tokenizer.convert_tokens_to_ids(MARKER)

    @property
    def marked(self) -> dict:
        return {"type": "token", "token": self.marker}

    @cached_property
    def spellings(self) -> dict[int, bytes]:
        """The tokens that the alphabet can spell, with their bytes, read from the tokenizer and not from xgrammar."""
        letters = set(ALPHABET.encode())
        byte_of = {character: byte for byte, character in byte_characters().items()}
        found = {}
        for text, token in self.tokenizer.get_vocab().items():
            if token not in self.tokenizer.added_tokens_decoder:
                spelt = bytes(byte_of[character] for character in text)
                if set(spelt) <= letters:
                    found[token] = spelt
        return found

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)


def byte_characters() -> dict[int, str]:
    """How tokenizers of bytes write each byte: printable ones as they are, the others from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


@pytest.fixture(scope="module")
def models(smollm2, tiny_qwen3) -> dict[str, Model]:
    return {
        folder.name: Model(AutoTokenizer.from_pretrained(folder), AutoConfig.from_pretrained(folder).vocab_size)
        for folder in (smollm2, tiny_qwen3)
    }


@pytest.fixture(scope="module", params=["smollm2-135m", "tiny-qwen3"])
def model(models, request) -> Model:
    return models[request.param]


@pytest.fixture(scope="module")
def smol(models) -> Model:
    return models["smollm2-135m"]


def tag(content: dict) -> str:
    return json.dumps({"type": "structural_tag", "format": content})


def const(text: str) -> dict:
    return {"type": "const_string", "value": text}


def one_of(*texts: str) -> str:
    return tag({"type": "or", "elements": [const(text) for text in texts]})


def tokens_in(row: torch.Tensor) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(row.numpy().view(np.uint8), bitorder="little")).tolist())


# A word is text, then perhaps a marker token and more text.
texts = st.text(ALPHABET, min_size=1, max_size=5)
words = st.lists(texts, min_size=1, max_size=4, unique=True).map(lambda found: [(text,) for text in found])
marked_words = st.lists(
    st.one_of(texts.map(lambda text: (text,)), st.tuples(texts, st.none(), texts), st.tuples(st.none(), texts)),
    min_size=1,
    max_size=4,
    unique=True,
)


def continuations(language: list[tuple[bytes | None, ...]], written: list[bytes | None]) -> list[tuple]:
    """What may still come, of each word, as its letters; a marker (None) is one letter."""
    letters = [tuple(x for part in word for x in ([None] if part is None else part)) for word in language]
    done = tuple(x for part in written for x in ([None] if part is None else part))
    return [word[len(done) :] for word in letters if word[: len(done)] == done]


def check_a_walk(model: Model, language: list[tuple], data: st.DataObject) -> None:
    """Draw a turn of the language token by token, and compare a replay of it with what the words say."""
    elements = [
        {
            "type": "sequence",
            "elements": [model.marked if part is None else const(part) for part in word],
        }
        for word in language
    ]
    in_bytes = [tuple(part if part is None else part.encode() for part in word) for word in language]
    written: list[bytes | None] = []
    ids: list[int] = []
    expected: list[tuple[set[int], bool, bool]] = []
    while not ids or ids[-1] not in model.stops:
        rests = continuations(in_bytes, written)
        spelling = {t: s for t, s in model.spellings.items() if any(rest[: len(s)] == tuple(s) for rest in rests)}
        admissible = set(spelling)
        admissible |= set(model.stops) if () in rests else set()
        admissible |= {model.marker} if any(rest[:1] == (None,) for rest in rests) else set()
        token = data.draw(st.sampled_from(sorted(admissible)))
        text = spelling.get(token)
        certain = text is not None and all(rest[: len(text)] == tuple(text) for rest in rests)
        expected.append((admissible, len(admissible) == 1, certain and len(admissible) > 1))
        ids.append(token)
        written.append(text)
    replay = model.grammars.replay(tag({"type": "or", "elements": elements}), model.stops, ids)
    assert [tokens_in(row) for row in replay.admissible] == [admissible for admissible, _, _ in expected]
    assert list(replay.forced) == [forced for _, forced, _ in expected]
    assert list(replay.fixed) == [fixed for _, _, fixed in expected]


@pytest.mark.slow
@given(language=words, data=st.data())
def test_what_is_admissible_forced_and_fixed_is_what_the_words_of_the_language_say(model, language, data):
    check_a_walk(model, language, data)


@given(language=marked_words, data=st.data())
def test_where_a_marker_token_may_stand_instead_the_text_is_not_fixed(model, language, data):
    check_a_walk(model, language, data)


def test_a_marker_that_looks_like_the_text_is_another_choice(model):
    marked = {"type": "sequence", "elements": [model.marked, const("b")]}
    grammar = tag({"type": "or", "elements": [const("<|a"), marked]})
    assert model.tokenizer.decode([model.marker]).startswith("<|")
    replay = model.grammars.replay(grammar, model.stops, model.encode("<")[:1])
    assert model.marker in tokens_in(replay.admissible[0])
    assert replay.fixed == (False,)


def test_a_token_that_reaches_beyond_the_fixed_text_is_a_choice(smol):
    grammar = one_of("the same", "the sane")
    fixed_then_chosen = [*smol.encode("the"), *smol.encode(" sa"), *smol.encode("me")]
    assert smol.grammars.replay(grammar, smol.stops, fixed_then_chosen).fixed == (True, True, False)
    reaching = [*smol.encode("the"), *smol.encode(" same")]
    assert len(reaching) == 2
    assert smol.grammars.replay(grammar, smol.stops, reaching).fixed == (True, False)


def test_in_a_call_the_frame_is_fixed_and_the_arguments_are_chosen(model):
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    calls = [
        {
            "begin": f'<tool_call>\n{{"name": "{tool}", "arguments": ',
            "content": {"type": "json_schema", "json_schema": schema},
            "end": "}\n</tool_call>",
        }
        for tool in ("find_person", "find_place")
    ]
    grammar = tag({"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": calls, "at_least_one": True})
    # What had to come, and what did not: the object admits white space, so that none of its signs is certain.
    pieces = [
        ('<tool_call>\n{"name": "find_p', True),
        ("erson", False),
        ('", "arguments":', True),
        (' {"', False),
        ("name", True),
        ('": "', False),
        ("Ana", False),
        ('"', False),
        ("}", False),
        ("}\n</tool_call>", True),
    ]
    ids = [(token, certain) for text, certain in pieces for token in model.encode(text)]
    replay = model.grammars.replay(grammar, model.stops, [token for token, _ in ids])
    spared = [one or text for one, text in zip(replay.forced, replay.fixed, strict=True)]
    named = len(model.encode(pieces[0][0]))
    spared[named + 1 : named + len(model.encode("erson"))] = []
    ids[named + 1 : named + len(model.encode("erson"))] = []  # once begun, a name has one end
    assert spared == [certain for _, certain in ids]


def test_text_that_could_be_free_is_never_fixed(model):
    ids = model.encode("Is it <tool_call> or not, and what about <|im_start|>?")
    replay = model.grammars.replay(tag({"type": "any_text"}), model.stops, [*ids, model.stops[0]])
    assert not any(replay.forced)
    assert not any(replay.fixed)


def test_step_by_step_admits_what_a_replay_admits(model):
    grammar = one_of("a<b", "a<é", "b")
    ids = [*model.encode("a"), *model.encode("<"), *model.encode("é"), model.stops[1]]
    replay = model.grammars.replay(grammar, model.stops, ids)
    matcher = model.grammars.start(grammar, model.stops)
    for token, row in zip(ids, replay.admissible, strict=True):
        assert not matcher.ended
        assert torch.equal(matcher.admissible(), row)
        matcher.accept(token)
    assert matcher.ended
    with pytest.raises(InadmissibleTokenError, match="has more tokens after its end token"):
        matcher.admissible()
    with pytest.raises(InadmissibleTokenError, match="has more tokens after its end token"):
        matcher.accept(ids[0])


def test_logits_that_are_not_admissible_become_impossible_and_the_others_stay(model):
    logits = torch.randn(model.vocab_size, generator=torch.Generator().manual_seed(3))
    before = logits.clone()
    matcher = model.grammars.start(one_of("a<b", "a<é", "b"), model.stops)
    held = matcher.admit_only(logits)
    admitted = sorted(tokens_in(matcher.admissible()))
    assert torch.equal(logits, before)
    assert torch.equal(held[admitted], logits[admitted])
    assert int((held == -torch.inf).sum()) == model.vocab_size - len(admitted)
    with pytest.raises(ValueError, match="logits do not match"):
        matcher.admit_only(logits[:-1])


def test_a_token_that_is_not_admissible_is_named_with_its_place_and_its_text(model):
    ids = [*model.encode("a"), *model.encode("x")]
    with pytest.raises(
        InadmissibleTokenError, match=rf"E-SAMP-002 position 1 .*token {ids[1]} \('x'\).*different gram"
    ):
        model.grammars.replay(one_of("ab"), model.stops, ids)


@pytest.mark.parametrize("token", [-1, 10**9])
def test_a_token_that_the_model_does_not_have_is_not_admissible(smol, token):
    with pytest.raises(InadmissibleTokenError, match=f"position 0 .*token {token} "):
        smol.grammars.replay(one_of("ab"), smol.stops, [token])


def test_a_turn_that_continues_after_its_stop_is_refused(model):
    ids = [*model.encode("ab"), model.stops[1], model.stops[0]]
    with pytest.raises(InadmissibleTokenError, match=rf"position {len(ids) - 1} .*more tokens after its end token"):
        model.grammars.replay(one_of("ab"), model.stops, ids)


def test_an_end_of_text_that_is_not_a_stop_is_refused_as_the_sampler_masks_it(models):
    model = models["tiny-qwen3"]
    end, other = model.stops
    assert end == model.tokenizer.eos_token_id
    ids = [*model.encode('"a'), end]
    with pytest.raises(InadmissibleTokenError, match=f"position {len(ids) - 1} .*token {end} "):
        model.grammars.replay(tag({"type": "json_schema", "json_schema": {"type": "string"}}), [other], ids)


def test_a_turn_that_was_cut_is_replayed_as_far_as_it_goes(model):
    replay = model.grammars.replay(one_of("ab<b"), model.stops, model.encode("ab"))
    assert len(replay.forced) == len(replay.fixed) == len(replay.admissible) == len(model.encode("ab"))
    empty = model.grammars.replay(one_of("ab<b"), model.stops, [])
    assert (empty.forced, empty.fixed, empty.admissible.shape[0]) == ((), (), 0)


def test_a_head_whose_rows_do_not_fill_the_last_word_has_no_tokens_behind_its_last(smol):
    for vocab_size in (smol.vocab_size - 3, smol.vocab_size + 1):
        grammars = Grammars(smol.tokenizer, vocab_size)
        ids = [*smol.encode("a"), smol.stops[0]]
        replay = grammars.replay(tag({"type": "any_text"}), smol.stops, ids)
        assert replay.admissible.shape == (2, (vocab_size + 31) // 32)
        assert max(max(tokens_in(row)) for row in replay.admissible) < vocab_size
        assert max(tokens_in(grammars.start(tag({"type": "any_text"}), smol.stops).admissible())) < vocab_size
        assert grammars.replay(one_of("a"), [smol.stops[0]], ids).forced[1]


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ("{", "Failed to parse JSON"),
        (tag({"type": "nonsense"}), "Format type not recognized: nonsense"),
        (tag({"type": "json_schema", "json_schema": {"type": "strin"}}), 'Unsupported type "strin"'),
        (tag({"type": "json_schema", "json_schema": {"$ref": "#/x"}}), "Cannot find field x in #/x"),
        (tag({"type": "token", "token": 10**7}), "Token id 10000000"),
    ],
)
def test_a_grammar_that_does_not_compile_is_an_error_in_the_compilers_words(smol, grammar, words):
    for use in (smol.grammars.check, lambda text: smol.grammars.start(text, smol.stops)):
        with pytest.raises(GrammarError, match=r"E-CHAT-004 .* does not compile") as caught:
            use(grammar)
        assert words in caught.value.what
        assert not caught.value.what.endswith("\n")
        assert ".cc:" not in caught.value.what.split(words)[0][:60]


def test_a_corrected_schema_compiles(smol):
    def offer(*kinds: str) -> str:
        elements = [{"type": "json_schema", "json_schema": {"type": kind}} for kind in kinds]
        return tag({"type": "or", "elements": elements})

    with pytest.raises(GrammarError, match=r"Fix: correct the tool's schema, exclude the tool, or set"):
        smol.grammars.check(offer("string", "strin"))
    smol.grammars.check(offer("string", "string"))
    smol.grammars.check(offer("string"))


@pytest.mark.parametrize("stops", [(), (10**7,)])
def test_a_turn_needs_stops_that_the_model_has(smol, stops):
    with pytest.raises(GrammarError, match="stop"):
        smol.grammars.start(one_of("a"), stops)


def test_tokens_are_named_by_their_ids_because_vllm_knows_no_others(smol):
    smol.grammars.check(tag({"type": "token", "token": smol.marker}))
    with pytest.raises(GrammarError, match="Token string resolution"):
        smol.grammars.check(tag({"type": "token", "token": MARKER}))


def test_turns_are_replayed_in_threads(smol):
    grammars = Grammars(smol.tokenizer, smol.vocab_size)
    turns = [(one_of(f"a{'b' * n}", f"a{'<' * n}"), [*smol.encode(f"a{'b' * n}"), smol.stops[0]]) for n in range(1, 9)]
    alone = [smol.grammars.replay(grammar, smol.stops, ids) for grammar, ids in turns]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda turn: grammars.replay(turn[0], smol.stops, turn[1]), turns * 8))
    for one, other in zip(alone * 8, together, strict=True):
        assert torch.equal(one.admissible, other.admissible)
        assert (one.forced, one.fixed) == (other.forced, other.fixed)


def test_no_more_grammars_are_kept_than_there_is_room_for(smol, monkeypatch):
    limit = 200_000
    monkeypatch.setattr(module, "_CACHE_BYTES", limit)
    grammars = Grammars(smol.tokenizer, smol.vocab_size)
    for n in range(60):
        grammars.check(tag({"type": "json_schema", "json_schema": {"enum": [f"{n}-{m}" for m in range(20)]}}))
    assert 0 < grammars._compiler.get_cache_size_bytes() <= limit
    assert grammars.replay(one_of("a"), smol.stops, smol.encode("a")).forced == (True,)


def test_a_model_folder_gives_the_grammars_of_its_head(taught_qwen3):
    grammars = load_grammars(str(taught_qwen3))
    assert grammars.vocab_size == AutoConfig.from_pretrained(taught_qwen3).vocab_size
    with pytest.raises(BadValueError, match=r"model\.path is './nowhere'"):
        load_grammars("./nowhere")


def test_without_the_engine_the_error_names_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    monkeypatch.delitem(sys.modules, "mcprl.grammar.masks")
    with pytest.raises(MissingExtraError, match=r"needs xgrammar.*mcprl\[torch\]"):
        __import__("mcprl.grammar.masks")

"""Tokens as texts: all together are what the tokens mean, with the real tokenizers of the models that tests use."""
# R29

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from shown_runs import ROOT, client_of, get, make_config, record
from tokenizers import Tokenizer, decoders, models

from mcprl.runs.folder import RunFolder
from mcprl_dashboard.answers import Refusal
from mcprl_dashboard.episode_details import TokenNoteFiles
from mcprl_dashboard.open_run import TokenTexts, find_tokenizer

NAMES = ("smollm2-135m", "taught-qwen3")


@pytest.fixture(scope="module", params=NAMES)
def tokenizer(request) -> tuple[Tokenizer, TokenTexts]:
    path = ROOT / ".cache" / "models" / request.param / "tokenizer.json"
    if not path.is_file():
        pytest.skip(f"{path.relative_to(ROOT)} is missing: run scripts/setup")
    return Tokenizer.from_file(str(path)), TokenTexts(path)


@given(text=st.text(max_size=40))
def test_the_texts_of_the_tokens_of_a_text_are_that_text(tokenizer, text: str):
    plain, shown = tokenizer
    ids = plain.encode(text, add_special_tokens=False).ids
    texts = shown.texts(ids)
    assert len(texts) == len(ids)
    decoded = plain.decode(ids, skip_special_tokens=False)
    assume(decoded == text)  # a vocabulary may lack the signs of some bytes, and loses them
    assert "".join(texts) == text


@given(data=st.data())
def test_any_tokens_give_the_text_that_the_tokenizer_gives(tokenizer, data: st.DataObject):
    plain, shown = tokenizer
    ids = data.draw(st.lists(st.integers(0, plain.get_vocab_size() - 1), max_size=12))
    together, decoded = "".join(shown.texts(ids)), plain.decode(ids, skip_special_tokens=False)
    if "\ufffd" in decoded:  # the tokenizer hides the bytes; they are shown here
        assert re.search(r"\\x[0-9a-f]{2}", together) or "\ufffd" in together
    else:
        assert together == decoded


def test_a_character_of_several_tokens_comes_with_the_last_and_half_of_one_is_shown_as_bytes(tokenizer):
    plain, shown = tokenizer
    ids = plain.encode("\N{CUNEIFORM NUMERIC SIGN NINE SHAR2}", add_special_tokens=False).ids
    assert len(ids) > 1, "the sign must be none of the vocabulary's own"
    assert [bool(text) for text in shown.texts(ids)] == [False] * (len(ids) - 1) + [True]
    assert "".join(shown.texts(ids[:-1])).startswith("\\x")
    assert shown.texts([10**9]) == ["<unknown token 1000000000>"]


def test_a_vocabulary_with_bytes_to_fall_back_on_is_read_too(tmp_path):
    vocabulary = {"<unk>": 0, "\u2581Hi": 1, "<0xC3>": 2, "<0xA9>": 3}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert TokenTexts(find_tokenizer(str(tmp_path))).texts([1, 2, 3]) == [" Hi", "", "é"]


def test_a_model_of_the_hub_is_looked_for_where_its_client_stores_it(tmp_path, monkeypatch):
    stored = tmp_path / "models--some--model"
    snapshot = stored / "snapshots" / ("a1" * 20)
    snapshot.mkdir(parents=True)
    (stored / "refs").mkdir()
    (stored / "refs" / "main").write_text("a1" * 20)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(Refusal, match=r"no tokenizer\.json"):
        find_tokenizer("some/model")
    (snapshot / "tokenizer.json").touch()
    assert find_tokenizer("some/model") == snapshot / "tokenizer.json"
    (stored / "refs" / "main").write_text("../../..")
    for name in ("some/model", "some/model/../x", "", "other/model"):
        with pytest.raises(Refusal):
            find_tokenizer(name)


def test_tokens_of_an_episode_come_with_what_the_update_made_of_them(tmp_path):
    path = ROOT / ".cache" / "models" / "taught-qwen3"
    if not path.is_dir():
        pytest.skip(f"{path.relative_to(ROOT)} is missing: run scripts/setup")
    runs = []
    with RunFolder.create(make_config(tmp_path / "outputs", path)) as folder:
        record(folder, 0)
        client = client_of(folder.path, runs)
        tokens = get(client, "/api/runs/shown/tokens", step=0, task="find-ana", member=1)
        runs[0].close()
    assert tokens["ids"] == [5, 6, 7, 8]
    assert "".join(tokens["text"])
    assert (tokens["sampled"], tokens["logprobs"]) == ([False, False, True, True], [0.0, 0.0, -0.5, -1.5])
    assert tokens["learnable"] == [False, False, True, True]
    assert (tokens["advantages"], tokens["ratios"]) == ([0, 0, 1, 1], [0, 0, 1, 1])


def test_token_notes_are_read_by_a_database_that_loads_no_extensions(tmp_path):
    question = "SELECT current_setting('autoinstall_known_extensions'), current_setting('autoload_known_extensions')"
    assert TokenNoteFiles(tmp_path)._query(0, f"{question} WHERE $file IS NOT NULL", {}) == [(False, False)]

"""The beginning of an answer that was cut."""

# R15

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcprl.tools.transports.messages import beginning_of
from processor_time import least_s

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


def message(*texts: str, ensure_ascii: bool = True, **result: object) -> bytes:
    content = [{"type": "text", "text": text} for text in texts]
    answer = {"jsonrpc": "2.0", "id": 7, "result": {"content": content, **result}}
    return json.dumps(answer, ensure_ascii=ensure_ascii).encode()


@given(texts=st.lists(TEXTS.filter(bool), min_size=1), limit=st.integers(0, 50), ensure_ascii=st.booleans())
def test_the_text_parts_of_a_whole_answer_are_joined_by_lines_and_cut_at_the_limit(texts, limit, ensure_ascii):
    assert beginning_of(message(*texts, ensure_ascii=ensure_ascii), limit) == "\n".join(texts)[:limit]


@given(text=TEXTS, cut=st.integers(0, 400), ensure_ascii=st.booleans())
def test_of_an_answer_cut_anywhere_in_its_text_the_beginning_is_exact(text, cut, ensure_ascii):
    raw = message("first", text, ensure_ascii=ensure_ascii)
    start = len(message("first", "").removesuffix(b'"}]}}'))
    shown = beginning_of(raw[: start + cut], 10_000)
    whole = "first\n" + text
    assert whole.startswith(shown.removesuffix("\n")) or text == ""
    assert shown.startswith("first")


@given(raw=st.binary(max_size=300), limit=st.integers(0, 100))
@example(raw=b'{"result":{"content":[{"text":"\\ud83d"}]}}', limit=9)
@example(raw=b'{"result":{"content":[{"text":"a\nb"}]}}', limit=9)
@example(raw=b'{"result":{"content":{"text":3}}}', limit=9)
@example(raw=b'{"result":{"content":[3,null,{"text":3},{"resource":{"text":[]}}]}}', limit=9)
@example(raw=b'{"result":\n\n' + b"9" * 5000, limit=9)
@example(raw=b"", limit=0)
def test_no_bytes_make_it_fail(raw, limit):
    shown = beginning_of(raw, limit)
    assert len(shown) <= limit
    shown.encode()


@given(raw=st.binary(max_size=300), text=TEXTS)
def test_bytes_that_are_no_result_are_shown_as_they_are(raw, text):
    assert beginning_of(b"<" + text.encode(), 10_000) == "<" + text
    assert raw.decode(errors="replace").startswith(beginning_of(b"<" + raw, 10_000)[1:])


def test_a_character_cut_in_the_middle_is_left_out():
    raw = message("née", ensure_ascii=False)
    assert beginning_of(raw[: raw.index(b"\xc3") + 1], 100) == "n"


def test_bytes_that_are_no_utf8_are_replaced_and_the_text_goes_on():
    raw = message("one X two").replace(b"X", b"\xff")
    assert beginning_of(raw, 100) == "one \ufffd two"


def test_what_stands_before_a_mistake_is_read():
    assert beginning_of(message("fine").replace(b"}]}}", b"}], oops"), 100) == "fine"
    assert beginning_of(message("fine").replace(b"[", b"[\n").replace(b"}]}}", b"}], oops"), 100) == "fine"


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_nesting_too_deep_to_parse_does_not_hide_the_text_before_it(opening):
    raw = message("fine").removesuffix(b"}}") + b',"structuredContent":' + opening * 100_000
    assert beginning_of(raw, 100) == "fine"
    assert beginning_of(opening * 100_000, 50) == (opening * 50).decode()[:50]


def test_the_text_of_an_embedded_resource_counts():
    part = {"type": "resource", "resource": {"uri": "a:b", "text": "inside"}}
    assert beginning_of(json.dumps({"id": 1, "result": {"content": [part]}}).encode(), 100) == "inside"


@pytest.mark.parametrize("filling", ["x", "é", "\U0001f600"])
@pytest.mark.parametrize("ensure_ascii", [True, False])
def test_a_text_that_fills_the_limit_in_bytes_is_found_however_it_is_written(filling, ensure_ascii):
    limit = 300_000
    shown = beginning_of(message(filling * limit, ensure_ascii=ensure_ascii), limit)
    assert len(shown.encode()) >= limit
    assert set(shown) == {filling}


@pytest.mark.parametrize("filling", [b"[],", b"{},", b"1,", b'"a",'])
def test_it_takes_no_time_whatever_the_size(filling):
    raw = b'{"result":{"structuredContent":[' + filling * (64 * 1024 * 1024 // len(filling))
    assert least_s(lambda: beginning_of(raw, 1000)) < 1.0
    assert beginning_of(raw, 1000) == raw[:1000].decode()

"""Patterns are rewritten so that a whole text matches if a search would have found the pattern."""
# R7

from __future__ import annotations

import re

import pytest
from drawn_schemas import PATTERNS
from hypothesis import given
from hypothesis import strategies as st

from mcprl.grammar.patterns import is_too_large, read_pattern, with_length, write_pattern

READABLE = [pattern for pattern in PATTERNS if "?!" not in pattern]
MORE = [
    *(r"^\w+@\w+\.com$", "^[-a]$", r"^[\]\-\\^]$", r"a\.b\/c", r"^\x41é$", "^(?:a|b(c|d)?)+$", "^a{2}$", "^a{2,}$"),
    *(
        "",
        "^",
        "$",
        "^a*",
        "(^ab$|^b)",
        "^(a|)$",
        r"^[^\s\d]$",
        "a+?b",
        "^[a-]$",
        "^{}$",
        "^[.*+?()|{}$]+$",
        r"^\S*\s?$",
    ),
]
TEXTS = st.one_of(st.text('abc019-.@ #<>="\\\n\tAéx٣', max_size=8), st.text(max_size=6))
LATIN = st.characters(codec="latin-1")
HARMLESS = re.compile(r'[^\x00-\x1f"<\\\ud800-\udfff]*')


def matched(pattern: str | None, text: str) -> bool:
    return pattern is not None and re.fullmatch(pattern[1:-1], text) is not None


@pytest.mark.parametrize("pattern", [*READABLE, *MORE])
@given(data=st.data())
def test_a_text_is_admitted_if_a_search_finds_the_pattern(pattern, data):
    text = data.draw(TEXTS | st.from_regex(pattern, alphabet=LATIN))
    admitted = matched(write_pattern(read_pattern(pattern)), text)
    if admitted:
        assert re.search(pattern, text)
        assert HARMLESS.fullmatch(text)
    elif text.isascii() and HARMLESS.fullmatch(text):
        assert not re.search(pattern, text)


@given(pattern=st.sampled_from([*READABLE, *MORE]), least=st.integers(0, 5), extra=st.integers(0, 5), text=TEXTS)
def test_a_length_is_enforced_or_reported(pattern, least, extra, text):
    counted = with_length(read_pattern(pattern), least, least + extra)
    if counted is not None and matched(write_pattern(counted), text):
        assert re.search(pattern, text)
        assert least <= len(text) <= least + extra


@pytest.mark.parametrize(
    ("pattern", "least", "most", "written"),
    [
        ("^[a-z]+$", 0, 9, "^[a-z]{1,9}$"),
        ("^[a-z]*$", 2, None, "^[a-z]{2,}$"),
        ("^#[0-9a-f]{6}$", 3, 9, "^#[0-9a-f]{6}$"),
        ("^id-[0-9]+$", 0, 8, r"^id\-[0-9]{1,5}$"),
        ("^[a-z]+$", 3, 2, None),
    ],
)
def test_a_length_becomes_a_count(pattern, least, most, written):
    assert write_pattern(with_length(read_pattern(pattern), least, most)) == written


@pytest.mark.parametrize(
    ("pattern", "text"), [(r"^\S$", "\u2003"), (r"^[^\s]$", "\xa0"), (r"^\W$", "é"), (r"^\D$", "٣"), (r"^\w$", "é")]
)
def test_characters_that_libraries_disagree_on_are_not_admitted(pattern, text):
    assert not matched(write_pattern(read_pattern(pattern)), text)


def test_a_length_of_two_open_ends_cannot_be_counted():
    assert with_length(read_pattern("^[a-z]+-[a-z]+$"), 0, 9) is None


@pytest.mark.parametrize(
    "pattern",
    [
        *("(?=a)b", "(?!a)b", "(?<=a)b", "(?i)a", "(?P<n>a)", r"(a)\1", r"\bx", r"\Bx", r"\Ax", r"x\Z", r"\0", r"\a"),
        *("a^b", "a$b", "(^a)b", "[]a]", "[^]a]", "x++", "x{,3}", "(", "[z-a]", r"\p{L}", "^*"),
    ],
)
def test_what_a_grammar_cannot_hold_is_refused_with_a_reason(pattern):
    with pytest.raises(ValueError, match=r"."):
        read_pattern(pattern)


@pytest.mark.parametrize(("pattern", "large"), [("^a{128}$", False), ("^a{129}$", True), ("^(a{60}b{9}){8}$", True)])
def test_counts_have_a_limit(pattern, large):
    assert is_too_large(read_pattern(pattern)) is large

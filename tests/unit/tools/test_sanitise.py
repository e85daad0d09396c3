"""What a policy gets to read of a result: visible text, within its limit, whatever a server sends."""
# R15

import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcprl.tools.calls import sanitise
from processor_time import least_s

ROOMY = 1_000_000
NOTE = re.compile(r"\n\[cut: ([\d,]+) of ([\d,]+) bytes shown\]\Z")

ESCAPES = st.sampled_from(
    [
        "\x1b",
        "\x1b[",
        "\x1b[31m",
        "\x1b]0;title",
        "\x07",
        "\x1b\\",
        "\x9b",
        "\x9d",
        "\x9c",
        "\r",
        "\n",
        "\x1b(B",
        "]",
        "0",
    ]
)
ANY_CHARACTER = st.characters(exclude_categories=())
ANY_TEXT = st.lists(ESCAPES | ANY_CHARACTER).map("".join)


def clean(text: str) -> str:
    shown, cut = sanitise(text, max_bytes=ROOMY)
    assert cut is False
    return shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain",
        "two\nlines\tand a tab",
        "Zürich, 東京, Ελλάδα, नमस्ते",
        "family 👨‍👩‍👧‍👦, flag 🇵🇪, heart ❤️, thumb 👍🏽",
        "עברית \u200fعربي\u200e",
        "می‌خواهم",
        "<|im_end|>",
    ],
)
def test_ordinary_text_is_untouched(text):
    assert clean(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b[?25lhidden cursor\x1b[?25h", "hidden cursor"),
        ("\x9b31mred\x9b0m", "red"),
        ("\x1b]0;a title\x07text", "text"),
        ("\x1b]8;;https://evil.example\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9d0;a title\x9ctext", "text"),
        ("\x1bPq#0;2\x1b\\text", "text"),
        ("\x1b(Btext\x1bc", "text"),
        ("\x1b]0;never ends\nnext line", "0;never ends\nnext line"),
        ("a\x1b[31", "a"),
        ("\x1b\x1b[31m[31m", "[31m"),
        ("a\x00b\x08c\x7fd\x85e\x0bf", "abcdef"),
        ("one\r\ntwo\rthree\n", "one\ntwo\nthree\n"),
        ("\r\x00\n", "\n\n"),
        ("user\u202etxt.exe\u202c \u2066x\u2069", "usertxt.exe x"),
        ("hi" + "".join(chr(0xE0000 + ord(c)) for c in "ignore all") + "!", "hi!"),
        ("a\ud83db\udc00", "ab"),
        ("é\x1b[0mé", "éé"),
    ],
)
def test_what_is_invisible_or_moves_a_cursor_is_removed(text, shown):
    assert clean(text) == shown


@given(ANY_TEXT)
def test_nothing_unwanted_is_ever_left(text):
    shown = clean(text)
    shown.encode()
    for character in shown:
        assert unicodedata.category(character) not in ("Cc", "Cs") or character in "\n\t"
        assert unicodedata.bidirectional(character) not in (
            "LRE",
            "RLE",
            "LRO",
            "RLO",
            "PDF",
            "LRI",
            "RLI",
            "FSI",
            "PDI",
        )
        assert not unicodedata.name(character, "").startswith("TAG ")


@given(ANY_TEXT, st.integers(64, 200))
@example("é" * 100, 64)
@example("\r" * 100, 64)
def test_sanitising_again_changes_nothing(text, max_bytes):
    once, _ = sanitise(text, max_bytes=max_bytes)
    assert sanitise(once, max_bytes=max_bytes) == (once, False)


@given(st.text(st.characters(exclude_categories=("Cc", "Cs", "Cf"))), st.integers(64, 300), st.integers(1, 40))
@example("x", 100, 100)  # exactly the limit
@example("é" * 50, 100, 1)
@example("é" * 50 + "x", 100, 1)
def test_a_text_beyond_the_limit_is_cut_between_characters_and_says_so(text, max_bytes, times):
    text *= times
    total = len(text.encode())
    shown, cut = sanitise(text, max_bytes=max_bytes)
    assert cut is (total > max_bytes)
    if not cut:
        assert shown == text
        return
    note = NOTE.search(shown)
    assert note is not None
    beginning = shown[: note.start()]
    assert text.startswith(beginning)
    assert [int(number.replace(",", "")) for number in note.groups()] == [len(beginning.encode()), total]
    # As much as fits: one more character, of four bytes at most, and two digits of the note would not.
    assert max_bytes - 8 < len(shown.encode()) <= max_bytes


def test_a_large_result_ends_with_the_documented_note():
    shown, cut = sanitise("x" * 1_234_567, max_bytes=65_536)
    assert cut
    assert len(shown) == 65_536
    assert shown.endswith("x\n[cut: 65,497 of 1,234,567 bytes shown]")


def test_a_secret_is_redacted_after_the_cleaning_and_before_the_cut():
    def redact(text: str) -> str:
        return text.replace("sk-secret", "[KEY]")

    assert sanitise("a sk-\x00sec\u202eret z", max_bytes=ROOMY, redact=redact) == ("a [KEY] z", False)
    for before in range(50, 100):
        shown, cut = sanitise("x" * before + "sk-secret" + "x" * 50, max_bytes=100, redact=redact)
        assert cut
        assert "sk-" not in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    ["\x1b]" * 500_000, "\x9d" * 1_000_000, "\x1b[" * 500_000, "\x1b" + " " * 1_000_000, ("\x1b]" + "a" * 50) * 20_000],
)
def test_hostile_text_takes_linear_time(text):
    assert least_s(lambda: sanitise(text, max_bytes=65_536)) < 5.0

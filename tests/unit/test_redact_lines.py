"""Secrets in logs that come line by line, where one secret may be spread over several lines."""
# R26

from __future__ import annotations

from itertools import product

import pytest
from secret_samples import ENCODINGS, HOSTILE, KEY, ORDINARY, PEM, SIZE, registry

from processor_time import least_s


def cleaned(lines: list[str], **secrets: str) -> list[str]:
    return [*map(registry(**secrets).line_cleaner(), lines)]


@pytest.mark.parametrize("encoding", ["plain", "quote everything", "quote_plus", "json", "repr", "html", "base64"])
@pytest.mark.parametrize("value", [KEY, "a+b/c=1d\"e\\f<g>h&i'j", "sk-proj-AbCd1234-EfGh5678"])
def test_of_a_value_that_a_log_handler_broke_over_lines_no_eight_characters_stay_together(encoding, value):
    written = ENCODINGS[encoding](value)
    for width, shift in product((11, 20, 37), range(0, 37, 3)):
        message = "." * shift + f"GET_{written}_OK"
        parts = [message[start : start + width] for start in range(0, len(message), width)]
        lines = [f"{'INFO' if number == 0 else '':8}{part:{width}}   x.py:1" for number, part in enumerate(parts)]
        left = "".join(line[8:].removesuffix("x.py:1").strip() for line in cleaned(lines, THE_KEY=value))
        left = left.replace("[redacted THE_KEY]", "\0")
        assert [written[at : at + 8] for at in range(len(written) - 7) if written[at : at + 8] in left] == []
        assert left.startswith("." * shift)


def test_the_lines_of_a_private_key_are_struck_out_and_those_after_it_stay():
    *key, end = PEM.splitlines()
    struck = ["[redacted private key]"] * len(key)
    assert cleaned(["the key:", *key, end, "next line", "abc"]) == ["the key:", *struck, end, "next line", "abc"]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("token ghp_aB3", "aB3" * 11 + " was sent", "[redacted key] was sent"),
        ("GET /q?symbol=AAPL&apikey=3f", KEY[2:] + "&limit=5 200", "[redacted key]&limit=5 200"),
        ("sent Authorization: Basic", "dXNlcjpwYXNz and more", "[redacted header] and more"),
        ("an ordinary line that", "goes on in the next one", "goes on in the next one"),
    ],
)
def test_the_rest_of_a_key_that_nobody_registered_goes_from_the_next_line(first, second, expected):
    lines = cleaned([f"INFO    {first:40} x.py:1", f"        {second:40}"])
    assert lines[1].rstrip() == f"        {expected}"


def test_a_mention_of_a_private_key_takes_no_lines_with_it():
    lines = ["it begins with -----BEGIN PRIVATE KEY-----", "and then some words", "abc"]
    assert cleaned(lines) == ["it begins with [redacted private key]", *lines[1:]]


def test_ordinary_lines_stay_as_they_are():
    lines = [line for text in ORDINARY for line in text.splitlines() if "BEGIN" not in line]
    assert cleaned(lines, THE_KEY=KEY, OTHER="correct horse battery") == lines


@pytest.mark.parametrize("unit", [*HOSTILE, " a.b:1", "    x", "AbC= "])
def test_a_line_of_64_kib_made_to_be_slow_takes_less_than_300_ms(unit, untraced):
    # Three searches: of the line alone, and with the line before it in two ways.
    text = (" " * 8 + unit * (SIZE // len(unit) + 1))[:SIZE]
    clean = registry(THE_KEY=KEY, OTHER="correct horse battery").line_cleaner()
    assert least_s(lambda: (clean("before"), clean(text))) < 0.300

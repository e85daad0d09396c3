"""Each kind of expected text against texts that meet it and texts that almost do; numbers as people write them."""
# R19

from __future__ import annotations

import doctest
import re
from decimal import Decimal
from typing import get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mcprl.episodes import rewards
from mcprl.episodes.rewards import meets, numbers_in, why_unusable
from mcprl.goals import AnyText, Contains, Exactly, HasAll, HasDate, HasFields, HasNumber, Matches, MeetsSome, Unit
from processor_time import least_s

words = st.text("abcXYZ", min_size=1, max_size=6)
# Prose in which no number stands.
prose = st.lists(st.sampled_from(["It", "closed", "at", "Q3", "v1.2.3", "(sic),", "on 2025-11-14", "at 16:00,", "C++"]))
decimals = st.decimals(-(10**9), 10**9, allow_nan=False, allow_infinity=False, places=4)


def test_the_examples_in_the_documentation_hold():
    assert doctest.testmod(rewards).failed == 0


@pytest.mark.parametrize(
    ("expected", "given", "right"),
    [
        ("23:30", "It is 23:30 in Tokyo.", True),
        ("23:30", "23:30", True),
        ("3:30", "It is 23:30.", False),
        ("23:3", "It is 23:30.", False),
        ("America/Lima", "america/lima!", True),
        ("Lima", "Limassol", False),
        ("a.c", "abc", False),
        ("C++", "We use C++.", True),
        ("Zürich", "in ZÜRICH", True),
        ("5", "It is 3.5.", False),
        ("5", "It is 5.5.", False),
        ("30", "It is 23:30.", False),
        ("23", "It is 23:30.", False),
        ("VLKN", "VLKN: up; ORBT: down", True),
        ("VLKN", "Symbol:VLKN", True),
        ("VLKN", "**VLKN**", True),
        ("com", "example.com", False),
        ("New York", "in New\n  York.", True),
        ("New York", "in NewYork", False),
        ("23:30", "", False),
    ],
)
def test_the_answer_must_contain_the_text_as_whole_words(expected, given, right):
    assert meets(Contains(text=expected), given) is right


@given(words, words, words)
def test_a_word_is_found_between_others_and_never_inside_one(word, left, right):
    assert meets(Contains(text=word), f"{left}, {word.swapcase()}. {right}")
    assume(word.lower() not in (left.lower(), right.lower()))
    assert not meets(Contains(text=word), f"{left} {left}{word} {word}{right} {right}")


@pytest.mark.parametrize(("given", "right"), [(" Yes\n", True), ("YES", True), ("Yes.", False), ("", False)])
def test_exactly_is_the_whole_answer_but_for_outer_spaces_and_case(given, right):
    assert meets(Exactly(text="yes"), given) is right


@pytest.mark.parametrize(("given", "right"), [("x", True), (" \n\t", False), ("", False)])
def test_any_text_is_one_that_is_not_blank(given, right):
    assert meets(AnyText(), given) is right


@pytest.mark.parametrize(
    ("given", "right"),
    [
        ("VLKN and ORBT rose.", True),
        ("orbt: +2%, vlkn: +1%", True),
        ("VLKN rose.", False),
        ("VLKN, ORBT and HALE rose.", False),
        ("VLKN and ORBT rose, HALER fell.", True),
        ("VLKNS and ORBT", False),
    ],
)
def test_the_answer_must_contain_all_members_and_none_of_the_others(given, right):
    assert meets(HasAll(members=("VLKN", "ORBT"), none_of=("HALE", "NIMB")), given) is right


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("It closed at $213.88.", ["213.88"]),
        ("−1.5%, -2 %, +3", ["-1.5", "-2", "3"]),
        ("-$5.20 or $-5.20 or −€7", ["-5.20", "-5.20", "-7"]),
        ("US$5, USD 7, USD8, 9.5 EUR", ["5", "7", "8", "9.5"]),
        ("1,234,567.89", ["1234567.89"]),
        ("1,2,3", ["1", "2", "3"]),
        ("12,3456", ["12", "3456"]),
        (
            "391.035B; 2 billion; 3bn; 4k; 5 M; 6-million; 7 thousand; 2tn",
            ["391035e6", "2e9", "3e9", "4e3", "5e6", "6e6", "7e3", "2e12"],
        ),
        ("5 M&A deals, 6 T-shirts, a 10-K", ["5", "6", "10"]),
        ("5-10, 5%-10%, $5-$6", ["5", "10", "5", "10", "5", "6"]),
        ("2.5x, the 1st, 30 bps", ["2.5", "1", "30"]),
        ("1e6 2.5E-3 .5", ["1e6", "0.0025", "0.5"]),
        ("Q3 FY2024 v1.2 1.2.3 3M2 abc4 5abc", []),
        ("2025-11-14 09:30 16:00-17:00 2025-11-14T16:00:00-05:00 16:00:00.123 9:30 AM", []),
        ("November 14, 2025, 14 Nov 2025, Sept. 3rd, 2024", []),
        ("in 2024", ["2024"]),
        ("- 213.88\n- 5", ["213.88", "5"]),
        ("**213.88** (5) [6] 7/share price=8,volume=9.", ["213.88", "5", "6", "7", "8", "9"]),
        ("9" * 301, []),
        ("1e9999", []),
        ("", []),
    ],
)
def test_numbers_are_read_as_people_write_them(text, numbers):
    assert list(numbers_in(text)) == [Decimal(number) for number in numbers]


@given(
    decimals,
    st.sampled_from(["{}", "{:,}"]),
    st.sampled_from(["{}", "${}", "{}%", "{}.", "({})", "x={}"]),
    prose,
    prose,
)
def test_a_number_is_found_however_it_is_written_and_nothing_else_is(value, form, around, before, after):
    written = " ".join([*before, around.format(form.format(value)), *after])
    assert numbers_in(written) == (value,)


@given(decimals, st.sampled_from([("K", 3), ("M", 6), ("bn", 9), (" billion", 9), ("T", 12), (" thousand", 3)]))
def test_multipliers_multiply(value, unit):
    suffix, power = unit
    assert numbers_in(f"{value}{suffix}.") == (value.scaleb(power),)


@given(st.text(max_size=80))
def test_no_text_is_too_strange_to_be_read(text):
    assert all(number.is_finite() for number in numbers_in(text))
    for expected in (AnyText(), Contains(text="a"), Exactly(text="a"), HasNumber(value=1), Matches(pattern="a")):
        assert meets(expected, text) in (True, False)


@pytest.mark.parametrize(
    ("expected", "given", "right"),
    [
        (HasNumber(value=213.88), "213.88", True),
        (HasNumber(value=213.88), "213.880", True),
        (HasNumber(value=213.88), "213.8", False),
        (HasNumber(value=213.88, tolerance=0.005), "213.885", True),
        (HasNumber(value=213.88, tolerance=0.005), "213.8851", False),
        (HasNumber(value=-1.5), "−1.5%", True),
        (HasNumber(value=-1.5), "1.5%", False),
        (HasNumber(value=391035000000.0), "$391.035 billion", True),
        (HasNumber(value=3), "1 2 3 4", True),
        (HasNumber(value=3), "1 2 3 4 5", False),
        (HasNumber(value=3), "3 and again 3, 3.0, 3.00 and +3", True),
        (HasNumber(value=3, at_most=None), "1 2 3 4 5 6 7 8 9", True),
        (HasNumber(value=3, at_most=1), "3 of 4", False),
        (HasNumber(value=16), "at 16:00 on 2016-01-16", False),
    ],
)
def test_a_number_must_be_near_enough_and_among_few(expected, given, right):
    assert meets(expected, given) is right


@given(st.integers(-1000, 1000), st.integers(0, 20), st.lists(st.integers(-1000, 1000), min_size=1, max_size=6))
def test_a_list_of_guesses_meets_nothing_however_good_one_is(value, tolerance, guesses):
    expected = HasNumber(value=value, tolerance=tolerance, at_most=3)
    is_near = any(abs(guess - value) <= tolerance for guess in guesses)
    assert meets(expected, " ; ".join(map(str, guesses))) is (is_near and len(set(guesses)) <= 3)


@pytest.mark.parametrize(
    ("pattern", "given", "right"),
    [
        (r"\b\d{2} shares", "I bought 12 shares.", True),
        (r"^\d+$", "12 shares", False),
        (r"(?i)vlkn", "VLKN", True),
        (r"vlkn", "VLKN", False),
        (r"a", "\ud800a", True),
    ],
)
def test_a_pattern_is_searched_for(pattern, given, right):
    assert meets(Matches(pattern=pattern), given) is right


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        (Matches(pattern=r"(a+)+$"), "a" * 60_000 + "b"),
        (Matches(pattern=r"(a|a)*c"), "a" * 60_000),
        (Matches(pattern=r"(.*)(.*)(.*)(.*)x"), "a" * 2_000),
        (Contains(text="a a a a b"), "a " * 30_000),
        (HasNumber(value=7), "1," * 30_000),
        (HasNumber(value=7), "1" * 60_000 + "a"),
        (HasNumber(value=7), "1,111" * 12_000),
        (HasNumber(value=7), "-$" * 30_000),
        (HasNumber(value=7), "12:34" * 12_000),
        (HasNumber(value=7), "may " * 15_000),
    ],
)
@pytest.mark.usefixtures("untraced")
def test_no_pattern_and_no_text_takes_more_than_a_moment(expected, text):
    assert meets(expected, text) is False
    assert least_s(lambda: meets(expected, text)) < 1.0


@pytest.mark.parametrize(
    ("expected", "why"),
    [
        (Contains(text=" "), "text is empty"),
        (Exactly(text=""), "text is empty"),
        (HasAll(members=()), "text is empty"),
        (HasAll(members=("a", "")), "text is empty"),
        (HasAll(members=("a",), none_of=(" ",)), "text is empty"),
        (HasNumber(value=float("nan")), "finite"),
        (HasNumber(value=1, tolerance=float("inf")), "finite"),
        (HasNumber(value=1, tolerance=-1), "at least 0"),
        (HasNumber(value=1, at_most=0), "at_most must be at least 1"),
        (Matches(pattern="("), "unclosed group"),
        (Matches(pattern="(?=a)"), "look-around.* is not supported"),
        (Matches(pattern=r"(a)\1"), "backreferences are not supported"),
        (Matches(pattern="(a{1000}){1000}"), "exceeds size limit"),
    ],
)
def test_an_expectation_that_nothing_or_everything_meets_says_why(expected, why):
    problem = why_unusable(expected)
    assert problem is not None
    assert re.search(why, problem)


@pytest.mark.parametrize(
    "expected",
    [
        AnyText(),
        Contains(text="a"),
        Exactly(text="a"),
        HasAll(members=(), none_of=("a",)),
        HasNumber(value=1, at_most=None),
        Matches(pattern="a"),
    ],
)
def test_other_expectations_can_be_used(expected):
    assert why_unusable(expected) is None


@pytest.mark.parametrize(
    ("at_least", "text", "right"),
    [
        (None, "VLKN is at 213.88", True),
        (None, "VLKN is up", False),
        (1, "VLKN is up", True),
        (1, "ORBT is at 7", False),
        (2, "213.88 for VLKN", True),
    ],
)
def test_some_of_several_checks_must_be_met(at_least, text, right):
    expected = MeetsSome(of=(Contains(text="VLKN"), HasNumber(value=213.88)), at_least=at_least)
    assert meets(expected, text) is right


def test_a_choice_of_checks_that_cannot_be_met_is_unusable():
    assert why_unusable(MeetsSome(of=(Contains(text="a"),), at_least=2)) is not None
    assert why_unusable(MeetsSome(of=())) is not None
    assert why_unusable(MeetsSome(of=(Contains(text=" "),))) == "the expected text is empty"
    assert why_unusable(MeetsSome(of=(Contains(text="a"), AnyText()), at_least=1)) is None


@pytest.mark.parametrize(
    ("value", "unit", "given", "right"),
    [
        (5, "km", "It is 5,000 metres away.", True),
        (5, "km", "It is 5 miles away.", False),
        (5, "km", "It is 5.", False),
        (5, "km", "It is 5 kg.", False),
        (90, "min", "It takes 1.5 hours.", True),
        (90, "min", "90mins", True),
        (20, "°C", "It is 68 °F.", True),
        (-3, "°C", "At −3 °C.", True),
        (1.5, "GB", "1,500 MB", True),
        (10, "lb", "10 lbs", True),
        (12, "%", "12 percent", True),
        (2, "h", "1 h, 2 h, 3 h, 4 h or 5 h", False),
    ],
)
def test_a_quantity_counts_in_any_unit_of_its_kind(value, unit, given, right):
    assert meets(HasNumber(value=value, unit=unit), given) is right


@pytest.mark.parametrize("unit", get_args(Unit))
def test_each_unit_is_read(unit):
    assert meets(HasNumber(value=2, unit=unit), f"It is 2 {unit}.")


@pytest.mark.parametrize(
    ("days", "given", "right"),
    [
        (0, "On November 14, 2025.", True),
        (0, "the 14th Nov. 2025", True),
        (0, "2025-11-14T09:30", True),
        (0, "2025-11-15", False),
        (1, "2025-11-15", True),
        (0, "2025-13-44", False),
        (9, "2025-11-10, 2025-11-11, 2025-11-12, 2025-11-13 or 2025-11-14", False),
        (0, "On the 14th.", False),
    ],
)
def test_a_date_must_be_near_enough_and_among_few(days, given, right):
    assert meets(HasDate(date="2025-11-14", tolerance_days=days), given) is right


@pytest.mark.parametrize(
    ("given", "right"),
    [
        ('{"city": "Lima", "offices": [{"floor": 3}]}', True),
        ('Here:\n```json\n{"city": "LIMA", "offices": [{"floor": 3.0, "rooms": 8}]}\n```', True),
        ('{"city": "Lima", "offices": []}', False),
        ('{"city": ["Lima"], "offices": [{"floor": 3}]}', False),
        ('{"city": "Lima", offices}', False),
        ("city: Lima, floor 3", False),
        ('{"a":' * 100_000 + "}", False),
    ],
)
def test_the_fields_of_a_structured_answer_are_checked(given, right):
    expected = HasFields(fields={"city": Exactly(text="lima"), "offices.0.floor": HasNumber(value=3)})
    assert meets(expected, given) is right


@pytest.mark.parametrize(
    "expected", [HasDate(date="2025-02-30"), HasDate(date="tomorrow"), HasFields(fields={"city": Contains(text=" ")})]
)
def test_dates_that_do_not_exist_and_empty_fields_are_unusable(expected):
    assert why_unusable(expected) is not None

"""Reads results: the named values in text or JSON, and which of them may be answers or appear in questions.

A `Ref` describes where a value is in a result, in words that a question can use:

    ("the", "Price")      a label or a key that occurs once       "the Price"
    ("first", "Revenue")  its first occurrence                    "the first Revenue"
    ("entry", "2")        the head of the second entry of a list  "entry 2"
    ("entry 2", "ID")     a labelled value in that entry          "the ID of entry 2"
    ("entry 2", "value 3") the third value, if it is a list      "the value 3 of entry 2"
    ("rows 2", "ID")      the same, if JSON has several lists     "the ID of rows 2"
    ("part", "3")         the third part of a short line          "part 3"
"""

from __future__ import annotations

import ast
import json
import random
import re
import string
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final, cast

from mcprl.episodes.rewards import numbers_in
from mcprl.goals import Contains, ExpectedText, HasNumber

__all__ = ["Ref", "expected", "fields_of", "junk", "kind_of", "number_of", "odd_words", "ref_words", "safe", "words"]

Ref = tuple[str, str]

_ENTRIES: Final = 40
_PARTS = 6
_MAX_TEXT = 60
_MAX_LABEL_WORDS = 3
_MAX_ENTITY_WORDS = 4
_SHORT_LINE = 120
_MARKUP = re.compile(r"\*\*|__|`")
_LABELLED = re.compile(r"^[\s>*•-]*(?P<label>[A-Za-z][\w/%&.' -]{0,30}?)\s?:\s+(?P<value>\S.*?)\s*$")
_INLINE = re.compile(r"(?<![\w:/])([A-Za-z]\w{0,20}):(?!//) ?([\w./@#-]*\w)")
_HEAD = re.compile(
    r"^(?P<before>\s*(?:[-*•#@>]|\d{1,3}[.)]\s|\[[A-Z]+\])?\s*[#@]?)(?P<head>[A-Za-z0-9][\w.&/@-]*)(?P<after>\W{0,4})"
)
_SAFE = re.compile(r"[\w&'@#.,:/+-]+(?: [\w&'@#.,:/+-]+)*")
_UNIT = re.compile(r"[^A-Za-z]*(?:[KMBTkmbt%x]|USD|EUR|GBP)?[^A-Za-z]*")
_ODD = re.compile(r"(?<![\w/.])(?:[A-Z]{2,}[A-Z0-9]*|\w*\d\w*-[\w-]+|[A-Za-z]+\d\w*|\d{4}-\d\d-\d\d)(?![\w/])")


def words(name: str) -> str:
    """Reduce a name to identifier characters and spaces: "P/E Ratio" to "P E Ratio"."""
    return " ".join(re.findall(r"[A-Za-z0-9]+", name))


def ref_words(ref: Ref) -> str:
    """Return a ref as the words of a question."""
    place, name = ref
    if name.isdigit():
        return f"{words(place)} {name}"
    if place[-1:].isdigit():
        return f"the {words(name)} of {words(place)}"
    return f"the {'first ' if place == 'first' else ''}{words(name)}"


def kind_of(ref: Ref) -> Ref:
    """Return a ref without its numbers: all entries of a list are values of one kind."""
    place, name = ref
    if place[-1:].isdigit():
        return f"{place.rsplit(' ')[0]} *", name
    return place, "*" if name.isdigit() else name


def fields_of(text: str) -> dict[Ref, str]:
    """Return the named values of a result."""
    try:
        value = _parsed(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return _fields_of_text(_MARKUP.sub("", text))
    if isinstance(value, dict | list):
        return dict(_fields_of_json(value))
    return {("part", "1"): str(value)}


def _parsed(text: str) -> Any:
    """Parse JSON, objects on lines of their own, or a list or dictionary as Python prints it."""
    try:
        return json.loads(text)
    except ValueError:
        if text.startswith(("[{", "[(", "['", "{'")):
            return ast.literal_eval(text)
        rows = [json.loads(line) for line in text.split("\n") if line.startswith("{")]
        if not rows:
            raise
        return rows if len(rows) > 1 else rows[0]


def _fields_of_json(value: Any) -> Iterator[tuple[Ref, str]]:
    """Yield leaves under their own key if it is unique, and the entries of lists of objects or strings.

    If there is only one list, its entries are called "entry"; otherwise, they are called by the key of their list.
    """
    leaves: list[tuple[str, str]] = []
    lists: list[tuple[str, list[Any]]] = []
    pending: list[tuple[str, Any]] = [("", value)]
    while pending:
        name, part = pending.pop(0)
        if isinstance(part, dict):
            pending += [(str(key), inner) for key, inner in cast("dict[str, Any]", part).items()]
        elif isinstance(part, list | tuple):
            lists += [(name, list(cast("list[Any]", part)))] if part else []
        elif (shown := _leaf(part)) is not None:
            leaves.append((name, shown))
    times = Counter(name for name, _ in leaves)
    yield from ((("the", name), shown) for name, shown in leaves if times[name] == 1 and _is_label(name))
    named = Counter(name for name, _ in lists)
    for name, entries in lists:
        if len(lists) == 1 or (named[name] == 1 and _is_label(name)):
            yield from _entries_of_json("entry" if len(lists) == 1 else words(name), entries)


def _entries_of_json(place: str, entries: list[Any]) -> Iterator[tuple[Ref, str]]:
    for number, entry in enumerate(entries[:_ENTRIES], 1):
        if isinstance(entry, list):  # a row of a table
            entry = {"value": cast("list[Any]", entry)}
        if isinstance(entry, dict):
            for key, inner in cast("dict[str, Any]", entry).items():
                parts = cast("list[Any]", inner) if isinstance(inner, list) else [inner]
                for nth, part in enumerate(parts[:_PARTS], 1):
                    if (shown := _leaf(part)) is not None and _is_label(key):
                        yield (f"{place} {number}", f"{key} {nth}" if isinstance(inner, list) else key), shown
        elif (shown := _leaf(entry)) is not None:
            yield (place, str(number)), shown


def _leaf(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return value.strip() if isinstance(value, str) else json.dumps(value)


def _fields_of_text(text: str) -> dict[Ref, str]:
    lines = [line for line in text.split("\n") if line.strip()]
    found: dict[Ref, str] = {}
    labelled = [(m["label"].strip(), _unquoted(m["value"])) for line in lines if (m := _LABELLED.match(line))]
    times = Counter(label for label, _ in labelled)
    nth: Counter[str] = Counter()
    for label, value in labelled:
        nth[label] += 1
        if _is_label(label):
            found.setdefault(("the" if times[label] == 1 else "first", label), value)
            # The first label begins each record.
            if times[label] == times[labelled[0][0]] > 1 and nth[label] <= _ENTRIES:
                found[f"entry {nth[label]}", label] = value
    heads = [] if labelled and times[labelled[0][0]] > 1 else _entries(lines)
    for number, (head, rest) in enumerate(heads, 1):
        found["entry", str(number)] = head
        for label, value in _INLINE.findall(rest):
            if _is_label(label):
                found.setdefault((f"entry {number}", label), value)
    if len(lines) == 1 and len(lines[0]) <= _SHORT_LINE:
        parts = [part.strip() for part in re.split(r"[:,;|]\s+", lines[0]) if part.strip()]
        found |= {("part", str(number)): part for number, part in enumerate(parts[:_PARTS], 1)}
    return found


def _entries(lines: list[str]) -> list[tuple[str, str]]:
    """Find a list in a text: two or more lines that begin alike. Return the head and the rest of each line."""
    by_form: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for line in lines:
        if match := _HEAD.match(line):
            form = (re.sub(r"\d+", "9", match["before"]), match["after"])
            by_form.setdefault(form, []).append((match["head"], line[match.end() - len(match["after"]) :]))
    plain = all(len(line.split()) == 1 for line in lines)
    by_form = {form: rows for form, rows in by_form.items() if plain or form[1].strip() or form[0].strip()}
    longest = max(by_form.values(), key=len, default=list[tuple[str, str]]())
    different = len({head for head, _ in longest}) == len(longest)
    return longest[:_ENTRIES] if len(longest) > 1 and different else []


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 2 and value[0] == value[-1] and value[0] in "'\"" else value


def _is_label(name: str) -> bool:
    plain = words(name)
    return bool(plain) and len(plain.split()) <= _MAX_LABEL_WORDS and len(plain) <= 30 and plain[0].isalpha()


def odd_words(text: str) -> list[str]:
    """Return the words that look like names, quantities or dates, without duplicates."""
    return list(dict.fromkeys(found for found in _ODD.findall(text) if len(found) > 1))[:40]


def safe(value: object) -> bool:
    """Return True if a value may appear in a question or be passed to a tool: it is short and not a sentence."""
    if isinstance(value, int | float):
        return True
    text = value if isinstance(value, str) else ""
    return 0 < len(text) <= _MAX_TEXT and len(text.split()) <= _MAX_ENTITY_WORDS and _SAFE.fullmatch(text) is not None


def number_of(value: str) -> Decimal | None:
    """Return the number if the value is one number, perhaps with a unit."""
    numbers = numbers_in(value)
    return numbers[0] if len(numbers) == 1 and _UNIT.fullmatch(value.strip()) else None


def expected(value: str, *, at_most: int | None = 4) -> ExpectedText | None:
    """Return the check for an answer with this value; None if the value is not suitable as an answer."""
    number = number_of(value)
    if number is not None:
        exponent = int(number.as_tuple().exponent)
        tolerance = float(Decimal(5).scaleb(exponent - 1)) if exponent < 0 else 0.0
        return HasNumber(value=float(number), tolerance=tolerance, at_most=at_most)
    fits = 2 <= len(value) <= _MAX_TEXT and len(value.split()) <= 8 and "\n" not in value
    if not fits or numbers_in(value) or not re.search(r"\w", value):
        return None
    return Contains(text=value)


def junk(value: object, stream: random.Random) -> Any:
    """Return a value of the same shape: letters become other letters of the same case, digits other digits."""
    if isinstance(value, int | float):
        return value + stream.randrange(100_003, 999_999)
    sets = (string.ascii_uppercase, string.ascii_lowercase, string.digits)
    return "".join(next((stream.choice(each) for each in sets if old in each), old) for old in str(value))

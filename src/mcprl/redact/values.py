"""The ways in which a registered value can be written in a text."""

from __future__ import annotations

import base64
import html
import json
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from urllib.parse import quote

__all__ = ["Form", "alternation", "forms_of", "written_forms"]

_NEVER_ESCAPED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~")
_BASE64_FORMS = {"+": r"(?:[+-]|%2[Bb])", "/": r"(?:\\?/|_|%2[Ff])"}
_BASE64_EDGE = "[A-Za-z0-9+/_-]?"


@dataclass(frozen=True, slots=True)
class Form:
    """One way to write a value. `core` is in every text that `pattern` matches, and much faster to look for.

    Form(name="DB_PASSWORD", core="horse", pattern="(?:correct(?: |%20|…)horse)", length=13)
    """

    name: str
    core: str
    pattern: str
    length: int


def forms_of(name: str, value: str) -> list[Form]:
    """The value with each of its characters plain or escaped, and its base64 inside a longer text such as `user:value`.

    Base64 has three forms, one for each place that the value can have among groups of three bytes.
    """
    forms = [Form(name, _longest_plain_run(value), "".join(map(_character_forms, value)), len(value))]
    for core in _base64_cores(value.encode("utf-8", "surrogatepass")):
        inside = "".join(_BASE64_FORMS.get(character, character) for character in core)
        pattern = f"{_BASE64_EDGE}{inside}{_BASE64_EDGE}(?:=|%3[Dd]){{0,2}}"
        forms.append(Form(name, _longest_plain_run(core), pattern, len(core)))
    return forms


def written_forms(value: str) -> set[str]:
    """The value as whole texts in the common encodings, for a search that cannot use patterns."""
    quoted = quote(value, safe="", errors="surrogatepass")
    forms = {value, quoted, quote(value, errors="surrogatepass"), quoted.replace("%20", "+"), html.escape(value)}
    forms |= {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
    forms |= {json.dumps(form, ensure_ascii=False)[1:-1] for form in forms} | {repr(form)[1:-1] for form in forms}
    encoded = value.encode("utf-8", "surrogatepass")
    return forms | {base64.b64encode(encoded).decode("ascii"), *_base64_cores(encoded)}


@lru_cache(maxsize=256)
def alternation(forms: tuple[Form, ...]) -> re.Pattern[str]:
    """One pattern for all the forms; the number of the group that matched tells which."""
    return re.compile("|".join(f"({form.pattern})" for form in forms))


@cache
def _character_forms(character: str) -> str:
    """A pattern for one character: as it stands, quoted for a URL, escaped for HTML, JSON or Python (once or twice)."""
    if character in _NEVER_ESCAPED:
        return re.escape(character)
    code, encoded = ord(character), character.encode("utf-8", "surrogatepass")
    quoted = "".join(f"%{byte:02X}" for byte in encoded)
    forms = {character, quoted, quoted.lower(), html.escape(character), json.dumps(character)[1:-1], "\\" + character}
    forms |= {f"&#{code};", f"&#x{code:x};", f"&#x{code:X};"}
    forms |= {f"\\x{code:02x}", f"\\u{code:04x}", f"\\u{code:04X}", f"\\U{code:08x}"}
    forms.add("".join(f"\\x{byte:02x}" for byte in encoded))
    forms |= {form.replace("\\", "\\\\").replace('"', '\\"') for form in forms if "\\" in form}
    if character == " ":
        forms.add("+")
    return "(?:" + "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True)) + ")"


def _base64_cores(value: bytes) -> list[str]:
    # A character of base64 carries six bits. Those at the ends that mix in bits of the neighbours are left off.
    cores: list[str] = []
    for offset, mixed in ((0, 0), (1, 2), (2, 3)):
        encoded = base64.b64encode(bytes(offset) + value).decode("ascii")
        cores.append(encoded[mixed : 8 * (offset + len(value)) // 6])
    return cores


def _longest_plain_run(text: str) -> str:
    # Letters and digits are written the same in every one of the encodings.
    return max(re.findall(r"[A-Za-z0-9]+", text), key=len, default="")

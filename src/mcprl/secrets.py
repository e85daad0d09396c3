"""Secrets: the registry of their values, and redaction of all text that leaves the process or is written to disk.

Each text is searched twice. The first search finds registered values in any common encoding: quoted for a URL, escaped
for JSON or HTML, in base64. The second finds unregistered text that looks like a key: URL parameters, authorization
headers, passwords in URLs, the key formats of well-known services. When in doubt, it leaves the text unchanged, because
the policy reads the text and learns from it.

    SECRETS.add("FMP_API_KEY", "3f9a…")
    SECRETS.redact("GET /quote?apikey=3f9a…")     # 'GET /quote?apikey=[redacted FMP_API_KEY]'

Redacting a text again changes nothing. Redaction takes time linear in the length of the text. It cannot find a value
that was reversed, encrypted, split, or cut at its beginning.
"""

from __future__ import annotations

import base64
import binascii
import html
import json
import logging
import os
import re
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from threading import Lock
from typing import Any, cast
from urllib.parse import quote

_PRIVATE_KEY = r"(?:[ +]|%20)?(?:[A-Z]{1,12}(?:[ +]|%20)){0,3}PRIVATE(?:[ +]|%20)?KEY-----"
_KEY_BEGIN = "-----BEGIN" + _PRIVATE_KEY
_KEY_END = "-----END" + _PRIVATE_KEY

_SHAPE_NAMES = ("header", "key", "password", "private key", "token")
"""The names used in `[redacted …]` for values that are not registered."""

_SECRET_WORDS = re.compile(
    r"(?:auth|authorization|bearer|cookie|credentials?|key|keys|pass|passphrase|pat|pwd|sig|signature"
    r"|\w*(?:apikey|accesskey|secretkey|privatekey|token|secret|secrets|password|passwd))\Z"
)
# SSL_KEY_FILE, SSH_AUTH_SOCK, AUTH_MODE etc. give the location or the use of a secret, not the secret.
_HARMLESS_END = re.compile(
    r"algorithm|count|dir|enabled|endpoint|file|folder|header|host|limit|method|mode|name|path|port|prefix|provider"
    r"|region|required|server|sock|timeout|ttl|type|uri|url|user|username|version"
)

HUB_VARIABLES = ("HF_", "HUGGING_FACE_")
"""Prefixes of the Hugging Face hub's environment variables. Code that loads a model may need the hub's token."""


@lru_cache(maxsize=4096)
def looks_secret(name: str) -> bool:
    """Return whether a name of a variable, header or parameter, such as `FMP_API_KEY`, suggests a secret."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())
    # PWD alone is the working directory, not a password.
    if not words or words == ["pwd"] or _HARMLESS_END.fullmatch(words[-1]):
        return False
    return any(_SECRET_WORDS.match(word) for word in words)


def environment_without_keys(*kept: str) -> dict[str, str]:
    """Return our environment without variables that look like secrets, for child processes that need no keys.

    Variables whose names begin with one of `kept` are passed on: environment_without_keys("HF_") keeps HF_TOKEN.
    """
    return {name: value for name, value in os.environ.items() if name.startswith(kept) or not looks_secret(name)}


# Every match ends before a non-word character, and a match without a name in front begins after one. So a replacement
# creates no new match: redacting again changes nothing. Each pattern begins with one of few characters, which the
# search skips to, and has no nested repetition.
_VALUE = r"[A-Za-z0-9_.~%+/=:*!|@-]"
_HEADER_VALUE = r"[A-Za-z0-9_.~+/=-]"
_HAS_DIGIT = r"(?=[A-Za-z_.~%+/=:*!|@-]{0,80}[0-9])"
# Comes after the first character. An escape before a key, as in '%20sk-…' or '\\nsk-…', is not part of the word.
_NOT_IN_WORD = r"(?:(?<![A-Za-z0-9_-].)|(?<=\\[nrtbf].)|(?<=%[0-9A-Fa-f]{2}.)|(?<=\\u[0-9A-Fa-f]{4}.))"
_SURE_NAME = (
    r"(?:[a-z]{1,12}[_-])?api[_-]?key|(?:access|auth|refresh|id|security)[_-]?token|client[_-]?secret"
    r"|(?:access|secret|subscription|app|private)[_-]?key|passw(?:or)?d|pwd|secret|x-amz-(?:signature|security-token)"
)
_POSSIBLE_NAME = r"key|token|auth|sig|signature"
_NO_KEY = re.compile(r"true|false|null|none|yes|no|[0-9]|%[sdr]?", re.IGNORECASE)
_SCHEME = r"(?:bearer|basic|token|apikey|digest|negotiate)"
_QUOTE = r"\\{0,3}[\"']"
_SPACE = r"(?:\s|%20|\+)"
_BREAK = r"(?:\s|\\[nr]|%0[ADad]|%20)"

_SURE = re.compile(_SURE_NAME, re.IGNORECASE)
_POSSIBLE = re.compile(_POSSIBLE_NAME, re.IGNORECASE)
_KEY_VALUE = re.compile(rf"(?:{_HAS_DIGIT}|(?=[A-Za-z]{{20}})){_VALUE}{{8,}}")
_SURE_END = re.compile(rf"(?:\A|[^A-Za-z0-9])(?:{_SURE_NAME})\Z", re.IGNORECASE)
_LONGEST_NAME = 32


def _redact_parameter(match: re.Match[str]) -> str:
    name, value = match["name"], match["value"]
    if _SURE.fullmatch(name):
        found = not _NO_KEY.fullmatch(value)
    else:
        # '?key=name' sorts a list; '?key=8f3a…' authenticates.
        found = _POSSIBLE.fullmatch(name) is not None and _KEY_VALUE.match(value) is not None
    return f"{match['before']}[redacted key]" if found else match[0]


def _redact_assigned(match: re.Match[str]) -> str:
    # Anchored at the end of the name, where the search is fast. "next_token" and "cache_key" are not secrets.
    name_end = match.end("word")
    name = match.string[max(0, name_end - _LONGEST_NAME) : name_end]
    return f"{match['before']}[redacted key]" if _SURE_END.search(name) else match[0]


def _redact_basic(match: re.Match[str]) -> str:
    # Credentials are base64 of 'user:password'; 'Basic JavaScript' is not.
    value = match["value"]
    try:
        decoded = base64.b64decode(value + "=" * (-len(value) % 4), altchars=b"-_" if "_" in value else None)
    except binascii.Error:
        return match[0]
    return f"{match['before']}[redacted header]" if b":" in decoded else match[0]


@dataclass(frozen=True, slots=True)
class _Rule:
    """A pattern. It can match a text only if the lower-cased text contains one string of each group in `needs`."""

    needs: tuple[tuple[str, ...], ...]
    pattern: re.Pattern[str]
    replacement: str | Callable[[re.Match[str]], str]


_STEMS = ("key", "token", "auth", "sig", "secret", "passw", "pwd")

# Rules that look for a name. They can match a text only if it contains one of _STEMS.
_NAMED_RULES = (
    _Rule(  # ?apikey=…, &amp;token=…, also in a URL inside JSON
        (("=",), ("?", "&", "\\u0026")),
        re.compile(rf"(?P<before>(?:\?|&|&amp;|\\u0026)(?P<name>[A-Za-z][A-Za-z0-9_-]{{1,31}})=)(?P<value>{_VALUE}+)"),
        _redact_parameter,
    ),
    _Rule(  # the same in a URL that is itself quoted: %3Fapikey%3D…
        (("%3d",),),
        re.compile(rf"(%(?i:(?:3f|26)(?:{_SURE_NAME}|{_POSSIBLE_NAME})%3d))[A-Za-z0-9_.~+/=:*!|@-]{{8,}}"),
        r"\1[redacted key]",
    ),
    _Rule(  # "api_key": "…", api_key='…'
        (('"', "'"),),
        re.compile(
            rf"(?P<before>(?P<word>[KkTtSsPp](?i:ey|oken|ecret|assword|asswd|wd|ignature))(?:{_QUOTE})?"
            rf"\s{{0,4}}[:=]\s{{0,4}}{_QUOTE}(?=[A-Za-z_.~+/=-]{{0,80}}[0-9]))[A-Za-z0-9_.~+/=-]{{16,}}"
        ),
        _redact_assigned,
    ),
    _Rule(
        (("x-", "api-key"),),
        re.compile(
            rf"([XxAa]{_NOT_IN_WORD}(?i:(?:-api-key|-auth-token|-access-token|pi-key)):\s{{0,4}}{_HAS_DIGIT})"
            rf"{_HEADER_VALUE}{{16,}}"
        ),
        r"\1[redacted header]",
    ),
    _Rule(
        (("authorization",),),
        re.compile(
            rf"([Aa](?i:uthorization)(?:{_QUOTE})?\s{{0,4}}(?:[:=,]|%3[Aa]){_SPACE}{{0,4}}(?:b?{_QUOTE})?"
            rf"(?:(?i:{_SCHEME}){_SPACE}{{1,4}}(?={_HEADER_VALUE}{{6}})|(?={_HEADER_VALUE}{{16}}){_HAS_DIGIT}))"
            rf"{_HEADER_VALUE}+"
        ),
        r"\1[redacted header]",
    ),
    _Rule(
        (("-----begin",),),
        re.compile(
            rf"{_KEY_BEGIN}(?:{_BREAK}++(?:Proc-Type|DEK-Info): ?[^\s\\]++)*+"
            rf"(?:{_BREAK}*+[A-Za-z0-9+/=]{{16,}}+)*+"
            rf"(?:(?:{_BREAK}*+[A-Za-z0-9+/=]{{1,15}}+)?{_BREAK}*+{_KEY_END})?"
        ),
        "[redacted private key]",
    ),
)

_OTHER_RULES = (
    _Rule(
        (("bearer",),),
        re.compile(
            rf"([Bb]{_NOT_IN_WORD}(?i:earer){_SPACE}{{1,4}}"
            rf"(?={_HEADER_VALUE}{{16}})(?:{_HAS_DIGIT}|(?=[A-Za-z]{{20}})))"
            rf"{_HEADER_VALUE}+"
        ),
        r"\1[redacted header]",
    ),
    _Rule(
        (("basic",),),
        re.compile(rf"(?P<before>[Bb]{_NOT_IN_WORD}(?i:asic){_SPACE}{{1,4}})(?P<value>[A-Za-z0-9+/=_-]{{8,}})"),
        _redact_basic,
    ),
    _Rule(
        (("@",), ("://",)),
        re.compile(r"(://[^\s/:@\"'<>?#\\\[\]]{0,256}:)[^\s/@\"'<>\\\[\]]{1,256}(?=@)"),
        r"\1[redacted password]",
    ),
    _Rule(
        (("-",), ("sk-", "xox", "xapp-", "glpat-", "tvly-")),
        re.compile(
            rf"[sgxt]{_NOT_IN_WORD}(?:(?:k|lpat)-(?=[A-Za-z0-9_-]{{20}})|(?:ox[abeoprs]|app|vly)-(?=[A-Za-z0-9_-]{{12}}))"
            r"(?=[A-Za-z_-]{0,80}[0-9])[A-Za-z0-9_-]+"
        ),
        "[redacted key]",
    ),
    _Rule(
        (("_", "aiza"), ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "hf_", "k_live_", "k_test_", "aiza")),
        re.compile(
            rf"[ghrsA]{_NOT_IN_WORD}(?:h[pousr]_[A-Za-z0-9]{{20}}|ithub_pat_[A-Za-z0-9_]{{20}}|f_[A-Za-z0-9]{{30}}"
            r"|k_(?:live|test)_[A-Za-z0-9]{16}|Iza[A-Za-z0-9_-]{35})[A-Za-z0-9_-]*"
        ),
        "[redacted key]",
    ),
    _Rule((("akia", "asia"),), re.compile(rf"A{_NOT_IN_WORD}[KS]IA[A-Z2-7]{{16}}(?![A-Za-z0-9_-])"), "[redacted key]"),
    _Rule(
        (("eyj",),),
        re.compile(rf"e{_NOT_IN_WORD}yJ[A-Za-z0-9_-]{{8,}}+\.[A-Za-z0-9_-]{{8,}}+\.[A-Za-z0-9_-]{{8,}}+"),
        "[redacted token]",
    ),
)


def _redact_shapes(text: str) -> str:
    """Return the text with everything that looks like a key redacted. Fast: in most texts, no rule can match."""
    lower = text.lower()
    rules = (*_NAMED_RULES, *_OTHER_RULES) if any(stem in lower for stem in _STEMS) else _OTHER_RULES
    for rule in rules:
        if all(any(needed in lower for needed in group) for group in rule.needs):
            text = rule.pattern.sub(rule.replacement, text)
    return text


_NEVER_ESCAPED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~")
_BASE64_FORMS = {"+": r"(?:[+-]|%2[Bb])", "/": r"(?:\\?/|_|%2[Ff])"}
_BASE64_EDGE = "[A-Za-z0-9+/_-]?"


@dataclass(frozen=True, slots=True)
class _Form:
    """A pattern for the encodings of a value. `core` is in every text that `pattern` matches, and is much faster to
    find.

    _Form(name="DB_PASSWORD", core="horse", pattern="(?:correct(?: |%20|…)horse)", length=13)
    """

    name: str
    core: str
    pattern: str
    length: int


def _forms_of(name: str, value: str) -> list[_Form]:
    """Return forms for the value with each character plain or escaped, and for its base64 within a text such as
    `user:value`.

    Base64 has three forms, one for each offset of the value within groups of three bytes.
    """
    forms = [_Form(name, _longest_plain_run(value), "".join(map(_character_forms, value)), len(value))]
    for core in _base64_cores(value.encode("utf-8", "surrogatepass")):
        inside = "".join(_BASE64_FORMS.get(character, character) for character in core)
        pattern = f"{_BASE64_EDGE}{inside}{_BASE64_EDGE}(?:=|%3[Dd]){{0,2}}"
        forms.append(_Form(name, _longest_plain_run(core), pattern, len(core)))
    return forms


def _written_forms(value: str) -> set[str]:
    """Return the value in the common encodings, for a search without regular expressions."""
    quoted = quote(value, safe="", errors="surrogatepass")
    forms = {value, quoted, quote(value, errors="surrogatepass"), quoted.replace("%20", "+"), html.escape(value)}
    forms |= {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
    forms |= {json.dumps(form, ensure_ascii=False)[1:-1] for form in forms} | {repr(form)[1:-1] for form in forms}
    encoded = value.encode("utf-8", "surrogatepass")
    return forms | {base64.b64encode(encoded).decode("ascii"), *_base64_cores(encoded)}


@lru_cache(maxsize=256)
def _alternation(forms: tuple[_Form, ...]) -> re.Pattern[str]:
    """Combine all forms into one pattern. The number of the matching group identifies the form."""
    return re.compile("|".join(f"({form.pattern})" for form in forms))


@cache
def _character_forms(character: str) -> str:
    """Return a pattern for one character: plain, quoted for a URL, escaped for HTML, JSON or Python (once or twice)."""
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
    # A base64 character has six bits. Characters at the ends that contain bits of neighboring bytes are left out.
    cores: list[str] = []
    for offset, mixed in ((0, 0), (1, 2), (2, 3)):
        encoded = base64.b64encode(bytes(offset) + value).decode("ascii")
        cores.append(encoded[mixed : 8 * (offset + len(value)) // 6])
    return cores


def _longest_plain_run(text: str) -> str:
    # Letters and digits are the same in all encodings.
    return max(re.findall(r"[A-Za-z0-9]+", text), key=len, default="")


_BEGIN, _END = re.compile(_KEY_BEGIN), re.compile(_KEY_END)
_KEY_LINE = re.compile(r"\s*(?:[A-Za-z0-9+/=]*|Proc-Type:.*|DEK-Info:.*)\s*")
_MIN_EDGE = 6
_MIN_INSIDE = 8
_REMEMBERED = 400
_WIDEST_PLACE = 80
# Log handlers that wrap long lines pad them with spaces, and may print columns next to the message.
_COLUMN = re.compile(r"\S+(?: \S+)*")
_PLACE = re.compile(r" \S+\.\w+:\d+\s*\Z")
_CONTINUED = re.compile(r" {4,}(?=\S)")
_LAST_MARK = re.compile(r"\[redacted [^\[\]]*\]\Z")


class LineCleaner:
    """Redacts the lines of one log. It must receive them in order.

    Besides what `redact` finds in a line, it redacts secrets that span lines: private keys, and secrets that a log
    handler wrapped to fit its width. A wrapped secret is recognized only at the next line, so the beginning of an
    unregistered secret may remain visible, or up to five characters of a registered one.
    """

    def __init__(self, redact: Callable[[str], str], values: Callable[[], Iterable[tuple[str, str]]]) -> None:
        self._redact = redact
        self._values = values
        self._in_key = False
        self._before = ""

    def __call__(self, line: str) -> str:
        if self._in_key:
            self._in_key = _KEY_LINE.fullmatch(line) is not None
            if self._in_key:
                return "[redacted private key]"
        if "-----BEGIN" in line and _BEGIN.search(line) and not _END.search(line):
            self._in_key = True
        place = match[0] if (match := _PLACE.search(line, max(0, len(line) - _WIDEST_PLACE))) else ""
        message = line.removesuffix(place)
        clean = self._redact_parts(self._redact_continued(message))
        indent = _CONTINUED.match(message)
        self._before = (self._before + message.strip() if indent else message.rstrip())[-_REMEMBERED:]
        return clean + self._redact(place)

    def _redact_continued(self, message: str) -> str:
        """Return the line without the rest of a secret that began in an earlier line."""
        indent = _CONTINUED.match(message)
        if indent is None or not self._before:
            return self._redact(message)
        body = message.strip()
        clean, padding = self._redact(body), message[len(message.rstrip()) :]
        for glue in ("", " "):
            joined = self._redact(f"{self._before}{glue}{body}")
            if joined.endswith(clean):
                continue
            same = _common_end(joined, clean)
            mark = _LAST_MARK.search(joined.removesuffix(same))
            if mark:
                return f"{indent[0]}{mark[0]}{same}{padding}"
        return f"{indent[0]}{clean}{padding}"

    def _redact_parts(self, message: str) -> str:
        for name, value in self._values():
            if _may_hold_part(message, value):
                message = _COLUMN.sub(partial(_redact_parts, name, value), message)
        return message


def _common_end(one: str, other: str) -> str:
    length = 0
    while length < min(len(one), len(other)) and one[-length - 1] == other[-length - 1]:
        length += 1
    return one[len(one) - length :]


def _may_hold_part(line: str, value: str) -> bool:
    if value[:_MIN_EDGE] in line or value[-_MIN_EDGE:] in line:
        return True
    first = line.lstrip()[: len(value)].split("  ", 1)[0].rstrip()
    return len(first) >= _MIN_INSIDE and first in value


def _redact_parts(name: str, value: str, match: re.Match[str]) -> str:
    """Redact a column (text between gaps) that ends with the value's start, begins with its end, or is part of it."""
    column, mark = match[0], f"[redacted {name}]"
    if len(column) >= _MIN_INSIDE and column in value:
        return mark
    start = column.rfind(value[:_MIN_EDGE])
    if start >= 0 and value.startswith(column[start:]):
        column = column[:start] + mark
    end = column.find(value[-_MIN_EDGE:])
    if end >= 0 and value.endswith(column[: end + _MIN_EDGE]):
        column = mark + column[end + _MIN_EDGE :]
    return column


MIN_SECRET_CHARACTERS = 8
"""Shorter values are not searched for, because they occur in ordinary words and numbers."""

_log = logging.getLogger(__name__)


class SecretRegistry:
    """Registered secrets, each with the name that replaces it. A process needs one registry."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._search = _Search({})
        self._lock = Lock()

    def add(self, name: str, value: str) -> None:
        """Redact `value` from now on, as `[redacted NAME]`. A known value keeps its first name.

        A value shorter than MIN_SECRET_CHARACTERS, such as `UTC` or `1`, is not registered, because it would be
        redacted in ordinary text. If the name looks like that of a secret, a warning is logged.
        """
        value = value.strip()
        if len(value) < MIN_SECRET_CHARACTERS:
            if value and looks_secret(name):
                _log.warning("the value of %s is too short to be redacted reliably, so it is not redacted", name)
            return
        with self._lock:
            # A value that is part of the marker itself, such as the password 'redacted', would break the markers.
            if value not in self._names and value not in "[redacted ":
                self._names[value] = re.sub(r"[^\w.-]", "_", name)
                self._search = _Search(dict(self._names))

    def redact(self, text: str) -> str:
        """Return the text with secrets redacted. A text without secrets is returned unchanged.

        The start of a registered value at the end of the text is redacted too, because the text may have been cut.
        """
        return _redact_shapes(self._search.redact(text))

    def redact_json(self, value: Any) -> Any:
        """Return a JSON value with secrets redacted in all strings, including object keys."""
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, Mapping):
            return self._redact_object(cast("Mapping[str, Any]", value))
        if isinstance(value, list | tuple):
            return [self.redact_json(item) for item in cast("list[Any]", value)]
        return value

    def line_cleaner(self) -> LineCleaner:
        """Return a function that redacts the lines of one log in their order; see `LineCleaner`."""
        return LineCleaner(self.redact, lambda: self._search.written)

    def install_in_logging(self) -> None:
        """Redact every record that this process logs from now on. Further calls change nothing.

        Records are redacted when they are made. A filter would have to be added to every handler, including those that
        libraries add later, and a logger's filter does not see the records of child loggers. Message, arguments,
        exception and stack are covered; `extra` attributes are not, because logging adds them afterwards.
        """
        inner = logging.getLogRecordFactory()
        if not (isinstance(inner, _RecordFactory) and inner.registry is self):
            logging.setLogRecordFactory(_RecordFactory(inner, self))

    def _redact_object(self, value: Mapping[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, item in value.items():
            clean = name = self.redact(str(key))
            count = 1
            while name in result:  # two different keys that were both redacted: keep both entries
                count += 1
                name = f"{clean} {count}"
            result[name] = self.redact_json(item)
        return result


class _Search:
    """A search for a fixed set of values. It is immutable, so threads need no lock."""

    def __init__(self, names: Mapping[str, str]) -> None:
        forms = [form for value, name in names.items() for form in _forms_of(name, value)]
        # Longest first: if one secret is a prefix of another, the longer one must be redacted completely.
        self._forms = sorted(forms, key=lambda form: form.length, reverse=True)
        self._cores = tuple({form.core for form in forms})
        self._heads = tuple({value[:MIN_SECRET_CHARACTERS] for value in names})
        self._values = dict(names)
        self._tail = max(map(len, names), default=0)
        # Only existing names: a server must not hide a secret by writing '[redacted …]' around it.
        labels = "|".join(map(re.escape, {*_SHAPE_NAMES, *names.values()}))
        self._markers = re.compile(rf"(\[redacted (?:{labels})\])")

    @cached_property
    def written(self) -> list[tuple[str, str]]:
        """Return names and values, each value in the common encodings."""
        return [(name, form) for value, name in self._values.items() for form in _written_forms(value)]

    def redact(self, text: str) -> str:
        cores = [core for core in self._cores if core in text]
        if cores:
            text = self._redact_whole(text, tuple(form for form in self._forms if form.core in cores))
        tail = text[-self._tail :]
        heads = [head for head in self._heads if head in tail]
        return self._redact_cut(text, heads) if heads else text

    def _redact_whole(self, text: str, forms: tuple[_Form, ...]) -> str:
        pattern = _alternation(forms)

        def replacement(match: re.Match[str]) -> str:
            assert match.lastindex is not None
            return f"[redacted {forms[match.lastindex - 1].name}]"

        if "[redacted " not in text:
            return pattern.sub(replacement, text)
        # Markers of an earlier redaction are split off, so that no value is found across a marker.
        pieces = self._markers.split(text)
        return "".join(piece if index % 2 else pattern.sub(replacement, piece) for index, piece in enumerate(pieces))

    def _redact_cut(self, text: str, heads: list[str]) -> str:
        for head in heads:
            start = text.rfind(head)
            for value, name in self._values.items():
                if value.startswith(text[start:]):
                    return f"{text[:start]}[redacted {name}]"
        return text


class _RecordFactory:
    """Makes log records with the previous factory, then redacts them."""

    def __init__(self, inner: Callable[..., logging.LogRecord], registry: SecretRegistry) -> None:
        self._inner = inner
        self.registry = registry

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._inner(*args, **kwargs)
        redact = self.registry.redact
        if record.stack_info:
            record.stack_info = redact(record.stack_info)
        if record.exc_info and record.exc_info[1] is not None:
            text = "".join(traceback.format_exception(record.exc_info[1])).rstrip("\n")
            clean = redact(text)
            if clean != text:
                # Some handlers format the exception themselves, so it is removed.
                record.exc_info, record.exc_text = None, clean
        _redact_message(record, redact)
        return record


def _redact_message(record: logging.LogRecord, redact: Callable[[str], str]) -> None:
    message = _message(record)
    # Redact each argument too, because some formatters read them from the record.
    arguments: Any = record.args
    if isinstance(arguments, Mapping):
        record.args = {key: _printable(item, redact) for key, item in cast("Mapping[str, Any]", arguments).items()}
    elif arguments:
        record.args = tuple(_printable(item, redact) for item in arguments)
    if message is None:
        record.msg = redact(str(record.msg))
        return
    clean = redact(message)
    if clean != _message(record):
        record.msg, record.args = clean, None


def _message(record: logging.LogRecord) -> str | None:
    """Return the formatted message, or None if the arguments do not match it. The handler then reports both."""
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError):
        return None


def _printable(argument: Any, redact: Callable[[str], str]) -> Any:
    """Return the argument, or redacted text if printing it would show a secret."""
    if argument is None or isinstance(argument, int | float):
        return argument
    for text in (argument,) if isinstance(argument, str) else (str(argument), repr(argument)):
        clean = redact(text)
        if clean != text:
            return clean
    return argument


SECRETS = SecretRegistry()
"""The secrets of this process."""

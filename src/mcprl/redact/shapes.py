"""What looks like a secret though nobody registered it: names of variables, and key-like things inside a text."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["PRIVATE_KEY_BEGIN", "PRIVATE_KEY_END", "SHAPE_NAMES", "looks_secret", "strike_key_like"]

_PRIVATE_KEY = r"(?:[ +]|%20)?(?:[A-Z]{1,12}(?:[ +]|%20)){0,3}PRIVATE(?:[ +]|%20)?KEY-----"
PRIVATE_KEY_BEGIN = "-----BEGIN" + _PRIVATE_KEY
PRIVATE_KEY_END = "-----END" + _PRIVATE_KEY
"""The lines around a private key, as patterns."""

SHAPE_NAMES = ("header", "key", "password", "private key", "token")
"""What stands in `[redacted …]` where there is no registered name."""

_SECRET_WORDS = re.compile(
    r"(?:auth|authorization|bearer|cookie|credentials?|key|keys|pass|passphrase|pat|pwd|sig|signature"
    r"|\w*(?:apikey|accesskey|secretkey|privatekey|token|secret|secrets|password|passwd))\Z"
)
# SSL_KEY_FILE, SSH_AUTH_SOCK, AUTH_MODE and the like tell where a secret is or how it is used, not what it is.
_HARMLESS_END = re.compile(
    r"algorithm|count|dir|enabled|endpoint|file|folder|header|host|limit|method|mode|name|path|port|prefix|provider"
    r"|region|required|server|sock|timeout|ttl|type|uri|url|user|username|version"
)


@lru_cache(maxsize=4096)
def looks_secret(name: str) -> bool:
    """Whether a variable, header or parameter of this name usually holds a secret: `FMP_API_KEY`, `X-Auth-Token`."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())
    # PWD alone is the working directory.
    if not words or words == ["pwd"] or _HARMLESS_END.fullmatch(words[-1]):
        return False
    return any(_SECRET_WORDS.match(word) for word in words)


# Every rule ends a match before a character that is not of a word, and those without a name before them begin after
# such a character. So a replacement creates no place where another rule could begin: redacting again changes nothing.
# Each pattern begins with one of few characters, which the search skips to, and has no repetition inside a repetition.
_VALUE = r"[A-Za-z0-9_.~%+/=:*!|@-]"
_HEADER_VALUE = r"[A-Za-z0-9_.~+/=-]"
_HAS_DIGIT = r"(?=[A-Za-z_.~%+/=:*!|@-]{0,80}[0-9])"
# Stands after the first character. An escape before it, as in '%20sk-…' or '\\nsk-…', is no part of a word.
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


def _strike_parameter(match: re.Match[str]) -> str:
    name, value = match["name"], match["value"]
    if _SURE.fullmatch(name):
        struck = not _NO_KEY.fullmatch(value)
    else:
        # '?key=name' sorts; '?key=8f3a…' opens.
        struck = _POSSIBLE.fullmatch(name) is not None and _KEY_VALUE.match(value) is not None
    return f"{match['before']}[redacted key]" if struck else match[0]


def _strike_assigned(match: re.Match[str]) -> str:
    # Anchored at the end of the name, which is quick to find; "next_token" and "cache_key" end like names of secrets.
    name_end = match.end("word")
    name = match.string[max(0, name_end - _LONGEST_NAME) : name_end]
    return f"{match['before']}[redacted key]" if _SURE_END.search(name) else match[0]


def _strike_basic(match: re.Match[str]) -> str:
    # 'Basic JavaScript' is prose. Credentials are base64 of 'user:password'.
    value = match["value"]
    try:
        decoded = base64.b64decode(value + "=" * (-len(value) % 4), altchars=b"-_" if "_" in value else None)
    except binascii.Error:
        return match[0]
    return f"{match['before']}[redacted header]" if b":" in decoded else match[0]


@dataclass(frozen=True, slots=True)
class _Rule:
    """A pattern, and groups of texts: where it could match, the lower-cased text holds one of each group."""

    needs: tuple[tuple[str, ...], ...]
    pattern: re.Pattern[str]
    replacement: str | Callable[[re.Match[str]], str]


_STEMS = ("key", "token", "auth", "sig", "secret", "passw", "pwd")

# Rules that go by a name; the text holds one of _STEMS wherever one of them could match.
_NAMED_RULES = (
    _Rule(  # ?apikey=…, &amp;token=…, also where the URL stands in JSON
        (("=",), ("?", "&", "\\u0026")),
        re.compile(rf"(?P<before>(?:\?|&|&amp;|\\u0026)(?P<name>[A-Za-z][A-Za-z0-9_-]{{1,31}})=)(?P<value>{_VALUE}+)"),
        _strike_parameter,
    ),
    _Rule(  # the same where the whole URL is quoted: %3Fapikey%3D…
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
        _strike_assigned,
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
            rf"{PRIVATE_KEY_BEGIN}(?:{_BREAK}++(?:Proc-Type|DEK-Info): ?[^\s\\]++)*+"
            rf"(?:{_BREAK}*+[A-Za-z0-9+/=]{{16,}}+)*+"
            rf"(?:(?:{_BREAK}*+[A-Za-z0-9+/=]{{1,15}}+)?{_BREAK}*+{PRIVATE_KEY_END})?"
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
        _strike_basic,
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
    _Rule(
        (("akia", "asia"),),
        re.compile(rf"A{_NOT_IN_WORD}[KS]IA[A-Z2-7]{{16}}(?![A-Za-z0-9_-])"),
        "[redacted key]",
    ),
    _Rule(
        (("eyj",),),
        re.compile(rf"e{_NOT_IN_WORD}yJ[A-Za-z0-9_-]{{8,}}+\.[A-Za-z0-9_-]{{8,}}+\.[A-Za-z0-9_-]{{8,}}+"),
        "[redacted token]",
    ),
)


def strike_key_like(text: str) -> str:
    """The text without what looks like a key. Most texts hold nothing that a rule needs, and no pattern is tried."""
    lower = text.lower()
    for stem in _STEMS:
        if stem in lower:
            text = _apply(_NAMED_RULES, text, lower)
            break
    return _apply(_OTHER_RULES, text, lower)


def _apply(rules: tuple[_Rule, ...], text: str, lower: str) -> str:
    for rule in rules:
        for group in rule.needs:
            for needed in group:
                if needed in lower:
                    break
            else:
                break
        else:
            text = rule.pattern.sub(rule.replacement, text)
    return text

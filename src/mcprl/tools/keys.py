"""Keys of tool servers: where they come from, how they reach an entry of the mcpServers file, which are secrets.

The file itself holds no keys. Like other MCP clients we expand `${NAME}` and `${NAME:-default}` in `command`, `args`,
`url` and in the values of `env` and `headers`, and nowhere else. `NAME` is looked up in the environment, then in the
file of keys. An empty value counts as none: a key that is there but empty would only be refused later, by the server.
"""

from __future__ import annotations

import base64
import binascii
import io
import os
import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from dotenv.parser import parse_stream

from mcprl.errors import MissingKeyError, ServerFileError
from mcprl.secrets import MIN_SECRET_CHARACTERS, SECRETS, looks_secret

__all__ = [
    "Expansion",
    "load_keys",
    "missing_keys_error",
    "refuse_foreign_references",
    "register_expanded",
    "register_secrets",
]

_DEFAULT_FILE = ".env"
_REFERENCE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^{}]*))?\}")
_FOREIGN_REFERENCE = re.compile(r"\$\{(?:env:|input:|[A-Za-z_][A-Za-z0-9_]*:-[^}]*\{)[^}]*\}")
_SCHEMES = frozenset({"apikey", "basic", "bearer", "token"})
_MIN_PATH_SECRET = 20


def load_keys(env_file: Path | None) -> Mapping[str, str]:
    """The environment, completed by a file of `NAME=value` lines: `env_file`, or `.env` here if there is one.

    A value in the file is taken as it stands: `$` in a password is a dollar sign. Quotes, comments and `export` are as
    in other tools that read such files. A line that cannot be read is an error.
    """
    path = Path(_DEFAULT_FILE) if env_file is None else env_file
    in_file = {} if env_file is None and not path.exists() else _read(path)
    return {**in_file, **{name: value for name, value in os.environ.items() if value}}


def _read(path: Path) -> dict[str, str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise MissingKeyError(
            f"the file of keys {path} cannot be read: {problem}",
            fix="create it with NAME=value lines, or correct its name",
        ) from None
    keys: dict[str, str] = {}
    for binding in parse_stream(io.StringIO(text)):
        if binding.error:
            raise MissingKeyError(  # the line may hold a key, so it is not shown
                f"the file of keys {path} has a line that is not NAME=value: line {binding.original.line}",
                fix="correct it, or begin it with # to make it a comment",
            )
        if binding.key is not None and binding.value:
            keys[binding.key] = binding.value
    return keys


class Expansion:
    """One entry of the mcpServers file with its references replaced; `used` and `missing` say which there were.

    Expansion({"command": "fmp", "env": {"KEY": "${FMP_API_KEY}"}}, {"FMP_API_KEY": "3f9a…"}).entry
    == {"command": "fmp", "env": {"KEY": "3f9a…"}}
    """

    def __init__(self, entry: Mapping[str, Any], keys: Mapping[str, str]) -> None:
        self._keys = keys
        self.used: dict[str, str] = {}
        self.missing: list[str] = []
        self.foreign: list[str] = []
        self.entry: dict[str, Any] = dict(entry)
        for field in ("command", "url", "args", "env", "headers"):
            if field in entry:
                self.entry[field] = _map_texts(entry[field], self._expand)

    def _expand(self, text: str) -> str:
        self.foreign += _FOREIGN_REFERENCE.findall(text)
        return _REFERENCE.sub(self._replace, text)

    def _replace(self, match: re.Match[str]) -> str:
        name, default = match["name"], match["default"]
        value = self._keys.get(name)
        if value:
            self.used[name] = value
            return value
        if default is None and name not in self.missing:
            self.missing.append(name)
        return default or ""


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Texts of a field changed, names of an object not. What is no text stays, for the entry's checks to refuse."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_map_texts(item, change) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {name: _map_texts(item, change) for name, item in cast("dict[str, Any]", value).items()}
    return value


def missing_keys_error(path: Path, missing: Mapping[str, list[str]], env_file: Path | None) -> MissingKeyError:
    """One error for all the keys that the enabled servers lack; `missing` has the names by server."""
    servers_of: dict[str, list[str]] = {}
    for server, names in missing.items():
        for name in names:
            servers_of.setdefault(name, []).append(repr(server))
    told = "; ".join(f"{name} for server {' and '.join(servers)}" for name, servers in servers_of.items())
    file = Path(_DEFAULT_FILE).absolute() if env_file is None else env_file
    return MissingKeyError(
        f"{path} asks for keys that are not set: {told}",
        fix=f"set each in the environment or as a line NAME=value in {file}, or disable the server; "
        "${NAME:-} stands for a value that may be empty",
    )


def refuse_foreign_references(path: Path, server: str, expansion: Expansion) -> None:
    """`${env:NAME}` and `${input:id}` belong to other clients; passed on as they are they would be wrong keys."""
    if expansion.foreign:
        raise ServerFileError(
            f"{path}: server {server!r} has {expansion.foreign[0]!r}, which mcprl does not expand",
            fix="write ${NAME} or ${NAME:-default}",
        )


# ---- which values are secrets ----------------------------------------------------------------------------------------


def register_expanded(expansion: Expansion) -> None:
    """Make known what was expanded from `${NAME}`, under that name.

    It is a secret where NAME is named like one, or where the value looks like one: a path, a region or a date is none.
    """
    for name, value in expansion.used.items():
        _register(name, value, surely=looks_secret(name))


def register_secrets(server: str, entry: Mapping[str, Any]) -> None:
    """Make known the secrets that stand in an entry, so that no text shows them.

    - Values of `env` and `headers` whose names are names of secrets; of `Bearer X`, X.
    - Values after options named like secrets in `args`.
    - Of any URL: the password, parameters named like secrets, and long random parts of its path.
    """
    for field in ("env", "headers"):
        values = entry.get(field)
        if isinstance(values, Mapping):
            for name, value in cast("Mapping[str, Any]", values).items():
                if isinstance(value, str) and (looks_secret(name) or "://" in value):
                    _register(name, value, surely=True)
    words = entry.get("args")
    if isinstance(words, list | tuple):
        _register_options([word for word in cast("list[Any]", words) if isinstance(word, str)])
    url = entry.get("url")
    if isinstance(url, str):
        _register_url(server, url)


def _register(name: str, value: str, *, surely: bool) -> None:
    if "://" in value:
        _register_url(name, value)
        return
    scheme, _, rest = value.strip().partition(" ")
    if rest and scheme.lower() in _SCHEMES:
        value = rest.strip()
        if scheme.lower() == "basic":
            _register_basic(name, value)
    if surely or not _is_plain(value):
        SECRETS.add(name, value)


def _register_basic(name: str, value: str) -> None:
    try:
        decoded = base64.b64decode(value, validate=True).decode("utf-8", "replace")
    except binascii.Error:
        return
    SECRETS.add(name, decoded.partition(":")[2])


def _register_options(words: list[str]) -> None:
    for word, following in pairwise([*words, ""]):
        if "://" in word:
            _register_url("argument", word)
        option, is_assigned, value = word.partition("=")
        if option.startswith("-") and looks_secret(option):
            value = value if is_assigned else following
            if not value.startswith("-"):
                _register(option.lstrip("-"), value, surely=False)


def _register_url(name: str, text: str) -> None:
    try:
        parts = urlsplit(text)
        user, password = parts.username or "", parts.password or ""
    except ValueError:
        return  # no URL; the checks of the entry say so where it has to be one
    SECRETS.add(f"{name}_password", unquote(password))
    if not password and not _is_plain(user):
        SECRETS.add(f"{name}_user", unquote(user))
    for parameter, value in parse_qsl(parts.query):
        if looks_secret(parameter):
            SECRETS.add(parameter, value)
    for part in parts.path.split("/"):
        if len(part) >= _MIN_PATH_SECRET and not _is_plain(part):
            SECRETS.add(f"{name}_path", unquote(part))


_PLAIN_PIECE = re.compile(r"[a-z]{0,14}|[A-Z]{0,14}|[A-Z][a-z]{0,13}|[0-9]{1,8}|[A-Za-z0-9]{1,4}")


def _is_plain(value: str) -> bool:
    """Whether a value is made of words and small numbers, as paths, hosts, regions, dates and models are."""
    return len(value) < MIN_SECRET_CHARACTERS or all(
        _PLAIN_PIECE.fullmatch(piece) for piece in re.split(r"[^A-Za-z0-9]", value)
    )

"""The registry of secrets, and its place in Python's logging."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Callable, Mapping
from functools import cached_property
from threading import Lock
from typing import Any, cast

from mcprl.redact.lines import LineCleaner
from mcprl.redact.shapes import SHAPE_NAMES, looks_secret, strike_key_like
from mcprl.redact.values import Form, alternation, forms_of, written_forms

__all__ = ["MIN_SECRET_CHARACTERS", "SECRETS", "SecretRegistry"]

MIN_SECRET_CHARACTERS = 8
"""A shorter value would be found inside ordinary words and numbers, so it is never searched for."""

_log = logging.getLogger(__name__)


class SecretRegistry:
    """Values that no text may show, each with the name that stands in its place. One is enough for a process."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._search = _Search({})
        self._lock = Lock()

    def add(self, name: str, value: str) -> None:
        """Strike out `value` from now on, as `[redacted NAME]`. A value known already keeps its first name.

        A value of fewer than MIN_SECRET_CHARACTERS is not registered, because texts would be spoiled: `UTC` or `1` is
        no secret. Where the name says that it is one all the same, the log warns.
        """
        value = value.strip()
        if len(value) < MIN_SECRET_CHARACTERS:
            if value and looks_secret(name):
                _log.warning("%s is too short to be found in texts, so it is not struck out of them", name)
            return
        with self._lock:
            # Part of a marker, such as the password 'redacted', is struck out already and would tear up the markers.
            if value not in self._names and value not in "[redacted ":
                self._names[value] = re.sub(r"[^\w.-]", "_", name)
                self._search = _Search(dict(self._names))

    def redact(self, text: str) -> str:
        """The text without secrets. A text that holds none is returned as it is.

        A text may have been cut before it came here, so the beginning of a registered value at its end goes too.
        """
        return strike_key_like(self._search.strike(text))

    def redact_json(self, value: Any) -> Any:
        """A JSON value whose texts, keys of objects included, hold no secrets."""
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, Mapping):
            return self._redact_object(cast("Mapping[str, Any]", value))
        if isinstance(value, list | tuple):
            return [self.redact_json(item) for item in cast("list[Any]", value)]
        return value

    def line_cleaner(self) -> LineCleaner:
        """What redacts the lines of one log in their order, also what is spread over several; see `LineCleaner`."""
        return LineCleaner(self.redact, lambda: self._search.written)

    def install_in_logging(self) -> None:
        """Pass each record that this process logs from now on through `redact`. Calling it again changes nothing.

        Records are changed where they are made. A filter would have to sit on every handler, also on those that other
        libraries add later, and one on a logger does not see the records of its children. Message, arguments, exception
        and stack are covered; attributes given as `extra` are not, because logging adds them afterwards.
        """
        inner = logging.getLogRecordFactory()
        if not (isinstance(inner, _RecordFactory) and inner.registry is self):
            logging.setLogRecordFactory(_RecordFactory(inner, self))

    def _redact_object(self, value: Mapping[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, item in value.items():
            clean = name = self.redact(str(key))
            count = 1
            while name in result:  # two keys that were secrets: neither entry may be lost
                count += 1
                name = f"{clean} {count}"
            result[name] = self.redact_json(item)
        return result


class _Search:
    """What `redact` looks for, made once for a set of values and never changed, so threads need no lock."""

    def __init__(self, names: Mapping[str, str]) -> None:
        forms = [form for value, name in names.items() for form in forms_of(name, value)]
        # The longest first: of two secrets of which one begins the other, the whole of the longer one must go.
        self._forms = sorted(forms, key=lambda form: form.length, reverse=True)
        self._cores = tuple({form.core for form in forms})
        self._heads = tuple({value[:MIN_SECRET_CHARACTERS] for value in names})
        self._values = dict(names)
        self._tail = max(map(len, names), default=0)
        # Only names that exist: a server must not hide a secret from us by writing '[redacted …]' around it.
        labels = "|".join(map(re.escape, {*SHAPE_NAMES, *names.values()}))
        self._markers = re.compile(rf"(\[redacted (?:{labels})\])")

    @cached_property
    def written(self) -> list[tuple[str, str]]:
        """Names and values, these in each of the common encodings."""
        return [(name, form) for value, name in self._values.items() for form in written_forms(value)]

    def strike(self, text: str) -> str:
        cores = [core for core in self._cores if core in text]
        if cores:
            text = self._strike_whole(text, tuple(form for form in self._forms if form.core in cores))
        tail = text[-self._tail :]
        heads = [head for head in self._heads if head in tail]
        return self._strike_cut(text, heads) if heads else text

    def _strike_whole(self, text: str, forms: tuple[Form, ...]) -> str:
        pattern = alternation(forms)

        def strike(match: re.Match[str]) -> str:
            assert match.lastindex is not None
            return f"[redacted {forms[match.lastindex - 1].name}]"

        if "[redacted " not in text:
            return pattern.sub(strike, text)
        # What an earlier redaction put in is kept apart, so that no value is found across its borders.
        pieces = self._markers.split(text)
        return "".join(piece if index % 2 else pattern.sub(strike, piece) for index, piece in enumerate(pieces))

    def _strike_cut(self, text: str, heads: list[str]) -> str:
        for head in heads:
            start = text.rfind(head)
            for value, name in self._values.items():
                if value.startswith(text[start:]):
                    return f"{text[:start]}[redacted {name}]"
        return text


class _RecordFactory:
    """Makes log records as the factory before it did, then takes the secrets out."""

    def __init__(self, inner: Callable[..., logging.LogRecord], registry: SecretRegistry) -> None:
        self._inner = inner
        self.registry = registry

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._inner(*args, **kwargs)
        redact = self.registry.redact
        if record.stack_info:
            record.stack_info = redact(record.stack_info)
        if record.exc_info and record.exc_info[1] is not None:
            told = "".join(traceback.format_exception(record.exc_info[1])).rstrip("\n")
            clean = redact(told)
            if clean != told:
                # Some handlers format the exception themselves, so it has to go.
                record.exc_info, record.exc_text = None, clean
        _redact_message(record, redact)
        return record


def _redact_message(record: logging.LogRecord, redact: Callable[[str], str]) -> None:
    message = _message(record)
    # Arguments one by one as well, because some formatters take them out of the record, and by their places.
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
    """The message with its arguments; None where they do not fit, which the handler will say, and print both."""
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError):
        return None


def _printable(argument: Any, redact: Callable[[str], str]) -> Any:
    """An argument as it is, or as redacted text where printing it would show a secret."""
    if argument is None or isinstance(argument, int | float):
        return argument
    for text in (argument,) if isinstance(argument, str) else (str(argument), repr(argument)):
        clean = redact(text)
        if clean != text:
            return clean
    return argument


SECRETS = SecretRegistry()
"""The secrets of this process."""

"""Reading an upstream's JSON with types: what is missing or of another kind is a failure with its name and place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from mcp import MCPError

from mcprl.redact import SECRETS
from mcprl.servers.upstream import upstream_fault

__all__ = ["JsonFields", "json_objects"]


class JsonFields:
    """One JSON object. Each reader raises MCPError that names the field; `maybe_…` gives None for null and missing.

    JsonFields("fmp", "quote", {"symbol": "VLKN", "price": 213.88}).number("price")   # 213.88
    JsonFields("fmp", "quote", {"symbol": "VLKN"}).number("price")
    # MCPError: fmp: the upstream answered in another shape: quote.price should be a number and is missing
    """

    def __init__(self, upstream: str, where: str, value: Any) -> None:
        self._upstream = upstream
        self._where = where
        if not isinstance(value, dict):
            raise _wrong(upstream, where, "an object", value)
        self._fields = cast("dict[str, Any]", value)

    def __contains__(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self._fields.get(name) is not None

    def text(self, name: str) -> str:
        found = self.maybe_text(name)
        if found is None:
            raise self._lacks(name, "a text")
        return found

    def maybe_text(self, name: str) -> str | None:
        found = self._fields.get(name)
        if found is not None and not isinstance(found, str):
            raise self._lacks(name, "a text")
        return found

    def number(self, name: str) -> float:
        found = self.maybe_number(name)
        if found is None:
            raise self._lacks(name, "a number")
        return found

    def maybe_number(self, name: str) -> float | None:
        found = self._fields.get(name)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise self._lacks(name, "a number")
        try:
            return float(found)
        except OverflowError:
            raise self._lacks(name, "a number of a sensible size") from None

    def whole(self, name: str) -> int:
        found = self.maybe_whole(name)
        if found is None:
            raise self._lacks(name, "a whole number")
        return found

    def maybe_whole(self, name: str) -> int | None:
        """A whole number. Upstreams write some of them as 1.5e9 or with a fraction, which is rounded."""
        found = self.maybe_number(name)
        return None if found is None else round(found)

    def flag(self, name: str) -> bool:
        found = self._fields.get(name)
        if not isinstance(found, bool):
            raise self._lacks(name, "true or false")
        return found

    def fields(self, name: str) -> JsonFields:
        """An object inside this one."""
        return JsonFields(self._upstream, self._place(name), self._fields.get(name))

    def objects(self, name: str) -> list[JsonFields]:
        """A list of objects inside this one."""
        return json_objects(self._upstream, self._place(name), self._fields.get(name))

    def maybe_texts(self, name: str) -> list[str]:
        """A list of texts inside this one; empty for null and missing."""
        found: Any = self._fields.get(name)
        if found is None:
            return []
        if not isinstance(found, list) or not all(isinstance(item, str) for item in cast("list[Any]", found)):
            raise self._lacks(name, "a list of texts")
        return cast("list[str]", found)

    def texts_by_name(self, name: str) -> dict[str, str]:
        """An object inside this one that holds nothing but texts."""
        inner = self.fields(name)
        return {key: inner.text(key) for key in inner._fields}

    def wrong(self, name: str, expected: str) -> MCPError:
        """The failure, to be raised, where a field that was read holds something that makes no sense."""
        return self._lacks(name, expected)

    def _lacks(self, name: str, expected: str) -> MCPError:
        return _wrong(self._upstream, self._place(name), expected, self._fields.get(name))

    def _place(self, name: str) -> str:
        return f"{self._where}.{name}"


def json_objects(upstream: str, where: str, value: Any) -> list[JsonFields]:
    """A list of JSON objects."""
    if not isinstance(value, list):
        raise _wrong(upstream, where, "a list", value)
    return [JsonFields(upstream, f"{where}[{index}]", item) for index, item in enumerate(cast("Sequence[Any]", value))]


def _wrong(upstream: str, where: str, expected: str, found: Any) -> MCPError:
    kind = "missing" if found is None else f"{type(found).__name__} {SECRETS.redact(str(found))[:40]!r}"
    return upstream_fault(upstream, f"answered in another shape: {where} should be {expected} and is {kind}")

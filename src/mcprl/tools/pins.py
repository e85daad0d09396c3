"""Detects whether a server changes its tools within a run.

A description is part of the prompt. A server that rewrites a description or extends a schema changes the policy's input
and its possible actions. So each time a server lists its tools, they are compared with its first list.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict

from mcprl.errors import ToolsChangedError
from mcprl.files import canonical_json
from mcprl.secrets import SECRETS
from mcprl.tools.catalog import ToolDefinition

_MAX_DIFF_LINES = 40
_MAX_COMPARED_LINES = 1000  # per tool, because comparing lines takes quadratic time
_PIECE = re.compile(r".{1,100}$|.{1,99} |.{1,100}")


class PinnedTools:
    """The tools of one server as first listed in this run.

    pinned = PinnedTools("directory")
    pinned.check(listed)        # first start of the server: stores the tools
    pinned.check(listed_again)  # after a restart: raises ToolsChangedError unless the tools are the same
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._first: tuple[ToolDefinition, ...] | None = None

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """The tools as first listed, in the server's order."""
        return self._first or ()

    def check(self, listed: Sequence[ToolDefinition]) -> None:
        """Raise ToolsChangedError if a tool was added, removed or changed. The order of tools does not matter."""
        if self._first is None:
            self._first = tuple(listed)
        if repr(self._first) == repr(tuple(listed)):  # the usual case; unlike ==, it distinguishes 0 and False
            return
        if sorted(tool.fingerprint() for tool in self._first) == sorted(tool.fingerprint() for tool in listed):
            return
        before, after = _lines_by_name(self._first), _lines_by_name(listed)
        kinds = {
            "changed": [name for name in before if name in after and before[name] != after[name]],
            "added": [name for name in after if name not in before],
            "removed": [name for name in before if name not in after],
        }
        what = "; ".join(f"{kind} {', '.join(map(repr, names))}" for kind, names in kinds.items() if names)
        shown: list[str] = []
        for name in [name for names in kinds.values() for name in names]:
            title = _visible(name)
            old, new = (lines.get(name, [])[:_MAX_COMPARED_LINES] for lines in (before, after))
            shown += difflib.unified_diff(old, new, f"{title}, first", f"{title}, now", n=2, lineterm="")
            if len(shown) > _MAX_DIFF_LINES:
                shown[_MAX_DIFF_LINES:] = ["… and more"]
                break
        raise ToolsChangedError(
            SECRETS.redact(
                "\n".join([f"server {self._server!r} changed its tools during the run: {what}", *shown])
                + "\nThe policy would get a prompt that nobody has reviewed"
            ),
            fix="review the changes, then start or resume the run; keep the server from changing while the run is open",
        )


def _lines_by_name(tools: Sequence[ToolDefinition]) -> dict[str, list[str]]:
    """Return each definition's JSON as lines of bounded length, by name. A name listed twice gets the lines of both."""
    texts: dict[str, list[str]] = {}
    for tool in sorted(tools, key=lambda tool: (tool.name, tool.fingerprint())):
        fields = {name: json.loads(canonical_json(value)) for name, value in asdict(tool).items()}
        fields["description"] = fields["description"].split("\n")
        text = _visible(json.dumps(fields, indent=2, ensure_ascii=False))
        texts.setdefault(tool.name, []).extend(piece for line in text.split("\n") for piece in _PIECE.findall(line))
    return texts


def _visible(text: str) -> str:
    """Escape every invisible character, so that a reviewer sees everything that the model sees."""
    return "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)

"""Pinned tools: detects whether a server changes its tools, within a run or between runs.

A description is part of the prompt. A server that rewrites a description or extends a schema changes the policy's input
and its possible actions. So each time a server starts, its tools are compared with the pinned ones by a hash of all
fields.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from mcprl.errors import ConfigFileError, ToolsChangedError
from mcprl.files import canonical_json, write_file
from mcprl.secrets import SECRETS
from mcprl.tools.catalog import StoredTool, ToolDefinition

_FORMAT = 1
_MAX_DIFF_LINES = 40
# A limit per definition and for the whole diff, because comparing lines takes quadratic time.
_MAX_COMPARED_LINES = 1000
_PIECE = re.compile(r".{1,100}$|.{1,99} |.{1,100}")
_CONTINUED = "… "


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsDiff:
    """How the tools of a server differ from the pinned ones: names, and a unified diff of the definitions.

    ToolsDiff(added=(), removed=("list_people",), changed=("find_person",),
              lines=("--- find_person, pinned", "+++ find_person, listed", "@@ -2,3 +2,3 @@", …))
    """

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    lines: tuple[str, ...]

    def summary(self) -> str:
        """Describe the difference in one phrase, such as: changed 'find_person'; removed 'list_people'."""
        kinds = {"changed": self.changed, "added": self.added, "removed": self.removed}
        return "; ".join(f"{kind} {', '.join(map(repr, names))}" for kind, names in kinds.items() if names)


class PinnedTools:
    """The tools of one server as first listed in this run, or as given by a pin file.

    pinned = PinnedTools("directory")
    pinned.check(listed)        # first start of the server: stores the tools
    pinned.check(listed_again)  # after a restart: raises ToolsChangedError unless the tools are the same

    With a pin file: `PinnedTools(name, pins.get(name, ()), source=str(path))`.
    """

    def __init__(
        self, server: str, pinned: Sequence[ToolDefinition] | None = None, *, source: str = "the start of the run"
    ) -> None:
        self._server = server
        self._pinned = tuple(pinned) if pinned is not None else None
        self._listed: tuple[ToolDefinition, ...] | None = None
        self._source = source

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """The tools as first listed, in the server's order, so that a pin file never changes a prompt.

        Before the first listing, the tools of the pin file.
        """
        return (self._listed if self._listed is not None else self._pinned) or ()

    def check(self, listed: Sequence[ToolDefinition]) -> None:
        """Raise ToolsChangedError if a tool was added, removed or changed. The order of tools does not matter."""
        if self._pinned is None:
            self._pinned = self._listed = tuple(listed)
        if self._listed == tuple(listed):
            return  # the usual case; faster than comparing hashes
        diff = compare_tools(self._pinned, listed)
        if diff is None:
            self._listed = self._listed if self._listed is not None else tuple(listed)
            return
        shown = list(diff.lines[:_MAX_DIFF_LINES])
        if len(diff.lines) > len(shown):
            shown.append(f"… and {len(diff.lines) - len(shown)} more lines")
        what = f"the tools of server {self._server!r} differ from those of {self._source}: {diff.summary()}"
        raise ToolsChangedError(
            SECRETS.redact("\n".join([what, *shown, "The policy would get a prompt that nobody has reviewed"])),
            fix="review the changes, then run `mcprl tools pin` and start again",
        )


def compare_tools(pinned: Sequence[ToolDefinition], listed: Sequence[ToolDefinition]) -> ToolsDiff | None:
    """Compare two lists of tools by the hashes of their definitions. Return None if they are equal."""
    if sorted(tool.fingerprint() for tool in pinned) == sorted(tool.fingerprint() for tool in listed):
        return None
    before, after = _texts_by_name(pinned), _texts_by_name(listed)
    names = [*before, *(name for name in after if name not in before)]
    lines: list[str] = []
    for name in names:
        if len(lines) > _MAX_COMPARED_LINES:
            break
        title = _visible(name)
        old, new = (texts.get(name, [])[:_MAX_COMPARED_LINES] for texts in (before, after))
        lines += difflib.unified_diff(old, new, f"{title}, pinned", f"{title}, listed", n=2, lineterm="")
    return ToolsDiff(
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        changed=tuple(name for name in before if name in after and before[name] != after[name]),
        lines=tuple(lines),
    )


def write_pins(path: Path, servers: Mapping[str, tuple[str, Sequence[ToolDefinition]]]) -> None:
    """Write the tools and the version of each server, sorted by name. Equal tools give an identical file."""
    document = {
        "mcprl_pins": _FORMAT,
        "servers": {
            server: {
                "version": version,
                "tools": [
                    {"name": tool.name, "sha256": tool.fingerprint(), **_sorted_fields(tool)}
                    for tool in sorted(definitions, key=lambda tool: (tool.name, tool.fingerprint()))
                ],
            }
            for server, (version, definitions) in sorted(servers.items())
        },
    }
    text = _visible(json.dumps(document, indent=2, ensure_ascii=False)) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, text.encode())


def read_pins(path: Path) -> Mapping[str, tuple[ToolDefinition, ...]]:
    """Return the pinned tools by server. Raises ConfigFileError if the file cannot be read or was edited by hand."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigFileError(
            f"the pin file {path} cannot be read: {error}",
            fix="create the file with `mcprl tools pin`, or remove servers.pins",
        ) from error
    try:
        document = _PinFile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigFileError(
            f"{path} is not a pin file: {place}: {first['msg']}", fix="recreate the file with `mcprl tools pin`"
        ) from error
    if document.mcprl_pins != _FORMAT:
        raise ConfigFileError(
            f"{path} has format {document.mcprl_pins}, but this version of mcprl reads format {_FORMAT}",
            fix="recreate the file with `mcprl tools pin`",
        )
    return {name: tuple(_checked(path, name, tool) for tool in entry.tools) for name, entry in document.servers.items()}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _PinnedTool(StoredTool):
    sha256: str


class _PinnedServer(_Strict):
    version: str
    tools: list[_PinnedTool]


class _PinFile(_Strict):
    mcprl_pins: int
    servers: dict[str, _PinnedServer]


def _checked(path: Path, server: str, entry: _PinnedTool) -> ToolDefinition:
    definition = entry.definition()
    if definition.fingerprint() != entry.sha256:
        raise ConfigFileError(
            f"{path}: {entry.name!r} of server {server!r} does not match its sha256, probably because the file was "
            "edited by hand",
            fix="review the file, then recreate it with `mcprl tools pin`",
        )
    return definition


def _sorted_fields(tool: ToolDefinition) -> dict[str, Any]:
    """Return all fields except the name, with the keys of all objects sorted, as for the hash."""
    fields = asdict(tool)
    del fields["name"]
    return {name: json.loads(canonical_json(value)) for name, value in fields.items()}


def _texts_by_name(tools: Sequence[ToolDefinition]) -> dict[str, list[str]]:
    """Return the lines for the diff by tool name. If a name is listed twice, it gets the lines of both."""
    texts: dict[str, list[str]] = {}
    for tool in sorted(tools, key=lambda tool: (tool.name, tool.fingerprint())):
        texts.setdefault(tool.name, []).extend(_pretty_lines(tool))
    return texts


def _pretty_lines(tool: ToolDefinition) -> list[str]:
    """Format a definition as JSON lines of bounded length. Different definitions give different lines."""
    fields = _sorted_fields(tool)
    fields["description"] = fields["description"].split("\n")
    text = _visible(json.dumps(fields, indent=2, ensure_ascii=False))
    return [short for line in text.split("\n") for short in _wrapped(line)]


def _wrapped(line: str) -> list[str]:
    """Break a line into pieces, after spaces if possible, without losing or adding a character."""
    indent = line[: len(line) - len(line.lstrip())]
    # No JSON line begins with the continuation mark, so two different texts never wrap to the same lines.
    return [f"{indent}{_CONTINUED if n else ''}{piece}" for n, piece in enumerate(_PIECE.findall(line[len(indent) :]))]


def _visible(text: str) -> str:
    """Escape every invisible character, so that a reviewer sees everything that the model sees."""
    return "".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text)

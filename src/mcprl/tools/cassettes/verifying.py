"""Whether a cassette is whole, fits its own definitions and holds no secrets, and how much of a log it can replay."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mcprl.errors import BadToolSchemaError, CassetteError, ToolLimitError
from mcprl.redact import SECRETS
from mcprl.tools.cassettes.cassette import ANY_VERSION, Cassette, Recording, canonical_arguments
from mcprl.tools.cassettes.recordings import RecordedCall
from mcprl.tools.cassettes.sorting import KnownTool, SortedCall, Verdict, sort_calls
from mcprl.tools.definitions import ToolDefinition
from mcprl.tools.stages.arguments import ArgumentCheck

__all__ = ["ReplayShare", "find_faults", "replay"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayShare:
    """How many calls of a log a cassette answers. `replayable` are those that an import would have taken.

    ReplayShare(calls=1137, found=891, replayable=889, replayable_found=889, missing=(), lookup_s=(0.00005, ...))
    """

    calls: int
    found: int
    replayable: int
    replayable_found: int
    missing: tuple[SortedCall, ...]
    lookup_s: tuple[float, ...]


def find_faults(cassette: Cassette) -> Iterator[str]:
    """Each fault of a cassette in a sentence. A file that SQLite finds damaged is not looked into further."""
    try:
        damage = cassette.integrity()
        if damage:
            yield from (f"the file is damaged: {line}" for line in damage)
            return
        definitions = _Definitions()
        for server, version, tools in cassette.listings():
            for tool, fingerprint in tools:
                definitions.add(server, version, tool, fingerprint)
        yield from definitions.faults
        for recording in cassette.recordings():
            yield from _faults_of(recording, definitions)
    except CassetteError as error:
        yield error.what


def replay(
    calls: Iterable[RecordedCall], cassette: Cassette, *, aliases: Mapping[str, str], errors: Sequence[re.Pattern[str]]
) -> ReplayShare:
    """Look up every call of a log. `aliases` and `errors` are those of the import."""
    known = {
        tool.name: KnownTool(server=server, version=version, definition=tool)
        for server, (version, tools) in cassette.tools().items()
        for tool in tools
    }
    found = replayable = 0
    missing: list[SortedCall] = []
    lookup_s: list[float] = []
    for call in sort_calls(calls, known, aliases, errors):
        started = time.perf_counter()
        tool = call.tool
        answered = tool is not None and (
            cassette.find(tool.server, tool.version, tool.definition.name, call.arguments) is not None
        )
        lookup_s.append(time.perf_counter() - started)
        found += answered
        if call.verdict is Verdict.REPLAYABLE:
            replayable += 1
            if not answered:
                missing.append(call)
    return ReplayShare(
        calls=len(lookup_s),
        found=found,
        replayable=replayable,
        replayable_found=replayable - len(missing),
        missing=tuple(missing),
        lookup_s=tuple(lookup_s),
    )


class _Definitions:
    """The recorded definitions, each with its check, by server, version and tool."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self._checks: dict[tuple[str, str, str], ArgumentCheck | None] = {}
        self._newest: dict[str, str] = {}

    def add(self, server: str, version: str, tool: ToolDefinition, fingerprint: str) -> None:
        if tool.fingerprint() != fingerprint:
            self.faults.append(f"server {server!r}: the definition of {tool.name!r} is not the one recorded")
        self._newest[server] = version
        key = (server, version, tool.name)
        self._checks[key] = None
        try:
            self._checks[key] = ArgumentCheck(tool.name, server, tool.parameters)
        except (BadToolSchemaError, ToolLimitError) as error:
            self.faults.append(error.what)

    def problem(self, recording: Recording) -> str | None:
        """Why a recording cannot be found under its definition."""
        version = recording.version
        if version == ANY_VERSION and (recording.server, version, recording.tool) not in self._checks:
            version = self._newest.get(recording.server, version)
        key = (recording.server, version, recording.tool)
        if key not in self._checks:
            return "no definition of the tool is recorded"
        check = self._checks[key]
        return None if check is None else check.problem(recording.arguments)


def _faults_of(recording: Recording, definitions: _Definitions) -> Iterator[str]:
    what = f"server {recording.server!r}, {recording.tool} {SECRETS.redact(canonical_arguments(recording.arguments))}"
    problem = definitions.problem(recording)
    if problem is not None:
        yield f"{what}: {problem}"
    if SECRETS.redact(recording.text) != recording.text:
        yield f"{what}: the answer holds what looks like a secret"
    if SECRETS.redact_json(recording.arguments) != recording.arguments:
        yield f"{what}: an argument holds what looks like a secret"

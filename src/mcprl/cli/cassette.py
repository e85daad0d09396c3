"""`mcprl cassette`: recorded tool calls that replace live servers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from mcprl.cli.commands import Commands
from mcprl.cli.options import parse_pairs
from mcprl.cli.printing import plain_table, printable, words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mcprl.tools.cassettes.cassette import Cassette
    from mcprl.tools.cassettes.importing import ImportReport, ReplayShare
    from mcprl.tools.cassettes.recordings import Recordings

_LISTED = 20

app = Commands("Make, read and check cassettes: files of recorded tool calls that replace the servers.")

_Cassette = Annotated[Path, typer.Argument(metavar="CASSETTE", help="SQLite file of recorded calls.")]
_FILES = typer.Argument(metavar="FILE", help="Recorded conversations: a JSON list of rows, or one row per line.")
_Conversations = Annotated[list[Path], _FILES]
_MaybeConversations = Annotated[list[Path] | None, _FILES]
_Aliases = Annotated[
    list[str] | None,
    typer.Option("--alias", metavar="OTHER=NAME", help="Alias of an argument. May be repeated."),
]
_Errors = Annotated[
    list[str] | None,
    typer.Option("--error", metavar="REGEX", help="Treat results that match as errors. May be repeated."),
]


@app.command("import")
def import_(
    files: _Conversations,
    into: Annotated[Path, typer.Option("--into", help="Cassette to write; existing recordings are kept.")],
    servers: Annotated[
        list[str] | None,
        typer.Option("--server", metavar="NAME=PATTERN", help="Assign matching tools to a server; first match wins."),
    ] = None,
    tools: Annotated[Path | None, typer.Option("--tools", help="JSON list of tool definitions.")] = None,
    reads: Annotated[
        list[str] | None,
        typer.Option("--read", metavar="PATTERN", help="Tools to treat as read-only, despite their name."),
    ] = None,
    writes: Annotated[
        list[str] | None,
        typer.Option("--write", metavar="PATTERN", help="Tools that change something: never recorded."),
    ] = None,
    aliases: _Aliases = None,
    errors: _Errors = None,
) -> None:
    """Make a cassette from recorded conversations: the successful calls of read-only tools."""
    from mcprl.errors import CassetteError
    from mcprl.tools.cassettes.cassette import Cassette
    from mcprl.tools.cassettes.importing import DEFAULT_SERVER, ImportRules, error_rules, import_recordings
    from mcprl.tools.cassettes.recordings import load_tool_list, read_recordings

    rules = ImportRules(
        servers=tuple(parse_pairs(servers, "--server")) or ((DEFAULT_SERVER, "*"),),
        aliases=dict(parse_pairs(aliases, "--alias")),
        reads=tuple(reads or ()),
        writes=tuple(writes or ()),
        errors=error_rules(errors or ()),
    )
    listed = {} if tools is None else load_tool_list(tools)
    recordings = read_recordings(files)
    if not recordings.calls_seen:
        named = ", ".join(map(str, files))
        raise CassetteError(
            f"no tool call is recorded in {named}", fix="give files of conversations that contain tool calls"
        )
    with Cassette.open(into, writable=True) as opened:
        report = import_recordings(recordings, opened, rules, listed)
    _print_import(report, recordings, into)


@app.command("show")
def show(
    path: _Cassette,
    tool: Annotated[
        str | None, typer.Option("--tool", metavar="PATTERN", help="List the recordings of these tools.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Number of recordings to list.")] = _LISTED,
    full: Annotated[bool, typer.Option("--full", help="Print whole results, not only their beginning.")] = False,
) -> None:
    """Show the tools of a cassette, or with --tool its recordings."""
    from mcprl.tools.cassettes.cassette import Cassette

    with Cassette.open(path, writable=False) as opened:
        if tool is None:
            _print_tools(opened)
        else:
            _print_recordings(opened, tool, limit, full=full)


@app.command("verify")
def verify(
    path: _Cassette, files: _MaybeConversations = None, aliases: _Aliases = None, errors: _Errors = None
) -> None:
    """Check that a cassette is valid and holds no secrets; with FILEs, that it answers their calls."""
    from mcprl.tools.cassettes.cassette import Cassette
    from mcprl.tools.cassettes.importing import error_rules, find_faults, replay
    from mcprl.tools.cassettes.recordings import read_recordings

    rules = error_rules(errors or ())
    renamed = dict(parse_pairs(aliases, "--alias"))
    recordings = read_recordings(files or ())
    with Cassette.open(path, writable=False) as opened:
        faults = list(find_faults(opened))
        # A damaged file cannot be read.
        share = None if faults or not files else replay(recordings.calls, opened, aliases=renamed, errors=rules)
    _print_some("fault", faults)
    if not faults:
        _echo(f"{path} is valid.")
    if share is not None:
        _print_share(share, recordings)
    if faults or (share is not None and share.missing):
        raise typer.Exit(1)


def _print_table(header: Sequence[str], rows: Iterable[Sequence[str | int]]) -> None:
    """Print a table. Columns of numbers are right-aligned; zeros are left empty."""
    lines = [[str(cell) if cell != 0 else "" for cell in row] for row in rows]
    table = plain_table(*header)
    for number, column in enumerate(table.columns):
        if all(line[number].isdecimal() or not line[number] for line in lines):
            column.justify = "right"
    for line in lines:
        table.add_row(*map(words, line))
    Console().print(table)


def _print_import(report: ImportReport, recordings: Recordings, into: Path) -> None:
    counts = [
        (c.server, c.tool, c.seen, c.recorded, c.distinct, c.differing, c.writes, c.errors, c.unfit)
        for c in report.tools
    ]
    totals = [sum(column) for column in list(zip(*counts, strict=True))[2:]] if counts else [0] * 7
    header = ("server", "tool", "calls", "recorded", "distinct", "differing", "writes", "errors", "unfit")
    _print_table(header, [*counts, ("", "total", *totals)])
    _, recorded, distinct, differing, _, _, unfit = totals
    _echo(f"{into}: {recorded} of {recordings.calls_seen} calls recorded, {distinct} of them different.")
    if differing:
        _echo(f"{differing} calls had different results at different times: the last result is replayed.")
    writes = [f"{count.tool} ({count.seen})" for count in report.tools if count.is_write]
    if writes:
        _echo(f"Treated as writes, by definition or name: {', '.join(writes)}. --read PATTERN overrides.")
    if unfit:
        _echo("Unfit calls have arguments that the tool's definition does not allow.")
    inferred = [count.tool for count in report.tools if count.inferred]
    if inferred:
        _echo(f"Definitions inferred from the calls (--tools can provide the real ones): {', '.join(inferred)}.")
    if recordings.redefined:
        _echo(
            "Defined differently in several rows (the last definition is used): "
            f"{', '.join(sorted(recordings.redefined))}."
        )
    if report.unassigned:
        tools = ", ".join(f"{tool} ({number})" for tool, number in report.unassigned.items())
        _echo(f"Left out, because no --server pattern matches: {tools}.")
    _echo(f"Argument aliases applied: {report.aliases_applied}. Texts with redacted secrets: {report.redactions}.")
    _print_unreadable(recordings)


def _print_tools(opened: Cassette) -> None:
    from collections import Counter

    recordings = Counter[tuple[str, str, str]]()
    calls = Counter[tuple[str, str, str]]()
    for recording in opened.recordings():
        key = (recording.server, recording.version, recording.tool)
        recordings[key] += 1
        calls[key] += recording.ordinal == 1
    kinds: dict[tuple[str, str, str], str] = {}
    for server, version, definitions in opened.listings():
        for tool, _ in definitions:
            kinds[server, version, tool.name] = "reads" if tool.read_only else "may write"
    keys = sorted(kinds.keys() | recordings.keys())
    rows = [(*key, kinds.get(key, "not listed"), calls[key], recordings[key]) for key in keys]
    total = ("", "", "total", "", calls.total(), recordings.total())
    _print_table(("server", "version", "tool", "kind", "calls", "recordings"), [*rows, total])


def _print_recordings(opened: Cassette, pattern: str, limit: int, *, full: bool) -> None:
    import json
    from fnmatch import fnmatchcase
    from textwrap import shorten

    matching = [recording for recording in opened.recordings() if fnmatchcase(recording.tool, pattern)]
    for recording in matching[:limit]:
        again = f"  (answer {recording.ordinal})" if recording.ordinal > 1 else ""
        version = f" {recording.version}" if recording.version else ""
        arguments = json.dumps(recording.arguments, ensure_ascii=False)
        _echo(f"{recording.server}{version}  {recording.tool} {arguments}{again}")
        text = recording.text if full else shorten(recording.text[:400], 100, placeholder="…")
        _echo("\n".join(f"    {line}" for line in text.split("\n")))
    rest = len(matching) - limit
    if rest > 0:
        _echo(f"… and {rest} more: --limit {len(matching)} shows all.")
    if not matching:
        _echo(f"No recording of a tool that matches {pattern!r}.")


def _print_share(share: ReplayShare, recordings: Recordings) -> None:
    def of(part: int, whole: int) -> str:
        return f"{part} of {whole} calls{f' ({part / whole:.1%})' if whole else ''}"

    replayable = of(share.replayable_found, share.replayable)
    _echo(f"Found {replayable} that can be replayed, {of(share.found, recordings.calls_seen)} in total.")
    _print_some("missing", [f"{call.call.place}: {call.call.tool}" for call in share.missing])
    _print_unreadable(recordings)


def _print_unreadable(recordings: Recordings) -> None:
    _print_some("unreadable", [f"{part.place}: {part.why}" for part in recordings.unreadable])


def _print_some(label: str, lines: Sequence[str]) -> None:
    for line in lines[:_LISTED]:
        _echo(f"{label}: {line}")
    if len(lines) > _LISTED:
        _echo(f"{label}: … and {len(lines) - _LISTED} more")


def _echo(text: str) -> None:
    typer.echo(printable(text))

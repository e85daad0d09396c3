"""`mcprl explain`: what an error means, what causes it and how to fix it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mcprl.cli.printing import facts_table
from mcprl.errors import Fault, McprlError, UnknownKeyError, did_you_mean

GROUPS = {
    "CONF": "Configuration",
    "CODE": "Your code",
    "TASK": "Tasks",
    "TOOL": "Tools and their servers",
    "LIMIT": "Limits on servers and files",
    "SAND": "The Python sandbox",
    "CHAT": "Conversations and grammars",
    "SAMP": "The sampler",
    "EPIS": "Episodes",
    "AGENT": "Agents that play episodes",
    "LEARN": "The learner",
    "ENG": "The SkyRL engine",
    "WORK": "Workers",
    "RUN": "Runs and their folders",
}
"""Topics of the error codes, by the letters in the middle of a code, in the order in which a run can raise them."""

FAULTS = {
    Fault.CONFIGURATION: "an error in your files, settings or installation, which you can fix. The run stops.",
    Fault.INFRASTRUCTURE: (
        "a failure of a server, the network, a process or a disk. Affected episodes are rerun; a stopped run can be "
        "resumed."
    ),
}
"""For each kind of fault: what it is, and how a run reacts."""

# The example is the last part, because one of its lines may begin with "Fix:".
_PARTS = re.compile(
    r"(?P<meaning>\S.*?)\n\nCauses: (?P<causes>\S.*?)\nFix: (?P<fix>\S.*?)\nExample: (?P<example>\S.*)", re.DOTALL
)
_WRITTEN_CODE = re.compile(r"\s*(?:[Ee][-_ ])?([A-Za-z]+)[-_ ]?0*([0-9]{1,3})\s*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPage:
    """The help page of one error.

    ErrorPage(code="E-TOOL-003", name="UnknownToolError", fault=Fault.CONFIGURATION,
              meaning="A task refers to a tool that no server lists: …", causes=("a typo in the task", …),
              fix="correct the task, or …", example="E-TOOL-003 no server lists a tool 'tavily_filter', …")
    """

    code: str
    name: str
    fault: Fault
    meaning: str
    causes: tuple[str, ...]
    fix: str
    example: str

    @property
    def group(self) -> str:
        """The letters in the middle of the code: a key of GROUPS."""
        return self.code.split("-")[1]


def read_page(error: type[McprlError]) -> ErrorPage:
    """Parse the help page in an error class's docstring. Raises ValueError if one of its parts is missing or empty."""
    found = _PARTS.fullmatch(inspect.getdoc(error) or "")
    if found is None:
        raise ValueError(f"the docstring of {error.__name__} needs a meaning, then Causes:, Fix: and Example:")
    parts = {title: " ".join(text.split()) for title, text in found.groupdict().items()}
    return ErrorPage(
        code=error.code,
        name=error.__name__,
        fault=error.fault,
        meaning=parts["meaning"],
        causes=tuple(parts["causes"].removesuffix(".").split("; ")),
        fix=parts["fix"],
        example=f"{error.code} {parts['example']}",
    )


@cache
def error_pages() -> Mapping[str, ErrorPage]:
    """Return the help page of every error, keyed by code and sorted by group."""
    order = list(GROUPS)
    pages = [read_page(error) for error in _with_codes(McprlError)]
    pages.sort(key=lambda page: (order.index(page.group), page.code))
    return {page.code: page for page in pages}


def find_page(written: str) -> ErrorPage | None:
    """Return the help page for a code in any notation: `E-TOOL-003`, `e-tool-3` and `tool 3` are the same."""
    found = _WRITTEN_CODE.fullmatch(written)
    return None if found is None else error_pages().get(f"E-{found[1].upper()}-{int(found[2]):03d}")


def _with_codes(error: type[McprlError]) -> Iterable[type[McprlError]]:
    # A class without a code is only a base class.
    if "code" in vars(error) and error.__module__ == McprlError.__module__:
        yield error
    for child in error.__subclasses__():
        yield from _with_codes(child)


def command(
    code: Annotated[
        str | None, typer.Argument(metavar="CODE", help="Code of an error, such as E-TOOL-003.", show_default=False)
    ] = None,
) -> None:
    """Print what an error means, whose fault it is, its usual causes and its fix. Without a code, list all codes."""
    console = Console(highlight=False)
    if code is None:
        _print_all(console)
        return
    page = find_page(code)
    if page is None:
        hint = did_you_mean(code.strip().upper(), error_pages())
        raise UnknownKeyError(f"there is no error code {code!r}{hint}", fix="run `mcprl explain` to list all codes")
    _print_page(console, page)


def _print_all(console: Console) -> None:
    for group, title in GROUPS.items():
        console.print(Text(title, style="bold"))
        console.print(facts_table([(f"  {p.code}", p.meaning) for p in error_pages().values() if p.group == group]))
        console.print()
    console.print("mcprl explain CODE prints the causes and the fix of an error.")


def _print_page(console: Console, page: ErrorPage) -> None:
    """Print the page, with each section indented under its title, at a readable width."""
    width = min(console.width, 100)

    def say(title: str, *texts: str, mark: str = "") -> None:
        console.print(Text(f"\n{title}", style="bold"))
        indented = Table.grid(padding=(0, 1, 0, 0))
        for text in texts:
            indented.add_row(mark, Text(text))
        console.print(indented, width=width)

    console.print(Text.assemble((page.code, "bold cyan"), "  ", (page.name, "dim")))
    console.print(Text(page.meaning), width=width)
    say("Whose fault", FAULTS[page.fault], mark=" ")
    say("Usual causes", *page.causes, mark=" •")
    say("Fix", page.fix, mark=" ")
    say("Example", f"mcprl: {page.example}", mark=" ")

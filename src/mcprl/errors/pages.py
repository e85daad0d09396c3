"""The page of each error, read from the docstring of its class: `mcprl explain` prints it, docs/errors.md collects all.

A docstring says first what the error means, then, each beginning a line:

    Causes: what it usually comes from; the next cause; and another.
    Fix: how to mend it.
    Example: the sentence as a run prints it, without its code. Fix: correct the task.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from mcprl.errors.base import Fault, McprlError

__all__ = ["FAULTS", "GROUPS", "ErrorPage", "error_pages", "find_page", "nearest_codes", "read_page"]

GROUPS = {
    "CONF": "Configuration",
    "TASK": "Tasks",
    "TOOL": "Tools and their servers",
    "LIMIT": "Limits on what servers and files may hold",
    "SAND": "The Python sandbox",
    "CHAT": "Conversations and grammars",
    "SAMP": "The sampler",
    "EPIS": "Episodes",
    "LEARN": "The learner",
    "ENG": "The SkyRL engine",
    "WORK": "Workers",
    "RUN": "Runs and their folders",
}
"""What the codes of a group are about, by the letters in the middle of them, in the order of a run."""

FAULTS = {
    Fault.CONFIGURATION: "yours to mend: something that was written, chosen or installed. The run stops.",
    Fault.INFRASTRUCTURE: "the world's: a server, the network, a process, a disk. An episode that it hits is run "
    "again; a run that it ends can be resumed.",
}
"""Whose fault an error is, and what a run does about it."""

# The example is the last part, since a line of it may begin with its own "Fix:".
_PARTS = re.compile(
    r"(?P<meaning>\S.*?)\n\nCauses: (?P<causes>\S.*?)\nFix: (?P<fix>\S.*?)\nExample: (?P<example>\S.*)", re.DOTALL
)
_WRITTEN_CODE = re.compile(r"\s*(?:[Ee][-_ ])?([A-Za-z]+)[-_ ]?0*([0-9]{1,3})\s*", re.ASCII)
_MAX_NEAREST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPage:
    """All that is said of one error.

    ErrorPage(code="E-TOOL-003", name="UnknownToolError", fault=Fault.CONFIGURATION,
              meaning="A task names a tool that no server lists: …", causes=("a typing error in the task", …),
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
        """The letters in the middle of the code, a key of GROUPS."""
        return self.code.split("-")[1]


def read_page(error: type[McprlError]) -> ErrorPage:
    """The page in a class's docstring. Raises ValueError where one of its parts is missing or empty."""
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
    """Every page by its code, group by group."""
    order = list(GROUPS)
    pages = [read_page(error) for error in _with_codes(McprlError)]
    pages.sort(key=lambda page: (order.index(page.group), page.code))
    return {page.code: page for page in pages}


def find_page(written: str) -> ErrorPage | None:
    """The page of a code as someone wrote it: `E-TOOL-003`, `e-tool-3` and `tool 3` are the same."""
    found = _WRITTEN_CODE.fullmatch(written)
    return None if found is None else error_pages().get(f"E-{found[1].upper()}-{int(found[2]):03d}")


def nearest_codes(written: str) -> tuple[str, ...]:
    """The codes that are most like one that does not exist, the most like first; empty where none is like it."""
    return tuple(difflib.get_close_matches(written.strip().upper(), error_pages(), n=_MAX_NEAREST))


def _with_codes(error: type[McprlError]) -> Iterable[type[McprlError]]:
    # A class without a code of its own only groups others.
    if "code" in vars(error) and error.__module__.startswith("mcprl.errors."):
        yield error
    for child in error.__subclasses__():
        yield from _with_codes(child)

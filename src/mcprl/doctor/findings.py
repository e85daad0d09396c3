"""What a check found: one line for a person, one object for a program."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mcprl.errors import McprlError
from mcprl.verdicts import Severity

__all__ = ["Finding", "fine", "skipped", "warning", "wrong", "wrong_by"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check measured. `severity` is None where it could not be made; `fix` is empty where all is well.

    Finding(check="server directory", severity=Severity.OK, measured="2 tools; find_person answered in 4 ms")
    Finding(check="tasks and tools", severity=Severity.BAD, code="E-TOOL-003",
            measured="d03 offers 'tavily_filter', which no server lists (did you mean 'tavily_search'?)",
            fix="correct the task, or add a server that offers it")
    """

    check: str
    severity: Severity | None
    measured: str
    fix: str = ""
    code: str = ""

    def to_json(self) -> dict[str, Any]:
        """The finding for another program; severity is ok, warn, bad or skipped."""
        return {**asdict(self), "severity": "skipped" if self.severity is None else self.severity.value}


def fine(check: str, measured: str) -> Finding:
    return Finding(check=check, severity=Severity.OK, measured=measured)


def warning(check: str, measured: str, fix: str) -> Finding:
    return Finding(check=check, severity=Severity.WARN, measured=measured, fix=fix)


def wrong(check: str, measured: str, fix: str, code: str = "") -> Finding:
    return Finding(check=check, severity=Severity.BAD, measured=measured, fix=fix, code=code)


def wrong_by(check: str, error: McprlError) -> Finding:
    """What an error says of itself, in the place of what it would have stopped."""
    return Finding(check=check, severity=Severity.BAD, measured=error.what, fix=error.fix, code=error.code)


def skipped(check: str, why: str) -> Finding:
    return Finding(check=check, severity=None, measured=f"skipped: {why}")

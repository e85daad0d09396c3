"""Which tools of a server are on offer, by patterns of their names.

In a pattern `*` stands for any text, `?` for one character and `[ab]` for one of those. Case counts: MCP tells
`read` and `Read` apart. The same patterns name the tools that a user declares to be without side effects.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

__all__ = ["is_offered", "matches"]


def matches(tool: str, patterns: Sequence[str]) -> bool:
    """Whether a tool's name fits any of the patterns."""
    return any(fnmatchcase(tool, pattern) for pattern in patterns)


def is_offered(tool: str, allow: Sequence[str], deny: Sequence[str]) -> bool:
    """Whether a tool is allowed and not denied: a denial wins."""
    return matches(tool, allow) and not matches(tool, deny)

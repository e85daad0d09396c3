"""Figures in the documentation: a script writes its own table between two marks, so that nobody copies numbers."""

from __future__ import annotations

from pathlib import Path

__all__ = ["write_between_markers"]


def write_between_markers(page: Path, marker: str, text: str) -> None:
    """Make anew what stands between <!-- marker --> and <!-- /marker -->."""
    before, begin, rest = page.read_text().partition(f"<!-- {marker} -->")
    _, end, after = rest.partition(f"<!-- /{marker} -->")
    if not (begin and end):
        raise ValueError(f"{page} has no <!-- {marker} --> … <!-- /{marker} -->")
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")

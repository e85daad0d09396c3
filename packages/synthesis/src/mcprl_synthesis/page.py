"""report.html: the text of report.md, with the graph of links as SVG."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from markdown_it import MarkdownIt

__all__ = ["graph_svg", "page"]

_COLUMN: Final = 300
_ROW: Final = 44
_BOX: Final = (200, 28)
_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;margin:1rem 0}td,th{border:1px solid #ccc;padding:.2rem .6rem;text-align:left}"
    "code{background:#f2f2f2}svg{max-width:100%;height:auto}"
)


def graph_svg(tools: Mapping[str, Sequence[str]], edges: Mapping[tuple[str, str], Sequence[str]]) -> str:
    """Draw tools, a column for each server, and links between them. Hovering over a link shows its fields."""
    width, height = _BOX
    corner = {
        tool: (20 + _COLUMN * column, 40 + _ROW * row)
        for column, names in enumerate(tools.values())
        for row, tool in enumerate(names)
    }
    parts = [
        f'<text x="{20 + _COLUMN * n}" y="24" font-weight="bold">{escape(server)}</text>'
        for n, server in enumerate(tools)
    ]
    for (one, two), labels in edges.items():
        (x1, y1), (x2, y2) = corner[one], corner[two]
        start, end = (x1 + width, y1 + height // 2), (x2 + (width if x1 == x2 else 0), y2 + height // 2)
        bend = 60 if x1 == x2 else -60
        path = f"M{start[0]},{start[1]} C{start[0] + 60},{start[1]} {end[0] + bend},{end[1]} {end[0]},{end[1]}"
        title = escape("\n".join([f"{one} to {two}:", *labels]))
        parts.append(
            f'<path d="{path}" fill="none" stroke="#4477aa" stroke-width="1.5" marker-end="url(#arrow)">'
            f"<title>{title}</title></path>"
        )
    for tool, (x, y) in corner.items():
        parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" fill="#eef3f8" stroke="#4477aa"/>'
        )
        shown = tool if len(tool) <= 28 else f"{tool[:27]}…"
        parts.append(f'<text x="{x + 8}" y="{y + 19}">{escape(shown)}</text>')
    rows = max((len(names) for names in tools.values()), default=0)
    size = f"{_COLUMN * len(tools) + 40} {60 + _ROW * rows}"
    arrow = '<marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    arrow += '<path d="M0,0 L8,4 L0,8 z" fill="#4477aa"/></marker>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="sans-serif" font-size="12">'
    return "\n".join([head, f"<defs>{arrow}</defs>", *parts, "</svg>"])


def page(markdown: str, svg: str) -> str:
    """Return the report as a page. HTML in it is escaped."""
    body = str(MarkdownIt("commonmark", {"html": False}).enable("table").render(markdown))
    body = re.sub(r'<pre><code class="language-mermaid">.*?</code></pre>', lambda _: svg, body, flags=re.DOTALL)
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>Synthesized tasks</title>\n'
        f"<style>{_STYLE}</style>\n{body}</html>\n"
    )

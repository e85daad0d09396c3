"""docs/llms.txt: the pages of the site as a list that a program can read, in the form of https://llmstxt.org.

A title, a sentence, and for each part of the navigation its pages with a line about each. Links are relative and end in
.md: they hold in the repository, and on the site, where `scripts/docs build` puts the Markdown beside the pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
NO_PROSE = ("#", "!", "|", "```", "<", ">", "    ", "- ", "* ", "???", "!!!", "{")
# A full stop ends a sentence where a capital, our name or nothing follows; "e.g. this" and `mcprl.tools` have none.
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*\[“]|mcprl\b)|(?<=[.!?])$")


class _Loader(yaml.SafeLoader):
    """Reads the settings of the site also where they name Python objects, which nobody needs here."""


_Loader.add_multi_constructor("", lambda _loader, _tag, _node: None)


def site_settings(root: Path = ROOT) -> dict[str, Any]:
    return yaml.load((root / "mkdocs.yml").read_text(), Loader=_Loader)


def pages_of(entry: Any) -> Iterator[tuple[str | None, str]]:
    """Title, where the navigation gives one, and file of each page below an entry of the navigation."""
    if isinstance(entry, str):
        yield None, entry
    elif isinstance(entry, list):
        for child in entry:
            yield from pages_of(child)
    else:
        for title, child in entry.items():
            if isinstance(child, str):
                yield title, child
            else:
                yield from pages_of(child)


def heading_and_summary(text: str) -> tuple[str, str]:
    """The title of a page, and the first sentence of its first paragraph, without marks of Markdown's links."""
    text = COMMENT.sub("", text)
    if text.startswith("---\n"):
        text = text.split("\n---\n", 1)[-1]
    heading = next((line[2:].strip() for line in text.splitlines() if line.startswith("# ")), "")
    is_code = False
    for block in re.split(r"\n\s*\n", text):
        fences = block.count("```")
        begins_in_code, is_code = is_code, is_code ^ bool(fences % 2)
        if begins_in_code or fences or block.strip("\n").startswith(NO_PROSE):
            continue
        prose = LINK.sub(r"\1", " ".join(block.split()))
        if prose:
            return heading, SENTENCE_END.split(prose, maxsplit=1)[0].strip()
    return heading, ""


def llms_page(root: Path = ROOT) -> str:
    """The list. Its lines come from the pages, so it is made last."""
    settings = site_settings(root)
    made = f"# {settings['site_name']}\n\n> {settings['site_description']}\n"
    for part in settings["nav"]:
        (title, entries) = next(iter(part.items())) if isinstance(part, dict) else ("Pages", [part])
        made += f"\n## {title}\n\n"
        for name, file in pages_of(entries):
            page = root / "docs" / file
            if file.startswith(("http://", "https://")):
                made += f"- [{name}]({file})\n"
                continue
            if not page.exists():
                raise SystemExit(f"mkdocs.yml names docs/{file}, which is not there. Fix: write it, or take it out.")
            heading, summary = heading_and_summary(page.read_text())
            made += f"- [{name or heading}]({file})" + (f": {summary}" if summary else "") + "\n"
    return made

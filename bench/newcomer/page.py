"""The commands of docs/quickstart.md: each block that a comment `<!-- quickstart NAME -->` precedes, as it stands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Block", "read_blocks"]

_BLOCK = re.compile(r"^<!-- quickstart (?P<name>[\w-]+) -->\n```bash\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """Block(name="train", code="mcprl train recipes/hello-cpu.yaml\\n")"""

    name: str
    code: str


def read_blocks(page: Path) -> list[Block]:
    """The blocks of a page, from top to bottom. Raises ValueError where a mark has no block, or two have one name."""
    text = page.read_text()
    blocks = [Block(found["name"], found["code"]) for found in _BLOCK.finditer(text)]
    if len(blocks) != text.count("<!-- quickstart "):
        raise ValueError(f"{page.name}: a mark `quickstart` is not followed by a bash block")
    if len({block.name for block in blocks}) < len(blocks):
        raise ValueError(f"{page.name}: two blocks have the same name")
    return blocks

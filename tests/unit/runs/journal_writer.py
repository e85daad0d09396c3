"""A process that adds episodes to a journal until it is killed, and prints the member of each whose addition returned.

`python journal_writer.py JOURNAL FIRST_MEMBER`. Eight additions are under way at any time; some are large, so that a
kill can fall into the middle of a write.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import types
from pathlib import Path

import mcprl

# The package's face imports torch; a process that is killed ten times must start fast.
_package = types.ModuleType("mcprl.training")
_package.__path__ = [str(Path(mcprl.__path__[0]) / "training")]
sys.modules["mcprl.training"] = _package

from plain_trajectory import make_trajectory  # noqa: E402

from mcprl.runs.journal import EpisodeJournal  # noqa: E402


async def write_on(folder: Path, first_member: int) -> None:
    journal = EpisodeJournal(folder)
    members = itertools.count(first_member)

    async def add_on() -> None:
        for member in members:
            await journal.add(make_trajectory(step=7, member=member, text="é\n" * (member % 5) ** 6))
            print(member, flush=True)

    await asyncio.gather(*(add_on() for _ in range(8)))


if __name__ == "__main__":
    assert "torch" not in sys.modules
    asyncio.run(write_on(Path(sys.argv[1]), int(sys.argv[2])))

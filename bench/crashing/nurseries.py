"""A nursery in use: a process that forks trainers, asked by one JSON object a line, see nursery.py."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

__all__ = ["Nursery", "open_nursery"]

_ENVIRONMENT = {"OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


class Nursery:
    """Runs one trainer after the other."""

    def __init__(self, asked: asyncio.StreamWriter, answers: asyncio.StreamReader) -> None:
        self._asked = asked
        self._answers = answers

    async def work(self, job: Mapping[str, Any]) -> int:
        """The exit status of a trainer with this job; minus the signal where one ended it."""
        self._asked.write(json.dumps(job).encode() + b"\n")
        return int(await self._answers.readline())


@asynccontextmanager
async def open_nursery(script: Path) -> AsyncGenerator[Nursery]:
    """A nursery that has imported all that its trainers need."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **_ENVIRONMENT},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        await process.stdout.readline()
        yield Nursery(process.stdin, process.stdout)
    finally:
        process.stdin.close()
        await process.wait()

"""The process of the reward functions: reads episodes from stdin, writes numbers to stdout.

    python -m mcprl.episodes.reward_process TRACE

Messages to it are pickles with their length before them; it answers in lines of JSON. What the functions print goes to
the log. On SIGUSR1 it writes the stacks of all threads to TRACE.
"""

from __future__ import annotations

import asyncio
import faulthandler
import inspect
import itertools
import json
import math
import os
import pickle
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from mcprl.episodes.reward_functions import EpisodeView
from mcprl.errors import UserCodeError
from mcprl.functions import UserCode, load_function
from mcprl.records import Observation, ToolCall

__all__ = ["main"]

_HEADER_BYTES = 8


class _Process:
    def __init__(self, output: BinaryIO) -> None:
        self._output = output
        self._functions: dict[str, tuple[str, Callable[..., Any]]] = {}
        self._probes = itertools.count()
        self._probed: dict[int, asyncio.Future[Observation]] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader) -> None:
        while True:
            try:
                size = int.from_bytes(await reader.readexactly(_HEADER_BYTES))
                kind, *rest = pickle.loads(await reader.readexactly(size))
            except asyncio.IncompleteReadError:
                return
            if kind == "load":
                self._load(rest[0])
            elif kind == "probed":
                self._take_probed(*rest)
            else:
                task = asyncio.create_task(self._call(*rest))
                self._running.add(task)
                task.add_done_callback(self._running.discard)

    def _load(self, references: dict[str, str]) -> None:
        try:
            for name, reference in references.items():
                function = load_function(reference, f"rewards.functions.{name}.function")
                self._functions[name] = (reference, function)
        except UserCodeError as error:
            self._say(error=error.what)
        else:
            self._say(loaded=list(references))

    async def _call(self, number: int, name: str, episode: EpisodeView) -> None:
        reference, function = self._functions[name]

        async def probe(call: ToolCall) -> Observation:
            own = next(self._probes)
            self._probed[own] = asyncio.get_running_loop().create_future()
            self._say(call=number, probe=own, tool=call.name, arguments=dict(call.arguments))
            try:
                return await self._probed[own]
            finally:
                del self._probed[own]

        view = replace(episode, probing=probe)
        try:
            with UserCode(reference):
                if inspect.iscoroutinefunction(function):
                    value = await function(view)
                else:
                    value = await asyncio.to_thread(function, view)
                value = _number(value)
        except UserCodeError as error:
            self._say(call=number, error=error.what)
        else:
            self._say(call=number, value=value)

    def _take_probed(self, number: int, seen: Observation | str) -> None:
        future = self._probed[number]
        if isinstance(seen, str):
            future.set_exception(PermissionError(seen))
        else:
            future.set_result(seen)

    def _say(self, **words: Any) -> None:
        self._output.write(json.dumps(words, default=str).encode() + b"\n")
        self._output.flush()


def _number(value: object) -> float:
    if isinstance(value, int | float) and math.isfinite(value) and -1 <= value <= 1:
        return float(value)
    shown = f"{value!r}"[:100]
    raise ValueError(f"returned {shown}, a {type(value).__name__}; return a number from -1 to 1")


async def _serve(output: BinaryIO) -> None:
    reader = asyncio.StreamReader(limit=2**24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    await _Process(output).serve(reader)


def main(trace: str) -> None:
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what functions print must not mix with our answers
    with Path(trace).open("wb") as stacks:
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
        asyncio.run(_serve(output))


if __name__ == "__main__":
    main(sys.argv[1])

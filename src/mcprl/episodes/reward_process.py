"""The process that runs the reward functions: reads episodes from stdin, writes their results to stdout.

    python reward_process.py TRACE

Each input message is a length and a pickle; each output message is a line of JSON. Whatever the functions print goes to
the log. On SIGUSR1, the process writes the stacks of all threads to TRACE.
"""

from __future__ import annotations

import asyncio
import faulthandler
import inspect
import itertools
import json
import os
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from mcprl.errors import UserCodeError
from mcprl.functions import Code, EpisodeView, UserCode, load_function
from mcprl.records import Observation, ToolCall

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
                self._load(*rest)
            elif kind == "probed":
                self._take_probed(*rest)
            else:
                task = asyncio.create_task(self._call(*rest))
                self._running.add(task)
                task.add_done_callback(self._running.discard)

    def _load(self, code: Code, references: dict[str, str]) -> None:
        code.use()
        try:
            for name, reference in references.items():
                setting = "a task or the recipe" if name == reference else f"rewards.functions.{name}.function"
                self._say(importing=reference.rpartition(":")[0])
                function = load_function(reference, setting)
                self._functions[name] = (reference, function)
        except UserCodeError as error:
            self._say(error=error.what, fix=error.fix)
        else:
            loaded = self._functions.items()
            self._say(
                per={name: _per(function) for name, (_, function) in loaded},
                places={name: _place_of(function, reference) for name, (reference, function) in loaded},
            )

    async def _call(self, number: int, name: str, subject: EpisodeView | tuple[EpisodeView, ...], says: bool) -> None:
        reference, function = self._functions[name]

        async def probe(call: ToolCall) -> Observation:
            own = next(self._probes)
            self._probed[own] = asyncio.get_running_loop().create_future()
            self._say(call=number, probe=own, tool=call.name, arguments=dict(call.arguments))
            try:
                return await self._probed[own]
            finally:
                del self._probed[own]

        view = list(subject) if isinstance(subject, tuple) else replace(subject, probing=probe)
        before = pickle.dumps(subject)
        try:
            with UserCode(reference):
                is_async = inspect.iscoroutinefunction(function)
                value = function(view) if is_async else await asyncio.to_thread(function, view)
                value = await value if inspect.isawaitable(value) else value
                if says:
                    problem = _why_not_said(value)
                else:
                    problem, value = _checked(value, function, subject, least=0 if name == reference else -1)
            unchanged = tuple(view) if isinstance(view, list) else replace(view, probing=None)
            if pickle.dumps(unchanged) != before:
                problem = "modified its episode, which is only a copy; a function must not change it"
            if problem is not None:
                raise UserCodeError(f"{_place_of(function, reference)}: {reference} {problem}", fix="return that")
        except UserCodeError as error:
            self._say(call=number, error=error.what)
        else:
            if not says:
                value = [*map(float, cast("list[float]", value))] if isinstance(value, list) else float(value)
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


def _place_of(function: Callable[..., Any], reference: str) -> str:
    """Return the first line of a function, or the file of any other callable."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return reference.rpartition(":")[0] if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def _per(function: Callable[..., Any]) -> str:
    return str(getattr(function, "reward_per", "episode"))


def _checked(
    value: object, function: Callable[..., Any], subject: EpisodeView | tuple[EpisodeView, ...], *, least: int
) -> tuple[str | None, float | list[float]]:
    """Return what is wrong with a value, if anything, and the value."""
    if _per(function) == "episode":
        return None if _is_number(value, least) else _wrong(value, f"a number from {least} to 1"), cast("float", value)
    size = len(subject) if isinstance(subject, tuple) else len(subject.turns)
    wanted = f"a list of {size} numbers from -1 to 1, one per {'episode' if isinstance(subject, tuple) else 'turn'}"
    numbers = list(cast("Sequence[object]", value)) if isinstance(value, list | tuple) else []
    fits = isinstance(value, list | tuple) and len(numbers) == size and all(map(_is_number, numbers))
    return None if fits else _wrong(cast("object", value), wanted), cast("list[float]", numbers)


def _is_number(value: object, least: int = -1) -> bool:
    return isinstance(value, int | float) and least <= value <= 1  # NaN is not


def _why_not_said(value: object) -> str | None:
    is_text = isinstance(value, str) and bool(value.strip())
    return None if value is None or is_text else _wrong(value, "a string, or None to end the conversation")


def _wrong(value: object, wanted: str) -> str:
    shown = f"{value!r}"[:100]
    return f"returned {shown}, of type {type(value).__name__}; it must return {wanted}"


async def _serve(output: BinaryIO) -> None:
    reader = asyncio.StreamReader(limit=2**24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    await _Process(output).serve(reader)


def main(trace: str) -> None:
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what functions print must not be mixed with our answers
    with Path(trace).open("wb") as stacks:
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
        asyncio.run(_serve(output))


if __name__ == "__main__":
    main(sys.argv[1])

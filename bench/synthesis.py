"""Make tasks from nine servers with `mcprl tasks synthesize`, and recount what it promises, on fresh servers.

    python bench/synthesis.py [--count 400]      # the market offline and five public servers with made-up data
    python bench/synthesis.py --servers servers.json --tasks FOLDER [--hints hints.yaml] [--isolated SERVER]

The second form recounts tasks that exist. The recount imports nothing of the synthesis and reads no metadata: which
values a question gives, and which a call must find, is derived from questions, solutions and live results. Every
solution is played, and nothing, and solutions with one argument exchanged for that of another task; right calls are
scored without an answer, and with the question or all numbers as the answer. The first form also repeats the command
with its cassette. Prints one JSON object: `wrong` counts what does not hold, by kind; `again_different` the files that
differ when the command is repeated, and `again_calls` the calls that this makes; all are 0 if everything is as
promised.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from mcprl.config import ServerSettings
from mcprl.episodes.demonstrations import play
from mcprl.episodes.rewards import meets, numbers_in
from mcprl.records import Task, ToolCall
from mcprl.tasks import load_tasks
from mcprl.tasks.validation import normalised_question
from mcprl.tools import Toolbox, load_server_specs
from mcprl_synthesis.derived_checks import CHEAP, REWARDS, Call, reward
from servers.harness import say
from synthesis_servers import WRITING, write_servers

_PARALLEL = 8
_FEW = 5  # an argument with fewer values is a choice, not an entity
_Path = tuple[str | int, ...]


def _question(task: Task) -> str:
    return " ".join(message["content"] for message in task.prompt)


def _says(text: str, value: Any) -> bool:
    """Return True if a text has a value as a word of its own."""
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return re.search(rf"(?<!\w){re.escape(shown)}(?!\w)", text, re.IGNORECASE) is not None


def _folded(value: Any) -> str:
    return str(value).casefold()


def _leaves(value: Any, path: _Path = ()) -> Iterator[tuple[_Path, Any]]:
    """Yield the plain values in the arguments of a call."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _leaves(inner, (*path, place))
    else:
        yield path, value


def _with(value: Any, path: _Path, new: Any) -> Any:
    """Return arguments with another value at a path."""
    if not path:
        return new
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _with(copy[path[0]], path[1:], new)
    return copy


def _calls(task: Task) -> Sequence[ToolCall]:
    assert task.solution is not None
    return task.solution.calls


def _pool(tasks: Sequence[Task]) -> dict[tuple[str, _Path], list[Any]]:
    """Return the values that each argument has in any solution."""
    pool: dict[tuple[str, _Path], dict[Any, None]] = {}
    for task in tasks:
        for call in _calls(task):
            for path, value in _leaves(call.arguments):
                pool.setdefault((call.name, path), {})[value] = None
    return {name: list(values) for name, values in pool.items()}


def _entities(tasks: Sequence[Task], pool: dict[tuple[str, _Path], list[Any]]) -> set[str]:
    return {
        value.casefold()
        for task in tasks
        for call in _calls(task)
        for path, value in _leaves(call.arguments)
        if isinstance(value, str) and len(pool[call.name, path]) >= _FEW
    }


def _static_faults(
    train: Sequence[Task], validation: Sequence[Task], pool: dict[tuple[str, _Path], list[Any]]
) -> Counter[str]:
    """Count leaks, duplicates and entities of both splits."""
    wrong: Counter[str] = Counter()
    asked = Counter(normalised_question(task) for task in (*train, *validation))
    wrong["duplicates"] = sum(number - 1 for number in asked.values())
    wrong["entities in both splits"] = len(_entities(train, pool) & _entities(validation, pool))
    for task in (*train, *validation):
        goal = task.goal
        wrong["answers in the question"] += goal.answer is not None and meets(goal.answer, _question(task))
        wrong["tasks that check nothing"] += goal.answer is None and not any(state.texts for state in goal.state)
    return wrong


@dataclass
class _Count:
    """The played checks of all tasks."""

    toolbox: Toolbox
    pool: dict[tuple[str, _Path], list[Any]]
    wrong: Counter[str] = field(default_factory=Counter[str])
    linked: int = 0
    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_PARALLEL))

    async def _reward(self, task: Task, calls: Sequence[ToolCall], answer: str) -> float:
        return (await play(task, self.toolbox, calls, answer, REWARDS)).reward

    async def task(self, task: Task) -> None:
        async with self.places:
            await self._task(task)

    async def _task(self, task: Task) -> None:
        calls, asked = _calls(task), _question(task)
        assert task.solution is not None
        answer = task.solution.answer or ""
        gold = await play(task, self.toolbox, calls, answer, REWARDS)
        self.wrong["solutions below 1"] += gold.reward != 1.0
        self.wrong["idle above 0"] += await self._reward(task, (), "") != 0.0
        results = [turn.observations[0].text for turn in gold.turns if turn.observations]
        if task.goal.answer is not None:
            made = [
                Call(tool=call.name, arguments=call.arguments, text=text, failed=False, writes=False)
                for call, text in zip(calls, results, strict=True)
            ]
            listed = ", ".join(str(number) for text in results for number in numbers_in(text))
            many = len(set(numbers_in(listed))) > len(set(numbers_in(answer)))
            for name, said in {"no answer": "", "the question": asked, "all numbers": listed if many else ""}.items():
                self.wrong[f"right calls and {name} above half"] += reward(task.goal, made, said) > CHEAP
        else:
            self.wrong["the question as the answer above half"] += await self._reward(task, (), asked) > CHEAP
        links = 0
        stream = random.Random(task.id)
        for place, call in enumerate(calls):
            for path, value in _leaves(call.arguments):
                if not _says(asked, value):
                    found = any(_says(text, value) for text in results[:place])
                    self.wrong["values from nowhere"] += not found
                    links += found
                # An argument is checked without regard to case, and names differ in it between servers.
                others = [other for other in self.pool[call.name, path] if _folded(other) != _folded(value)]
                if others and _says(asked, value):
                    changed = replace(call, arguments=_with(call.arguments, path, stream.choice(others)))
                    exchanged = [*calls[:place], changed, *calls[place + 1 :]]
                    if await self._reward(task, exchanged, answer) >= 1.0:
                        self.wrong["exchanged arguments at 1"] += 1
                        say(f"{task.id}: {value!r} of {call.name} may be {changed.arguments}")
        self.linked += links > 0


async def _count(options: argparse.Namespace) -> dict[str, Any]:
    files = [options.tasks / name for name in ("train.jsonl", "validation.jsonl")]
    train, validation = (list(load_tasks(file)) if file.exists() else [] for file in files)
    tasks = [*train, *validation]
    pool = _pool(tasks)
    wrong = _static_faults(train, validation, pool)
    hints = {} if options.hints is None else yaml.safe_load(options.hints.read_text())
    given = {name: ServerSettings.model_validate(each) for name, each in hints.get("settings", {}).items()}
    for name in options.isolated:
        given[name] = given.get(name, ServerSettings()).model_copy(update={"isolation": "per_episode"})
    with tempfile.TemporaryDirectory() as logs:
        async with Toolbox(load_server_specs(options.servers, given), log_dir=Path(logs)) as toolbox:
            count = _Count(toolbox, pool)
            for number, played in enumerate(asyncio.as_completed([count.task(task) for task in tasks]), 1):
                await played
                print(f"{number} of {len(tasks)}", end="\r", file=sys.stderr)
            server_of = {tool.name: tool.server for tool in toolbox.catalog}
            writes = {tool.name for tool in toolbox.catalog if not tool.read_only}
    wrong += count.wrong
    used = [{server_of[call.name] for call in _calls(task)} for task in tasks]
    return {
        "tasks": len(tasks),
        "linked_share": round(count.linked / len(tasks), 3),
        "several_servers_share": round(sum(len(servers) > 1 for servers in used) / len(tasks), 3),
        "writes_share": round(sum(any(call.name in writes for call in _calls(task)) for task in tasks) / len(tasks), 3),
        "by_servers": dict(Counter(server for servers in used for server in servers)),
        "by_calls": dict(sorted(Counter(len(_calls(task)) for task in tasks).items())),
        "wrong": {kind: number for kind, number in wrong.items() if number},
        "wrong_total": wrong.total(),
    }


def _synthesize(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Make the tasks of the nine servers from a cold cassette; return the time it took."""
    options.servers, options.hints = write_servers(folder)
    options.tasks, options.isolated = folder / "tasks", WRITING
    words = ["--servers", str(options.servers), "--hints", str(options.hints), "--out", str(options.tasks), "--yes"]
    words += [word for name in (*WRITING, "slack") for word in ("--allow-writes", name)]
    words += ["--count", str(options.count)]
    started = time.monotonic()
    made = _run(words)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    figures: dict[str, float] = {
        "seconds": round(time.monotonic() - started, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "load": round(os.getloadavg()[0], 1),
    }
    files = {file: file.read_bytes() for file in options.tasks.iterdir() if file.suffix in {".jsonl", ".json", ".md"}}
    started = time.monotonic()
    again = _run(words)
    figures["again_seconds"] = round(time.monotonic() - started, 1)
    figures["again_different"] = sum(file.read_bytes() != data for file, data in files.items())
    (figures["calls"],), (figures["again_calls"],) = (
        map(int, re.findall(r"^(\d+) calls made", shown, re.MULTILINE)) for shown in (made, again)
    )
    return figures


def _run(words: Sequence[str]) -> str:
    """Run `mcprl tasks synthesize`, show what it prints, and return it."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # the market's servers are `mcprl serve`
    command, environment = ["mcprl", "tasks", "synthesize", *words], {**os.environ, "PATH": path}
    shown = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    print(shown, file=sys.stderr)
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=Path)
    parser.add_argument("--tasks", type=Path, help="the folder of an earlier synthesis")
    parser.add_argument("--hints", type=Path, help="the hints of the synthesis: settings of servers")
    parser.add_argument("--isolated", action="append", default=[], metavar="SERVER")
    parser.add_argument("--count", type=int, default=400)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        taken = {} if options.tasks else _synthesize(options, Path(folder))
        figures = {**asyncio.run(_count(options)), **taken}
    print(json.dumps(figures))
    return 1 if figures["wrong_total"] or figures.get("again_different") or figures.get("again_calls") else 0


if __name__ == "__main__":
    sys.exit(main())

"""Recount what `mcprl tasks synthesize` promises, from its task files and fresh servers.

    python bench/synthesis.py --servers servers.json --tasks FOLDER [--hints hints.yaml] [--isolated SERVER]

It imports nothing of the synthesis and reads no metadata: which values a question gives, and which a call must find, is
derived from questions, solutions and live results. Every solution is played, and nothing, and right calls without an
answer, and solutions with one argument exchanged for that of another task. Prints one JSON object: `wrong` counts what
does not hold, by kind; its sum is 0 if all tasks are as promised.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from mcprl.config import ServerSettings
from mcprl.episodes.demonstrations import play
from mcprl.episodes.rewards import meets
from mcprl.records import Task, ToolCall
from mcprl.scaffold.derived_checks import CHEAP, REWARDS
from mcprl.tasks import load_tasks
from mcprl.tasks.validation import normalised_question
from mcprl.tools import Toolbox, load_server_specs

_FEW = 5  # an argument with fewer values is a choice, not an entity
_Path = tuple[str | int, ...]


def _question(task: Task) -> str:
    return " ".join(message["content"] for message in task.prompt)


def _says(text: str, value: Any) -> bool:
    """Return True if a text has a value as a word of its own."""
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return re.search(rf"(?<!\w){re.escape(shown)}(?!\w)", text, re.IGNORECASE) is not None


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
    stream: random.Random = field(default_factory=lambda: random.Random(7))

    async def _reward(self, task: Task, calls: Sequence[ToolCall], answer: str) -> float:
        return (await play(task, self.toolbox, calls, answer, REWARDS)).reward

    async def task(self, task: Task) -> None:
        calls, asked = _calls(task), _question(task)
        assert task.solution is not None
        answer = task.solution.answer or ""
        gold = await play(task, self.toolbox, calls, answer, REWARDS)
        self.wrong["solutions below 1"] += gold.reward != 1.0
        self.wrong["idle above 0"] += await self._reward(task, (), "") != 0.0
        if task.goal.answer is not None:
            self.wrong["right calls without an answer above half"] += await self._reward(task, calls, "") > CHEAP
        self.wrong["the question as the answer above half"] += await self._reward(task, (), asked) > CHEAP
        results = [turn.observations[0].text for turn in gold.turns if turn.observations]
        links = 0
        for place, call in enumerate(calls):
            for path, value in _leaves(call.arguments):
                if not _says(asked, value):
                    found = any(_says(text, value) for text in results[:place])
                    self.wrong["values from nowhere"] += not found
                    links += found
                others = [other for other in self.pool[call.name, path] if other != value]
                if others and _says(asked, value):
                    changed = replace(call, arguments=_with(call.arguments, path, self.stream.choice(others)))
                    exchanged = [*calls[:place], changed, *calls[place + 1 :]]
                    self.wrong["exchanged arguments at 1"] += await self._reward(task, exchanged, answer) >= 1.0
        self.linked += links > 0


async def _count(options: argparse.Namespace) -> int:
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
            for number, task in enumerate(tasks):
                await count.task(task)
                print(f"{number + 1} of {len(tasks)}", end="\r", file=sys.stderr)
            server_of = {tool.name: tool.server for tool in toolbox.catalog}
            writes = {tool.name for tool in toolbox.catalog if not tool.read_only}
    wrong += count.wrong
    used = [{server_of[call.name] for call in _calls(task)} for task in tasks]
    figures = {
        "tasks": len(tasks),
        "linked_share": round(count.linked / len(tasks), 3),
        "several_servers_share": round(sum(len(servers) > 1 for servers in used) / len(tasks), 3),
        "writes_share": round(sum(any(call.name in writes for call in _calls(task)) for task in tasks) / len(tasks), 3),
        "by_servers": dict(Counter(server for servers in used for server in servers)),
        "by_calls": dict(sorted(Counter(len(_calls(task)) for task in tasks).items())),
        "wrong": {kind: number for kind, number in wrong.items() if number},
        "wrong_total": wrong.total(),
    }
    print(json.dumps(figures))
    return 1 if wrong.total() else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=Path, required=True)
    parser.add_argument("--tasks", type=Path, required=True)
    parser.add_argument("--hints", type=Path, help="the hints of the synthesis: settings of servers")
    parser.add_argument("--isolated", action="append", default=[], metavar="SERVER")
    return asyncio.run(_count(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())

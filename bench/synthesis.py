"""Recount what `mcprl tasks synthesize` promises, from its task files and fresh servers, without its code.

    python bench/synthesis.py --servers servers.json --tasks FOLDER [--isolated SERVER]

Every solution is played, and nothing, and solutions with one argument exchanged for that of another task. Prints one
JSON object: `wrong` counts what does not hold, by kind; its sum is 0 if all tasks are as promised.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

from mcprl.config import ServerSettings
from mcprl.episodes.demonstrations import play
from mcprl.episodes.rewards import meets
from mcprl.goals import Contains
from mcprl.records import Task, ToolCall
from mcprl.scaffold.derived_checks import CHEAP, REWARDS
from mcprl.tasks import load_tasks
from mcprl.tasks.validation import normalised_question
from mcprl.tools import Toolbox, load_server_specs


def _question(task: Task) -> str:
    return " ".join(message["content"] for message in task.prompt)


def _static_faults(train: list[Task], validation: list[Task]) -> Counter[str]:
    """Count leaks, duplicates and entities of both training and validation."""
    wrong: Counter[str] = Counter()
    asked = Counter(normalised_question(task) for task in (*train, *validation))
    wrong["duplicates"] = sum(number - 1 for number in asked.values())
    sides = [{entity for task in tasks for entity in task.metadata["entities"]} for tasks in (train, validation)]
    wrong["entities in both splits"] = len(sides[0] & sides[1])
    for task in (*train, *validation):
        hidden = [Contains(text=link) for link in task.metadata["links"]]
        hidden += [] if task.goal.answer is None else [task.goal.answer]
        wrong["leaks"] += any(meets(text, _question(task)) for text in hidden)
    return wrong


def _exchanged(task: Task, pool: dict[tuple[str, str], list[object]], stream: random.Random) -> list[list[ToolCall]]:
    """Return the calls of a solution with one given argument exchanged, for each of them."""
    assert task.solution is not None
    ways: list[list[ToolCall]] = []
    for place, given in enumerate(task.metadata["given"]):
        for name, value in given.items():
            call = task.solution.calls[place]
            others = [other for other in pool[call.name, name] if other != value] or [f"{value}x"]
            calls = list(task.solution.calls)
            calls[place] = replace(call, arguments={**call.arguments, name: stream.choice(others)})
            ways.append(calls)
    return ways


async def _played_faults(tasks: list[Task], toolbox: Toolbox) -> Counter[str]:
    """Count solutions below 1, idleness above 0, exchanged arguments at 1, and right calls without an answer."""
    wrong: Counter[str] = Counter()
    pool: dict[tuple[str, str], list[object]] = {}
    for task in tasks:
        assert task.solution is not None
        for call, given in zip(task.solution.calls, task.metadata["given"], strict=True):
            for name, value in given.items():
                pool.setdefault((call.name, name), []).append(value)
    stream = random.Random(7)
    for number, task in enumerate(tasks):
        assert task.solution is not None
        calls, answer = task.solution.calls, task.solution.answer
        wrong["solutions below 1"] += (await play(task, toolbox, calls, answer, REWARDS)).reward != 1.0
        wrong["idle above 0"] += (await play(task, toolbox, (), "", REWARDS)).reward != 0.0
        if task.goal.answer is not None:
            wrong["empty answers above half"] += (await play(task, toolbox, calls, "", REWARDS)).reward > CHEAP
        for changed in _exchanged(task, pool, stream):
            wrong["exchanged arguments at 1"] += (await play(task, toolbox, changed, answer, REWARDS)).reward >= 1.0
        print(f"{number + 1} of {len(tasks)}", end="\r", file=sys.stderr)
    return wrong


async def _count(options: argparse.Namespace) -> int:
    files = [options.tasks / name for name in ("train.jsonl", "validation.jsonl")]
    train, validation = (list(load_tasks(file)) if file.exists() else [] for file in files)
    tasks = [*train, *validation]
    wrong = _static_faults(train, validation)
    settings = {name: ServerSettings(isolation="per_episode") for name in options.isolated}
    specs = load_server_specs(options.servers, settings)
    with tempfile.TemporaryDirectory() as logs:
        async with Toolbox(specs, log_dir=Path(logs)) as toolbox:
            wrong += await _played_faults(tasks, toolbox)
            server_of = {tool.name: tool.server for tool in toolbox.catalog}
    used = [{server_of[call.name] for call in task.solution.calls} for task in tasks if task.solution is not None]
    figures = {
        "tasks": len(tasks),
        "linked_share": sum(bool(task.metadata["links"]) for task in tasks) / len(tasks),
        "several_servers_share": sum(len(servers) > 1 for servers in used) / len(tasks),
        "writes_share": sum(bool(task.goal.state) for task in tasks) / len(tasks),
        "wrong": dict(wrong),
        "wrong_total": wrong.total(),
    }
    print(json.dumps(figures))
    return 1 if wrong.total() else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=Path, required=True)
    parser.add_argument("--tasks", type=Path, required=True)
    parser.add_argument("--isolated", action="append", default=[], metavar="SERVER")
    return asyncio.run(_count(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())

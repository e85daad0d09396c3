"""BFCL v4 multi-turn: that its 800 tasks can be solved through real MCP servers, and what a model makes of them.

`--gold` plays the official answers, each task with an `mcprl serve bfcl` of its own over stdio, and then plays nothing
at all: `gold_solved` of `tasks` with the first, `none_solved` with the second. `other_states` counts worlds that differ
from direct execution of the answers, `other_texts` results that do. `checker_differs` are tasks for which the wheel's
own checker comes to another verdict on the same calls.

`--model` plays a model on a sample of the tasks, as `mcprl eval --suite bfcl-multi-turn` does, and prints the table of
docs/bfcl.md before the last line. A task whose conversation does not fit into the context has failed.

    python bench/bfcl.py --gold [--ci]                               (--ci: 40 tasks over all categories)
    python bench/bfcl.py --model FOLDER [--ci] [--sample 100] [--set engine=transformers]    (--ci: 10 tasks)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mcprl.evaluation.harness import evaluate, make_request
from mcprl.evaluation.results import Evaluation
from mcprl.evaluation.statistics import Estimate
from mcprl.records import LostEpisode, StopReason, Task, ToolCall, Trajectory, Turn
from mcprl.tools import ServerSpec, Toolbox
from mcprl_suites.bfcl.simulators import Simulators
from mcprl_suites.bfcl.suite import gold_calls, judge_turns, make_suite, play_calls, server_settings
from mcprl_suites.bfcl.wheel import Entry, entry_of, gold_answers, wheel_module
from servers.harness import say

# Else sixteen conversations of some thousand tokens push each other out.
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "8")
CI_TASKS = 40
CI_SAMPLE = 10
AT_ONCE = 4
# SmolLM2 is ChatML and reads up to 8,192 tokens; some prompts have nearly 5,000.
MODEL_SETTINGS = (
    "model.renderer=chatml",
    "model.dtype=float32",
    "model.context_tokens=8192",
    "sampling.max_tokens=96",
    "episodes.max_concurrent=16",
    "sampling.vllm.merge_adapters=true",  # there is none, and layers that could take one read prompts more slowly
)


def official_verdict(entry: Entry, calls: Sequence[Sequence[ToolCall]], run: str) -> bool:
    """What the wheel's own checker says. It evaluates Python, so it is shown texts of the wheel only, or none."""
    gold = gold_answers(entry.category)[entry.id]
    made = [[list(texts)] if wanted else [] for texts, wanted in zip(gold, calls, strict=True)]
    row = {"id": entry.id, "initial_config": entry.config, "involved_classes": list(entry.simulators)}
    checker = wheel_module("eval_checker.multi_turn_eval.multi_turn_checker").multi_turn_checker
    return bool(checker(made, [list(texts) for texts in gold], row, entry.category, run)["valid"])


def other_texts(entry: Entry, turns: Sequence[Turn]) -> int:
    """Results that are not those of direct execution."""
    simulators = Simulators(entry)
    direct = [simulators.call(call.name, call.arguments).text for calls in gold_calls(entry) for call in calls]
    seen = [observation.text for turn in turns for observation in turn.observations]
    return sum(one != other for one, other in zip(direct, seen, strict=True))


async def play_script(task: Task, toolbox: Toolbox, *, gold: bool) -> dict[str, int]:
    entry = entry_of(task.id)
    calls = gold_calls(entry) if gold else [()] * len(entry.messages)
    played = await play_calls(task, toolbox, calls)
    solved = judge_turns(entry, StopReason.ANSWERED, played.turns).success
    return {
        "solved": solved,
        "checker_differs": solved != official_verdict(entry, calls, "gold" if gold else "none"),
        "other_states": gold and played.parts["state"] != 1.0,
        "other_texts": other_texts(entry, played.turns) if gold else 0,
    }


async def measure_gold(ci: bool, folder: Path) -> dict[str, Any]:
    every = make_suite().tasks()
    tasks = every[:: len(every) // CI_TASKS] if ci else every
    spec = ServerSpec(
        name="bfcl", command=sys.executable, args=("-m", "mcprl", "serve", "bfcl"), settings=server_settings()
    )
    figures: dict[str, Any] = {"tasks": len(tasks)}
    places, started = asyncio.Semaphore(AT_ONCE), time.perf_counter()
    async with Toolbox([spec], log_dir=folder) as toolbox:

        async def one(task: Task, *, gold: bool) -> dict[str, int]:
            async with places:
                return await play_script(task, toolbox, gold=gold)

        for name, gold in (("gold", True), ("none", False)):
            played = await asyncio.gather(*(one(task, gold=gold) for task in tasks))
            totals = {key: sum(each[key] for each in played) for key in played[0]}
            figures[f"{name}_solved"] = totals.pop("solved")
            for key, count in totals.items():
                figures[key] = figures.get(key, 0) + count
            say(f"{name}: {figures[f'{name}_solved']} of {len(tasks)} solved")
    figures["seconds"] = round(time.perf_counter() - started, 1)
    return figures


class Progress:
    """Says every so often how far an evaluation is."""

    def __init__(self) -> None:
        self._done = 0

    def stage(self, text: str) -> None:
        say(text)

    def episode_finished(self, step: int, outcome: Trajectory | LostEpisode) -> None:
        self._done += 1
        if self._done % 10 == 0:
            say(f"{self._done} episodes, the last {outcome.task_id}")

    def step_finished(self, step: int, metrics: Mapping[str, float], verdicts: Sequence[Any]) -> None:
        raise AssertionError("an evaluation has no steps")


async def measure_model(model: str, sample: int, settings: Sequence[str], folder: Path) -> dict[str, Any]:
    overrides = (*MODEL_SETTINGS, *settings)
    request = make_request(suite="bfcl-multi-turn", model=model, sample=sample, overrides=overrides)
    played = await evaluate(request, Progress(), logs=folder)
    print(table(played.evaluation))
    figures = played.evaluation.figures
    return {
        "model": played.evaluation.title,
        "tasks": figures.tasks,
        "success": figures.success.value,
        "low": figures.success.low,
        "high": figures.success.high,
        "failures": dict(figures.failures),
        "valid_calls": figures.valid_calls,
        "turns": figures.turns.mean,
        "lost": dict(played.evaluation.lost),
        "seconds": round(played.evaluation.seconds, 1),
    }


def table(evaluation: Evaluation) -> str:
    """The tables of docs/bfcl.md."""
    figures = evaluation.figures
    rows = [(name, part.tasks, part.success) for name, part in figures.categories.items()]
    rows.append(("all", figures.tasks, figures.success))
    lines = ["| Category | Tasks | Solved | 95% interval |", "|---|---|---|---|"]
    lines += [f"| {name} | {tasks} | {success.value:.1%} | {interval(success)} |" for name, tasks, success in rows]
    lines += ["", "| Why it failed | Tasks |", "|---|---|"]
    lines += [f"| {kind} | {count} |" for kind, count in figures.failures.items()]
    return "\n".join(lines)


def interval(estimate: Estimate) -> str:
    return "–" if estimate.low is None or estimate.high is None else f"{estimate.low:.1%} to {estimate.high:.1%}"


def missed_bars(figures: Mapping[str, Any]) -> list[str]:
    """What the scripted episodes must show, where it does not show."""
    bars = {
        "gold_solved": figures["tasks"],
        "none_solved": 0,
        "checker_differs": 0,
        "other_states": 0,
        "other_texts": 0,
    }
    return [f"{name} is {figures[name]}, its bar is == {bar}" for name, bar in bars.items() if figures[name] != bar]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--gold", action="store_true", help="the official answers, and none at all")
    what.add_argument("--model", help="folder or hub name of a model")
    parser.add_argument("--ci", action="store_true", help="the small size, for every change")
    parser.add_argument("--sample", type=int, default=100, help="tasks that the model plays")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the evaluation")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mcprl-bench-") as folder:
        if arguments.gold:
            figures = asyncio.run(measure_gold(arguments.ci, Path(folder)))
        else:
            sample = CI_SAMPLE if arguments.ci else arguments.sample
            figures = asyncio.run(measure_model(arguments.model, sample, arguments.set, Path(folder)))
    missed = missed_bars(figures) if arguments.gold else []
    for sentence in missed:
        say(f"MISSED: {sentence}")
    print(json.dumps(figures), flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Keeps the tasks that a policy sometimes solves: those it always or never solves teach it nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mcprl.errors import NoReachableToolError
from mcprl.evaluation.harness import Request, evaluate
from mcprl.evaluation.outcomes import TaskSuite
from mcprl.progress import Watcher
from mcprl.tasks import load_tasks, write_tasks

__all__ = ["calibrate"]


async def calibrate(request: Request, out: Path, names: Sequence[str], watcher: Watcher) -> dict[str, int]:
    """Run the requested number of attempts at every task of the files `names`. Keep tasks that are sometimes solved.

    Writes calibration.json, with the number of successes and attempts of each task. Returns how many tasks were always,
    sometimes and never solved.
    """
    files = {name: list(load_tasks(out / name)) for name in names if (out / name).exists()}
    suite = TaskSuite("synthesized", tuple(task for tasks in files.values() for task in tasks))
    played = await evaluate(replace(request, suite=suite), watcher, logs=out / "logs")
    solved = {result.id: (result.solved, result.episodes) for result in played.evaluation.tasks}
    (out / "calibration.json").write_text(json.dumps(solved, indent=2) + "\n", encoding="utf-8")
    always = sum(number == attempts for number, attempts in solved.values())
    never = sum(number == 0 for number, _ in solved.values())
    chosen = {task for task, (number, attempts) in solved.items() if 0 < number < attempts}
    kept = {name: [task for task in tasks if task.id in chosen] for name, tasks in files.items()}
    if not any(kept.values()):
        raise NoReachableToolError(
            f"in {request.episodes} attempts each, {always} of {len(solved)} tasks were always solved and {never} "
            "never: no task is left to train on",
            fix="raise --attempts, calibrate with another model, or train with algorithm.warm_start first",
        )
    for name, tasks in kept.items():
        if tasks:
            write_tasks(tasks, out / name)
        else:
            (out / name).unlink()
    return {"always": always, "sometimes": len(chosen), "never": never}

"""`mcprl eval` on held-out tasks, and what is kept of it: the success of each task, recoveries and transcripts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from many_turns.spending import ROOT, mcprl_command, program_environment
from mcprl.episodes import succeeded
from mcprl.evaluation.statistics import Estimate, share_interval
from mcprl.recipe import load_recipe
from mcprl.records import Source, Trajectory
from mcprl.runs.trajectories import read_trajectories
from mcprl.tasks import load_tasks
from servers.harness import say

__all__ = ["CONDITIONS", "evaluate", "recovery", "success"]

CONDITIONS: Mapping[str, tuple[str, ...]] = {
    "plain": (),
    "errors": ("episodes.injected_errors=0.25",),
    "greedy": ("sampling.temperature=0.01",),
    "free": ("sampling.constrain=off",),
}
"""What an evaluation changes of the recipe. `errors`: a quarter of the calls fail on purpose; `free`: no grammar."""


def evaluate(
    recipe: Path,
    adapter: Path | None,
    result: Path,
    out: Path,
    *,
    condition: str,
    settings: Sequence[str] = (),
    episodes: int = 1,
    sample: int | None = None,
) -> None:
    """Play the validation tasks and keep what is small in `result`, unless it exists."""
    if result.exists():
        return
    shutil.rmtree(out, ignore_errors=True)
    words: list[object] = ["eval", recipe, "--out", out, "--episodes", episodes]
    words += [] if adapter is None else ["--adapter", adapter]
    words += [] if sample is None else ["--sample", sample]
    for setting in (*settings, *CONDITIONS[condition]):
        words += ["--set", setting]
    say(" ".join(map(str, words)))
    subprocess.run(mcprl_command(*words), cwd=ROOT, env=program_environment(), stdout=sys.stderr, check=True)
    found = json.loads((out / "results.json").read_text())
    tasks = {task.id: task for task in load_tasks(held_out_file(recipe, settings))}
    played: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in read_trajectories(out / "trajectories.parquet"):
        played[trajectory.task_id].append(trajectory)
    rows = [
        {
            "id": row["id"],
            "calls": len(tasks[row["id"]].solution.calls),
            "episodes": row["episodes"],
            "solved": row["solved"],
            "reward": row["reward"],
            **_recoveries(played[row["id"]]),
        }
        for row in found["tasks"]
    ]
    shown = {rows_of[0]["id"] for rows_of in _by_calls(sorted(rows, key=lambda row: row["id"])).values()}
    kept = {
        "condition": condition,
        "settings": list(settings),
        "adapter": None if adapter is None else os.path.relpath(adapter, ROOT),
        **{name: found[name] for name in ("started", "seconds", "mcprl", "lost")},
        "failures": found["figures"]["failures"],
        "valid_calls": found["figures"]["valid_calls"],
        "tasks": rows,
        "transcripts": {name: _transcript(played[name][0]) for name in sorted(shown)},
    }
    result.parent.mkdir(parents=True, exist_ok=True)
    result.write_text(json.dumps(kept, indent=1) + "\n")
    say(f"{result.parent.name}/{result.stem}: {success([kept]).value:.1%} solved")


def held_out_file(recipe: Path, settings: Sequence[str]) -> Path:
    file = load_recipe(recipe, settings).tasks.validation
    if file is None:
        raise SystemExit(f"{recipe} has no tasks.validation")
    return file


def success(results: Sequence[Mapping[str, Any]], calls: int | None = None) -> Estimate:
    """Success over all evaluations, with an interval by task: a task counts once, however many seeds played it."""
    shares: dict[str, list[float]] = defaultdict(list)
    episodes = 0
    for result in results:
        for task in result["tasks"]:
            if calls in (None, task["calls"]):
                shares[task["id"]].append(task["solved"] / task["episodes"])
                episodes += task["episodes"]
    return share_interval([sum(of) / len(of) for of in shares.values()], episodes)


def recovery(results: Sequence[Mapping[str, Any]]) -> Estimate:
    """The share of injected errors after which the same tool was called again and worked, by task."""
    struck: dict[str, list[float]] = defaultdict(list)
    for result in results:
        for task in result["tasks"]:
            struck[task["id"]] += [1.0] * task["recovered"] + [0.0] * (task["injected"] - task["recovered"])
    means = [sum(of) / len(of) for of in struck.values() if of]
    return share_interval(means, sum(map(len, struck.values())))


def _by_calls(rows: Sequence[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        found[row["calls"]].append(row)
    return found


def _recoveries(played: Sequence[Trajectory]) -> dict[str, int]:
    """Injected errors; those after which the same tool worked; episodes with an error; those that were solved."""
    injected = recovered = struck = struck_solved = 0
    for trajectory in played:
        seen = [observation for turn in trajectory.turns for observation in turn.observations]
        errors = [place for place, one in enumerate(seen) if one.source is Source.INJECTED]
        injected += len(errors)
        recovered += sum(
            any(later.worked and later.tool == seen[place].tool for later in seen[place + 1 :]) for place in errors
        )
        struck += bool(errors)
        struck_solved += bool(errors) and succeeded(trajectory.reward_parts)
    return {"injected": injected, "recovered": recovered, "struck": struck, "struck_solved": struck_solved}


def _transcript(trajectory: Trajectory) -> dict[str, Any]:
    turns = [
        {"policy": turn.text, "results": [observation.text for observation in turn.observations]}
        for turn in trajectory.turns
    ]
    return {"turns": turns, "stop": str(trajectory.stop), "reward": trajectory.reward}

"""A run whose agents fail: each kind of fault is planted 20 times, in the first attempt at one episode of a task.

The agent crashes, hangs, floods its stdout, exits without its answer, answers without calling the model, or leaves
children behind that no longer belong to it. The run goes on to its last step. Tiny model, transformers sampler.

  planted          faults, of six kinds
  wrong_ends       kinds whose count in the record is not that of the faults planted: episodes lost with the code of
                   the fault, or scored, for agents that exit early or leave children
  broken_groups    tasks whose group in the record is not whole: both members, of which one was played again if its
                   first attempt was lost
  orphans          processes of the run that were alive two seconds after its end
  lost             episodes lost, by code

    python bench/agent_faults.py [--ci]
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from crashing.evidence import all_trajectories
from crashing.small_runs import small_run
from servers.harness import run_bench, say
from soaking.left_behind import left_behind

AGENT = Path(__file__).resolve().parent / "gateways" / "faulty.py"
LOST_AS = {"crash": "E-AGENT-010", "silent": "E-AGENT-011", "hang": "E-AGENT-012", "flood": "E-AGENT-013"}
KINDS = (*LOST_AS, "early", "children")
PLANTED, CI_PLANTED = 20, 2
MEMBERS, PER_STEP = 2, 12
DEADLINE_S = 20.0
VARIABLE = "MCPRL_BENCH_RUN"
BARS = {"wrong_ends": ("==", 0), "broken_groups": ("==", 0), "orphans": ("==", 0)}


def write_recipe(folder: Path, planted: int) -> Path:
    """Write a run of a task per fault."""
    config = small_run(folder, "agent", steps=planted * len(KINDS) // PER_STEP, tasks_per_step=PER_STEP)
    first = json.loads((folder / "tasks.jsonl").read_text().splitlines()[0])
    tasks = [first | {"id": f"{kind}-{number}"} for number in range(planted) for kind in KINDS]
    (folder / "tasks.jsonl").write_text("\n".join(map(json.dumps, tasks)))
    (folder / "planted").mkdir()
    recipe = config.model_dump(mode="json", exclude_defaults=True)
    recipe["episodes"] |= {"group_size": MEMBERS, "deadline_s": DEADLINE_S}
    recipe["episodes"]["agent"] = {"command": [sys.executable, "-S", str(AGENT), str(folder / "planted")]}
    recipe["tasks"] |= {"order": "shuffled", "validation": None}
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    return folder / "recipe.yaml"


def is_whole(kind: str, found: list[tuple[int, int]]) -> bool:
    """Whether a group has each member once, and one of them was played again if the fault of its task costs one."""
    attempts = sorted(attempt for _, attempt in found)
    return sorted(member for member, _ in found) == [*range(MEMBERS)] and attempts == [0, int(kind in LOST_AS)]


async def measure(ci: bool, folder: Path) -> dict[str, Any]:
    planted, mark = CI_PLANTED if ci else PLANTED, uuid.uuid4().hex
    recipe = write_recipe(folder, planted)
    say(f"{planted} faults of each of {len(KINDS)} kinds")
    command = (sys.executable, "-m", "mcprl", "train", str(recipe))
    trainer = await asyncio.create_subprocess_exec(*command, env=os.environ | {VARIABLE: mark}, stdout=sys.stderr)
    if await trainer.wait():
        raise RuntimeError(f"the run ended with exit code {trainer.returncode}")
    orphans, run = left_behind(mark, VARIABLE), folder / "outputs" / "agent"
    trajectories, lost = all_trajectories(run), Counter[str]()
    for line in (run / "metrics.jsonl").read_text().splitlines():
        metrics = json.loads(line)
        lost.update(
            {name.removeprefix("lost_"): int(value) for name, value in metrics.items() if name.startswith("lost_")}
        )
    expected = Counter(dict.fromkeys(LOST_AS.values(), planted))
    happened = Counter(path.name.split("-")[0] for path in (folder / "planted").iterdir())
    groups: dict[str, list[tuple[int, int]]] = {f"{kind}-{n}": [] for n in range(planted) for kind in KINDS}
    for trajectory in trajectories:
        groups[trajectory.task_id].append((trajectory.member, trajectory.attempt))
    broken = [name for name, found in groups.items() if not is_whole(name.split("-")[0], found)]
    return {
        "planted": happened.total(),
        "wrong_ends": sum(lost[code] != expected[code] for code in lost | expected)
        + sum(happened[kind] != planted for kind in KINDS),
        "broken_groups": len(broken),
        "orphans": orphans,
        "lost": dict(sorted(lost.items())),
        "stops": dict(sorted(Counter(t.stop.value for t in trajectories).items())),
    }


if __name__ == "__main__":
    sys.exit(run_bench(__doc__, measure, BARS))

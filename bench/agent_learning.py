"""Does the reward of somebody else's agent rise? The Vercel AI SDK plays hello, unmodified; SmolLM2-135M learns.

`mcprl sft` on demonstrations of all twelve tasks of recipes/hello in the agent's own prompts, then `mcprl train` for 20
updates from that adapter, without a warm start, on the four training tasks of one or two calls, with 16 episodes per
update. First: scripts/setup agents.

  first, last   mean reward of the first five updates and of the last five, by seed
  risen         seeds whose last is above their first
  success       success rate of the first five updates and of the last five, over the seeds

    python bench/agent_learning.py --out FOLDER [--seeds 1 2 3]

The rewards of each seed are stored in bench/results/agent_learning. A seed whose results are there is not repeated, and
a training that was interrupted is resumed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from gateways.real import vercel_agent
from synthesis_learning import mcprl

ROOT = Path(__file__).resolve().parents[1]
RECIPE, RESULTS = ROOT / "recipes" / "hello-cpu.yaml", ROOT / "bench" / "results" / "agent_learning"
SFT_STEPS, STEPS, EDGE = 8, 20, 5


def learn(folder: Path, seed: int) -> None:
    """Train with a seed, and store the rewards of its updates."""
    sft, rl = folder / "outputs" / f"seed-{seed}-sft", folder / "outputs" / f"seed-{seed}"
    files = (RECIPE.with_name("hello") / name for name in ("tasks.jsonl", "validation.jsonl"))
    (folder / "all.jsonl").write_text("".join(file.read_text() for file in files))
    common = [f"seed={seed}", f"training.outputs={folder / 'outputs'}", "tasks.validation=null"]
    common += [f"episodes.agent.command={json.dumps(vercel_agent())}"]
    demonstrated = [f"sft.steps={SFT_STEPS}", "sft.batch_size=4", "sft.learning_rate=1e-3"]
    demonstrated += [f"tasks.train={folder / 'all.jsonl'}"]
    reinforced = [f"training.steps={STEPS}", f"model.adapter={sft / 'adapter'}", "algorithm.warm_start.weight=0"]
    reinforced += ["learner.learning_rate=2e-4", "learner.schedule=linear"]
    runs = {sft: ("sft", demonstrated), rl: ("train", reinforced)}
    for run, (command, more) in runs.items():
        if (run / "summary.json").exists():
            continue
        if (run / "config.yaml").exists():
            mcprl(folder, "resume", run)
        else:
            settings = [f"name={run.name.removesuffix('-sft')}", *common, *more]
            mcprl(folder, command, RECIPE, *(word for each in settings for word in ("--set", each)))
    steps = [json.loads(line) for line in (rl / "metrics.jsonl").read_text().splitlines()]
    kept = ("step", "reward", "success_rate", "turns_per_episode", "episodes_lost_to_infrastructure", "collect_s")
    rows = [{key: step[key] for key in kept} for step in steps]
    (RESULTS / f"{seed}.json").write_text(json.dumps(rows, indent=1) + "\n")


def read_figures(seeds: list[int]) -> dict[str, Any]:
    found = {seed: json.loads((RESULTS / f"{seed}.json").read_text()) for seed in seeds}
    first, last = ({s: rows[part] for s, rows in found.items()} for part in (slice(EDGE), slice(-EDGE, None)))
    rewards = [{s: round(fmean(r["reward"] for r in rows), 3) for s, rows in part.items()} for part in (first, last)]
    return {
        "first": rewards[0],
        "last": rewards[1],
        "risen": sum(rewards[1][seed] > rewards[0][seed] for seed in seeds),
        "success": [
            round(fmean(r["success_rate"] for rows in part.values() for r in rows), 3) for part in (first, last)
        ],
        "updates": [len(rows) for rows in found.values()],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    options = parser.parse_args()
    folder: Path = options.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds:
        if not (RESULTS / f"{seed}.json").exists():
            learn(folder, seed)
    print(json.dumps(read_figures(options.seeds)))


if __name__ == "__main__":
    sys.exit(main())

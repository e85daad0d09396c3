"""The race: mcprl and TRL's GRPOTrainer from the same SFT adapter, on the same tasks, servers, rewards and episodes.

SmolLM2-135M with recipes/finance-multi-cpu.yaml. Sides: `ours`, `mcprl train`; `shipped`, TRL 1.16's GRPOTrainer with
its environments, which sample with transformers; `patched`, the same with its head on completions only; `vllm`, that
with vLLM in its process. All settings that both trainers have are the recipe's (bench/race/trl_side.py), whatever
else a side can do for itself it may: mcprl its grammar, vLLM and shared prefixes.

Each `--every` steps the adapter is kept. Afterwards `mcprl eval` plays the validation tasks with it, under the grammar
(plain) and without it (free), for all sides alike.

    python bench/multi_turn_race.py run [--sides ours shipped patched] [--seeds 1] [--steps 16] [--every 4]
    python bench/multi_turn_race.py run --name rate2 --sides patched --trl-set learning_rate=1e-3
    python bench/multi_turn_race.py report [--name race] [--write docs/results.md]

Trials of other settings have a name of their own (`--name`), `--ours-set` for the recipe and `--trl-set` for
GRPOConfig, and `report` counts them. What is finished is not repeated, and what was interrupted is resumed, TRL from
its newest checkpoint. Logs, spending and evaluations are in bench/results/race/NAME-SIDE-SEED, runs and adapters in
--out.

`report --write` fills the mark race of a page and draws docs/assets/race.svg.

Figures, with SIDE and the condition plain or free, means over seeds: SIDE_CONDITION_cpu_s_30, _wall_s_30 and
_episodes_30 until 30% (40, 50) held-out success was measured first, missing if a seed did not reach it;
SIDE_CONDITION_final and SIDE_cpu_s, _wall_s, _episodes of the whole training; SIDE_trials, the number of names.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import yaml

from many_turns.held_out import CONDITIONS
from many_turns.spending import ROOT
from race.report import write_report
from race.sides import SIDES, Race, make_start, run_side

RECIPE = ROOT / "recipes" / "finance-multi-cpu.yaml"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train and evaluate what is missing")
    run.add_argument("--name", default="race")
    run.add_argument("--sides", nargs="+", choices=list(SIDES), default=["ours", "shipped", "patched"])
    run.add_argument("--seeds", nargs="+", type=int, default=[1])
    run.add_argument("--recipe", type=Path, default=RECIPE)
    run.add_argument("--start", type=Path, help="adapter to start from; without it, one is made by `mcprl sft`")
    run.add_argument("--steps", type=int, default=16)
    run.add_argument("--every", type=int, default=4, help="steps between kept adapters")
    run.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the recipe, for all sides")
    run.add_argument("--ours-set", action="append", default=[], metavar="KEY=VALUE", help="of the recipe, for ours")
    run.add_argument("--trl-set", action="append", default=[], metavar="KEY=VALUE", help="of GRPOConfig")
    run.add_argument("--max-completion-tokens", type=int, default=512, help="of TRL, results of tools included")
    run.add_argument("--rows", type=int, default=2, help="episodes in a forward pass of TRL")
    run.add_argument("--conditions", nargs="+", choices=list(CONDITIONS), default=["plain", "free"])
    run.add_argument("--episodes", type=int, default=1, help="per validation task")
    run.add_argument("--sample", type=int, help="evaluate this many random validation tasks only")
    run.add_argument("--peers-python", type=Path, default=ROOT / ".venv-peers" / "bin" / "python")
    run.add_argument("--out", type=Path, default=ROOT / "outputs" / "race")
    report = commands.add_parser("report", help="figures, a table and a picture of what was run")
    report.add_argument("--name", default="race")
    report.add_argument("--write", type=Path, help="page whose table is made anew, with a picture in docs/assets")
    return parser.parse_args()


def read_settings(given: list[str]) -> dict[str, Any]:
    """KEY=VALUE, with values in YAML: {"learning_rate": 1.0e-3}."""
    pairs = (one.partition("=") for one in given)
    return {key: _number(yaml.safe_load(value)) for key, _, value in pairs}


def _number(value: object) -> object:
    try:
        return float(value) if isinstance(value, str) else value  # YAML takes 1e-3 for text
    except ValueError:
        return value


def main() -> None:
    options = parsed()
    if options.command == "report":
        print(json.dumps(write_report(options.name, options.write)))
        return
    if "-" in options.name:
        raise SystemExit("the name of a race has no hyphen")
    recipe, out = options.recipe.resolve(), options.out.resolve()
    start = options.start and options.start.resolve()
    race = Race(
        name=options.name,
        recipe=recipe,
        outputs=out,
        start=start or make_start(recipe, out, tuple(options.set)),
        steps=options.steps,
        every=options.every,
        settings=tuple(options.set),
        ours=tuple(options.ours_set),
        trl=read_settings(options.trl_set),
        max_completion_tokens=options.max_completion_tokens,
        rows=options.rows,
        peers_python=options.peers_python.absolute(),
        conditions=tuple(options.conditions),
        evaluations={"episodes": options.episodes, "sample": options.sample},
    )
    for seed in options.seeds:
        for side in options.sides:
            run_side(race, side, seed)


if __name__ == "__main__":
    main()

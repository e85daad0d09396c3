"""Tasks of two and three calls over several servers: what SFT reaches, and what RL adds for the same processor time.

SmolLM2-135M with recipes/finance-multi-cpu.yaml. Stages of an arm, per seed:

  sft     `mcprl sft` with the recipe's section sft
  rl      `mcprl train` from the adapter of sft
  long    `mcprl sft` anew, for as many steps as the processor seconds of sft and rl pay for

The model is evaluated untrained, after sft, and after each quarter of rl and long, on the recipe's validation tasks: as
it is (plain), and with a quarter of the calls failing on purpose (errors). `--conditions` also has greedy and free.

    python bench/multi_turn.py run [--seeds 1 2 3] [--stages sft rl long]
    python bench/multi_turn.py run --arm curriculum --start recipe --stages rl --seeds 1 --set tasks.order=curriculum
    python bench/multi_turn.py report [--arm recipe] [--write docs/results.md]

An ablation is an arm of its own: `--arm` names it, `--set` changes the recipe for all its stages, `--sft-set` and
`--rl-set` for one, and `--start ARM` takes the SFT adapter of another arm with the same seed. Errors in training are
`--rl-set episodes.injected_errors=0.1`: with `--set` they would be in every evaluation, too. What is finished is not
repeated, and what was interrupted, also by kill -9, is resumed. Results are in bench/results/multi_turn/ARM-SEED, runs
and adapters in --out.

`report` reads the results only. With `--write` it fills the marks multi-turn, multi-turn-seeds, multi-turn-kinds,
multi-turn-failures, multi-turn-arms and multi-turn-transcripts of a page and draws docs/assets/multi-turn-success.svg
and multi-turn-course.svg, else it writes bench/results/multi_turn/report-ARM.md.

Figures, of all seeds together: PHASE_success, _low and _high (95% interval by task), and the same of the tasks with N
calls, PHASE_callsN_…; phases are untrained, sft (the recipe's), sft_best (the best on the validation tasks of all SFT
adapters of a seed), sft_whole (the end of long) and rl.

  rl_over_sft           success after RL ÷ the better of sft_best and sft_whole
  intervals_apart       1 if the interval of rl is above that of both
  PHASE_recovery        of the injected errors, the share after which the same tool worked in a later call
  seeds, minutes_most   of the longest sft + rl, by the wall clock
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from many_turns.held_out import CONDITIONS
from many_turns.report import write_report
from many_turns.spending import ROOT
from many_turns.stages import STAGES, Arm, evaluate_untrained, run_arm

RECIPE = ROOT / "recipes" / "finance-multi-cpu.yaml"
MAIN = "recipe"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train and evaluate what is missing")
    run.add_argument("--arm", default=MAIN, help="name of the arm; the recipe as it is: recipe")
    run.add_argument("--recipe", type=Path, default=RECIPE)
    run.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    run.add_argument("--stages", nargs="+", choices=("untrained", *STAGES), default=["untrained", *STAGES])
    run.add_argument("--start", help="arm whose SFT adapter RL starts from")
    run.add_argument("--demonstrations", type=int, help="SFT imitates the solutions of this many tasks only")
    run.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all stages and evaluations")
    run.add_argument("--sft-set", action="append", default=[], metavar="KEY=VALUE", help="for the SFT only")
    run.add_argument("--rl-set", action="append", default=[], metavar="KEY=VALUE", help="for the RL only")
    run.add_argument("--episodes", type=int, default=1, help="per validation task")
    run.add_argument("--sample", type=int, help="evaluate this many random validation tasks only")
    run.add_argument("--conditions", nargs="+", choices=list(CONDITIONS), default=["plain", "errors"])
    run.add_argument("--out", type=Path, default=ROOT / "outputs" / "multi_turn")
    report = commands.add_parser("report", help="figures, tables and pictures of what was run")
    report.add_argument("--arm", default=MAIN)
    report.add_argument("--write", type=Path, help="page whose tables are made anew, with pictures in docs/assets")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    if options.command == "report":
        print(json.dumps(write_report(options.arm, options.write)))
        return
    if options.arm == MAIN and (options.set or options.sft_set or options.rl_set or options.start):
        raise SystemExit("the arm `recipe` is the recipe as it is: name an arm with other settings by --arm")
    if "-" in options.arm:
        raise SystemExit("the name of an arm has no hyphen")
    arm = Arm(
        name=options.arm,
        recipe=options.recipe.resolve(),
        settings=tuple(options.set),
        sft=tuple(options.sft_set),
        rl=tuple(options.rl_set),
        start=options.start,
        demonstrations=options.demonstrations,
        episodes=options.episodes,
        sample=options.sample,
        conditions=tuple(options.conditions),
    )
    out = options.out.resolve()
    if "untrained" in options.stages and arm.name == MAIN:
        evaluate_untrained(arm, out)
    for seed in options.seeds:
        run_arm(arm, seed, out, options.stages)


if __name__ == "__main__":
    main()

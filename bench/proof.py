"""Whether training works: SmolLM2-135M on five MCP servers, untrained, after the warm start, and after RL.

Everything is real: `mcprl train recipes/finance-cpu.yaml` as a person starts it, and `mcprl eval` on tasks that no step
saw. Each run leaves its settings, metrics and evaluations in docs/results/ARM-SEED; `report` makes the table and
the plots of docs/benchmarks.md from them, and of nothing else.

  success_untrained, success_warm, success_rl   validation success; the last two are pooled over seeds
  rl_over_warm                                  the ratio of those two
  warm_high, rl_low                             ends of their 95% intervals: they must not overlap
  no_sharing_over_recipe, async_over_recipe     how many times as long as the recipe's a step takes

    python bench/proof.py run ARM [ARM …] [--seeds 1 2 3]
    python bench/proof.py report

Arms are those of bench/proving/arms.py; `untrained` and `timed` are two more.
"""

from __future__ import annotations

import argparse
import json

from proving.arms import ARMS
from proving.report import write_report
from proving.runs import evaluate_untrained, run_arm, run_timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train and evaluate; what is there already is not run again")
    run.add_argument("arms", nargs="+", choices=["untrained", *ARMS, "timed"])
    run.add_argument("--seeds", nargs="+", type=int, default=[1])
    commands.add_parser("report", help="make the table and the plots of what was run")
    arguments = parser.parse_args()
    if arguments.command == "report":
        print(json.dumps(write_report()))
        return
    for arm in arguments.arms:
        if arm == "untrained":
            evaluate_untrained()
            continue
        for seed in arguments.seeds:
            if arm == "timed":
                run_timed(seed)
            else:
                run_arm(ARMS[arm], seed)


if __name__ == "__main__":
    main()

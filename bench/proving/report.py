"""What is made of the runs in docs/results: the tables of docs/results.md, two plots, and the figures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import Any

from mcprl.evaluation.statistics import Estimate, share_interval, sign_flip_p
from pages import write_between_markers
from proving.arms import ARMS, TIMED
from proving.plots import draw_curves, draw_success
from proving.runs import RESULTS, ROOT

__all__ = ["write_report"]

PAGE = ROOT / "docs" / "results.md"


def write_report() -> dict[str, float]:
    """Write page and plots from what is in docs/results; gives the figures of bench/proof.py."""
    untrained = pooled([read(RESULTS / "untrained" / "validation.json")])
    judged = {name: runs for name in ARMS if (runs := runs_of(name, "validation.json"))}
    warm, final = (
        {name: pooled([read(run / file) for run in runs]) for name, runs in judged.items()}
        for file in ("warm.json", "validation.json")
    )
    write_between_markers(PAGE, "proof", proof_table(untrained, warm, final, judged))
    write_between_markers(PAGE, "seeds", seeds_table(judged))
    if runs_of(TIMED[0].name, "metrics.jsonl"):
        write_between_markers(PAGE, "wall-clock", wall_clock_table())
    draw_success(untrained, warm, final)
    draw_curves({name: [metrics_of(run) for run in runs] for name, runs in judged.items()})
    main_warm, main_final = warm["finance"], final["finance"]
    return {
        "success_untrained": untrained.value,
        "success_warm": main_warm.value,
        "success_rl": main_final.value,
        "rl_over_warm": main_final.value / main_warm.value,
        "warm_high": main_warm.high or 1.0,
        "rl_low": main_final.low or 0.0,
        "seeds": len(judged["finance"]),
    }


def runs_of(arm: str, last: str) -> list[Path]:
    """The folders of an arm that are whole, which have the file that is written last, by seed."""
    return sorted(path.parent for path in RESULTS.glob(f"{arm}-[0-9]*/{last}"))


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def metrics_of(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def shares(evaluation: Mapping[str, Any]) -> dict[str, Fraction]:
    return {task["id"]: Fraction(task["solved"], task["episodes"]) for task in evaluation["tasks"]}


def pooled(evaluations: Sequence[Mapping[str, Any]]) -> Estimate:
    """Success over all of them, with an interval by task: a task counts once, however many seeds played it."""
    by_seed = [shares(evaluation) for evaluation in evaluations]
    means = [float(sum(seed[task] for seed in by_seed) / len(by_seed)) for task in by_seed[0]]
    return share_interval(means, sum(task["episodes"] for evaluation in evaluations for task in evaluation["tasks"]))


def paired_p(runs: Sequence[Path]) -> float:
    """The exact paired test of success after the warm start and at the end, by task, over all seeds."""
    pairs = [(shares(read(run / "warm.json")), shares(read(run / "validation.json"))) for run in runs]
    return sign_flip_p(
        [sum((after[task] - before[task] for before, after in pairs), Fraction(0)) for task in pairs[0][0]]
    )


def percent(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.1%}"
    return f"{estimate.value:.1%} ({estimate.low:.1%} to {estimate.high:.1%})"


def proof_table(
    untrained: Estimate, warm: Mapping[str, Estimate], final: Mapping[str, Estimate], judged: Mapping[str, list[Path]]
) -> str:
    rows = ["| | seeds | untrained | after the warm start | after RL | paired test |", "|---|---|---|---|---|---|"]
    for name, runs in judged.items():
        cells = [ARMS[name].says, str(len(runs)), percent(untrained), percent(warm[name]), percent(final[name])]
        rows.append(f"| {' | '.join(cells)} | p = {paired_p(runs):.1g} |")
    return "\n".join(rows)


def seeds_table(judged: Mapping[str, list[Path]]) -> str:
    rows = ["| run | after the warm start | after RL | minutes of training |", "|---|---|---|---|"]
    for runs in judged.values():
        for run in runs:
            minutes = sum(step["step_s"] for step in metrics_of(run)) / 60
            both = [percent(pooled([read(run / file)])) for file in ("warm.json", "validation.json")]
            rows.append(f"| `{run.name}` | {' | '.join(both)} | {minutes:.0f} |")
    return "\n".join(rows)


def wall_clock_table() -> str:
    """Medians of the timed runs, and of how much longer than the recipe's each step took that was made in turn with it.

    A run's first step is left out: it starts things up.
    """
    rows = ["| | seconds a step | of it the update | tokens sampled a second | against the recipe |"]
    rows.append("|---|---|---|---|---|")
    steps = {arm.name: [s for run in runs_of(arm.name, "metrics.jsonl") for s in metrics_of(run)[1:]] for arm in TIMED}
    base = steps[TIMED[0].name]
    for arm in TIMED:
        names = ("step_s", "update_s", "sampled_tokens_per_second")
        cells = [f"{median(step[name] for step in steps[arm.name]):.0f}" for name in names]
        ratio = median(own["step_s"] / other["step_s"] for own, other in zip(steps[arm.name], base, strict=True))
        rows.append(f"| {arm.says} | {' | '.join(cells)} | {ratio:.2f}× |")
    return "\n".join(rows)

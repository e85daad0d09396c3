"""What is made of the runs in docs/results: the tables of docs/benchmarks.md, two plots, and the figures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import Any

from mcprl.evaluation.statistics import Estimate, share_interval, sign_flip_p
from pages import write_between_markers
from proving.arms import ARMS, STEPS_A_ROUND, TIMED
from proving.plots import draw_curves, draw_success
from proving.runs import RESULTS, ROOT

__all__ = ["PAGE", "figures", "judge_runs", "tables", "write_report"]

MAIN = "finance"
PAGE = ROOT / "docs" / "benchmarks.md"


@dataclass(frozen=True, slots=True)
class Judged:
    """What the arms were found to do: the runs of each, and success before, half-way and at the end."""

    untrained: Estimate
    runs: dict[str, list[Path]]
    warm: dict[str, Estimate]
    final: dict[str, Estimate]


def write_report() -> dict[str, float]:
    """Write page and plots from what is in docs/results; gives the figures of bench/proof.py."""
    judged = judge_runs()
    for marker, table in tables(judged).items():
        write_between_markers(PAGE, marker, table)
    draw_success(judged.untrained, judged.warm, judged.final)
    draw_curves({name: [metrics_of(run) for run in runs] for name, runs in judged.runs.items()})
    return figures(judged)


def judge_runs() -> Judged:
    runs = {name: found for name in ARMS if (found := runs_of(name, "validation.json"))}
    warm, final = (
        {name: pooled([read(run / file) for run in found]) for name, found in runs.items()}
        for file in ("warm.json", "validation.json")
    )
    return Judged(pooled([read(RESULTS / "untrained" / "validation.json")]), runs, warm, final)


def tables(judged: Judged) -> dict[str, str]:
    """By the marker of the page that each stands between."""
    main = judged.runs[MAIN]
    made = {"proof": proof_table(judged), "kinds": kinds_table(main), "seeds": seeds_table(judged.runs)}
    made |= {"failures": failures_table(main)}
    return made | {"wall-clock": wall_clock_table()}


def figures(judged: Judged) -> dict[str, float]:
    warm, final = judged.warm[MAIN], judged.final[MAIN]
    steps = timed_steps()
    return {
        "success_untrained": judged.untrained.value,
        "success_warm": warm.value,
        "success_rl": final.value,
        "rl_over_warm": final.value / warm.value,
        "warm_high": warm.high or 1.0,
        "rl_low": final.low or 0.0,
        "seeds": len(judged.runs[MAIN]),
        "no_sharing_over_recipe": times_the_recipe(steps, "no-sharing"),
        "async_over_recipe": times_the_recipe(steps, "async"),
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


def proof_table(judged: Judged) -> str:
    rows = ["| | seeds | untrained | after the warm start | after RL | paired test |", "|---|---|---|---|---|---|"]
    for name, runs in judged.runs.items():
        found = [judged.untrained, judged.warm[name], judged.final[name]]
        cells = [ARMS[name].says, str(len(runs)), *map(percent, found)]
        rows.append(f"| {' | '.join(cells)} | p = {paired_p(runs):.1g} |")
    return "\n".join(rows)


def kinds_table(runs: Sequence[Path]) -> str:
    """Success by the kind of question, over all seeds: a task's id ends with its kind and a number."""
    found: dict[str, dict[str, list[Fraction]]] = {}
    for file in ("warm.json", "validation.json"):
        for run in runs:
            for task, share in shares(read(run / file)).items():
                kind = task.split("-", 1)[1].rsplit("-", 1)[0]
                found.setdefault(kind, {}).setdefault(file, []).append(share)
    rows = ["| question | episodes | after the warm start | after RL |", "|---|---|---|---|"]
    for kind, by_file in sorted(found.items(), key=lambda entry: -sum(entry[1]["validation.json"])):
        success = [f"{float(sum(values) / len(values)):.0%}" for values in by_file.values()]
        rows.append(f"| {kind} | {len(by_file['warm.json'])} | {' | '.join(success)} |")
    return "\n".join(rows)


def failures_table(runs: Sequence[Path]) -> str:
    """Of the episodes that failed, how; over all seeds."""
    warm, final = (
        sum((Counter(read(run / file)["figures"]["failures"]) for run in runs), Counter[str]())
        for file in ("warm.json", "validation.json")
    )
    rows = ["| failure | after the warm start | after RL |", "|---|---|---|"]
    rows += [f"| {kind} | {warm[kind]} | {final[kind]} |" for kind, _ in (warm + final).most_common()]
    return "\n".join([*rows, f"| all | {warm.total()} | {final.total()} |"])


def seeds_table(judged: Mapping[str, list[Path]]) -> str:
    rows = ["| run | after the warm start | after RL | minutes of training |", "|---|---|---|---|"]
    for runs in judged.values():
        for run in runs:
            minutes = sum(step["step_s"] for step in metrics_of(run)) / 60
            both = [percent(pooled([read(run / file)])) for file in ("warm.json", "validation.json")]
            rows.append(f"| `{run.name}` | {' | '.join(both)} | {minutes:.0f} |")
    return "\n".join(rows)


def timed_steps() -> dict[str, list[dict[str, float]]]:
    """The steps of each timed arm that count."""
    return {
        arm.name: [
            step
            for run in runs_of(arm.name, "metrics.jsonl")
            for number, step in enumerate(metrics_of(run))
            if number % STEPS_A_ROUND
        ]
        for arm in TIMED
    }


def times_the_recipe(steps: Mapping[str, Sequence[Mapping[str, float]]], arm: str) -> float:
    """How many times as long as the recipe's an arm's step took; the median over steps that were made in turn."""
    base = steps[TIMED[0].name]
    return median(own["step_s"] / other["step_s"] for own, other in zip(steps[arm], base, strict=True))


def wall_clock_table() -> str:
    """Medians of the timed runs."""
    rows = ["| | seconds per step | of it the update | sampled tokens per second | against the recipe |"]
    rows.append("|---|---|---|---|---|")
    steps = timed_steps()
    for arm in TIMED:
        names = ("step_s", "update_s", "sampled_tokens_per_second")
        cells = [f"{median(step[name] for step in steps[arm.name]):.0f}" for name in names]
        rows.append(f"| {arm.says} | {' | '.join(cells)} | {times_the_recipe(steps, arm.name):.2f}× |")
    return "\n".join(rows)

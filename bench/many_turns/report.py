"""What is made of the results of bench/multi_turn.py: figures, tables and pictures, from the files that exist."""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from many_turns.drawing import draw_course, draw_success
from many_turns.held_out import recovery, success
from many_turns.spending import read_spending
from many_turns.stages import RESULTS
from mcprl.evaluation.statistics import Estimate
from pages import write_between_markers

__all__ = ["PHASES", "write_report"]

PHASES = {
    "untrained": "untrained",
    "sft": "SFT of the recipe",
    "sft_best": "SFT, the best of all its adapters",
    "sft_whole": "SFT for the whole budget",
    "rl": "SFT, then RL",
}
CALLS = (2, 3)
Result = Mapping[str, Any]
Results = dict[str, list[Result]]
"""Evaluations by phase, one per seed."""


def write_report(arm: str, page: Path | None) -> dict[str, float]:
    """Return the figures; write tables beside the results, or into a page, with pictures."""
    plain, errors = of_phases(arm, "plain"), of_phases(arm, "errors")
    tables = {
        "multi-turn": _main_table(plain, errors),
        "multi-turn-seeds": _seeds_table(arm),
        "multi-turn-kinds": _kinds_table(plain),
        "multi-turn-failures": _failures_table(plain),
        "multi-turn-arms": _arms_table(),
        "multi-turn-transcripts": _transcripts(plain),
    }
    if page is None:
        RESULTS.mkdir(parents=True, exist_ok=True)
        text = "".join(f"## {marker}\n\n{table}\n\n" for marker, table in tables.items())
        (RESULTS / f"report-{arm}.md").write_text(text)
    else:
        for marker, table in tables.items():
            write_between_markers(page, marker, table)
        draw_success({PHASES[name]: [success(of), *(success(of, n) for n in CALLS)] for name, of in plain.items()})
        draw_course({stage: course(arm, stage) for stage in ("long", "rl")})
    return figures(arm, plain, errors)


def of_phases(arm: str, condition: str) -> Results:
    """The evaluations of an arm, by phase, without phases that no seed has."""
    found: Results = {name: [] for name in PHASES}
    untrained = RESULTS / "untrained" / f"{condition}.json"
    if untrained.exists():
        found["untrained"].append(_read(untrained))
    for folder in folders(arm):
        sft, long, rl = (points(folder, condition, stage) for stage in ("sft", "long", "rl"))
        if sft:
            found["sft"].append(sft[max(sft)])
        if sft and long:
            # Chosen by the success without errors, as everyone would who has these tasks.
            plain = [*points(folder, "plain", "sft").items(), *points(folder, "plain", "long").items()]
            best = max(range(len(plain)), key=lambda place: success([plain[place][1]]).value)
            same = [*sft.values(), *long.values()]
            found["sft_best"] += [same[best]] if len(same) == len(plain) else []
            found["sft_whole"].append(long[max(long)])
        if rl:
            found["rl"].append(rl[max(rl)])
    return {name: results for name, results in found.items() if results}


def folders(arm: str) -> list[Path]:
    return sorted(path for path in RESULTS.glob(f"{arm}-[0-9]*") if path.is_dir())


def points(folder: Path, condition: str, stage: str) -> dict[int, Result]:
    """The evaluations of a stage, by step."""
    files = sorted(folder.glob(f"{condition}-{stage}-*.json"))
    return {int(file.stem.rpartition("-")[2]): _read(file) for file in files}


def _read(file: Path) -> Result:
    return json.loads(file.read_text())


def figures(arm: str, plain: Results, errors: Results) -> dict[str, float]:
    found: dict[str, float] = {"seeds": len(plain.get("rl", []))}
    for name, results in plain.items():
        found |= _named(f"{name}_success", name, success(results))
        for calls in CALLS:
            found |= _named(f"{name}_calls{calls}_success", f"{name}_calls{calls}", success(results, calls))
    for name, results in errors.items():
        found |= _named(f"{name}_errors_success", f"{name}_errors", success(results))
        found |= _named(f"{name}_recovery", f"{name}_recovery", recovery(results))
    if {"rl", "sft_best", "sft_whole"} <= plain.keys():
        rivals = [success(plain[name]) for name in ("sft_best", "sft_whole")]
        best = max(rival.value for rival in rivals)
        found["rl_over_sft"] = success(plain["rl"]).value / best if best else float("inf")
        high, low = max(rival.high or 1.0 for rival in rivals), success(plain["rl"]).low or 0.0
        found["intervals_apart"] = float(low > high)
    if minutes := [_minutes(folder) for folder in folders(arm) if (folder / "spending-rl.jsonl").exists()]:
        found["minutes_most"] = max(minutes)
    return found


def _named(name: str, prefix: str, estimate: Estimate) -> dict[str, float]:
    ends = {f"{prefix}_low": estimate.low, f"{prefix}_high": estimate.high}
    return {name: estimate.value, **{key: value for key, value in ends.items() if value is not None}}


def _minutes(folder: Path) -> float:
    """Minutes of the wall clock of SFT, if the arm made one of its own, and RL."""
    stages = [read_spending(folder / f"spending-{stage}.jsonl") for stage in ("sft", "rl")]
    return sum(spent[-1].wall_s for spent in stages if spent) / 60


def percent(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.1%}"
    return f"{estimate.value:.1%} ({estimate.low:.1%} to {estimate.high:.1%})"


def _main_table(plain: Results, errors: Results) -> str:
    rows = ["| | seeds | all tasks | 2 calls | 3 calls | with injected errors | errors recovered |", "|" + "---|" * 7]
    for name, results in plain.items():
        cells = [percent(success(results)), *(percent(success(results, calls)) for calls in CALLS)]
        struck = errors.get(name)
        cells += [percent(success(struck)), percent(recovery(struck))] if struck else ["", ""]
        rows.append(f"| {PHASES[name]} | {len(results)} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _seeds_table(arm: str) -> str:
    """Each evaluated adapter of each seed, and what it had cost."""
    rows = ["| run | stage | steps | CPU s | minutes | all tasks | 2 calls | 3 calls |", "|" + "---|" * 8]
    for folder in folders(arm):
        for stage in ("sft", "long", "rl"):
            spent = {one.steps: one for one in read_spending(folder / f"spending-{stage}.jsonl")}
            for steps, result in points(folder, "plain", stage).items():
                cost = spent.get(steps)
                cells = ["", ""] if cost is None else [f"{cost.cpu_s:.0f}", f"{cost.wall_s / 60:.0f}"]
                cells += [f"{success([result], calls).value:.1%}" for calls in (None, *CALLS)]
                rows.append(f"| `{folder.name}` | {stage} | {steps} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _kinds_table(plain: Results) -> str:
    """Success by the kind of task: a task's id is SPLIT-KIND-NUMBER."""
    kinds = sorted({_kind(task["id"]) for results in plain.values() for task in results[0]["tasks"]})
    rows = [f"| task | {' | '.join(PHASES[name] for name in plain)} |", "|" + "---|" * (1 + len(plain))]
    for kind in kinds:
        cells: list[str] = []
        for results in plain.values():
            tasks = [task for result in results for task in result["tasks"] if _kind(task["id"]) == kind]
            cells.append(f"{sum(task['solved'] for task in tasks) / sum(task['episodes'] for task in tasks):.0%}")
        rows.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _kind(task: str) -> str:
    return task.split("-", 1)[1].rpartition("-")[0]


def _failures_table(plain: Results) -> str:
    counts = {name: sum((Counter(result["failures"]) for result in of), Counter[str]()) for name, of in plain.items()}
    rows = [f"| failure | {' | '.join(PHASES[name] for name in plain)} |", "|" + "---|" * (1 + len(plain))]
    for kind, _ in sum(counts.values(), Counter[str]()).most_common():
        rows.append(f"| {kind} | {' | '.join(str(count[kind]) for count in counts.values())} |")
    return "\n".join(rows)


def _arms_table() -> str:
    """Every arm that was run."""
    rows = ["| arm | what differs | seeds | after SFT | after RL | errors recovered after RL |", "|" + "---|" * 6]
    for arm in sorted({path.name.rpartition("-")[0] for path in RESULTS.glob("*-[0-9]*") if path.is_dir()}):
        asked = _read(folders(arm)[0] / "options.json")
        settings = [
            *asked["settings"],
            *(f"SFT: {one}" for one in asked["sft"]),
            *(f"RL: {one}" for one in asked["rl"]),
        ]
        settings += [f"{name}={asked[name]}" for name in ("start", "demonstrations") if asked[name] is not None]
        plain, errors = of_phases(arm, "plain"), of_phases(arm, "errors")
        cells = [percent(success(plain[name])) if name in plain else "" for name in ("sft", "rl")]
        cells.append(percent(recovery(errors["rl"])) if "rl" in errors else "")
        said = ", ".join(f"`{one}`" for one in settings)
        rows.append(f"| {arm} | {said} | {len(folders(arm))} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _transcripts(plain: Results) -> str:
    """The first held-out tasks by number of calls, side by side, of the first seed."""
    shown = [name for name in ("untrained", "sft_best", "rl") if name in plain]
    tables: list[str] = []
    for task in plain[shown[-1]][0]["transcripts"] if shown else ():
        heads = "".join(f"<th>{PHASES[name]}</th>" for name in shown)
        cells = "".join(f"<td><pre>{_told(plain[name][0]['transcripts'].get(task))}</pre></td>" for name in shown)
        tables.append(f"`{task}`\n\n<table><tr>{heads}</tr><tr valign=top>{cells}</tr></table>")
    return "\n\n".join(tables)


def _told(transcript: Mapping[str, Any] | None) -> str:
    if transcript is None:
        return ""
    lines: list[str] = []
    for turn in transcript["turns"]:
        lines += [turn["policy"].strip(), *(f"→ {result}" for result in turn["results"])]
    return html.escape("\n".join([*lines, f"reward {transcript['reward']:.2f}"])).replace("\n\n", "\n")


def course(arm: str, stage: str) -> Sequence[tuple[float, list[Result], list[Result]]]:
    """Mean CPU seconds, evaluations without errors and with them, at each evaluated point of a stage, over seeds."""
    found: dict[int, list[tuple[float, Result, Result | None]]] = {}
    for folder in folders(arm):
        before = 0.0
        if stage == "rl" and (sft := read_spending(folder / "spending-sft.jsonl")):
            before = sft[-1].cpu_s
            plain, errors = points(folder, "plain", "sft"), points(folder, "errors", "sft")
            if plain:
                found.setdefault(0, []).append((before, plain[max(plain)], errors.get(max(plain))))
        spent = {one.steps: one.cpu_s for one in read_spending(folder / f"spending-{stage}.jsonl")}
        errors = points(folder, "errors", stage)
        for place, (steps, plain) in enumerate(points(folder, "plain", stage).items(), 1):
            if steps in spent:
                found.setdefault(place, []).append((before + spent[steps], plain, errors.get(steps)))
    return [
        (
            sum(cpu_s for cpu_s, _, _ in rows) / len(rows),
            [plain for _, plain, _ in rows],
            [errors for _, _, errors in rows if errors is not None],
        )
        for _, rows in sorted(found.items())
    ]

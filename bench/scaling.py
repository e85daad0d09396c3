"""Does `mcprl plan` predict what a machine does? And what are its constants here?

Episodes are played through Ray workers by `workers.py`, which costs what real ones cost but for the model: real tool
servers, real relaying, a sampler that answers at once. Small collections are measured, each in a process of its own,
and the constants of `mcprl.checks.plan` fitted to them. With these a collection is predicted that is larger than all of
them: 1,000 episodes at once with tools of one second through 4 workers. Then that one is measured. The errors are
relative to what was measured: `wall_error`, `driver_cpu_error`, `worker_cpu_error`, `driver_memory_error`,
`worker_memory_error`; `cpu_error` and `memory_error` are those of driver and workers together, `worst` is the largest
of `wall_error`, `cpu_error` and `memory_error`.

    --ci      small: fitted to 52 and 100 episodes, compared with 200
    --write   also measure the rates of sampler and learner on this CPU, in a short run of recipes/hello-cpu.yaml; write
              src/mcprl/checks/measured.json and the figures in docs/scaling.md
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy

from mcprl.checks.plan import MEASURED_FILE, Constants, Figure, Plan, make_plan, model_size, read_constants
from mcprl.files import write_file
from mcprl.recipe import load_recipe
from mcprl.tasks import load_tasks
from servers.harness import exit_status, missed_bars, say

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "scaling.md"
HELLO = ROOT / "recipes" / "hello-cpu.yaml"
BEGIN, END = "<!-- figures: bench/scaling.py --write -->", "<!-- end of figures -->"
SPEED_BARS = {"worst": ("<=", 0.15)}
TOOL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One collection: Size(episodes=252, workers=2, turns=4)."""

    episodes: int
    workers: int
    turns: int


FIT = (
    Size(episodes=100, workers=1, turns=2),
    Size(episodes=100, workers=4, turns=6),
    Size(episodes=252, workers=2, turns=4),
    Size(episodes=252, workers=4, turns=2),
    Size(episodes=500, workers=2, turns=2),
    Size(episodes=500, workers=4, turns=4),
)
CHECK = Size(episodes=1000, workers=4, turns=4)
CI_FIT = (
    Size(episodes=52, workers=2, turns=2),
    Size(episodes=52, workers=2, turns=4),
    Size(episodes=100, workers=2, turns=2),
    Size(episodes=100, workers=1, turns=4),
)
CI_CHECK = Size(episodes=200, workers=2, turns=4)
HOW = "least squares over {sizes} collections of {low} to {high} episodes at once, {turns} turns, tools of 1 s"
UNITS = {
    "driver_turn_s": "CPU s per turn",
    "worker_turn_s": "CPU s per turn",
    "driver_base_bytes": "bytes",
    "driver_episode_bytes": "bytes per live episode",
    "worker_base_bytes": "bytes per worker",
    "worker_episode_bytes": "bytes per live episode",
    "trajectory_token_bytes": "bytes per token",
    "cpu_parameters": "parameters",
    "cpu_sampler_tokens_per_s": "sampled tokens/s",
    "cpu_learner_tokens_per_s": "tokens/s",
}


def fitted(rows: Sequence[Sequence[float]], measured: Sequence[float]) -> list[float]:
    """Coefficients that are not negative, by least squares; one that would be negative is 0.

    What is measured of a larger collection is more certain in proportion, so its weight is 1 over its root.
    """
    weight = numpy.asarray(measured, dtype=float) ** -0.5
    matrix = numpy.asarray(rows, dtype=float) * weight[:, None]
    target = numpy.asarray(measured, dtype=float) * weight
    kept = list(range(matrix.shape[1]))
    found = numpy.zeros(matrix.shape[1])
    while kept:
        solved = numpy.linalg.lstsq(matrix[:, kept], target, rcond=None)[0]
        if (solved >= 0).all():
            found[kept] = solved
            break
        kept.pop(int(solved.argmin()))
    return [float(value) for value in found]


def fit(sizes: Sequence[Size], measured: Sequence[Any]) -> dict[str, float]:
    """The constants of driver and workers."""
    turns = [(size.episodes * size.turns,) for size in sizes]
    (driver_turn,) = fitted(turns, [seen.driver_cpu_s for seen in measured])
    (worker_turn,) = fitted(turns, [seen.worker_cpu_s for seen in measured])
    driver_base, driver_alive = fitted([(1, size.episodes) for size in sizes], [seen.driver_rss for seen in measured])
    worker_rows = [(size.workers, size.episodes) for size in sizes]
    worker_base, worker_alive = fitted(worker_rows, [seen.worker_rss for seen in measured])
    return {
        "driver_turn_s": driver_turn,
        "worker_turn_s": worker_turn,
        "driver_base_bytes": driver_base,
        "driver_episode_bytes": driver_alive,
        "worker_base_bytes": worker_base,
        "worker_episode_bytes": worker_alive,
    }


def predict(size: Size, constants: Constants) -> Plan:
    """The plan of a step that is this collection. Sampler and learner take no time."""
    overrides = {
        "training.tasks_per_step": size.episodes // 2,
        "episodes.group_size": 2,
        "episodes.max_concurrent": size.episodes,
        "workers.count": size.workers,
    }
    config = load_recipe(HELLO, [f"{name}={value}" for name, value in overrides.items()])
    figures = {"turns": size.turns, "calls": size.turns, "tool_s": TOOL_S}
    known = {**figures, "sampler_tokens_per_s": 1e15, "learner_tokens_per_s": 1e15}
    return make_plan(
        config,
        load_tasks(config.tasks.train),
        (),
        gpus=0,
        known={name: Figure(value=value, source="bench") for name, value in known.items()},
        constants=constants,
    )


def compared(size: Size, expected: Plan, seen: Any, cores: int) -> dict[str, Any]:
    """Prediction and measurement side by side, and the relative errors. Driver and workers share the cores."""
    cpu_s = {part.name: part.busy_s * part.units for part in expected.parts}
    wall_s = max(expected.collect_s, (cpu_s["driver"] + cpu_s["workers"]) / cores)
    pairs = {
        "wall": (wall_s, seen.seconds),
        "driver_cpu": (cpu_s["driver"], seen.driver_cpu_s),
        "worker_cpu": (cpu_s["workers"], seen.worker_cpu_s),
        "driver_memory": (expected.memory_bytes["driver"], seen.driver_rss),
        "worker_memory": (expected.memory_bytes["workers"], seen.worker_rss),
    }
    for both in ("cpu", "memory"):
        parts = pairs[f"driver_{both}"], pairs[f"worker_{both}"]
        pairs[both] = (sum(part[0] for part in parts), sum(part[1] for part in parts))
    errors = {f"{name}_error": round(abs(said / was - 1), 4) for name, (said, was) in pairs.items()}
    return {
        **asdict(size),
        "tool_s": TOOL_S,
        **{f"{name}_predicted": round(said, 4) for name, (said, _) in pairs.items()},
        **{f"{name}_measured": round(was, 4) for name, (_, was) in pairs.items()},
        **errors,
        "cpu_ms_per_episode": round(pairs["cpu"][1] / size.episodes * 1000, 3),
        "memory_kib_per_episode": round(pairs["memory"][1] / size.episodes / 1024, 1),
        "worst": max(errors[f"{name}_error"] for name in ("wall", "cpu", "memory")),
    }


def play_apart(size: Size) -> SimpleNamespace:
    """What a collection took, in a process of its own: memory that an earlier one left behind is no cost of it."""
    command = [sys.executable, __file__, "--play", json.dumps(asdict(size))]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return SimpleNamespace(**json.loads(done.stdout.splitlines()[-1]))


def play_here(size: Size) -> None:
    """Play a collection, and print what it took."""
    from workers import play  # only here: the figures can be written anew without Ray

    seen = asyncio.run(play(episodes=size.episodes, workers=size.workers, tool_s=TOOL_S, turns=size.turns))
    print(json.dumps(asdict(seen)), flush=True)


def play_all(sizes: Sequence[Size]) -> list[SimpleNamespace]:
    found: list[SimpleNamespace] = []
    for size in sizes:
        seen = play_apart(size)
        found.append(seen)
        say(
            f"{size.episodes} episodes, {size.workers} workers, {size.turns} turns: {seen.seconds:.2f} s, processor "
            f"{seen.driver_cpu_s:.2f} + {seen.worker_cpu_s:.2f} s, memory {seen.driver_rss >> 20} + "
            f"{seen.worker_rss >> 20} MiB"
        )
    return found


def engine_constants(folder: Path) -> dict[str, float]:
    """Rates of sampler and learner, and the size of a trajectory, from a short run on this machine's CPU."""
    from mcprl.runs.past_runs import find_runs
    from mcprl.runs.trajectories import encode_trajectory, read_trajectories

    command = [sys.executable, "-m", "mcprl", "train", str(HELLO), "--set", "training.steps=3"]
    command += ["--set", "sampling.constrain=off", "--set", "algorithm.warm_start.weight=0"]  # rates of RL alone
    subprocess.run([*command, "--set", f"training.outputs={folder}"], check=True, stdout=sys.stderr, cwd=ROOT)
    (run,) = find_runs(folder)
    steps = run.metrics[1:]  # the first one warms up
    sampled = sum(step["sampled_tokens"] for step in steps)
    busy_s = sum(step["step_s"] * (1 - step["sampler_idle_share"]) for step in steps)
    learned = sampled + sum(step["context_tokens"] for step in steps)
    written = [one for path in sorted((run.path / "trajectories").glob("*.parquet")) for one in read_trajectories(path)]
    size = model_size(load_recipe(HELLO).model.path).parameters
    assert size is not None
    return {
        "trajectory_token_bytes": sum(len(encode_trajectory(one)) for one in written)
        / sum(len(one.token_ids) for one in written),
        "cpu_parameters": size,
        "cpu_sampler_tokens_per_s": sampled / busy_s,
        "cpu_learner_tokens_per_s": learned / sum(step["update_s"] for step in steps),
    }


def machine() -> str:
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    return f"{os.cpu_count()} cores of {cpu}, Python {platform.python_version()}"


def write(found: Mapping[str, float], sizes: Sequence[Size], checked: Mapping[str, Any]) -> None:
    """Write the constants, each with its unit and how it was measured, and the figures of the page."""
    how = HOW.format(
        sizes=len(sizes),
        low=min(size.episodes for size in sizes),
        high=max(size.episodes for size in sizes),
        turns=" to ".join(str(bound([size.turns for size in sizes])) for bound in (min, max)),
    )
    from_run = "three steps of recipes/hello-cpu.yaml, the last two counted"
    written = {
        "machine": machine(),
        "constants": {
            name: {"value": float(f"{found[name]:.5g}"), "unit": unit, "how": how if name in FITTED else from_run}
            for name, unit in UNITS.items()
        },
        "check": dict(checked),
    }
    write_file(MEASURED_FILE, (json.dumps(written, indent=2) + "\n").encode())
    write_file(PAGE, with_figures(PAGE.read_text(encoding="utf-8"), written).encode())


FITTED = tuple(name for name in UNITS if not name.startswith(("cpu_", "trajectory_")))


def with_figures(page: str, written: Mapping[str, Any]) -> str:
    """The page with its figures as they were measured."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{figures(written)}\n\n{END}{after}"


def figures(written: Mapping[str, Any]) -> str:
    """The prediction against the measurement."""
    check = written["check"]
    lines = [f"Measured on {written['machine']}."]
    lines += [
        "",
        f"{check['episodes']:,} episodes at once, {check['turns']} calls of {check['tool_s']:g} s each, "
        f"through {check['workers']} workers: {check['cpu_ms_per_episode']:.1f} ms of processor time and "
        f"{check['memory_kib_per_episode']:,.0f} KiB of memory per episode, driver, workers and tool servers together.",
        "",
        "| | Predicted | Measured | Error |",
        "|---|---:|---:|---:|",
    ]
    for name, title, scale, unit in (
        ("wall", "wall time", 1, "s"),
        ("cpu", "processor time", 1, "s"),
        ("memory", "memory", 2**20, "MiB"),
    ):
        said, was = (check[f"{name}_{which}"] / scale for which in ("predicted", "measured"))
        lines.append(f"| {title} | {said:,.1f} {unit} | {was:,.1f} {unit} | {check[f'{name}_error']:.1%} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ci", action="store_true", help="the small size")
    parser.add_argument("--write", action="store_true", help="write the constants, and the figures of the page")
    parser.add_argument("--play", metavar="JSON", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.play is not None:
        play_here(Size(**json.loads(arguments.play)))
        return 0
    sizes, largest = (CI_FIT, CI_CHECK) if arguments.ci else (FIT, CHECK)
    found = fit(sizes, play_all(sizes))
    expected = predict(largest, replace(read_constants(), **found))
    (seen,) = play_all([largest])
    checked = compared(largest, expected, seen, os.cpu_count() or 1)
    if arguments.write:
        with tempfile.TemporaryDirectory(prefix="mcprl-bench-") as folder:
            write({**found, **engine_constants(Path(folder))}, sizes, checked)
    print(json.dumps(checked), flush=True)
    return exit_status([], [] if arguments.ci else missed_bars(checked, SPEED_BARS))


if __name__ == "__main__":
    sys.exit(main())

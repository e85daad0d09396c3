"""Running an arm: train, evaluate after the warm start and at the end, and keep what is small of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from proving.arms import RECIPE, STEPS, STEPS_A_ROUND, TIMED, TIMED_STEPS, WARM_STEPS, Arm
from servers.harness import say

__all__ = ["RESULTS", "ROOT", "evaluate_untrained", "run_arm", "run_timed"]

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "docs" / "results"
OUTPUTS = ROOT / "outputs" / "proof"
# Of an evaluation; its episodes, with every turn, stay in outputs/.
KEPT_OF_EVALUATION = ("name", "model", "adapter", "started", "seconds", "mcprl", "figures", "lost", "tasks")
# Of a step's metrics: what the plots and the success metrics of requirements read.
KEPT_METRICS = (
    *("step", "reward", "success_rate", "valid_call_rate", "groups", "groups_without_variance", "kl", "entropy"),
    *("ratio_mean", "ratio_std", "active_fraction", "clipped_fraction", "gated_fraction", "update_skipped"),
    *("grad_norm", "alignment", "parity_logprob_max_abs_error", "imitation_loss", "demonstration_weight"),
    *("sampled_tokens", "sampled_tokens_per_second", "collect_s", "update_s", "step_s", "explained_variance"),
)


def evaluate_untrained() -> None:
    """The model as it comes, on the validation tasks."""
    folder = RESULTS / "untrained"
    if not (folder / "validation.json").exists():
        _evaluate(None, folder / "validation.json", name="untrained")


def run_arm(arm: Arm, seed: int) -> None:
    """One run and its evaluations. What was finished before is not done again."""
    name = f"{arm.name}-{seed}"
    run, kept = OUTPUTS / name, RESULTS / name
    if (kept / "validation.json").exists():
        return
    _train_to(STEPS, run, arm, seed)
    _keep(run, kept)
    _evaluate(_warm_adapter(run), kept / "warm.json", name=f"{name}-warm", settings=arm.settings)
    _evaluate(run / "adapter", kept / "validation.json", name=name, settings=arm.settings)


def run_timed(seed: int) -> None:
    """The arms that are timed, a few steps of each in turn."""
    for steps in range(STEPS_A_ROUND, TIMED_STEPS + 1, STEPS_A_ROUND):
        for arm in TIMED:
            run = OUTPUTS / f"{arm.name}-{seed}"
            _train_to(steps, run, arm, seed)
            _keep(run, RESULTS / run.name)


def _train_to(steps: int, run: Path, arm: Arm, seed: int) -> None:
    """Train, or go on; where the run goes on after the warm start, the adapter as it is then is put aside."""
    if _steps_in(run) >= steps:
        return
    if run.exists():
        process = _mcprl(["resume", str(run)], [f"training.steps={steps}"])
    else:
        settings = [*arm.settings, f"seed={seed}", f"name={run.name}", f"training.outputs={run.parent}"]
        process = _mcprl(["train", RECIPE], [*settings, f"training.steps={steps}"])
    while process.poll() is None:
        if WARM_STEPS <= _steps_in(run) < steps and not _warm_adapter(run).exists():
            newest = max((run / "weights").glob("*/adapter_config.json"), key=lambda path: path.stat().st_mtime)
            shutil.copytree(newest.parent, _warm_adapter(run))
        time.sleep(1)
    _require_success(process)


def _warm_adapter(run: Path) -> Path:
    return run.with_name(f"{run.name}-warm-adapter")


def _steps_in(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    return len(metrics.read_text().splitlines()) if metrics.exists() else 0


def _evaluate(adapter: Path | None, kept: Path, *, name: str, settings: Sequence[str] = ()) -> None:
    """Play the validation tasks as the arm was trained: without the grammar where it had none."""
    out = OUTPUTS / f"eval-{name}"
    shutil.rmtree(out, ignore_errors=True)
    arguments = ["eval", RECIPE, "--tasks", "recipes/finance/validation.jsonl", "-k", "1"]
    arguments += ["--out", str(out)] + ([] if adapter is None else ["--adapter", str(adapter)])
    _require_success(_mcprl(arguments, settings))
    results = json.loads((out / "results.json").read_text())
    kept.parent.mkdir(parents=True, exist_ok=True)
    small = {entry: results[entry] for entry in KEPT_OF_EVALUATION}
    small["adapter"] = None if adapter is None else os.path.relpath(adapter, ROOT)
    small["model"] = os.path.relpath(small["model"], ROOT)
    kept.write_text(json.dumps(small, indent=1) + "\n")
    say(f"{name}: success {results['figures']['success']['value']:.3f}")


def _keep(run: Path, kept: Path) -> None:
    kept.mkdir(parents=True, exist_ok=True)
    settings = (run / "config.yaml").read_text().replace(f"{ROOT}/", "")
    (kept / "config.yaml").write_text(settings)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines = [json.dumps({name: row[name] for name in KEPT_METRICS if name in row}) for row in rows]
    (kept / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    shutil.copy(run / "summary.json", kept / "summary.json")


def _mcprl(arguments: Sequence[str], settings: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "mcprl", *arguments, *(part for value in settings for part in ("--set", value))]
    say(" ".join(command[1:]))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where the servers of mcprl are
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PATH": path}, stdout=sys.stderr)


def _require_success(process: subprocess.Popen[bytes]) -> None:
    if status := process.wait():
        raise subprocess.CalledProcessError(status, process.args)

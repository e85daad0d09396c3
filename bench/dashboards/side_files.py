"""What a generated run leaves besides its episodes: metrics, verdicts, the timeline, the figures of its tools."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dashboards.phrases import TOOLS

__all__ = ["metrics_of", "write_health", "write_metrics", "write_timeline", "write_tool_stats"]

_ACTIVITIES = (("collect", 24.0), ("update", 11.0), ("publish", 1.5), ("save", 2.0))


def metrics_of(step: int, reward: float, progress: float, episodes: int) -> dict[str, float]:
    """One line of metrics, with the names that the torch engine writes with a reference policy."""
    draw = random.Random(step)
    wobble = draw.gauss
    parity = abs(wobble(2e-4, 1e-4))
    return {
        "step": step,
        "reward": reward,
        "success_rate": min(1.0, 0.15 + 0.7 * progress + wobble(0, 0.02)),
        "calls": float(int(2 * episodes * draw.uniform(0.9, 1.1))),
        "calls_injected": 0.0,
        "valid_call_rate": min(1.0, 0.68 + 0.3 * progress + wobble(0, 0.01)),
        "turns_with_call_rate": 0.66,
        "turns_per_episode": 2.9 + wobble(0, 0.05),
        "groups": episodes / 8,
        "groups_without_variance": float(draw.randrange(4)),
        "episodes": float(episodes),
        "episodes_lost_to_infrastructure": float(draw.random() < 0.05),
        "sampled_tokens": 180.0 * episodes,
        "sampled_tokens_per_second": 2900.0 + wobble(0, 90),
        "context_tokens": 260.0 * episodes,
        "tool_latency_mean_s": 0.07 + abs(wobble(0, 0.01)),
        "turn_without_tools_mean_s": 0.5,
        "collect_s": 24.0 + wobble(0, 1),
        "wait_s": 0.4,
        "loss": -0.01 + wobble(0, 0.004),
        "policy_loss": -0.012 + wobble(0, 0.004),
        "kl_loss": 0.001 + 0.001 * progress,
        "grad_norm": 0.5 + abs(wobble(0, 0.15)),
        "learning_rate": 2e-5,
        "optimiser_steps": 2.0,
        "optimiser_steps_over_cap": 0.0,
        "minibatches_without_signal": 0.0,
        "update_skipped": 0.0,
        "nonfinite": 0.0,
        "alignment": 1.0,
        "learnable_tokens": 150.0 * episodes,
        "learnable_share": 0.84,
        "sampled_share": 0.41,
        "forced_share": 0.15,
        "fixed_text_share": 0.08,
        "entropy": 0.9 - 0.5 * progress + wobble(0, 0.02),
        "parity_tokens": 150.0 * episodes,
        "parity_logprob_max_abs_error": 12 * parity,
        "parity_logprob_mean_abs_error": parity,
        "parity_ratio_mean": 1.0 + wobble(0, 1e-4),
        "parity_kl": parity / 10,
        "parity_outside_share": 0.0,
        "ratio_mean": 1.0 + wobble(0, 0.002),
        "ratio_mean_positive": 1.015,
        "ratio_mean_negative": 0.986,
        "ratio_std": 0.08,
        "ratio_p10": 0.9,
        "ratio_p50": 1.0,
        "ratio_p90": 1.1,
        "kl": 0.004 + abs(wobble(0, 0.001)),
        "kl_unmasked": 0.003,
        "kl_reference": 0.02 * (1 - math.exp(-4 * progress)) + abs(wobble(0, 0.001)),
        "kl_coefficient": 0.05,
        "clipped_fraction": 0.04 + abs(wobble(0, 0.01)),
        "active_fraction": 0.9,
        "gated_fraction": 0.0,
        "weights_version": float(step + 1),
        "server_restarts": 0.0,
        "sampler_restarts": 0.0,
        "step_s": 40.0 + wobble(0, 1),
        "save_s": 2.0,
        "sampler_idle_share": 0.4,
        "learner_idle_share": 0.6,
        "memory_trainer_gib": 6.1 + 0.2 * progress,
        "memory_children_gib": 9.4,
        "memory_free_gib": 14.0,
        "cpu_load": 3.2,
        "gpu_memory_gib": 21.0,
        "gpu_memory_total_gib": 24.0,
        "gpu_busy_share": 0.8,
        "reward_part_answer": 0.15 + 0.7 * progress,
        "reward_part_calls": 0.8,
        "reward_part_format": 0.75,
        "stop_answered": 0.85,
        "stop_cut_by_length": 0.05,
        "stop_turn_limit": 0.05,
        "stop_context_limit": 0.03,
        "stop_deadline": 0.02,
    }


def write_metrics(folder: Path, rewards: Sequence[float], episodes: int) -> None:
    steps = max(1, len(rewards))
    lines = [metrics_of(step, reward, step / steps, episodes) for step, reward in enumerate(rewards)]
    _write_lines(folder / "metrics.jsonl", lines)


def write_health(folder: Path, steps: int) -> None:
    healthy = {"severity": "ok", "what": "healthy: no rule found a problem", "fix": "", "name": "healthy"}
    clipping = {
        "severity": "warn",
        "name": "clipping",
        "what": "the clip cuts off 41% of the tokens: updates are too large for the data",
        "fix": "lower learner.learning_rate, or algorithm.epochs",
    }
    dead = {
        "severity": "bad",
        "name": "dead_groups",
        "what": "every group has the same reward in all of its episodes: there is nothing to learn",
        "fix": "give easier tasks, or raise sampling.temperature",
    }
    verdicts = [dead if step % 97 == 60 else clipping if step % 19 == 7 else healthy for step in range(steps)]
    _write_lines(folder / "health.jsonl", [{"step": step, **verdict} for step, verdict in enumerate(verdicts)])


def write_timeline(folder: Path, steps: int, started: float) -> None:
    spans: list[dict[str, Any]] = []
    now = started
    for step in range(steps):
        for activity, seconds in _ACTIVITIES:
            spans.append({"step": step, "activity": activity, "start": now, "end": now + seconds})
            now += seconds + 0.3
    _write_lines(folder / "timeline.jsonl", spans)


def write_tool_stats(folder: Path, episodes: int) -> None:
    servers: dict[str, Any] = {}
    for place, (tool, server) in enumerate(TOOLS.items()):
        calls = max(1, 2 * episodes // len(TOOLS))
        faults, failures = calls // 9, {"E-TOOL-012": calls // 400} if server == "market" else {}
        entry = servers.setdefault(server, {"restarts": 0, "calls": 0, "usd": 0.0, "breaker_openings": 0, "tools": {}})
        entry["calls"] += calls
        entry["usd"] += 0.0002 * calls if server == "market" else 0.0
        median = 12.0 * (place + 1)
        entry["tools"][tool] = {
            "calls": calls,
            "ok": calls - faults - sum(failures.values()),
            "policy_faults": faults,
            "failures": failures,
            "retries": sum(failures.values()),
            "cached": calls // 4,
            "replayed": 0,
            "shared": 0,
            "truncated": 0,
            "latency_ms": {"p50": median, "p95": 4 * median, "max": 20 * median, "buckets": _buckets(median, calls)},
        }
    document = {"servers": servers, "unknown_tool_calls": episodes // 300}
    (folder / "tool_stats.json").write_text(json.dumps(document, indent=2))


def _buckets(median_ms: float, calls: int) -> dict[int, int]:
    """Most calls near the median, some at four times of it."""
    at = [math.ceil(math.log(1000 * ms) / math.log(1.01)) for ms in (median_ms, 4 * median_ms)]
    return {at[0]: calls - calls // 10, at[1]: calls // 10}


def _write_lines(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

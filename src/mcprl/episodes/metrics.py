"""What a step's groups say about the policy and about the world, as numbers for the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from mcprl.episodes.rewards import succeeded
from mcprl.records import Group, Source, StopReason

__all__ = ["episode_metrics"]


def episode_metrics(groups: Sequence[Group], seconds: float) -> dict[str, float]:
    """Means over the episodes of a step. Attempts lost to the infrastructure are counted, never averaged.

    A part of the reward is averaged over the episodes whose goal checks it. `calls` are all that the policy made;
    those that failed on purpose are no evidence of its skill, nor of the servers' speed.
    """
    trajectories = [t for group in groups for t in group.trajectories]
    turns = [turn for t in trajectories for turn in t.turns]
    calls = [seen for turn in turns for seen in turn.observations]
    delivered = [seen for seen in calls if seen.source is not Source.INJECTED]
    lost = [episode for group in groups for episode in group.lost]
    sampled = sum(sum(t.sampled) for t in trajectories)
    metrics = {
        "reward": fmean(t.reward for t in trajectories),
        "success_rate": fmean(succeeded(t.reward_parts) for t in trajectories),
        "calls": float(len(calls)),
        "calls_injected": float(len(calls) - len(delivered)),
        "valid_call_rate": fmean(seen.fault is None for seen in delivered) if delivered else 0.0,
        "turns_with_call_rate": fmean(bool(turn.calls) for turn in turns),
        "turns_per_episode": fmean(len(t.turns) for t in trajectories),
        "groups": float(len(groups)),
        "groups_without_variance": float(sum(not group.has_variance for group in groups)),
        "episodes": float(len(trajectories)),
        "episodes_lost_to_infrastructure": float(len(lost)),
        "sampled_tokens": float(sampled),
        "sampled_tokens_per_second": sampled / seconds,
        "context_tokens": float(sum(len(t.token_ids) for t in trajectories) - sampled),
        "tool_latency_mean_s": fmean(seen.latency_s for seen in delivered) if delivered else 0.0,
        "collect_s": seconds,
    }
    for part in sorted({part for t in trajectories for part in t.reward_parts}):
        values = [t.reward_parts[part] for t in trajectories if part in t.reward_parts]
        metrics[f"reward_part_{part}"] = fmean(values)
    for code, count in sorted(Counter(episode.code for episode in lost).items()):
        metrics[f"lost_{code}"] = float(count)
    for stop in StopReason:
        metrics[f"stop_{stop.value}"] = fmean(t.stop is stop for t in trajectories)
    return metrics

"""What a run showed, over all its steps: did it learn, and can its numbers be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Summary"]


class Summary:
    """Gathers the metrics of the steps."""

    def __init__(self) -> None:
        self.steps: list[Mapping[str, float]] = []

    def add(self, metrics: Mapping[str, float]) -> None:
        self.steps.append(metrics)

    def as_dict(self) -> dict[str, Any]:
        """The closing figures, the worst over all steps where they are about correctness."""
        first, last = self.steps[0], self.steps[-1]
        return {
            "updates": len(self.steps),
            "optimiser_steps": int(self._sum("optimiser_steps")),
            "episodes": int(self._sum("episodes")),
            "groups_complete": int(self._sum("groups")),
            "episodes_lost_to_infrastructure": int(self._sum("episodes_lost_to_infrastructure")),
            "server_restarts": int(last["server_restarts"]),
            "reward_first": first["reward"],
            "reward_last": last["reward"],
            "valid_call_rate_first": first["valid_call_rate"],
            "valid_call_rate_last": last["valid_call_rate"],
            "alignment": min(step["alignment"] for step in self.steps),
            "parity_ratio_mean_abs_error": self._max("parity_ratio_mean_abs_error"),
            "parity_logprob_max_abs_error": self._max("parity_logprob_max_abs_error"),
            "kl_max": self._max("kl"),
            "seconds": self._sum("step_s"),
            "collect_s": self._sum("collect_s"),
            "update_s": self._sum("update_s"),
            "sampled_tokens": int(self._sum("sampled_tokens")),
        }

    def _sum(self, name: str) -> float:
        return sum(step[name] for step in self.steps)

    def _max(self, name: str) -> float:
        return max(step[name] for step in self.steps)

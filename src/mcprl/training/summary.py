"""What a run showed, over all its steps: did it learn, can its numbers be trusted, and was it well."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from mcprl.training.success import SuccessMetric, success_metrics
from mcprl.verdicts import GRAVEST_FIRST, Severity, Verdict

__all__ = ["Summary"]


class Summary:
    """Gathers the metrics of the steps, and the verdicts on them."""

    def __init__(self) -> None:
        self.steps: list[Mapping[str, float]] = []
        self._worst = Counter[Severity]()
        self._found = Counter[tuple[Severity, str]]()
        self._latest: dict[tuple[Severity, str], tuple[int, Verdict]] = {}

    def add(self, metrics: Mapping[str, float], verdicts: Sequence[Verdict] = ()) -> None:
        """A step, and the verdicts on it, the most severe first."""
        self.steps.append(metrics)
        if verdicts:
            self._worst[verdicts[0].severity] += 1
        for verdict in verdicts:
            if verdict.severity is not Severity.OK:
                kind = (verdict.severity, verdict.name)
                self._found[kind] += 1
                self._latest[kind] = (len(self.steps), verdict)

    def as_dict(self) -> dict[str, Any]:
        """The closing figures, the worst over all steps where they are about correctness.

        A figure that no step knows, since all updates were skipped, is left out.
        """
        first, last = self.steps[0], self.steps[-1]
        worst = {
            "alignment": self._known("alignment", min),
            "parity_ratio_mean_abs_error": self._known("parity_ratio_mean_abs_error", max),
            "parity_logprob_max_abs_error": self._known("parity_logprob_max_abs_error", max),
            "kl_max": self._known("kl", max),
        }
        return {
            "updates": sum(step.get("update_skipped", 0.0) == 0.0 for step in self.steps),
            "updates_skipped": sum(step.get("update_skipped", 0.0) != 0.0 for step in self.steps),
            "optimiser_steps": int(self._sum("optimiser_steps")),
            "episodes": int(self._sum("episodes")),
            "groups_complete": int(self._sum("groups")),
            "groups_dropped": int(self._sum("groups_dropped")),
            "episodes_lost_to_infrastructure": int(self._sum("episodes_lost_to_infrastructure")),
            "server_restarts": int(last["server_restarts"]),
            "sampler_restarts": int(last["sampler_restarts"]),
            "reward_first": first["reward"],
            "reward_last": last["reward"],
            "valid_call_rate_first": first["valid_call_rate"],
            "valid_call_rate_last": last["valid_call_rate"],
            **{name: value for name, value in worst.items() if value is not None},
            "seconds": self._sum("step_s"),
            "wait_s": self._sum("wait_s"),
            "update_s": self._sum("update_s"),
            "sampled_tokens": int(self._sum("sampled_tokens")),
            "success": [asdict(metric) for metric in self.success],
            "verdicts": {
                "steps": {severity.value: self._worst[severity] for severity in reversed(GRAVEST_FIRST)},
                "found": [
                    {"steps": count, "last_step": step, **asdict(verdict)} for count, step, verdict in self.verdicts
                ],
            },
        }

    @property
    def success(self) -> list[SuccessMetric]:
        return success_metrics(self.steps)

    @property
    def verdicts(self) -> list[tuple[int, int, Verdict]]:
        """What was found: in how many steps, last in which (counted from 1), its latest words; the gravest first."""
        kinds = sorted(self._found, key=lambda kind: (GRAVEST_FIRST.index(kind[0]), -self._found[kind]))
        return [(self._found[kind], *self._latest[kind]) for kind in kinds]

    def _sum(self, name: str) -> float:
        return sum(step.get(name, 0.0) for step in self.steps)

    def _known(self, name: str, choose: Callable[[Sequence[float]], float]) -> float | None:
        values = [step[name] for step in self.steps if name in step and math.isfinite(step[name])]
        return choose(values) if values else None

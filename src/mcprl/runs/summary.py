"""What a run showed, over all its steps: did it learn, can its numbers be trusted, and was it well."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mcprl.verdicts import (
    ACTIVE_FRACTION,
    GRAVEST_FIRST,
    KL_BAD,
    KL_WARN,
    LEARNABLE_SHARE,
    RATIO_BAND,
    RATIO_STD,
    VALID_CALLS,
    VALID_CALLS_BY_STEP,
    Severity,
    Verdict,
    mean,
)

__all__ = ["SuccessMetric", "Summary", "success_metrics"]


Steps = Sequence[Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessMetric:
    """A figure over a whole run and its bar. `note` says what to know when reading it, such as what lowers it.

    `value` is None where some step's was not a number; no such figure meets its bar.

    SuccessMetric(name="ratio spread, worst step", value=0.12, bar="< 0.5", met=True, note="")
    """

    name: str
    value: float | None
    bar: str
    met: bool
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measure:
    """How the values of a metric, a step each, become one figure, and what that figure must be."""

    name: str
    metric: str
    figure: Callable[[Sequence[float]], float]
    bar: str
    meets: Callable[[float], bool]
    note: Callable[[Steps], str] = lambda _: ""


def _farthest_from_one(ratios: Sequence[float]) -> float:
    return max(ratios, key=lambda ratio: abs(ratio - 1.0))


def _last(values: Sequence[float]) -> float:
    return values[-1]


def _what_lowers_activity(steps: Steps) -> str:
    """Tokens of a group without variance have advantage 0 and count as inactive, as clipped ones do."""
    dropped = sum(step.get("groups_dropped", 0.0) for step in steps)  # these are in no batch
    groups = sum(step.get("groups", 0.0) for step in steps) - dropped
    dead = sum(step.get("groups_without_variance", 0.0) for step in steps) - dropped
    clipped = [step["clipped_fraction"] for step in steps if "clipped_fraction" in step]
    parts = [f"{dead / groups:.0%} of groups dead"] if groups > 0 else []
    parts += [f"{mean(clipped):.0%} of tokens clipped"] if clipped else []
    return ", ".join(parts)


def _how_far_it_came(steps: Steps) -> str:
    return f"after {len(steps)} steps" if len(steps) < VALID_CALLS_BY_STEP else ""


_MEASURES = (
    _Measure(
        name="learnable tokens, worst step",
        metric="learnable_share",
        figure=min,
        bar=f"> {LEARNABLE_SHARE:.0%}",
        meets=lambda share: share > LEARNABLE_SHARE,
    ),
    _Measure(
        name="token alignment, worst step",
        metric="alignment",
        figure=min,
        bar="100%",
        meets=lambda share: share >= 1.0,
    ),
    _Measure(
        name="mean ratio, worst step",
        metric="ratio_mean",
        figure=_farthest_from_one,
        bar=f"{RATIO_BAND[0]:g} – {RATIO_BAND[1]:g}",
        meets=lambda ratio: RATIO_BAND[0] <= ratio <= RATIO_BAND[1],
    ),
    _Measure(
        name="ratio spread, worst step",
        metric="ratio_std",
        figure=max,
        bar=f"< {RATIO_STD:g}",
        meets=lambda spread: spread < RATIO_STD,
    ),
    _Measure(
        name="KL per token, mean",
        metric="kl",
        figure=mean,
        bar=f"< {KL_WARN:g} nats",
        meets=lambda kl: kl < KL_WARN,
    ),
    _Measure(
        name="KL per token, worst step",
        metric="kl",
        figure=max,
        bar=f"≤ {KL_BAD:g} nats",
        meets=lambda kl: kl <= KL_BAD,
    ),
    _Measure(
        name="KL to the reference, mean",
        metric="kl_reference",
        figure=mean,
        bar=f"< {KL_WARN:g} nats",
        meets=lambda kl: kl < KL_WARN,
    ),
    _Measure(
        name="KL to the reference, worst step",
        metric="kl_reference",
        figure=max,
        bar=f"≤ {KL_BAD:g} nats",
        meets=lambda kl: kl <= KL_BAD,
    ),
    _Measure(
        name="active tokens, mean",
        metric="active_fraction",
        figure=mean,
        bar=f"> {ACTIVE_FRACTION:.0%}",
        meets=lambda share: share > ACTIVE_FRACTION,
        note=_what_lowers_activity,
    ),
    _Measure(
        name="valid tool calls, last step",
        metric="valid_call_rate",
        figure=_last,
        bar=f"≥ {VALID_CALLS:.0%} by step {VALID_CALLS_BY_STEP}",
        meets=lambda rate: rate >= VALID_CALLS,
        note=_how_far_it_came,
    ),
)


def success_metrics(steps: Steps) -> list[SuccessMetric]:
    """The figures of a run, by the metrics of its steps. What no step knows is left out."""
    return [metric for measure in _MEASURES if (metric := _measured(measure, steps)) is not None]


def _measured(measure: _Measure, steps: Steps) -> SuccessMetric | None:
    values = [step[measure.metric] for step in steps if measure.metric in step]
    if not values:
        return None
    broken = sum(not math.isfinite(value) for value in values)
    if broken:
        note = f"not a number in {broken} of {len(values)} steps"
        return SuccessMetric(name=measure.name, value=None, bar=measure.bar, met=False, note=note)
    value = measure.figure(values)
    return SuccessMetric(
        name=measure.name, value=value, bar=measure.bar, met=measure.meets(value), note=measure.note(steps)
    )


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

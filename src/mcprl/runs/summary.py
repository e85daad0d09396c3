"""The summary of a run: whether it learned, whether its numbers can be trusted, and whether it was healthy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
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

Steps = Sequence[Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessMetric:
    """A figure for a whole run and its threshold (`bar`). `note` helps to interpret it, for example with a cause.

    If the metric was not finite in some step, `value` is None and `met` is False. `due` is False until the run has done
    the number of steps by which it must meet the bar.

    SuccessMetric(name="ratio spread, worst step", value=0.12, bar="< 0.5", met=True, note="")
    """

    name: str
    value: float | None
    bar: str
    met: bool
    note: str = ""
    due: bool = True


@dataclass(frozen=True, slots=True)
class _Measure:
    """Computes a figure from a metric's values, one per step, and compares it with a threshold."""

    name: str
    metric: str
    figure: Callable[[Sequence[float]], float]
    bar: str
    meets: Callable[[float], bool]
    note: Callable[[Steps], str] = lambda _: ""
    by_step: int = 0


def _why_inactive(steps: Steps) -> str:
    """Explain why tokens are inactive: they are clipped, or their group has no variance and so advantage 0."""
    dropped = sum(step.get("groups_dropped", 0.0) for step in steps)  # not part of a batch
    groups = sum(step.get("groups", 0.0) for step in steps) - dropped
    dead = sum(step.get("groups_without_variance", 0.0) for step in steps) - dropped
    clipped = [step["clipped_fraction"] for step in steps if "clipped_fraction" in step]
    parts = [f"{dead / groups:.0%} of groups without variance"] if groups > 0 else []
    parts += [f"{mean(clipped):.0%} of tokens clipped"] if clipped else []
    return ", ".join(parts)


_MEASURES = (
    _Measure(
        "learnable tokens, worst step",
        "learnable_share",
        min,
        f"> {LEARNABLE_SHARE:.0%}",
        lambda x: x > LEARNABLE_SHARE,
    ),
    _Measure("token alignment, worst step", "alignment", min, "100%", lambda x: x >= 1.0),
    _Measure(
        "mean ratio, worst step",
        "ratio_mean",
        lambda ratios: max(ratios, key=lambda ratio: abs(ratio - 1.0)),
        f"{RATIO_BAND[0]:g} – {RATIO_BAND[1]:g}",
        lambda x: RATIO_BAND[0] <= x <= RATIO_BAND[1],
    ),
    _Measure("ratio spread, worst step", "ratio_std", max, f"< {RATIO_STD:g}", lambda x: x < RATIO_STD),
    _Measure("KL per token, mean", "kl", mean, f"< {KL_WARN:g} nats", lambda x: x < KL_WARN),
    _Measure("KL per token, worst step", "kl", max, f"≤ {KL_BAD:g} nats", lambda x: x <= KL_BAD),
    _Measure("KL to the reference, mean", "kl_reference", mean, f"< {KL_WARN:g} nats", lambda x: x < KL_WARN),
    _Measure("KL to the reference, worst step", "kl_reference", max, f"≤ {KL_BAD:g} nats", lambda x: x <= KL_BAD),
    _Measure(
        "active tokens, mean",
        "active_fraction",
        mean,
        f"> {ACTIVE_FRACTION:.0%}",
        lambda x: x > ACTIVE_FRACTION,
        note=_why_inactive,
    ),
    _Measure(
        "valid tool calls, last step",
        "valid_call_rate",
        lambda rates: rates[-1],
        f"≥ {VALID_CALLS:.0%} by step {VALID_CALLS_BY_STEP}",
        lambda x: x >= VALID_CALLS,
        note=lambda steps: f"after {len(steps)} steps" if len(steps) < VALID_CALLS_BY_STEP else "",
        by_step=VALID_CALLS_BY_STEP,
    ),
)


def success_metrics(steps: Steps) -> list[SuccessMetric]:
    """Return the figures of a run from the metrics of its steps. Metrics that no step has are left out."""
    return [metric for measure in _MEASURES if (metric := _measured(measure, steps)) is not None]


def _measured(measure: _Measure, steps: Steps) -> SuccessMetric | None:
    values = [step[measure.metric] for step in steps if measure.metric in step]
    if not values:
        return None
    due = len(steps) >= measure.by_step
    broken = sum(not math.isfinite(value) for value in values)
    if broken:
        note = f"not finite in {broken} of {len(values)} steps"
        return SuccessMetric(name=measure.name, value=None, bar=measure.bar, met=False, note=note, due=due)
    value = measure.figure(values)
    return SuccessMetric(
        name=measure.name, value=value, bar=measure.bar, met=measure.meets(value), note=measure.note(steps), due=due
    )


class Summary:
    """Collects the metrics and verdicts of all steps of the run in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps: list[Mapping[str, float]] = []
        self._worst = Counter[Severity]()
        self._found = Counter[tuple[Severity, str]]()
        self._latest: dict[tuple[Severity, str], tuple[int, Verdict]] = {}

    def add(self, metrics: Mapping[str, float], verdicts: Sequence[Verdict] = ()) -> None:
        """Add a step and its verdicts, the most severe first. Metrics are empty if a resumed run has lost them."""
        self.steps.append(metrics)
        if verdicts:
            self._worst[verdicts[0].severity] += 1
        for verdict in verdicts:
            if verdict.severity is not Severity.OK:
                kind = (verdict.severity, verdict.name)
                self._found[kind] += 1
                self._latest[kind] = (len(self.steps), verdict)

    def as_dict(self) -> dict[str, Any]:
        """Return the content of summary.json. For figures about correctness, it takes the worst value over all steps.

        A figure that no step has, because all updates were skipped or the metrics were lost, is left out.
        """
        recorded = [step for step in self.steps if step] or [{}]
        ends = {
            f"{name}_{end}": values[place]
            for name in ("reward", "valid_call_rate", "validation_loss")
            for end, place in (("first", 0), ("last", -1))
            if (values := [step[name] for step in recorded if name in step])
        }
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
            "server_restarts": int(recorded[-1].get("server_restarts", 0.0)),
            "sampler_restarts": int(recorded[-1].get("sampler_restarts", 0.0)),
            **ends,
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
        """The verdicts that are not ok, worst first, each with its number of steps, last step (from 1), latest text."""
        kinds = sorted(self._found, key=lambda kind: (GRAVEST_FIRST.index(kind[0]), -self._found[kind]))
        return [(self._found[kind], *self._latest[kind]) for kind in kinds]

    def _sum(self, name: str) -> float:
        return sum(step.get(name, 0.0) for step in self.steps)

    def _known(self, name: str, choose: Callable[[Sequence[float]], float]) -> float | None:
        values = [step[name] for step in self.steps if name in step and math.isfinite(step[name])]
        return choose(values) if values else None

"""What a difference between sampler and learner means: its figures, and from them a verdict in words.

A cause is named only where the figures show it: at tokens that had no alternative, a grammar that one side left out; at
temperature 1, a temperature that the sampler left out. All else is told by its size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from mcprl.verdicts import Severity, Verdict

__all__ = [
    "EXACT_MAX",
    "EXACT_MEAN",
    "OUTLIER",
    "ROUNDING_MEAN",
    "ROUNDING_OUTSIDE",
    "Dtype",
    "Evidence",
    "ParityFigures",
    "judge_parity",
]


Dtype = Literal["float32", "bfloat16"]

# Nats. Two float32 engines stay an order of magnitude below these; any real fault is orders above.
EXACT_MEAN = 5e-5
EXACT_MAX = 1e-3
# What rounding to bfloat16 explains, with room: SmolLM2 gives means of 0.01 to 0.06 and shares of 5% to 14%.
ROUNDING_MEAN = 0.1
ROUNDING_OUTSIDE = 0.3
# A single token this far off is rare in bfloat16. Among 100,000 tokens, and with mixtures of experts, there are some.
OUTLIER = 2.0
_RATIO_BAND = (0.9, 1.1)
# With one admissible token the logprob is 0 in any number format.
_FORCED_TOLERANCE = 1e-3
# Far beyond every bar already, and its exponential is still a number.
_LARGEST_LOG_RATIO = 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityFigures:
    """How far two logprobs of the same tokens are apart, in nats, and what ratios ρ that makes.

    `kl` is the mean of k3 = ρ − 1 − log ρ, `outside_share` that of ratios outside [0.9, 1.1]. Two tokens, one of which
    the learner finds twice as likely as the sampler did:

    ParityFigures(logprob_mean_abs_error=0.35, logprob_max_abs_error=0.69, ratio_mean=1.5, ratio_mean_abs_error=0.5,
                  kl=0.15, outside_share=0.5)
    """

    logprob_mean_abs_error: float
    logprob_max_abs_error: float
    ratio_mean: float
    ratio_mean_abs_error: float
    kl: float
    outside_share: float

    @classmethod
    def of(cls, differences: Sequence[float]) -> ParityFigures:
        """The figures of learner's − sampler's logprobs, one difference a token."""
        log_ratios = [min(difference, _LARGEST_LOG_RATIO) for difference in differences]
        ratios = [math.exp(log_ratio) for log_ratio in log_ratios]
        low, high = _RATIO_BAND
        return cls(
            logprob_mean_abs_error=fmean(map(abs, differences)),
            logprob_max_abs_error=max(map(abs, differences)),
            ratio_mean=fmean(ratios),
            ratio_mean_abs_error=fmean(abs(math.expm1(log_ratio)) for log_ratio in log_ratios),
            kl=fmean(math.expm1(log_ratio) - log_ratio for log_ratio in log_ratios),
            outside_share=fmean(not low <= ratio <= high for ratio in ratios),
        )

    @property
    def exact(self) -> bool:
        return self.logprob_mean_abs_error <= EXACT_MEAN and self.logprob_max_abs_error <= EXACT_MAX

    @property
    def like_rounding(self) -> bool:
        return self.logprob_mean_abs_error <= ROUNDING_MEAN and self.outside_share <= ROUNDING_OUTSIDE


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a verdict is made from. The two `forced_` logprobs are the lowest of tokens that had no alternative.

    `at_temperature_1` has the figures against the learner's logprobs at temperature 1, None where they are not known.

    Evidence(dtype="float32", max_error=1e-4, alignment=1.0, figures=ParityFigures(…), at_temperature_1=None,
             forced_by_sampler=0.0, forced_by_learner=-2.7)     # the learner does not replay the grammar
    """

    dtype: Dtype
    max_error: float
    alignment: float
    figures: ParityFigures
    at_temperature_1: ParityFigures | None
    forced_by_sampler: float
    forced_by_learner: float

    @property
    def temperature_left_out(self) -> bool:
        other = self.at_temperature_1
        return other is not None and (other.exact or (other.like_rounding and not self.figures.like_rounding))


def judge_parity(evidence: Evidence) -> Verdict:
    """The verdict on what was measured; it also says where training would stop."""
    verdict = _cause(evidence) or _by_size(evidence)
    mean = evidence.figures.logprob_mean_abs_error
    if mean <= evidence.max_error:
        return verdict
    what = (
        f"{verdict.what}; training would stop, since tokens differ by {mean:.2g} nats on average and "
        f"learner.max_parity_error is {evidence.max_error:g}"
    )
    fix = verdict.fix
    if verdict.severity is not Severity.BAD:
        fix = " or ".join(filter(None, ["raise that setting", verdict.fix]))
    return Verdict(severity=Severity.BAD, what=what, fix=fix)


def _cause(evidence: Evidence) -> Verdict | None:
    """A fault whose cause the evidence leaves no doubt about."""
    if evidence.alignment < 1.0:
        return Verdict(
            severity=Severity.BAD,
            what=f"only {evidence.alignment:.2%} of the tokens that the learner scores are those that were sampled",
            fix="report this with the recipe: it is a fault in mcprl",
        )
    if evidence.forced_by_sampler < -_FORCED_TOLERANCE:
        return Verdict(
            severity=Severity.BAD,
            what="the sampler's logprobs leave the grammar out: tokens that had no alternative are not at 0",
            fix="use a sampler that reports logprobs after the grammar's mask (vLLM: processed_logprobs)",
        )
    if evidence.forced_by_learner < -_FORCED_TOLERANCE:
        return Verdict(
            severity=Severity.BAD,
            what="the learner does not replay the grammar: tokens that had no alternative are not at 0",
            fix="report this with the recipe: it is a fault in mcprl; until then, set sampling.constrain to off",
        )
    if not evidence.figures.exact and evidence.temperature_left_out:
        return Verdict(
            severity=Severity.BAD,
            what="the sampler's logprobs leave the temperature out: at temperature 1 the two agree",
            fix="use a sampler that reports logprobs at its temperature (vLLM: processed_logprobs), or temperature 1",
        )
    return None


def _by_size(evidence: Evidence) -> Verdict:
    figures = evidence.figures
    if figures.exact:
        return Verdict(severity=Severity.OK, what="exact: sampler and learner agree on every token", fix="")
    if not figures.like_rounding:
        return Verdict(
            severity=Severity.BAD,
            what=f"sampler and learner disagree by {figures.logprob_mean_abs_error:.2g} nats a token: more than "
            "rounding explains, so they hold other weights or see other contexts",
            fix="see that both load the weights of model.path as they are now; the worst tokens show where it begins",
        )
    if evidence.dtype == "float32":
        return Verdict(
            severity=Severity.WARN,
            what="close but not exact: they differ as if one of the two rounded to less than float32",
            fix="see that both compute in float32; on a GPU, that neither uses TF32",
        )
    return Verdict(
        severity=Severity.WARN,
        what="close, as is usual in bfloat16: ratios begin near 1 and not at 1",
        fix="set model.dtype to float32 where exact ratios are worth the memory",
    )

"""Rules about trust: are the figures numbers, was an update made, are the ratios those of the policy that sampled."""

from __future__ import annotations

import math

from mcprl.training.health.bars import LEARNABLE_SHARE
from mcprl.training.health.sight import Rules, Sight, at_cap, by_size, gentler, refill
from mcprl.training.parity_verdict import EXACT_MAX, EXACT_MEAN, OUTLIER, ROUNDING_MEAN, ROUNDING_OUTSIDE
from mcprl.verdicts import Severity, Verdict

__all__ = ["TRUST_RULES"]

# Of these, none is ever infinite or undefined in a sound update.
_ALWAYS_NUMBERS = (
    "reward",
    "loss",
    "policy_loss",
    "value_loss",
    "imitation_loss",
    "kl_loss",
    "grad_norm",
    "kl",
    "kl_reference",
    "ratio_mean",
    "ratio_std",
    "entropy",
)
# One skipped update is a bad batch; three of the last five are a setting that does not fit.
_SKIPS_SEEN, _SKIPS_BAD = 5, 3
# Weights are cut where sampler and learner differ twofold on a token; in bfloat16 alone that is one token in a hundred.
_CUT_WARN, _CUT_BAD = 0.1, 0.3
# Updates between sampling and learning. One is what a pipeline is for; after four, most ratios are outside of the clip.
_STALE_WARN, _STALE_BAD = 1.5, 4.0
# A gradient of a real loss is never that small.
_NO_GRADIENT = 1e-10


def not_a_number(sight: Sight) -> Verdict | None:
    names = [name for name in _ALWAYS_NUMBERS if not math.isfinite(sight.metrics.get(name, 0.0))]
    if not names and sight.now("nonfinite") != 1.0:
        return None
    in_a_row = sight.now("nonfinite_in_a_row") or 0.0
    again = f", {in_a_row:.0f} updates in a row" if in_a_row > 1 else ""
    because = f" ({sight.skipped})" if sight.skipped else ""
    return Verdict(
        severity=Severity.BAD,
        what=f"not a number: {', '.join(names) or 'something in the update'}{again}{because}; "
        "usually logits or gradients that overflow",
        fix=gentler(sight.config)
        + ("" if sight.config.model.dtype == "float32" else ", or set model.dtype to float32")
        + "; look at the rewards of the episodes named",
    )


def skipped(sight: Sight) -> Verdict | None:
    if not sight.was_skipped or sight.now("nonfinite") == 1.0:
        return None
    times = sum(sight.past.last("skipped", _SKIPS_SEEN))
    algorithm = sight.config.algorithm
    what = f"no update was made: {sight.skipped or 'the learner gave no reason'}"
    if times > 1:
        what += f" ({times:.0f} of the last {_SKIPS_SEEN} steps)"
    tokens, share, distance = (sight.now(name) for name in ("learnable_tokens", "learnable_share", "kl_reference"))
    if tokens is not None and tokens < algorithm.min_learnable_tokens:
        fix = (
            f"raise training.tasks_per_step, or lower algorithm.min_learnable_tokens ({algorithm.min_learnable_tokens})"
        )
    elif share is not None and share < algorithm.min_learnable_share:
        fix = f"loosen sampling.constrain, or lower algorithm.min_learnable_share ({algorithm.min_learnable_share:g})"
    elif sight.now("update_undone") == 1.0 or (
        distance is not None and algorithm.kl.cap is not None and distance > algorithm.kl.cap
    ):
        fix = at_cap(sight.config)
    elif sight.now("optimiser_steps") == 0.0 and not sight.now("optimiser_steps_over_cap"):
        fix = f"raise training.tasks_per_step or episodes.group_size, or {refill(sight.config)}"
    else:
        fix = "nothing, unless it comes again; then act on the reason given"
    return Verdict(severity=Severity.BAD if times >= _SKIPS_BAD else Severity.WARN, what=what, fix=fix)


def misaligned(sight: Sight) -> Verdict | None:
    """A second net: the learner itself stops a run before such a step is recorded."""
    alignment = sight.now("alignment")
    if alignment is None or alignment >= 1.0:
        return None
    return Verdict(
        severity=Severity.BAD,
        what=f"only {alignment:.2%} of the tokens trained on are those that were sampled",
        fix="stop, and report this with the recipe: it is a fault in mcprl",
    )


def parity(sight: Sight) -> Verdict | None:
    """Before the first step both hold the same weights, so every ratio is 1. Only tokens of these weights are asked."""
    error = sight.now("parity_logprob_mean_abs_error")
    if error is None:
        return None
    what = f"before the first step sampler and learner disagree by {error:.2g} nats a token"
    largest = sight.now("parity_logprob_max_abs_error") or 0.0
    corrected = sight.config.algorithm.old_logprobs == "recomputed"
    if error > ROUNDING_MEAN or (sight.now("parity_outside_share") or 0.0) > ROUNDING_OUTSIDE:
        return Verdict(
            severity=Severity.WARN if corrected else Severity.BAD,
            what=f"{what}, more than rounding explains: they hold other weights or see other contexts",
            fix="run `mcprl parity RECIPE`, which shows the tokens where it begins"
            + ("" if corrected else "; algorithm.old_logprobs recomputed corrects for other precision"),
        )
    if sight.config.model.dtype == "float32" and (error > EXACT_MEAN or largest > EXACT_MAX):
        return Verdict(
            severity=Severity.WARN,
            what=f"{what} (at most {largest:.2g}), which two engines in float32 do not: one of them rounds",
            fix="run `mcprl parity RECIPE`; on a GPU, see that neither uses TF32",
        )
    if largest > OUTLIER:
        return Verdict(
            severity=Severity.WARN,
            what=f"{what}, but by {largest:.2g} on one of them: a rare token, or another choice of experts",
            fix="run `mcprl parity RECIPE`, which shows the worst tokens"
            + ("" if corrected else "; algorithm.old_logprobs recomputed bounds what such a token weighs"),
        )
    return None


def reference(sight: Sight) -> Verdict | None:
    differing = sight.now("reference_tensors_differing")
    if not differing or sight.now("reference_synced") == 0.0:
        return None
    return Verdict(
        severity=Severity.BAD,
        what=f"right after the reference became the policy, {differing:.0f} of its tensors differ from the policy's: "
        "KL is measured against something that never was",
        fix="stop, and report this with the recipe: it is a fault in mcprl; until then, set "
        "algorithm.kl.reference to base",
    )


def stale(sight: Sight) -> Verdict | None:
    staleness = sight.now("staleness_mean")
    severity = by_size(staleness, warn=_STALE_WARN, bad=_STALE_BAD)
    if severity is None:
        return None
    return Verdict(
        severity=severity,
        what=f"episodes are {staleness:.1f} updates old when they are learned from (at most "
        f"{sight.now('staleness_max') or staleness:.0f}): collecting is slower than learning",
        fix=f"lower training.max_staleness (now {sight.config.training.max_staleness}), or shorten the longest "
        "episodes (episodes.deadline_s, episodes.max_turns)",
    )


def importance(sight: Sight) -> Verdict | None:
    cut = sight.now("importance_cut_fraction")
    severity = by_size(cut, warn=_CUT_WARN, bad=_CUT_BAD)
    if severity is None:
        return None
    most = sight.config.algorithm.max_importance
    return Verdict(
        severity=severity,
        what=f"importance weights are cut off at {most:g} for {cut:.0%} of tokens: sampler and learner differ so far "
        "that the correction is mostly left out",
        fix="run `mcprl parity RECIPE`; use the same precision in both (model.dtype float32, learner.tuning lora), or "
        "raise algorithm.max_importance",
    )


def few_learnable(sight: Sight) -> Verdict | None:
    share, constrain = sight.now("learnable_share"), sight.config.sampling.constrain
    if share is None or share >= LEARNABLE_SHARE or constrain == "off":
        return None
    fix = f"set sampling.constrain to {'calls, or ' if constrain == 'act' else ''}off (now {constrain})"
    if sight.config.algorithm.masks == "text":
        fix = f"set algorithm.masks to exact (now text), or {fix.removeprefix('set ')}"
    return Verdict(
        severity=Severity.WARN,
        what=f"only {share:.0%} of the sampled tokens carry loss: the grammar decided the others",
        fix=fix,
    )


def no_gradient(sight: Sight) -> Verdict | None:
    norm, active = sight.now("grad_norm"), sight.now("active_fraction")
    if norm is None or norm > _NO_GRADIENT or not sight.now("optimiser_steps"):
        return None
    if active == 0.0:
        cause, fix = "clip or gate leave no token", f"{gentler(sight.config)}, or widen algorithm.ratio_gate"
    else:
        cause, fix = (
            "no trained weight reaches the loss",
            "see that learner.tuning trains something, and run `mcprl parity RECIPE`",
        )
    return Verdict(
        severity=Severity.BAD, what=f"the gradient is 0 although there was something to learn: {cause}", fix=fix
    )


TRUST_RULES: Rules = {
    "not a number": not_a_number,
    "misaligned": misaligned,
    "parity": parity,
    "reference": reference,
    "no gradient": no_gradient,
    "skipped": skipped,
    "stale": stale,
    "importance": importance,
    "few learnable": few_learnable,
}

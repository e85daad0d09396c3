"""Rules about the size of a step: how far an update moved the policy from the one that sampled and from a reference."""

from __future__ import annotations

from statistics import median

from mcprl.training.health.bars import ACTIVE_FRACTION, KL_BAD, KL_WARN, RATIO_BAND, RATIO_STD
from mcprl.training.health.episode_rules import count_dead_groups, dead_groups
from mcprl.training.health.sight import WINDOW, Rules, Sight, at_cap, by_size, gentler, refill, roll_back
from mcprl.verdicts import Severity, Verdict

__all__ = ["STEP_RULES"]

# A mean this far off says that most tokens became half or twice as likely in one update.
_RATIO_BAD = (0.5, 2.0)
# Better tokens should become likelier than worse ones. Noise of minibatches stays below this gap, and does not last.
_WRONG_WAY, _WRONG_WAY_STEPS = -0.05, 3
# PPO's clip usually holds 5% to 20% of tokens; when it holds a third, updates are too large for their data.
_CLIPPED_WARN, _CLIPPED_BAD = 0.3, 0.6
# The gate is for outliers; what leaves it in numbers is the policy itself.
_GATED_WARN, _GATED_BAD = 0.1, 0.3
# Norms vary two- or threefold between batches; a batch ten times the usual one holds something unusual.
_SPIKE, _SPIKE_NEEDS = 10.0, 5
_ALWAYS_CLIPPED_STEPS = 10
# The steering moves the coefficient by tens of percent; ten times its start means that it cannot hold its target.
_RUNAWAY_WARN, _RUNAWAY_BAD = 10.0, 100.0
_IDLE_MINIBATCHES = 0.5


def kl(sight: Sight) -> Verdict | None:
    distance = max((x for x in (sight.now("kl"), sight.now("kl_update")) if x is not None), default=None)
    severity = by_size(distance, warn=KL_WARN, bad=KL_BAD)
    if severity is None or sight.now("update_undone") == 1.0:
        return None
    what = f"KL is {distance:.2g} nats a token: the update carries the policy away from the one that sampled its data"
    if severity is Severity.BAD:
        fix = roll_back(sight, sight.past.healthy_step, "the last sound one")
    else:
        fix = gentler(sight.config)
        if sight.past.healthy_step is not None:
            fix += f"; if it keeps growing, go back to step {sight.past.healthy_step}"
    return Verdict(severity=severity, what=what, fix=fix)


def masked_drift(sight: Sight) -> Verdict | None:
    masked, unmasked = sight.now("kl"), sight.now("kl_unmasked")
    if masked is None or unmasked is None or masked >= KL_WARN or unmasked < KL_WARN:
        return None
    return Verdict(
        severity=Severity.WARN,
        what=f"KL is {masked:.2g} nats a token where there is loss, but {unmasked:.2g} over all that was sampled: "
        "tokens without loss drift with the others",
        fix=(
            ""
            if (masks := sight.config.algorithm.masks) == "exact"
            else f"set algorithm.masks to exact (now {masks}), or "
        )
        + gentler(sight.config),
    )


def reference_kl(sight: Sight) -> Verdict | None:
    distance, settings = sight.now("kl_reference"), sight.config.algorithm.kl
    # A recipe that steers to a target has said how far is right; at twice that, the steering does not hold it.
    severity = by_size(distance, warn=2 * settings.target if settings.target else KL_WARN, bad=KL_BAD)
    if severity is None:
        return None
    what = f"the policy is {distance:.2g} nats a token from its reference ({settings.reference})"
    if severity is Severity.BAD:
        fix = roll_back(sight, sight.past.healthy_step, "the last sound one")
        fix += "" if settings.cap else "; algorithm.kl.cap 3.0 ends such updates by itself"
    else:
        fix = f"raise algorithm.kl.coefficient (now {settings.coefficient:g}), or {gentler(sight.config)}"
    return Verdict(severity=severity, what=f"{what}: it forgets what the model could do before", fix=fix)


def kl_cap(sight: Sight) -> Verdict | None:
    stopped = sight.now("optimiser_steps_over_cap")
    if not stopped or sight.was_skipped:
        return None
    return Verdict(
        severity=Severity.WARN,
        what=f"{stopped:.0f} optimiser steps were not made: the policy was beyond algorithm.kl.cap from its reference",
        fix=at_cap(sight.config),
    )


def kl_coefficient(sight: Sight) -> Verdict | None:
    now, start = sight.now("kl_coefficient"), sight.config.algorithm.kl.coefficient
    if now is None or now <= 0 or start <= 0 or sight.config.algorithm.kl.target is None:
        return None
    severity = by_size(max(now / start, start / now), warn=_RUNAWAY_WARN, bad=_RUNAWAY_BAD)
    if severity is None:
        return None
    settings = sight.config.algorithm.kl
    if now > start:
        cause, fix = "the policy keeps moving away", f"{gentler(sight.config)}, or raise algorithm.kl.target"
    else:
        cause, fix = "the policy never gets that far", "lower algorithm.kl.target, or leave it out"
    return Verdict(
        severity=severity,
        what=f"the KL coefficient runs away: {now:.2g} after {start:.2g}, to hold {settings.target:g} nats a token; "
        f"{cause}",
        fix=fix,
    )


def ratio(sight: Sight) -> Verdict | None:
    average = sight.now("ratio_mean")
    if average is None or RATIO_BAND[0] <= average <= RATIO_BAND[1]:
        return None
    extreme = not _RATIO_BAD[0] <= average <= _RATIO_BAD[1]
    return Verdict(
        severity=Severity.BAD if extreme else Severity.WARN,
        what=f"the mean ratio is {average:.3g}, outside {RATIO_BAND[0]:g} to {RATIO_BAND[1]:g}: one update makes too "
        "large a step",
        fix=f"{gentler(sight.config)}, or {_norm_setting(sight)}",
    )


def ratio_spread(sight: Sight) -> Verdict | None:
    spread = sight.now("ratio_std")
    if spread is None or spread <= RATIO_STD:
        return None
    gate = "" if sight.config.algorithm.ratio_gate else "set algorithm.ratio_gate to [0.25, 4.0], or "
    return Verdict(
        severity=Severity.WARN,
        what=f"ratios have a standard deviation of {spread:.2g}: a few tokens weigh many times the others",
        fix=f"{gate}{gentler(sight.config)}",
    )


def wrong_way(sight: Sight) -> Verdict | None:
    if sight.now("ratio_mean_positive") is None or sight.now("ratio_mean_negative") is None:
        return None
    gaps = sight.past.last("ratio_gap", _WRONG_WAY_STEPS)
    if len(gaps) < _WRONG_WAY_STEPS or max(gaps) > _WRONG_WAY:
        return None
    return Verdict(
        severity=Severity.BAD,
        what=f"better tokens become rarer than worse ones by {-gaps[-1]:.2g} in the ratio, for {_WRONG_WAY_STEPS} "
        "updates: the policy moves against its rewards",
        fix="lower algorithm.kl.coefficient, algorithm.entropy and algorithm.warm_start.weight, which pull beside the "
        "rewards; where all are 0, report this with the recipe",
    )


def clipping(sight: Sight) -> Verdict | None:
    clipped = sight.now("clipped_fraction")
    severity = by_size(clipped, warn=_CLIPPED_WARN, bad=_CLIPPED_BAD)
    if severity is None:
        return None
    return Verdict(
        severity=severity,
        what=f"the clip cuts off {clipped:.0%} of the tokens: the policy moves further in one update than its "
        "data supports",
        fix=f"{gentler(sight.config)}, or algorithm.minibatches (now {sight.config.algorithm.minibatches})",
    )


def gated(sight: Sight) -> Verdict | None:
    outside = sight.now("gated_fraction")
    severity = by_size(outside, warn=_GATED_WARN, bad=_GATED_BAD)
    if severity is None:
        return None
    return Verdict(
        severity=severity,
        what=f"{outside:.0%} of the tokens have a ratio outside algorithm.ratio_gate and carry no loss: updates are "
        "too large, or sampler and learner disagree",
        fix=f"run `mcprl parity RECIPE`; where that is sound, {gentler(sight.config)}",
    )


def inactive(sight: Sight) -> Verdict | None:
    """Few tokens that move the weights, where no other rule says why."""
    active = sight.now("active_fraction")
    if active is None or active >= ACTIVE_FRACTION:
        return None
    if any(rule(sight) is not None for rule in (dead_groups, clipping, gated)):
        return None
    dead, groups = count_dead_groups(sight) or (0.0, 0.0)
    dropped = sight.now("groups_dropped") or 0.0
    dead_share = (dead - dropped) / (groups - dropped) if groups > dropped else 0.0
    clipped = sight.now("clipped_fraction") or 0.0
    return Verdict(
        severity=Severity.WARN,
        what=f"only {active:.0%} of the learnable tokens move the weights: {dead_share:.0%} of groups have zero "
        f"variance, {clipped:.0%} of tokens are clipped, others earned just their group's mean",
        fix=f"raise episodes.group_size, give rewards more steps between 0 and 1 (rewards), or {refill(sight.config)}",
    )


def idle_minibatches(sight: Sight) -> Verdict | None:
    idle, made = sight.now("minibatches_without_signal"), sight.now("optimiser_steps")
    if idle is None or idle < 0 or made is None or made <= 0 or dead_groups(sight) is not None:
        return None
    if idle / (idle + made) < _IDLE_MINIBATCHES:
        return None
    return Verdict(
        severity=Severity.WARN,
        what=f"{idle:.0f} of {idle + made:.0f} minibatches held nothing to learn: too few episodes in each",
        fix=f"lower algorithm.minibatches (now {sight.config.algorithm.minibatches}), or raise training.tasks_per_step",
    )


def gradient_spike(sight: Sight) -> Verdict | None:
    norm, earlier = sight.now("grad_norm"), sight.past.last("grad_norm", WINDOW)[:-1]
    if norm is None or len(earlier) < _SPIKE_NEEDS or norm <= _SPIKE * median(earlier):
        return None
    return Verdict(
        severity=Severity.WARN,
        what=f"the gradient norm is {norm:.2g}, {norm / median(earlier):.0f} times its median so far: an unusual "
        "batch, or the beginning of an instability",
        fix=f"look at this step's episodes; should it come again, {gentler(sight.config)}, or {_norm_setting(sight)}",
    )


def gradient_clipped(sight: Sight) -> Verdict | None:
    norms, most = sight.past.last("grad_norm", _ALWAYS_CLIPPED_STEPS), sight.config.learner.max_grad_norm
    if most is None or sight.now("grad_norm") is None or len(norms) < _ALWAYS_CLIPPED_STEPS or min(norms) <= most:
        return None
    return Verdict(
        severity=Severity.WARN,
        what=f"the gradient was scaled down in each of the last {_ALWAYS_CLIPPED_STEPS} updates, from about "
        f"{median(norms):.2g} to {most:g}: the size of a step no longer follows its gradient",
        fix=f"raise learner.max_grad_norm to {2 * median(norms):.1g} and watch KL, or {gentler(sight.config)}",
    )


def _norm_setting(sight: Sight) -> str:
    most = sight.config.learner.max_grad_norm
    return f"learner.max_grad_norm (now {'null' if most is None else f'{most:g}'})"


STEP_RULES: Rules = {
    "KL": kl,
    "ratio": ratio,
    "reference KL": reference_kl,
    "wrong way": wrong_way,
    "KL coefficient": kl_coefficient,
    "clipping": clipping,
    "gated": gated,
    "ratio spread": ratio_spread,
    "masked drift": masked_drift,
    "KL cap": kl_cap,
    "gradient spike": gradient_spike,
    "gradient clipped": gradient_clipped,
    "inactive": inactive,
    "idle minibatches": idle_minibatches,
}

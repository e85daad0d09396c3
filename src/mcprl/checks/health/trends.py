"""Rules about trust and trends: whether the numbers are right, and how reward, entropy and critic change over a run."""

from __future__ import annotations

import math
from statistics import median

from mcprl.checks.health.view import (
    REPORT,
    WINDOW,
    Rules,
    StepView,
    at_cap,
    bad,
    by_size,
    gentler,
    may_set,
    one_of,
    refill,
    roll_back,
    warn,
)
from mcprl.checks.parity import EXACT_MAX, EXACT_MEAN, OUTLIER, ROUNDING_MEAN, ROUNDING_OUTSIDE
from mcprl.config import RunConfig
from mcprl.verdicts import LEARNABLE_SHARE, Severity, Verdict, mean

# In a correct update, none of these is ever NaN or infinite.
_ALWAYS_FINITE = (
    *("reward", "loss", "policy_loss", "value_loss", "imitation_loss", "kl_loss", "grad_norm", "kl", "kl_reference"),
    *("ratio_mean", "ratio_std", "entropy"),
)
# One skipped update is a bad batch; three of the last five mean a bad setting.
_SKIPS_SEEN, _SKIPS_BAD = 5, 3
# Weights are cut at tokens for which sampler and learner differ twofold. bfloat16 explains one token in a hundred.
_CUT_WARN, _CUT_BAD = 0.1, 0.3
# Updates between sampling and learning. A pipeline has one. After four, most ratios are outside the clip.
_STALE_WARN, _STALE_BAD = 1.5, 4.0
# The gradient of a real loss is never this small.
_NO_GRADIENT = 1e-10


def not_a_number(view: StepView) -> Verdict | None:
    names = [name for name in _ALWAYS_FINITE if not math.isfinite(view.metrics.get(name, 0.0))]
    if not names and view.now("nonfinite") != 1.0:
        return None
    in_a_row = view.now("nonfinite_in_a_row") or 0.0
    again = f", {in_a_row:.0f} updates in a row" if in_a_row > 1 else ""
    because = f" ({view.skipped})" if view.skipped else ""
    float32 = "" if view.config.model.dtype == "float32" else ", or set model.dtype to float32"
    return bad(
        f"NaN or Inf in {', '.join(names) or 'the update'}{again}{because}: usually logits or gradients that overflow",
        f"{gentler(view.config)}{float32}; inspect the rewards of these episodes",
    )


def skipped(view: StepView) -> Verdict | None:
    if not view.was_skipped or view.now("nonfinite") == 1.0:
        return None
    times, algorithm = sum(view.past.last("skipped", _SKIPS_SEEN)), view.config.algorithm
    what = f"the update was skipped: {view.skipped or 'the learner gave no reason'}"
    if times > 1:
        what += f" ({times:.0f} of the last {_SKIPS_SEEN} steps)"
    tokens, share, distance = (view.now(name) for name in ("learnable_tokens", "learnable_share", "kl_reference"))
    least = algorithm.min_learnable_tokens
    over_cap = distance is not None and algorithm.kl.cap is not None and distance > algorithm.kl.cap
    if tokens is not None and tokens < least:
        fix = f"raise training.tasks_per_step, or lower algorithm.min_learnable_tokens ({least})"
    elif share is not None and share < algorithm.min_learnable_share:
        loosen = "" if view.config.sampling.constrain == "off" else "loosen sampling.constrain, or "
        fix = f"{loosen}lower algorithm.min_learnable_share ({algorithm.min_learnable_share:g})"
    elif view.now("update_undone") == 1.0 or over_cap:
        fix = at_cap(view.config)
    elif view.now("optimiser_steps") == 0.0 and not view.now("optimiser_steps_over_cap"):
        fix = f"raise training.tasks_per_step or episodes.group_size, or {refill(view.config)}"
    else:
        fix = "do nothing unless updates are skipped again; then fix the cause given above"
    return Verdict(severity=Severity.BAD if times >= _SKIPS_BAD else Severity.WARN, what=what, fix=fix)


def parity(view: StepView) -> Verdict | None:
    """Compare the logprobs before the first update: the weights are the same, so every ratio should be 1."""
    error = view.now("parity_logprob_mean_abs_error")
    if error is None:
        return None
    what = f"before the first update, sampler and learner disagree by {error:.2g} nats per token"
    largest = view.now("parity_logprob_max_abs_error") or 0.0
    corrected = view.config.algorithm.old_logprobs == "recomputed"
    if error > ROUNDING_MEAN or (view.now("parity_outside_share") or 0.0) > ROUNDING_OUTSIDE:
        return Verdict(
            severity=Severity.WARN if corrected else Severity.BAD,
            what=f"{what}, which is more than rounding error: they have different weights or contexts",
            fix="run `mcprl parity RECIPE` to see the first tokens that differ"
            + ("" if corrected else "; algorithm.old_logprobs=recomputed corrects for a difference in precision"),
        )
    if view.config.model.dtype == "float32" and (error > EXACT_MEAN or largest > EXACT_MAX):
        return warn(
            f"{what} (at most {largest:.2g}), which is more than float32 rounding error: one of them computes in "
            "lower precision",
            "run `mcprl parity RECIPE`; on a GPU, check that neither uses TF32",
        )
    if largest > OUTLIER:
        return warn(
            f"{what}, but by {largest:.2g} on one token: a rare token, or different expert routing",
            "run `mcprl parity RECIPE` to see the worst tokens"
            + ("" if corrected else "; algorithm.old_logprobs=recomputed limits the weight of such a token"),
        )
    return None


def reference(view: StepView) -> Verdict | None:
    differing = view.now("reference_tensors_differing")
    if not differing or view.now("reference_synced") == 0.0:
        return None
    to_base = may_set(view.config, "algorithm.kl.reference", "base")
    return bad(
        f"{differing:.0f} tensors of the reference still differ right after it was synced to the policy, so KL is "
        "wrong",
        REPORT + ("; until it is fixed, set algorithm.kl.reference to base" if to_base else ""),
    )


def stale(view: StepView) -> Verdict | None:
    staleness = view.now("staleness_mean")
    severity = by_size(staleness, warn=_STALE_WARN, bad=_STALE_BAD)
    if severity is None:
        return None
    return Verdict(
        severity=severity,
        what=f"episodes are on average {staleness:.1f} updates old when they are trained on (the oldest token: "
        f"{view.now('staleness_max') or staleness:.0f}): they are collected more slowly than the learner uses them",
        fix=f"lower training.max_staleness (now {view.config.training.max_staleness}), or shorten the longest "
        "episodes (episodes.deadline_s, episodes.max_turns)",
    )


def importance(view: StepView) -> Verdict | None:
    cut = view.now("importance_cut_fraction")
    severity = by_size(cut, warn=_CUT_WARN, bad=_CUT_BAD)
    if severity is None:
        return None
    exact = (
        "set model.dtype to float32" if may_set(view.config, "model.dtype", "float32") else "set learner.tuning to lora"
    )
    return Verdict(
        severity=severity,
        what=f"the importance weights of {cut:.0%} of tokens are truncated at 2: sampler and learner differ too much "
        "for this correction",
        fix=f"run `mcprl parity RECIPE`; if it finds only rounding error, {exact}",
    )


def few_learnable(view: StepView) -> Verdict | None:
    share, constrain = view.now("learnable_share"), view.config.sampling.constrain
    if share is None or share >= LEARNABLE_SHARE or constrain == "off":
        return None
    fix = f"sampling.constrain to {'calls, or ' if constrain == 'act' else ''}off (now {constrain})"
    masks = "algorithm.masks to exact (now text), or " if view.config.algorithm.masks == "text" else ""
    return warn(
        f"only {share:.0%} of the sampled tokens carry loss: the grammar decided the others", f"set {masks}{fix}"
    )


def no_gradient(view: StepView) -> Verdict | None:
    norm = view.now("grad_norm")
    if norm is None or norm > _NO_GRADIENT or not view.now("optimiser_steps"):
        return None
    what = "the gradient is 0, although some advantages are not"
    if view.now("active_fraction") == 0.0:
        return bad(
            f"{what}: the clip range or algorithm.ratio_gate excludes every token",
            gentler(view.config) + (", or widen algorithm.ratio_gate" if view.config.algorithm.ratio_gate else ""),
        )
    return bad(f"{what}: the loss does not depend on any trained weight", REPORT)


TRUST_RULES: Rules = {
    "not a number": not_a_number,
    "parity": parity,
    "reference": reference,
    "no gradient": no_gradient,
    "skipped": skipped,
    "stale": stale,
    "importance": importance,
    "few learnable": few_learnable,
}

# The number of groups for comparing two mean rewards. With 24, chance moves a mean by about 0.07.
_ENOUGH_GROUPS, _REWARD_STEPS = 24, (3, 12)
# A drop that chance does not explain: a quarter of the reward range, and half of the best so far.
_COLLAPSE_DROP, _COLLAPSE_SHARE = 0.25, 0.5
# The standard deviation of one sample (a group's mean reward, or whether a call is valid), and the number of samples.
_DEVIATIONS = {"reward": 0.34, "valid_call_rate": 0.5}
_SAMPLES = {"reward": "groups", "valid_call_rate": "calls"}
_LEVEL_STEPS = 5
_SURE = 3.0  # in standard deviations
FIRST_ENTROPIES = 3  # the mean of these is compared with later entropies
# A policy that learns becomes more certain. At a quarter of its first entropy, the members of a group become copies.
_ENTROPY_LOW_WARN, _ENTROPY_LOW_BAD = 0.25, 0.1
# RL does not raise entropy. At twice its first value, something else does.
_ENTROPY_HIGH_WARN, _ENTROPY_HIGH_BAD = 2.0, 4.0
_ENTROPY_RISE = 0.1  # in nats, so that a doubling of a tiny entropy is ignored
# A new value head predicts nothing. After this many steps, it should predict better than the mean return.
_CRITIC_STEPS = 8
# Value targets grow with the rewards, but not threefold in three steps.
_VALUE_LOSS_RISE, _VALUE_LOSS_STEPS, _VALUE_LOSS_NEEDS = 3.0, 3, 8


def reward_window(config: RunConfig) -> int:
    """Return the number of steps over which rewards are averaged: fewer if a step has many groups."""
    low, high = _REWARD_STEPS
    return min(high, max(low, math.ceil(_ENOUGH_GROUPS / config.training.tasks_per_step)))


def reward_collapse(view: StepView) -> Verdict | None:
    best, length = view.past.best_reward, reward_window(view.config)
    rewards = view.past.last("reward", length)
    if view.now("reward") is None or best is None or len(rewards) < length:
        return None
    recent = mean(rewards)
    if best - recent < _COLLAPSE_DROP or recent > _COLLAPSE_SHARE * best:
        return None
    step, curriculum = view.past.best_reward_step, view.config.tasks.order == "curriculum"
    cause = (
        "the tasks became harder, or an update broke the policy"
        if curriculum
        else "an update broke the policy, or it learned bad behavior"
    )
    return Verdict(
        severity=Severity.WARN if curriculum else Severity.BAD,
        what=f"the reward fell from {best:+.2f} at step {step} to {recent:+.2f} (means over {length} steps): {cause}",
        fix=roll_back(view, step, "the best so far"),
    )


def _samples(view: StepView, name: str) -> tuple[float, float] | None:
    """Return a figure of this step, and the number of samples in its average."""
    value, count = view.now(name), view.now(_SAMPLES[name])
    return (value, count) if value is not None and count is not None and count > 0 else None


def note_levels(view: StepView) -> None:
    """Remember the best level so far: the mean over a few steps whose lower confidence bound is highest.

    A single lucky step has a low bound. A step in which the level has fallen does not change what is
    remembered.
    """
    past = view.past
    for name, deviation in _DEVIATIONS.items():
        if (now := _samples(view, name)) is None:
            continue
        past.push(f"{name}_level", now[0])
        past.push(f"{name}_samples", now[1])
        values, counts = past.last(f"{name}_level", _LEVEL_STEPS), past.last(f"{name}_samples", _LEVEL_STEPS)
        if len(values) != len(counts):
            continue
        count, best = sum(counts), past.levels.get(name)
        level = sum(value * (own / count) for value, own in zip(values, counts, strict=True))
        margin = _SURE * deviation
        if best is None or level - margin / math.sqrt(count) > best[0] - margin / math.sqrt(best[1]):
            past.levels[name] = [level, count]


def _fallen_from(view: StepView, name: str) -> tuple[float, float] | None:
    """Return the current figure and its best level if it fell to half or less, and not by chance."""
    now, best = _samples(view, name), view.past.levels.get(name)
    if now is None or best is None:
        return None
    chance = _SURE * _DEVIATIONS[name] * math.sqrt(1.0 / now[1] + 1.0 / best[1])
    drop = best[0] - now[0]
    return (now[0], best[0]) if drop >= max(_COLLAPSE_DROP, chance) and now[0] <= _COLLAPSE_SHARE * best[0] else None


def collapse(view: StepView) -> Verdict | None:
    """Report that an update broke the policy. A single step is enough if the drop is large."""
    fix = roll_back(view, view.past.healthy_step)
    if (calls := _fallen_from(view, "valid_call_rate")) is not None:
        return bad(f"{calls[0]:.0%} of calls are valid, down from {calls[1]:.0%}: an update broke the policy", fix)
    if (reward := _fallen_from(view, "reward")) is not None and reward_collapse(view) is None:
        now, best = reward
        return warn(
            f"the reward of this step is {now:+.2f}, down from a best of {best:+.2f}: an update probably broke the "
            "policy",
            fix,
        )
    return None


def _entropy_against_first(view: StepView) -> tuple[float, float] | None:
    now, first = view.now("entropy"), view.past.first_entropies
    if now is None or len(first) < FIRST_ENTROPIES or mean(first) <= 0:
        return None
    return now, mean(first)


def entropy_collapse(view: StepView) -> Verdict | None:
    compared = _entropy_against_first(view)
    if compared is None or compared[0] >= _ENTROPY_LOW_WARN * compared[1]:
        return None
    (entropy, first), algorithm = compared, view.config.algorithm
    temperature = view.config.sampling.temperature
    settings = (
        ("algorithm.entropy", algorithm.entropy, algorithm.entropy + 0.001),
        ("algorithm.clip_high", algorithm.clip_high, max(0.28, algorithm.clip_high)),
        ("sampling.temperature", temperature, temperature * 1.2),
    )
    ways = [f"{name} (now {now:g}) to {to:.3g}" for name, now, to in settings if may_set(view.config, name, to)]
    return Verdict(
        severity=Severity.BAD if entropy < _ENTROPY_LOW_BAD * first else Severity.WARN,
        what=f"entropy fell to {entropy:.2g} from {first:.2g} nats per token: the policy is no longer exploring, "
        "and the episodes in a group are becoming identical",
        fix=f"raise {one_of(ways)}" if ways else gentler(view.config),
    )


def entropy_explosion(view: StepView) -> Verdict | None:
    compared = _entropy_against_first(view)
    if compared is None or compared[0] <= _ENTROPY_HIGH_WARN * compared[1] or compared[0] - compared[1] < _ENTROPY_RISE:
        return None
    (now, first), bonus = compared, view.config.algorithm.entropy
    severe = now > _ENTROPY_HIGH_BAD * first
    cause = "the entropy bonus outweighs the rewards" if bonus else "the policy is degenerating"
    lower = f"lower algorithm.entropy (now {bonus:g}), and " if bonus else ""
    return Verdict(
        severity=Severity.BAD if severe else Severity.WARN,
        what=f"entropy rose to {now:.2g} from {first:.2g} nats per token: {cause}",
        fix=lower + (roll_back(view, view.past.healthy_step) if severe else gentler(view.config)),
    )


def critic(view: StepView) -> Verdict | None:
    if not view.config.algorithm.has_critic:
        return None
    explained = view.past.last("explained_variance", _CRITIC_STEPS)
    if view.now("explained_variance") is None or len(explained) < _CRITIC_STEPS or max(explained) >= 0:
        return None
    return warn(
        f"explained variance is {explained[-1]:.2f} and has been below 0 for {_CRITIC_STEPS} steps: the value head "
        "predicts worse than a constant and only adds noise to the advantages",
        "raise algorithm.critic.learning_rate or algorithm.epochs, or set algorithm.advantages to grpo, which needs no "
        "critic",
    )


def value_loss(view: StepView) -> Verdict | None:
    losses = view.past.last("value_loss", WINDOW)
    recent, earlier = losses[-_VALUE_LOSS_STEPS:], losses[:-_VALUE_LOSS_STEPS]
    if view.now("value_loss") is None or len(earlier) < _VALUE_LOSS_NEEDS:
        return None
    if mean(recent) <= _VALUE_LOSS_RISE * median(earlier):
        return None
    return warn(
        f"the value loss rose to {mean(recent):.2g} over the last {_VALUE_LOSS_STEPS} steps, from "
        f"{median(earlier):.2g} before: the value head is diverging, or the rewards changed",
        f"lower algorithm.critic.learning_rate (now {view.config.algorithm.critic.learning_rate:.2g})",
    )


COURSE_RULES: Rules = {
    "collapse": collapse,
    "reward collapse": reward_collapse,
    "entropy collapse": entropy_collapse,
    "entropy explosion": entropy_explosion,
    "critic": critic,
    "value loss": value_loss,
}
# Even as warnings, these mean that the weights that sampled this step became worse.
COLLAPSE_RULES = frozenset({"collapse", "reward collapse"})

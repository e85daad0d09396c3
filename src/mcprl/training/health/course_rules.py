"""Rules about the course of a run: reward and entropy against what they were, and a critic that does not learn."""

from __future__ import annotations

import math
from statistics import median

from mcprl.config import RunConfig
from mcprl.training.health.sight import WINDOW, Rules, Sight, gentler, mean, roll_back
from mcprl.verdicts import Severity, Verdict

__all__ = ["COLLAPSE_RULES", "COURSE_RULES", "FIRST_ENTROPIES", "note_levels", "reward_window"]

# Groups that a mean reward needs before two of them can be compared: with 24, chance moves it by about 0.07.
_ENOUGH_GROUPS, _REWARD_STEPS = 24, (3, 12)
# A quarter of the way from doing nothing to a perfect episode, and half of what had been reached: no chance does both.
_COLLAPSE_DROP, _COLLAPSE_SHARE = 0.25, 0.5
# Of one sample: a group's mean reward, and a call that is valid or not.
_DEVIATIONS = {"reward": 0.34, "valid_call_rate": 0.5}
_SAMPLES = {"reward": "groups", "valid_call_rate": "calls"}
_LEVEL_STEPS = 5
_SURE = 3.0  # standard deviations
FIRST_ENTROPIES = 3  # their mean is what later ones are compared with
# A policy that learns gets surer of itself; at a quarter of its first entropy the members of a group become copies.
_ENTROPY_LOW_WARN, _ENTROPY_LOW_BAD = 0.25, 0.1
# Reinforcement does not spread a policy out. At twice its first entropy, something else pulls at it.
_ENTROPY_HIGH_WARN, _ENTROPY_HIGH_BAD = 2.0, 4.0
_ENTROPY_RISE = 0.1  # nats: twice next to nothing is still next to nothing
# A new value head predicts nothing yet; after so many steps it should beat the mean of the returns.
_CRITIC_STEPS = 8
# Targets grow with the rewards, but not threefold over three steps.
_VALUE_LOSS_RISE, _VALUE_LOSS_STEPS, _VALUE_LOSS_NEEDS = 3.0, 3, 8


def reward_window(config: RunConfig) -> int:
    """Steps over which rewards are averaged: few where a step has many groups."""
    low, high = _REWARD_STEPS
    return min(high, max(low, math.ceil(_ENOUGH_GROUPS / config.training.tasks_per_step)))


def reward_collapse(sight: Sight) -> Verdict | None:
    best, length = sight.past.best_reward, reward_window(sight.config)
    rewards = sight.past.last("reward", length)
    if sight.now("reward") is None or best is None or len(rewards) < length:
        return None
    recent = mean(rewards)
    if best - recent < _COLLAPSE_DROP or recent > _COLLAPSE_SHARE * best:
        return None
    curriculum = sight.config.tasks.order == "curriculum"
    return Verdict(
        severity=Severity.WARN if curriculum else Severity.BAD,
        what=f"the reward fell to {recent:+.2f} from {best:+.2f} (means of {length} steps, best at step "
        f"{sight.past.best_reward_step}): "
        + ("harder tasks, or a policy that broke" if curriculum else "the policy broke, or found a way to be worse"),
        fix=roll_back(sight, sight.past.best_reward_step, "the best so far"),
    )


def _samples(sight: Sight, name: str) -> tuple[float, float] | None:
    """A figure of this step and the number of samples that it is a mean of."""
    value, count = sight.now(name), sight.now(_SAMPLES[name])
    return (value, count) if value is not None and count is not None and count > 0 else None


def note_levels(sight: Sight) -> None:
    """Remember the best level so far: the mean over a few steps whose lower confidence bound is the highest.

    A single lucky step has a low bound, and a step that fell never replaces what it is compared with.
    """
    past = sight.past
    for name, deviation in _DEVIATIONS.items():
        if (now := _samples(sight, name)) is None:
            continue
        past.push(f"{name}_level", now[0])
        past.push(f"{name}_samples", now[1])
        values, counts = past.last(f"{name}_level", _LEVEL_STEPS), past.last(f"{name}_samples", _LEVEL_STEPS)
        if len(values) != len(counts):
            continue
        count = sum(counts)
        level = sum(value * (own / count) for value, own in zip(values, counts, strict=True))
        best = past.levels.get(name)
        if best is None or level - _SURE * deviation / math.sqrt(count) > best[0] - _SURE * deviation / math.sqrt(
            best[1]
        ):
            past.levels[name] = [level, count]


def _fallen_from(sight: Sight, name: str) -> tuple[float, float] | None:
    """The figure now and its best level, if it is half of that or less and chance does not explain it."""
    now, best = _samples(sight, name), sight.past.levels.get(name)
    if now is None or best is None:
        return None
    chance = _SURE * _DEVIATIONS[name] * math.sqrt(1.0 / now[1] + 1.0 / best[1])
    drop = best[0] - now[0]
    return (now[0], best[0]) if drop >= max(_COLLAPSE_DROP, chance) and now[0] <= _COLLAPSE_SHARE * best[0] else None


def collapse(sight: Sight) -> Verdict | None:
    """One step is enough to see that an update broke the policy, if the fall is large."""
    if (calls := _fallen_from(sight, "valid_call_rate")) is not None:
        severity, what = Severity.BAD, f"{calls[0]:.0%} of calls are valid, after {calls[1]:.0%} at best"
    elif (reward := _fallen_from(sight, "reward")) is not None and reward_collapse(sight) is None:
        severity, what = Severity.WARN, f"the reward of this step is {reward[0]:+.2f}, after {reward[1]:+.2f} at best"
    else:
        return None
    return Verdict(
        severity=severity,
        what=f"{what}: an update broke the policy",
        fix=roll_back(sight, sight.past.healthy_step, "the last sound one"),
    )


def _entropy_against_first(sight: Sight) -> tuple[float, float] | None:
    now, first = sight.now("entropy"), sight.past.first_entropies
    if now is None or len(first) < FIRST_ENTROPIES or mean(first) <= 0:
        return None
    return now, mean(first)


def entropy_collapse(sight: Sight) -> Verdict | None:
    compared = _entropy_against_first(sight)
    if compared is None or compared[0] >= _ENTROPY_LOW_WARN * compared[1]:
        return None
    now, first = compared
    algorithm = sight.config.algorithm
    return Verdict(
        severity=Severity.BAD if now < _ENTROPY_LOW_BAD * first else Severity.WARN,
        what=f"entropy fell to {now:.2g} from {first:.2g} nats a token: the policy stops exploring, and the members of "
        "a group become copies",
        fix=f"raise algorithm.entropy (now {algorithm.entropy:g}) by 0.001, "
        + (f"algorithm.clip_high (now {algorithm.clip_high:g}) to 0.28, " if algorithm.clip_high < 0.28 else "")
        + f"or sampling.temperature (now {sight.config.sampling.temperature:g})",
    )


def entropy_explosion(sight: Sight) -> Verdict | None:
    compared = _entropy_against_first(sight)
    if compared is None or compared[0] <= _ENTROPY_HIGH_WARN * compared[1] or compared[0] - compared[1] < _ENTROPY_RISE:
        return None
    now, first = compared
    bad = now > _ENTROPY_HIGH_BAD * first
    bonus = sight.config.algorithm.entropy
    return Verdict(
        severity=Severity.BAD if bad else Severity.WARN,
        what=f"entropy rose to {now:.2g} from {first:.2g} nats a token: "
        + ("the bonus outweighs the rewards" if bonus else "the policy comes apart"),
        fix=(f"lower algorithm.entropy (now {bonus:g}), and " if bonus else "")
        + (roll_back(sight, sight.past.healthy_step, "the last sound one") if bad else gentler(sight.config)),
    )


def critic(sight: Sight) -> Verdict | None:
    explained = sight.past.last("explained_variance", _CRITIC_STEPS)
    if sight.now("explained_variance") is None or len(explained) < _CRITIC_STEPS or max(explained) >= 0:
        return None
    return Verdict(
        severity=Severity.WARN,
        what=f"explained variance is {explained[-1]:.2f}, below 0 for {_CRITIC_STEPS} steps: the value head predicts "
        "worse than a constant, and adds noise to every advantage",
        fix="raise algorithm.critic.learning_rate or algorithm.epochs, or set algorithm.advantages to grpo, which "
        "needs no critic",
    )


def value_loss(sight: Sight) -> Verdict | None:
    losses = sight.past.last("value_loss", WINDOW)
    recent, earlier = losses[-_VALUE_LOSS_STEPS:], losses[:-_VALUE_LOSS_STEPS]
    if sight.now("value_loss") is None or len(earlier) < _VALUE_LOSS_NEEDS:
        return None
    if mean(recent) <= _VALUE_LOSS_RISE * median(earlier):
        return None
    return Verdict(
        severity=Severity.WARN,
        what=f"the value loss rises: {mean(recent):.2g} over the last {_VALUE_LOSS_STEPS} steps, {median(earlier):.2g} "
        "before; the value head diverges, or the rewards changed",
        fix=f"lower algorithm.critic.learning_rate (now {sight.config.algorithm.critic.learning_rate:.2g})",
    )


COURSE_RULES: Rules = {
    "collapse": collapse,
    "reward collapse": reward_collapse,
    "entropy collapse": entropy_collapse,
    "entropy explosion": entropy_explosion,
    "critic": critic,
    "value loss": value_loss,
}
# Even as warnings they say that the weights which sampled this step are no longer what they were.
COLLAPSE_RULES = frozenset({"collapse", "reward collapse"})

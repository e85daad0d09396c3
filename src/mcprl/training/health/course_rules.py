"""Rules about the course of a run: reward and entropy against what they were, and a critic that does not learn."""

from __future__ import annotations

import math
from statistics import median

from mcprl.config import RunConfig
from mcprl.training.health.sight import WINDOW, Rules, Sight, gentler, mean, roll_back
from mcprl.verdicts import Severity, Verdict

__all__ = ["COURSE_RULES", "FIRST_ENTROPIES", "reward_window"]

# Groups that a mean reward needs before two of them can be compared: with 24, chance moves it by about 0.07.
_ENOUGH_GROUPS, _REWARD_STEPS = 24, (3, 12)
# A quarter of the way from doing nothing to a perfect episode, and half of what had been reached: no chance does both.
_COLLAPSE_DROP, _COLLAPSE_SHARE = 0.25, 0.5
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
        fix=f"raise algorithm.entropy (now {algorithm.entropy:g}) by 0.001, algorithm.clip_high (now "
        f"{algorithm.clip_high:g}) to 0.28, or sampling.temperature",
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
    "reward collapse": reward_collapse,
    "entropy collapse": entropy_collapse,
    "entropy explosion": entropy_explosion,
    "critic": critic,
    "value loss": value_loss,
}

"""What is run: the recipe as it is, and one thing about it changed at a time, with the same episodes and updates."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ARMS", "RECIPE", "STEPS", "STEPS_A_ROUND", "TIMED", "TIMED_STEPS", "WARM_STEPS", "Arm"]

RECIPE = "recipes/finance-cpu.yaml"
WARM_STEPS = 4
"""Steps over which the recipe's warm start fades to nothing: evaluated there, it is the warm start alone."""
STEPS = 24
STEPS_A_ROUND = 4
"""Arms that are timed take turns of so many steps: a machine that is slower in one hour is so for all of them. The
first of a turn is not counted: it starts things up, and nothing was collected ahead of it."""
TIMED_STEPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """Arm(name="no-grammar", says="turns are free text", settings=("sampling.constrain=off",))"""

    name: str
    says: str
    settings: tuple[str, ...] = ()


ARMS = {
    arm.name: arm
    for arm in (
        Arm(name="finance", says="the recipe as it is"),
        Arm(name="no-grammar", says="turns are not held to the tools' schemas", settings=("sampling.constrain=off",)),
        Arm(
            name="ppo",
            says="PPO with a value head instead of GRPO",
            settings=("algorithm.advantages=gae",),
        ),
    )
}
"""Evaluated after the warm start and at their end."""

TIMED = (
    Arm(name="timed", says="the recipe as it is"),
    Arm(name="no-sharing", says="prefixes computed once for each episode", settings=("learner.share_prefix=false",)),
    Arm(
        name="async",
        says="the next step is collected during the update",
        settings=("training.max_staleness=1", "algorithm.old_logprobs=recomputed"),
    ),
)
"""Run for their time alone, for fewer steps."""

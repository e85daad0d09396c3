"""What is run: the recipe as it is, and one thing about it changed at a time, with the same episodes and updates."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ARMS", "RECIPE", "STEPS", "WARM_STEPS", "Arm"]

RECIPE = "recipes/finance-cpu.yaml"
WARM_STEPS = 6
"""Steps over which the recipe's warm start fades to nothing: evaluated there, it is the warm start alone."""
STEPS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """Arm(name="no-grammar", says="turns are free text", settings=("sampling.constrain=off",))

    `judged`: evaluated after the warm start and at its end. The others are run for their time alone, for fewer steps.
    """

    name: str
    says: str
    settings: tuple[str, ...] = ()
    steps: int = STEPS
    judged: bool = True


_TIMED_STEPS = 8

ARMS = {
    arm.name: arm
    for arm in (
        Arm(name="finance", says="the recipe as it is"),
        Arm(name="no-grammar", says="turns are not held to the tools' schemas", settings=("sampling.constrain=off",)),
        Arm(
            name="ppo",
            says="PPO with a value head instead of GRPO",
            settings=("algorithm.advantages=gae", "algorithm.whiten=true"),
        ),
        Arm(
            name="no-sharing",
            says="prefixes computed once for each episode",
            settings=("learner.share_prefix=false",),
            steps=_TIMED_STEPS,
            judged=False,
        ),
        Arm(
            name="async",
            says="the next step is collected during the update",
            settings=("training.pipeline=async",),
            steps=_TIMED_STEPS,
            judged=False,
        ),
    )
}

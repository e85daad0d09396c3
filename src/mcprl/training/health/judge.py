"""The judge: remembers what rules need of earlier steps, asks every rule, and puts the most severe verdict first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from mcprl.config import RunConfig
from mcprl.episodes.losses import LossLedger
from mcprl.records import AbandonedGroup, Group
from mcprl.training.health.bars import KL_WARN
from mcprl.training.health.course_rules import COURSE_RULES, FIRST_ENTROPIES, reward_window
from mcprl.training.health.episode_rules import EPISODE_RULES, count_dead_groups
from mcprl.training.health.sight import Past, Rules, Sight, mean
from mcprl.training.health.step_rules import STEP_RULES
from mcprl.training.health.trust_rules import TRUST_RULES
from mcprl.verdicts import GRAVEST_FIRST, Severity, Verdict

__all__ = ["RULES", "Health"]

# Causes stand before what follows from them: of equally severe verdicts the first is shown first.
RULES: Rules = {**TRUST_RULES, **EPISODE_RULES, **COURSE_RULES, **STEP_RULES}

_REMEMBERED = ("reward", "valid_call_rate", "explained_variance", "value_loss")


class Health:
    """Judges the steps of a run, one after the other."""

    KEPT_STEPS = ("best_reward_step", "healthy_step")

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._past = Past()
        self._losses = LossLedger()

    @property
    def steps_to_return_to(self) -> set[int]:
        """The steps that advice may name: that of the best reward, and the last one that was sound."""
        return {step for name in self.KEPT_STEPS if (step := getattr(self._past, name)) is not None}

    def note_losses(self, groups: Sequence[Group], abandoned: Sequence[AbandonedGroup]) -> None:
        """What was played in the step that is judged next, and what was lost."""
        self._losses.add(groups, abandoned)

    def judge(self, metrics: Mapping[str, float], skipped: str | None = None) -> tuple[Verdict, ...]:
        """The verdicts on the next step, the most severe first; a single one, OK, where nothing is wrong.

        A metric that is missing is not known, and rules about it are silent. `skipped` says why no update was made.
        """
        past = self._past
        past.steps += 1
        correlations = self._losses.correlations()
        sight = Sight(config=self._config, metrics=metrics, past=past, skipped=skipped, lost_with=correlations)
        _remember(sight)
        found = [replace(verdict, name=name) for name, rule in RULES.items() if (verdict := rule(sight)) is not None]
        kl = sight.now("kl")
        if kl is not None and kl < KL_WARN and all(verdict.severity is not Severity.BAD for verdict in found):
            past.healthy_step = past.steps
        if not found:
            return (Verdict(severity=Severity.OK, name="healthy", what="healthy: no rule found anything", fix=""),)
        return tuple(sorted(found, key=lambda verdict: GRAVEST_FIRST.index(verdict.severity)))

    def state(self) -> dict[str, Any]:
        """All that is remembered, as numbers, lists and dictionaries that JSON can hold."""
        return asdict(self._past)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, as if its steps had been judged here."""
        restored = Past(**state)
        restored.first_entropies = list(restored.first_entropies)
        restored.windows = {name: list(values) for name, values in restored.windows.items()}
        self._past = restored


def _remember(sight: Sight) -> None:
    past = sight.past
    for name in _REMEMBERED:
        if (value := sight.now(name)) is not None:
            past.push(name, value)
    past.push("skipped", float(sight.was_skipped))
    # A gradient of 0 is a step without signal; it would pull down the usual size of the others.
    if (norm := sight.now("grad_norm")) is not None and norm > 0:
        past.push("grad_norm", norm)
    positive, negative = sight.now("ratio_mean_positive"), sight.now("ratio_mean_negative")
    if positive is not None and negative is not None:
        past.push("ratio_gap", positive - negative)
    if (counted := count_dead_groups(sight)) is not None:
        past.push("groups_dead", counted[0])
        past.push("groups_played", counted[1])
    # Imitation makes a policy surer of itself, as it should: what counts is the entropy that reinforcement starts from.
    imitates = (sight.now("demonstration_weight") or 0.0) > 0
    entropy = sight.now("entropy")
    if entropy is not None and not imitates and len(past.first_entropies) < FIRST_ENTROPIES:
        past.first_entropies.append(entropy)
    length = reward_window(sight.config)
    rewards = past.last("reward", length)
    if len(rewards) < length or not math.isfinite(average := mean(rewards)):
        return
    if past.best_reward is None or average >= past.best_reward:
        past.best_reward, past.best_reward_step = average, past.steps

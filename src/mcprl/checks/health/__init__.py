"""Health: rules that judge the metrics of each step. A verdict gives the metric, a likely cause and what to try next.

`rules` has the rules about episodes and about how far an update moved the policy. `trends` has the rules about whether
the numbers can be trusted, and about changes over the run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from mcprl.checks.health.rules import EPISODE_RULES, STEP_RULES, count_dead_groups
from mcprl.checks.health.trends import (
    COLLAPSE_RULES,
    COURSE_RULES,
    FIRST_ENTROPIES,
    TRUST_RULES,
    note_levels,
    reward_window,
)
from mcprl.checks.health.view import Past, Rules, StepView
from mcprl.config import RunConfig
from mcprl.verdicts import GRAVEST_FIRST, KL_WARN, Severity, Verdict, mean

__all__ = ["RULES", "Health"]

# Causes come before their effects: among equally severe verdicts, the first is shown first.
RULES: Rules = {**TRUST_RULES, **EPISODE_RULES, **COURSE_RULES, **STEP_RULES}

# More steps than any sensible max_staleness, so that no candidate is dropped before it is judged.
_MOST_CANDIDATES = 64
_REMEMBERED = ("reward", "valid_call_rate", "explained_variance", "value_loss")


class Health:
    """Judges the steps of a run, one after the other. `has_solutions` means that some tasks have a solution."""

    def __init__(self, config: RunConfig, *, has_solutions: bool = True) -> None:
        self._config = config
        self._has_solutions = has_solutions
        self._past = Past()

    @staticmethod
    def most_kept(config: RunConfig) -> int:
        """Return how many checkpoints to keep besides the newest one, because a verdict may suggest one of them."""
        return 2 + config.training.max_staleness

    @property
    def steps_to_return_to(self) -> set[int]:
        """Return the steps that a verdict may suggest going back to: the best, the last healthy, and the candidates."""
        past = self._past
        known = {step for step in (past.best_reward_step, past.healthy_step) if step is not None}
        return known | {int(candidate[0]) for candidate in past.candidates}

    def judge(self, metrics: Mapping[str, float], skipped: str | None = None) -> tuple[Verdict, ...]:
        """Return the verdicts on the next step, most severe first; a single OK if nothing is wrong.

        Rules ignore metrics that are missing. `skipped` is the reason if no update was made.
        """
        past = self._past
        past.steps += 1
        view = StepView(
            config=self._config, metrics=metrics, past=past, skipped=skipped, has_solutions=self._has_solutions
        )
        judged = _judged_candidates(view)
        _remember(view)
        of_weights = _verdicts(view, {**EPISODE_RULES, **COURSE_RULES})
        _note_soundness(view, judged, of_weights)
        of_update = _verdicts(view, {**TRUST_RULES, **STEP_RULES})
        _note_candidate(view, of_update)
        found = [verdict for name in RULES if (verdict := of_weights.get(name) or of_update.get(name)) is not None]
        if not found:
            return (Verdict(severity=Severity.OK, name="healthy", what="healthy: no rule found a problem", fix=""),)
        return tuple(sorted(found, key=lambda verdict: GRAVEST_FIRST.index(verdict.severity)))

    def state(self) -> dict[str, Any]:
        """Return what is remembered of earlier steps, as numbers, lists and dictionaries for JSON."""
        return asdict(self._past)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state, as if this object had judged its steps."""
        self._past = Past(**asdict(Past(**state)))  # asdict copies, so the caller's state does not change


def _verdicts(view: StepView, rules: Rules) -> dict[str, Verdict]:
    found = {name: rule(view) for name, rule in rules.items()}
    return {name: replace(verdict, name=name) for name, verdict in found.items() if verdict is not None}


def _judged_candidates(view: StepView) -> list[list[float]]:
    """Return the candidate steps whose weights are no newer than the oldest weights that sampled this step."""
    past = view.past
    sampled_by = past.updates - (view.now("staleness_max") or 0.0)
    judged = [candidate for candidate in past.candidates if candidate[1] <= sampled_by]
    if judged:
        past.judged_step = int(judged[-1][0])
    return judged


def _note_soundness(view: StepView, judged: Sequence[list[float]], of_weights: Mapping[str, Verdict]) -> None:
    """Use a step's episodes to judge the weights that sampled them. If the weights are broken, drop all candidates."""
    past = view.past
    broken = any(verdict.severity is Severity.BAD for verdict in of_weights.values())
    if broken or COLLAPSE_RULES & of_weights.keys():
        past.candidates.clear()
        return
    past.candidates = [candidate for candidate in past.candidates if candidate not in judged]
    if judged and view.now("reward") is not None:
        past.healthy_step = int(judged[-1][0])
        past.sound_rate = max(past.sound_rate or 0.0, *(candidate[2] for candidate in judged))


def _note_candidate(view: StepView, of_update: Mapping[str, Verdict]) -> None:
    """Make the step a candidate to return to, if it has a checkpoint and its update was healthy."""
    past, training = view.past, view.config.training
    past.updates += not view.was_skipped
    saved = past.steps % training.checkpoint_every == 0 or past.steps == training.steps
    distances = [view.now("kl"), view.now("kl_update") or 0.0]
    moved_little = all(distance is not None and distance < KL_WARN for distance in distances)
    broken = any(verdict.severity is Severity.BAD for verdict in of_update.values())
    if saved and (view.was_skipped or (moved_little and not broken)):
        past.candidates.append([past.steps, past.updates, view.now("learning_rate") or 0.0])
        del past.candidates[:-_MOST_CANDIDATES]


def _remember(view: StepView) -> None:
    past = view.past
    for name in _REMEMBERED:
        past.push(name, view.now(name))
    past.push("skipped", float(view.was_skipped))
    # A gradient of 0 means a step without signal. It would lower the median.
    if (norm := view.now("grad_norm")) is not None and norm > 0:
        past.push("grad_norm", norm)
    positive, negative = view.now("ratio_mean_positive"), view.now("ratio_mean_negative")
    if positive is not None and negative is not None:
        past.push("ratio_gap", positive - negative)
    if (counted := count_dead_groups(view)) is not None:
        past.push("groups_dead", counted[0])
        past.push("groups_played", counted[1])
    # Imitation lowers entropy on purpose, so later steps are compared with the entropy at the start of RL.
    imitates, entropy = (view.now("demonstration_weight") or 0.0) > 0, view.now("entropy")
    if entropy is not None and not imitates and len(past.first_entropies) < FIRST_ENTROPIES:
        past.first_entropies.append(entropy)
    note_levels(view)
    length = reward_window(view.config)
    rewards = past.last("reward", length)
    if len(rewards) < length or not math.isfinite(average := mean(rewards)):
        return
    if past.best_reward is None or average >= past.best_reward:
        past.best_reward, past.best_reward_step = average, past.judged_step

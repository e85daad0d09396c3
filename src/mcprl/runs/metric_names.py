"""Every name that a step's line of metrics.jsonl may have: its unit, when it is there, and what it says.

docs/metrics.md is made of this table. A test holds it against the code that writes metrics: no name is missing here,
and none is explained that nobody writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = ["METRICS", "Metric", "MetricSection", "Written", "metric_named"]


class Written(StrEnum):
    """In which steps a metric is written."""

    ALWAYS = "every step"
    LEARNT = "where tokens were scored"
    FRESH = "where the newest weights sampled tokens"
    REFERENCE = "with a reference policy"
    CAP = "with `algorithm.kl.cap`"
    CRITIC = "with a value head"
    RECOMPUTED = "with `algorithm.old_logprobs: recomputed`"
    SHOWN = "while there are demonstrations"
    GPU = "with an NVIDIA driver"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A name, or a pattern whose last word in capitals stands for others, with what it says.

    Metric(name="kl", unit="nats", written=Written.LEARNT, says="How far the policy moved …")
    Metric(name="stop_REASON", unit="share", written=Written.ALWAYS, says="Episodes that ended for that reason …")
    """

    name: str
    unit: str
    written: Written
    says: str

    @property
    def prefix(self) -> str | None:
        """What every name of a pattern begins with: "stop_" for stop_REASON. None where the name is one."""
        kept = self.name.rstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
        return kept if kept != self.name else None

    def covers(self, name: str) -> bool:
        """Whether a step's `name` is explained by this row."""
        return name == self.name if self.prefix is None else name.startswith(self.prefix) and name != self.prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSection:
    """Metrics that are read together."""

    title: str
    about: str
    metrics: tuple[Metric, ...]


def metric_named(name: str) -> Metric | None:
    """The row that explains a name; None where no row does.

    >>> metric_named("stop_turn_limit").name
    'stop_REASON'
    """
    return next((one for section in METRICS for one in section.metrics if one.covers(name)), None)


def _rows(written: Written, *rows: tuple[str, str, str]) -> tuple[Metric, ...]:
    return tuple(Metric(name=name, unit=unit, written=written, says=says) for name, unit, says in rows)


_EPISODES: Final = MetricSection(
    title="Episodes",
    about=(
        "What the policy did, over all episodes that the step played. Attempts lost to the infrastructure are counted,"
        " and are in no mean."
    ),
    metrics=_rows(
        Written.ALWAYS,
        ("reward", "reward", "Mean reward."),
        ("success_rate", "share", "Episodes that solved their task."),
        (
            "reward_part_PART",
            "reward",
            "A part of the reward before weights, averaged over the episodes whose goal checks it; a penalty, such as"
            " `invalid_call`, is a mean count.",
        ),
        ("stop_REASON", "share", "Episodes that ended for that reason; the shares of all reasons add up to 1."),
        ("episodes", "count", "Episodes played to their end."),
        ("episodes_lost_to_infrastructure", "count", "Attempts that the infrastructure failed; they were run again."),
        ("lost_CODE", "count", "Of these, those lost to the error of that code, which mcprl explain tells more about."),
        ("turns_per_episode", "turns", "Mean number of turns."),
        ("turns_with_call_rate", "share", "Turns in which the policy made a call."),
        ("calls", "count", "Calls that the policy made, valid or not."),
        ("calls_injected", "count", "Calls that were made to fail on purpose."),
        ("valid_call_rate", "share", "Calls that a tool accepted, injected failures left out."),
        ("tool_latency_mean_s", "seconds", "Mean time from a call to its answer, injected failures left out."),
        ("sampled_tokens", "tokens", "Tokens that the policy sampled."),
        ("context_tokens", "tokens", "All others: prompts, tool definitions, results, template."),
    ),
)

_GROUPS: Final = MetricSection(
    title="Groups",
    about="Groups are compared within themselves: one whose members all earn the same teaches nothing.",
    metrics=_rows(
        Written.ALWAYS,
        ("groups", "count", "Groups that were played."),
        ("groups_without_variance", "count", "Groups whose members all have the same reward."),
        ("groups_dropped", "count", "Groups left out of the batch, with `algorithm.refill_rounds`."),
        ("groups_refilled", "count", "Groups of the batch that stand in for those."),
        ("refill_rounds", "count", "Rounds of other tasks that this took."),
    ),
)

_TOKENS: Final = MetricSection(
    title="Tokens of the batch",
    about="What the tokens of the batch are, and which of them carry loss.",
    metrics=(
        *_rows(
            Written.ALWAYS,
            ("sampled_share", "share", "Of all tokens, those that the policy sampled."),
            ("forced_share", "share", "Of the sampled, those where the grammar admitted one token only."),
            ("fixed_text_share", "share", "Of the sampled, those where it admitted one text, in several tokens."),
            ("learnable_tokens", "tokens", "Tokens that carry loss."),
            ("learnable_share", "share", "Of the sampled, those that carry loss."),
            ("staleness_mean", "versions", "By how much the weights that sampled a token are behind the newest."),
            ("staleness_max", "versions", "The same, of the oldest token."),
        ),
        *_rows(
            Written.LEARNT,
            ("alignment", "share", "Tokens trained on that are, id by id, those sampled; below 1 the run stops."),
        ),
    ),
)

_PARITY: Final = MetricSection(
    title="Parity of sampler and learner",
    about=(
        "What the two say about the same tokens before the batch has moved the weights. Only tokens that the learner's"
        " present weights sampled are compared; about older ones the two rightly differ."
    ),
    metrics=(
        *_rows(Written.LEARNT, ("parity_tokens", "tokens", "Tokens that could be compared.")),
        *_rows(
            Written.FRESH,
            ("parity_logprob_max_abs_error", "nats", "Largest difference of a logprob."),
            ("parity_logprob_mean_abs_error", "nats", "Mean difference of a logprob, without sign."),
            ("parity_ratio_mean", "ratio", "Mean of learner's over sampler's probability; 1 on-policy."),
            ("parity_ratio_mean_abs_error", "ratio", "Mean distance of that ratio from 1."),
            ("parity_kl", "nats", "KL of the sampler to the learner, by the k3 estimate."),
            ("parity_outside_share", "share", "Tokens whose ratio is outside of 0.9 to 1.1."),
        ),
    ),
)

_UPDATE: Final = MetricSection(
    title="The update",
    about=(
        "What learning from the batch did. Figures over tokens are over those that carry loss, each taken when its"
        " minibatch was scored, so later ones see the policy after the steps before them."
    ),
    metrics=(
        *_rows(
            Written.ALWAYS,
            ("update_skipped", "1 or 0", "1 where the weights stayed as they were; a verdict says why."),
            ("learning_rate", "rate", "That of the policy, at the beginning of the update."),
            ("nonfinite", "1 or 0", "1 where the update met something that is no number, and was undone."),
            ("nonfinite_in_a_row", "count", "Updates in a row that did; at the third the run stops."),
            ("weights_version", "version", "The newest weights after the step."),
        ),
        *_rows(
            Written.LEARNT,
            ("loss", "loss", "What was minimised, in the mean over the minibatches."),
            ("policy_loss", "loss", "The policy's part of it."),
            ("optimiser_steps", "count", "Optimiser steps made."),
            ("optimiser_steps_over_cap", "count", "Steps not made: KL to the reference was above `algorithm.kl.cap`."),
            ("minibatches_without_signal", "count", "Minibatches in which nothing moves the weights."),
            (
                "grad_norm",
                "norm",
                "Of the gradient before it is clipped, in the mean over the steps; not there where the engine does not"
                " tell it.",
            ),
            ("entropy", "nats", "Mean entropy of the policy at a token; the SkyRL engine estimates it."),
            ("kl", "nats", "How far the policy is from the one that sampled, a token, by the k3 estimate."),
            ("kl_unmasked", "nats", "The same sum over all sampled tokens, forced ones included."),
            ("ratio_mean", "ratio", "Mean of new over old probability of a token."),
            ("ratio_std", "ratio", "Standard deviation of that ratio."),
            ("ratio_p10", "ratio", "A tenth of the ratios are below."),
            ("ratio_p50", "ratio", "Half of the ratios are below."),
            ("ratio_p90", "ratio", "Nine tenths of the ratios are below."),
            ("ratio_mean_positive", "ratio", "Mean ratio of tokens with a positive advantage; should rise above 1."),
            ("ratio_mean_negative", "ratio", "Mean ratio of tokens with a negative advantage; should fall below 1."),
            ("clipped_fraction", "share", "Tokens whose gradient the clip cuts off."),
            ("active_fraction", "share", "Tokens that move the weights: an advantage other than 0, and not clipped."),
            ("gated_fraction", "share", "Tokens that `algorithm.ratio_gate` leaves out; 0 without one."),
        ),
    ),
)

_OPTIONAL: Final = MetricSection(
    title="Parts of the objective that are not always in use",
    about="Each is there only where the recipe asks for that part.",
    metrics=(
        *_rows(
            Written.REFERENCE,
            ("kl_reference", "nats", "How far the policy is from the reference, a token."),
            ("kl_loss", "loss", "The penalty for that; not with `algorithm.kl.estimator: k1`."),
            ("kl_coefficient", "factor", "What the penalty was weighted with; moves where there is a target."),
            ("reference_synced", "1 or 0", "1 where the reference took over the policy in this step."),
            ("reference_tensors_differing", "count", "Tensors that still differed then: 0. Only where it was synced."),
        ),
        *_rows(
            Written.CAP,
            (
                "kl_update",
                "nats",
                "How far the whole update moved the policy, per token, measured after it.",
            ),
            ("update_undone", "1 or 0", "1 if that, or the distance to the reference, was above the cap."),
        ),
        *_rows(
            Written.CRITIC,
            ("value_loss", "loss", "How far the value head is from the returns."),
            ("explained_variance", "share", "Of the returns' variance, what the value head foresees; may be below 0."),
        ),
        *_rows(
            Written.RECOMPUTED,
            ("importance_mean", "ratio", "Mean weight that corrects for what sampler and learner compute differently."),
            ("importance_cut_fraction", "share", "Tokens whose weight reached `algorithm.max_importance`."),
        ),
        *_rows(
            Written.SHOWN,
            ("imitation_loss", "loss", "Mean minus logprob of a token of the demonstrations, before its weight."),
            ("demonstration_weight", "factor", "The weight of that loss in this step."),
        ),
    ),
)

_TIME: Final = MetricSection(
    title="Time",
    about="Where a step's time goes. With `training.max_staleness` above 0, collecting and learning overlap.",
    metrics=_rows(
        Written.ALWAYS,
        ("step_s", "seconds", "From the end of the last update to the end of this one."),
        ("collect_s", "seconds", "From opening the step to its last episode."),
        ("wait_s", "seconds", "What of that the learner waited for."),
        ("update_s", "seconds", "Learning from the batch, writing the weights included."),
        ("replay_s", "seconds", "Of `update_s`: replaying the grammar over the sampled tokens."),
        ("save_s", "seconds", "What the last checkpoint before this took; 0 while there is none."),
        ("sampled_tokens_per_second", "tokens/s", "`sampled_tokens` over `collect_s`."),
        ("sampler_idle_share", "share", "Of `step_s`, when no turn was being sampled."),
        ("learner_idle_share", "share", "Of `step_s`, when the learner neither read episodes nor updated."),
    ),
)

_MACHINE: Final = MetricSection(
    title="Machine and servers",
    about="What the run took of its machine when the step ended.",
    metrics=(
        *_rows(
            Written.ALWAYS,
            ("server_restarts", "count", "Restarts of tool servers since the process began."),
            ("sampler_restarts", "count", "Restarts of the sampler since the process began."),
            ("memory_trainer_gib", "GiB", "Memory of the run's own process."),
            ("memory_children_gib", "GiB", "Memory of all processes that it started."),
            ("memory_free_gib", "GiB", "Memory that the machine has left."),
            ("cpu_load", "processes", "Processes that wanted a core, over the last minute."),
        ),
        *_rows(
            Written.GPU,
            ("gpu_memory_gib", "GiB", "Memory in use, of all GPUs together."),
            ("gpu_memory_total_gib", "GiB", "Memory that they have."),
            ("gpu_busy_share", "share", "Of the last moment, when they computed; the mean over the GPUs."),
            ("gpu_silent", "1 or 0", "1, and none of the three above, where the driver's program does not tell."),
        ),
    ),
)

METRICS: Final[Sequence[MetricSection]] = (
    _EPISODES,
    _GROUPS,
    _TOKENS,
    _PARITY,
    _UPDATE,
    _OPTIONAL,
    _TIME,
    _MACHINE,
)
"""All of them, in the order in which a reader asks."""

"""Every metric that a line of metrics.jsonl may have: its unit, when it is written, and its meaning.

docs/metrics.md is generated from this table. A test compares it with the metrics that the code writes.
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
    LEARNT = "if tokens were scored"
    FRESH = "if the newest weights sampled tokens"
    REFERENCE = "with a reference policy"
    CAP = "with `algorithm.kl.cap`"
    CRITIC = "with a value head"
    RECOMPUTED = "with `algorithm.old_logprobs: recomputed`"
    SHOWN = "while there are demonstrations"
    GPU = "with an NVIDIA driver"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric, or a family of metrics whose name ends in a placeholder in capitals.

    Metric(name="kl", unit="nats", written=Written.LEARNT, says="How far the policy moved …")
    Metric(name="stop_REASON", unit="share", written=Written.ALWAYS, says="Episodes that ended for that reason …")
    """

    name: str
    unit: str
    written: Written
    says: str

    @property
    def prefix(self) -> str | None:
        """The common prefix of a family: "stop_" for stop_REASON. None for a single metric."""
        kept = self.name.rstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
        return kept if kept != self.name else None

    def covers(self, name: str) -> bool:
        """Whether this row describes the metric `name`."""
        return name == self.name if self.prefix is None else name.startswith(self.prefix) and name != self.prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSection:
    """Metrics that are read together."""

    title: str
    about: str
    metrics: tuple[Metric, ...]


def metric_named(name: str) -> Metric | None:
    """The row that describes a metric, if there is one.

    >>> metric_named("stop_turn_limit").name
    'stop_REASON'
    """
    return next((one for section in METRICS for one in section.metrics if one.covers(name)), None)


def _rows(written: Written, *rows: tuple[str, str, str]) -> tuple[Metric, ...]:
    return tuple(Metric(name=name, unit=unit, written=written, says=says) for name, unit, says in rows)


_EPISODES: Final = MetricSection(
    title="Episodes",
    about=(
        "What the policy did, over all episodes of the step. Attempts lost to the infrastructure are counted, but"
        " are in no mean."
    ),
    metrics=_rows(
        Written.ALWAYS,
        ("reward", "reward", "Mean reward."),
        ("success_rate", "share", "Episodes that solved their task."),
        (
            "reward_part_PART",
            "reward",
            "Mean of a reward part, unweighted, over the episodes whose goal checks it; of a penalty, its count.",
        ),
        ("stop_REASON", "share", "Episodes that ended for that reason; the shares of all reasons add up to 1."),
        ("episodes", "count", "Episodes played to their end."),
        ("episodes_lost_to_infrastructure", "count", "Attempts lost to infrastructure faults; they were run again."),
        ("lost_CODE", "count", "Attempts lost to the error with that code; see `mcprl explain CODE`."),
        ("turns_per_episode", "turns", "Mean number of turns."),
        ("turns_with_call_rate", "share", "Turns in which the policy made a call."),
        ("calls", "count", "Calls that the policy made, valid or not."),
        ("calls_injected", "count", "Calls that failed by error injection."),
        ("valid_call_rate", "share", "Calls that a tool accepted, injected failures left out."),
        ("tool_latency_mean_s", "seconds", "Mean time from a call to its answer, injected failures left out."),
        ("sampled_tokens", "tokens", "Tokens that the policy sampled."),
        ("context_tokens", "tokens", "All other tokens: prompts, tool definitions, results, template."),
    ),
)

_GROUPS: Final = MetricSection(
    title="Groups",
    about="Advantages are relative to the group: if all members have the same reward, the group teaches nothing.",
    metrics=_rows(
        Written.ALWAYS,
        ("groups", "count", "Groups that were played."),
        ("groups_without_variance", "count", "Groups whose members all have the same reward."),
        ("groups_dropped", "count", "Groups left out of the batch, with `algorithm.dead_groups: refill`."),
        ("groups_refilled", "count", "Groups of the batch that replace these."),
        ("refill_rounds", "count", "Rounds of refilling."),
    ),
)

_TOKENS: Final = MetricSection(
    title="Tokens of the batch",
    about="Where the tokens of the batch come from, and which of them carry loss.",
    metrics=(
        *_rows(
            Written.ALWAYS,
            ("sampled_share", "share", "Sampled tokens, of all tokens."),
            ("forced_share", "share", "Of the sampled tokens, those where the grammar allowed only one token."),
            ("fixed_text_share", "share", "Of the sampled tokens, those where it allowed several, all of one text."),
            ("learnable_tokens", "tokens", "Tokens that carry loss."),
            ("learnable_share", "share", "Of the sampled tokens, those that carry loss."),
            ("staleness_mean", "versions", "How many versions the weights that sampled a token are behind the newest."),
            ("staleness_max", "versions", "The same for the oldest token."),
        ),
        *_rows(
            Written.LEARNT,
            ("alignment", "share", "Trained token ids that equal the sampled ones; below 1 the run stops."),
        ),
    ),
)

_PARITY: Final = MetricSection(
    title="Parity of sampler and learner",
    about=(
        "Logprobs of sampler and learner for the same tokens, before the update. Only tokens sampled from the learner's"
        " current weights are compared; for older ones a difference is expected."
    ),
    metrics=(
        *_rows(Written.LEARNT, ("parity_tokens", "tokens", "Tokens that could be compared.")),
        *_rows(
            Written.FRESH,
            ("parity_logprob_max_abs_error", "nats", "Largest difference of a logprob."),
            ("parity_logprob_mean_abs_error", "nats", "Mean absolute difference of a logprob."),
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
        "The update from the batch. Figures over tokens cover those that carry loss, each measured when its"
        " minibatch was scored, that is, after the optimiser steps before it."
    ),
    metrics=(
        *_rows(
            Written.ALWAYS,
            ("update_skipped", "1 or 0", "1 if the weights did not change; a verdict says why."),
            ("learning_rate", "rate", "Of the policy, at the start of the update."),
            ("nonfinite", "1 or 0", "1 if the update hit NaN or Inf and was rolled back."),
            ("nonfinite_in_a_row", "count", "Consecutive updates that did; at the third the run stops."),
            ("weights_version", "version", "The newest weights after the step."),
        ),
        *_rows(
            Written.LEARNT,
            ("loss", "loss", "The total loss, mean over the minibatches."),
            ("policy_loss", "loss", "The policy's part of it."),
            ("optimiser_steps", "count", "Optimiser steps made."),
            ("optimiser_steps_over_cap", "count", "Steps skipped: KL to the reference was above `algorithm.kl.cap`."),
            ("minibatches_without_signal", "count", "Minibatches in which all advantages are 0."),
            ("grad_norm", "norm", "Mean gradient norm before clipping, if the engine reports it."),
            ("entropy", "nats", "Mean entropy of the policy at a token; the SkyRL engine estimates it."),
            ("kl", "nats", "KL per token to the policy that sampled, by the k3 estimate."),
            ("kl_unmasked", "nats", "The same sum over all sampled tokens, forced ones included."),
            ("ratio_mean", "ratio", "Mean of new over old probability of a token."),
            ("ratio_std", "ratio", "Standard deviation of that ratio."),
            ("ratio_p10", "ratio", "10th percentile of the ratios."),
            ("ratio_p50", "ratio", "Median of the ratios."),
            ("ratio_p90", "ratio", "90th percentile of the ratios."),
            ("ratio_mean_positive", "ratio", "Mean ratio of tokens with a positive advantage; should rise above 1."),
            ("ratio_mean_negative", "ratio", "Mean ratio of tokens with a negative advantage; should fall below 1."),
            ("clipped_fraction", "share", "Tokens whose gradient is clipped to 0."),
            ("active_fraction", "share", "Tokens that move the weights: an advantage other than 0, and not clipped."),
            ("gated_fraction", "share", "Tokens excluded by `algorithm.ratio_gate`; 0 without one."),
        ),
    ),
)

_OPTIONAL: Final = MetricSection(
    title="Optional parts of the objective",
    about="Written only if the recipe uses that part.",
    metrics=(
        *_rows(
            Written.REFERENCE,
            ("kl_reference", "nats", "KL per token to the reference."),
            ("kl_loss", "loss", "The KL penalty; only with `algorithm.kl.place: loss`."),
            ("kl_coefficient", "factor", "Weight of the penalty; adaptive if there is a target."),
            ("reference_synced", "1 or 0", "1 if the reference was set to the policy in this step."),
            ("reference_tensors_differing", "count", "Tensors that differed after that: 0. Only if it was synced."),
        ),
        *_rows(
            Written.CAP,
            ("kl_update", "nats", "KL per token between the policy before and after the update."),
            ("update_undone", "1 or 0", "1 if that, or KL to the reference, was above the cap."),
        ),
        *_rows(
            Written.CRITIC,
            ("value_loss", "loss", "Loss of the value head against the returns."),
            ("explained_variance", "share", "Variance of the returns that the value head explains; may be below 0."),
        ),
        *_rows(
            Written.RECOMPUTED,
            ("importance_mean", "ratio", "Mean importance weight between sampler and learner."),
            ("importance_cut_fraction", "share", "Tokens whose weight reached `algorithm.max_importance`."),
        ),
        *_rows(
            Written.SHOWN,
            ("imitation_loss", "loss", "Mean negative logprob of a demonstration token, unweighted."),
            ("demonstration_weight", "factor", "The weight of that loss in this step."),
        ),
    ),
)

_TIME: Final = MetricSection(
    title="Time",
    about="Where a step spends its time. With `training.pipeline: async`, collecting and learning overlap.",
    metrics=_rows(
        Written.ALWAYS,
        ("step_s", "seconds", "From the end of the last update to the end of this one."),
        ("collect_s", "seconds", "From opening the step to its last episode."),
        ("wait_s", "seconds", "Of `collect_s`: the time that the learner waited."),
        ("update_s", "seconds", "The update, including writing the weights."),
        ("replay_s", "seconds", "Of `update_s`: replaying the grammar over sampled tokens."),
        ("save_s", "seconds", "Time to save the previous checkpoint; 0 if there is none."),
        ("sampled_tokens_per_second", "tokens/s", "`sampled_tokens` over `collect_s`."),
        ("sampler_idle_share", "share", "Of `step_s`, while no turn was being sampled."),
        ("learner_idle_share", "share", "Of `step_s`, while the learner neither read episodes nor updated."),
    ),
)

_MACHINE: Final = MetricSection(
    title="Machine and servers",
    about="Resources in use when the step ended.",
    metrics=(
        *_rows(
            Written.ALWAYS,
            ("server_restarts", "count", "Restarts of tool servers since the process started."),
            ("sampler_restarts", "count", "Restarts of the sampler since the process started."),
            ("memory_trainer_gib", "GiB", "Memory of the run's process."),
            ("memory_children_gib", "GiB", "Memory of its child processes."),
            ("memory_free_gib", "GiB", "Free memory of the machine."),
            ("cpu_load", "processes", "Load average over one minute."),
        ),
        *_rows(
            Written.GPU,
            ("gpu_memory_gib", "GiB", "Memory in use, over all GPUs."),
            ("gpu_memory_total_gib", "GiB", "Total memory, over all GPUs."),
            ("gpu_busy_share", "share", "Mean utilisation of the GPUs."),
            ("gpu_silent", "1 or 0", "1, without the three above, if nvidia-smi does not answer."),
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
"""All metrics, by section."""

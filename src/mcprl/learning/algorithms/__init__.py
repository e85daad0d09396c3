"""The math of RL as pure functions on tensors. Only `batches` and `objective` read the configuration.

The suffix of a tensor's name lists its axes:

    B   trajectories of a batch
    T   tokens
    G   episodes of a group
    V   vocabulary
    W   words of 32 bits, one bit per token of the vocabulary
    N   a flat selection of tokens, usually the learnable ones
    S   steps of an episode, or sequences of a minibatch
"""

from mcprl.learning.algorithms.advantages import dr_grpo_advantages, gae, grpo_advantages, rloo_advantages, whitened
from mcprl.learning.algorithms.batches import make_batch
from mcprl.learning.algorithms.diagnostics import explained_variance, parity_metrics, ratio_metrics, staleness_metrics
from mcprl.learning.algorithms.losses import (
    Aggregation,
    Estimator,
    Masks,
    cispo_loss,
    clipped_policy_loss,
    divergence,
    gspo_loss,
    imitation_loss,
    importance_weights,
    inadmissible_tokens,
    inside_gate,
    learnable_tokens,
    mask_shares,
    next_coefficient,
    sequence_weights,
    value_loss,
)

__all__ = [
    "Aggregation",
    "Estimator",
    "Masks",
    "cispo_loss",
    "clipped_policy_loss",
    "divergence",
    "dr_grpo_advantages",
    "explained_variance",
    "gae",
    "grpo_advantages",
    "gspo_loss",
    "imitation_loss",
    "importance_weights",
    "inadmissible_tokens",
    "inside_gate",
    "learnable_tokens",
    "make_batch",
    "mask_shares",
    "next_coefficient",
    "parity_metrics",
    "ratio_metrics",
    "rloo_advantages",
    "sequence_weights",
    "staleness_metrics",
    "value_loss",
    "whitened",
]

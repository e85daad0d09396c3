"""The mathematics: pure functions on tensors, without model, configuration or logging.

Tensors name their axes: B trajectories of a batch, T tokens, G members of a group, V vocabulary, W words of 32 bits, a
bit for each token of the vocabulary, N a flat selection of tokens (most often the learnable ones).
"""

from mcprl.algorithms.advantages import grpo_advantages
from mcprl.algorithms.batches import make_batch
from mcprl.algorithms.diagnostics import parity_metrics, ratio_metrics
from mcprl.algorithms.losses import clipped_policy_loss, k3_divergence
from mcprl.algorithms.masks import Masks, inadmissible_tokens, learnable_tokens, mask_shares

__all__ = [
    "Masks",
    "clipped_policy_loss",
    "grpo_advantages",
    "inadmissible_tokens",
    "k3_divergence",
    "learnable_tokens",
    "make_batch",
    "mask_shares",
    "parity_metrics",
    "ratio_metrics",
]

"""The mathematics: pure functions on tensors, without model, configuration or logging.

Tensors name their axes: B trajectories of a batch, T tokens, G members of a group, V vocabulary, N a flat selection of
tokens (most often the learnable ones).
"""

from mcprl.algorithms.advantages import grpo_advantages
from mcprl.algorithms.batches import make_batch
from mcprl.algorithms.diagnostics import parity_metrics, ratio_metrics
from mcprl.algorithms.losses import clipped_policy_loss, k3_divergence

__all__ = ["clipped_policy_loss", "grpo_advantages", "k3_divergence", "make_batch", "parity_metrics", "ratio_metrics"]

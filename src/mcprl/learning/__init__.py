"""Learners, which take a batch, update the policy, and return an `Update`."""

from mcprl.learning.learner import Learner, open_learner
from mcprl.learning.torch_learner import TorchLearner

__all__ = ["Learner", "TorchLearner", "open_learner"]

"""Learners: they take a batch and return an update."""

from mcprl.learning.learner import Learner, open_learner
from mcprl.learning.torch_learner import TorchLearner

__all__ = ["Learner", "TorchLearner", "open_learner"]

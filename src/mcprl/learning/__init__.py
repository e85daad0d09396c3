"""Learners: a batch in, an update out."""

from mcprl.learning.learner import Learner, open_learner
from mcprl.learning.torch_learner import TorchLearner

__all__ = ["Learner", "TorchLearner", "open_learner"]

"""Learners: a batch in, an update out."""

from mcprl.learners.learner import Learner, open_learner
from mcprl.learners.torch_learner import TorchLearner

__all__ = ["Learner", "TorchLearner", "open_learner"]

"""Learners: a batch in, an update out."""

from mcprl.learners.torch_learner import TorchLearner

__all__ = ["TorchLearner"]

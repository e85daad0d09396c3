"""Samplers, which sample tokens and return their logprobs. Import each engine from its own module."""

from mcprl.samplers.sampler import Completion, Sampler, SampleRequest

__all__ = ["Completion", "SampleRequest", "Sampler"]

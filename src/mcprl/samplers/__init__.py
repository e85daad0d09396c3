"""Samplers: they sample tokens and return the logprobs at sampling time. Import each engine from its own module."""

from mcprl.samplers.sampler import Completion, Sampler, SampleRequest

__all__ = ["Completion", "SampleRequest", "Sampler"]

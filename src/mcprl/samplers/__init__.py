"""Samplers: they sample token ids and return the logprobs at sampling time. Import an engine from its own module."""

from mcprl.samplers.sampler import Completion, Sampler, SampleRequest

__all__ = ["Completion", "SampleRequest", "Sampler"]

"""Samplers: ids in, ids and their sampling-time logprobs out. Import the engine you use from its own module."""

from mcprl.samplers.sampler import Completion, Sampler, SampleRequest

__all__ = ["Completion", "SampleRequest", "Sampler"]

"""What a recipe asks for in a step, as numbers: episodes, calls, tokens, bytes and money."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mcprl.config import RunConfig, ServerSettings
from mcprl.planning.measured import Constants
from mcprl.planning.shapes import EpisodeShape

__all__ = ["Counts", "ServerLoad", "Workload", "step_counts", "workload_of"]

FORWARD_SHARE = 1 / 3  # of the work of a pass with gradients: a backward pass costs twice a forward pass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLoad:
    """What a server is asked, and what it allows: `calls_per_s` by its rate, `share` of all calls of an episode.

    ServerLoad(name="search", share=0.5, calls_per_s=10.0, usd_per_call=0.008, budget_calls=None, budget_usd=20.0)
    """

    name: str
    share: float
    calls_per_s: float | None
    usd_per_call: float
    budget_calls: int | None
    budget_usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A run as far as its cost goes. `staleness` is 0 where a step is collected and then learned from.

    `forward_passes` are those that an update makes besides the one with gradients; `weights_bytes` is what a
    publication moves, None where the model's shape is not known.

    Workload(episode=EpisodeShape(…), steps=200, tasks_per_step=16, group_size=8, max_concurrent=64, staleness=0,
             forward_passes=1, microbatch=4, share_prefix=True, max_sequences=64, relayed=True, weights_bytes=None,
             servers=(ServerLoad(…),))
    """

    episode: EpisodeShape
    steps: int
    tasks_per_step: int
    group_size: int
    max_concurrent: int
    staleness: int
    forward_passes: int
    microbatch: int
    share_prefix: bool
    max_sequences: int
    relayed: bool
    weights_bytes: float | None
    servers: tuple[ServerLoad, ...]

    @property
    def episodes(self) -> int:
        """Those of a step."""
        return self.tasks_per_step * self.group_size

    @property
    def learned_tokens(self) -> float:
        """Tokens that the learner computes in a step, in passes with gradients.

        Of a group of G in passes of m trajectories, the prompt P is computed ⌈G / min(G, m)⌉ times where it is shared,
        and the rest of each trajectory once. A pass without gradients counts a third.
        """
        shape, group = self.episode, self.group_size
        prompts = math.ceil(group / min(group, self.microbatch)) if self.share_prefix else group
        rest = shape.length_tokens - shape.prompt_tokens
        tokens = self.tasks_per_step * (prompts * shape.prompt_tokens + group * rest)
        return tokens * (1 + self.forward_passes * FORWARD_SHARE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What a step, or a run, amounts to. `read_tokens` are the prompts of all turns, `prompt_tokens` what each adds.

    Counts(episodes=32, turns=96, calls=64, prompt_tokens=16640, read_tokens=53760, sampled_tokens=3840,
           learned_tokens=8480, trajectory_bytes=1.2e6, relayed_bytes=0.0, weights_bytes=9.2e6, usd=0.5)
    """

    episodes: float
    turns: float
    calls: float
    prompt_tokens: float
    read_tokens: float
    sampled_tokens: float
    learned_tokens: float
    trajectory_bytes: float
    relayed_bytes: float
    weights_bytes: float | None
    usd: float

    def times(self, steps: int) -> Counts:
        """So many steps."""
        weights = None if self.weights_bytes is None else self.weights_bytes * steps
        return Counts(
            episodes=self.episodes * steps,
            turns=self.turns * steps,
            calls=self.calls * steps,
            prompt_tokens=self.prompt_tokens * steps,
            read_tokens=self.read_tokens * steps,
            sampled_tokens=self.sampled_tokens * steps,
            learned_tokens=self.learned_tokens * steps,
            trajectory_bytes=self.trajectory_bytes * steps,
            relayed_bytes=self.relayed_bytes * steps,
            weights_bytes=weights,
            usd=self.usd * steps,
        )


def step_counts(workload: Workload, constants: Constants) -> Counts:
    """What a step amounts to. Bytes are those that stand in messages and files, without what a network adds."""
    shape, episodes = workload.episode, workload.episodes
    calls = episodes * shape.calls
    tokens = shape.read_tokens + shape.length_tokens  # each turn's prompt, and in the end the whole conversation
    relayed = episodes * (shape.turns * constants.relayed_turn_bytes + tokens * constants.relayed_token_bytes)
    return Counts(
        episodes=episodes,
        turns=episodes * shape.turns,
        calls=calls,
        prompt_tokens=episodes * (shape.length_tokens - shape.sampled_tokens),
        read_tokens=episodes * shape.read_tokens,
        sampled_tokens=episodes * shape.sampled_tokens,
        learned_tokens=workload.learned_tokens,
        trajectory_bytes=episodes * shape.length_tokens * constants.trajectory_token_bytes,
        relayed_bytes=relayed if workload.relayed else 0.0,
        weights_bytes=workload.weights_bytes,
        usd=sum(calls * server.share * server.usd_per_call for server in workload.servers),
    )


def workload_of(
    config: RunConfig, episode: EpisodeShape, *, servers: Sequence[str], weights_bytes: float | None
) -> Workload:
    """The workload of a recipe whose mcpServers file names these servers; calls are spread over them evenly."""
    algorithm, training = config.algorithm, config.training
    return Workload(
        episode=episode,
        steps=training.steps,
        tasks_per_step=training.tasks_per_step,
        group_size=config.episodes.group_size,
        max_concurrent=config.episodes.max_concurrent,
        staleness=training.max_staleness if training.pipeline == "async" else 0,
        forward_passes=int(algorithm.old_logprobs == "recomputed") + int(algorithm.kl.needs_reference),
        microbatch=config.learner.microbatch,
        share_prefix=config.learner.share_prefix,
        max_sequences=config.sampling.vllm.max_sequences,
        relayed=config.workers.kind == "ray",
        weights_bytes=weights_bytes,
        servers=tuple(
            _server_load(name, config.servers.settings.get(name, ServerSettings()), 1 / len(servers))
            for name in servers
        ),
    )


def _server_load(name: str, settings: ServerSettings, share: float) -> ServerLoad:
    return ServerLoad(
        name=name,
        share=share,
        calls_per_s=settings.rate.calls / settings.rate.per_s if settings.rate is not None else None,
        usd_per_call=settings.budget.usd_per_call,
        budget_calls=settings.budget.calls,
        budget_usd=settings.budget.usd,
    )

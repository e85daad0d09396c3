"""Playing tasks from a script, without a model: solutions that must earn everything, and variants that must not.

A task whose own solution is not worth 1 would teach the policy something else than it says. Real tools are called, and
the environment scores what happened exactly as in training; no failure is injected.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mcprl.concurrency import run_all
from mcprl.config import EpisodesConfig, RewardsConfig
from mcprl.episodes.environment import Action, Environment, Grader
from mcprl.episodes.loop import Leases, lease_for
from mcprl.episodes.rewards import succeeded
from mcprl.records import FinishReason, Task, ToolCall, Turn

__all__ = ["Trial", "play", "play_gold"]

_EPISODES: Final = EpisodesConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a scripted episode came to. `faults` are the texts of calls that did not work.

    Trial(task_id="meet-ana", reward=1.0, parts={"answer": 1.0, "calls": 1.0, …}, success=True, faults=(), turns=(…,))
    """

    task_id: str
    reward: float
    parts: Mapping[str, float]
    success: bool
    faults: tuple[str, ...]
    turns: tuple[Turn, ...]


async def play_gold(
    tasks: Sequence[Task], toolbox: Leases, rewards: RewardsConfig, *, episodes: EpisodesConfig = _EPISODES
) -> tuple[Trial, ...]:
    """Play the solution of each task, several at once, in the order of `tasks`. Each of them must have one."""
    places = asyncio.Semaphore(episodes.max_concurrent)

    async def play_one(task: Task) -> Trial:
        if task.solution is None:
            raise ValueError(f"task {task.id} has no solution to play")
        async with places:
            return await play(task, toolbox, task.solution.calls, task.solution.answer, rewards, episodes=episodes)

    return await run_all(play_one(task) for task in tasks)


async def play(
    task: Task,
    toolbox: Leases,
    calls: Sequence[ToolCall],
    answer: str,
    rewards: RewardsConfig,
    *,
    judge: Grader | None = None,
    episodes: EpisodesConfig = _EPISODES,
) -> Trial:
    """Play these calls, one a turn, and then the answer, unless a limit of turns comes first.

    Without a judge the part `rubric` is left out.
    """
    async with lease_for(task, toolbox, lives_s=episodes.deadline_s) as access:
        limit = episodes.turn_limit(task)
        environment = Environment(task, access, preamble=(), max_turns=limit, rewards=rewards, judge=judge)
        for action in (*(_calling(call) for call in calls), _answering(answer)):
            result = await environment.step(action)
            if result.stop is not None:
                break
        return Trial(
            task_id=task.id,
            reward=environment.reward,
            parts=dict(environment.parts),
            success=succeeded(environment.parts),
            faults=tuple(seen.text for turn in environment.turns for seen in turn.observations if not seen.worked),
            turns=tuple(environment.turns),
        )


def _calling(call: ToolCall) -> Action:
    text = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False, default=str)
    return _action(text, prose="", calls=(call,))


def _answering(answer: str) -> Action:
    return _action(answer, prose=answer, calls=())


def _action(text: str, *, prose: str, calls: tuple[ToolCall, ...]) -> Action:
    return Action(text=text, prose=prose, calls=calls, sampled_ids=(), finish=FinishReason.STOP, weights_version=0)

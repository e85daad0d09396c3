"""Episodes of several turns with rewards, made by hand, for batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mcprl.goals import Goal
from mcprl.records import FinishReason, Group, StopReason, Task, Trajectory, Turn

__all__ = ["make_episode", "make_group"]


def make_episode(
    kinds: str,
    rewards: Sequence[float] = (0.0,),
    *,
    reward: float | None = None,
    stop: StopReason = StopReason.ANSWERED,
    logprobs: Sequence[float] | None = None,
) -> Trajectory:
    """One letter per token: c context, s sampled, f where the grammar left no choice, x where it left one text.

    | begins the next turn.

    `rewards` are the turns'; `reward` is the episode's where it is not their sum.
    """
    turn_index = [number for number, part in enumerate(kinds.split("|")) for _ in part]
    letters = kinds.replace("|", "")
    sampled = tuple(letter != "c" for letter in letters)
    return Trajectory(
        task_id="task",
        step=0,
        member=0,
        attempt=0,
        temperature=1.0,
        token_ids=tuple(range(100, 100 + len(letters))),
        sampled=sampled,
        forced=tuple(letter == "f" for letter in letters),
        fixed=tuple(letter == "x" for letter in letters),
        logprobs=tuple(logprobs) if logprobs else tuple(-0.5 if own else 0.0 for own in sampled),
        turn_index=tuple(turn if own else -1 for turn, own in zip(turn_index, sampled, strict=True)),
        weights_version=tuple(0 if own else -1 for own in sampled),
        turns=tuple(
            Turn(text="", sampled_ids=(), finish=FinishReason.STOP, weights_version=0, reward=earned)
            for earned in rewards
        ),
        stop=stop,
        reward=sum(rewards) if reward is None else reward,
        reward_parts={},
    )


def make_group(*episodes: Trajectory, name: str = "task") -> Group:
    task = Task(id=name, prompt=({"role": "user", "content": "?"},), goal=Goal())
    members = tuple(replace(episode, task_id=name, member=i) for i, episode in enumerate(episodes))
    return Group(task=task, trajectories=members)

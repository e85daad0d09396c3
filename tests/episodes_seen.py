"""A task and a trajectory for what is shown of them."""

from __future__ import annotations

import dataclasses

from mcprl.goals import Goal
from mcprl.records import StopReason, Task, Trajectory

_TASK = Task(id="meet-ana", prompt=({"role": "user", "content": "Where is Ana?"},), goal=Goal(answer="Lima"))
_TRAJECTORY = Trajectory(
    task_id="meet-ana",
    step=0,
    member=2,
    attempt=0,
    temperature=1.0,
    token_ids=(1, 2, 3, 4),
    sampled=(False, False, True, True),
    forced=(False,) * 4,
    fixed=(False,) * 4,
    logprobs=(0.0, 0.0, -1.0, -0.5),
    turn_index=(-1, -1, 0, 0),
    weights_version=(-1, -1, 0, 0),
    turns=(),
    stop=StopReason.ANSWERED,
    reward=0.5,
    reward_parts={"answer": 0.5},
)


def make_task(**changes: object) -> Task:
    return dataclasses.replace(_TASK, **changes)


def make_trajectory(**changes: object) -> Trajectory:
    return dataclasses.replace(_TRAJECTORY, **changes)

"""Episodes of BFCL without a model: given calls through the real server, judged like any others."""

from __future__ import annotations

from collections.abc import Sequence

from mcprl.config import RewardsConfig
from mcprl.episodes.environment import Action, Environment
from mcprl.episodes.loop import Leases, lease_for
from mcprl.records import FinishReason, StopReason, Task, ToolCall, Trajectory
from mcprl_suites.bfcl.suite import MAX_TURNS

__all__ = ["play_calls"]


_LIVES_S = 600.0


async def play_calls(task: Task, leases: Leases, calls: Sequence[Sequence[ToolCall]]) -> Trajectory:
    """The record of an episode that makes these calls, those after each message in one turn, and says no more.

    It has turns but no tokens: nothing was sampled.
    """
    async with lease_for(task, leases, lives_s=_LIVES_S) as access:
        environment = Environment(task, access, preamble=(), max_turns=MAX_TURNS, rewards=RewardsConfig())
        stop: StopReason | None = None
        for made in calls:
            if made:
                await environment.step(_action("", tuple(made)))
            stop = (await environment.step(_action("Done.", ()))).stop
    if stop is None:
        raise ValueError(f"the user of {task.id} has more to say than the calls have answers for")
    return Trajectory(
        task_id=task.id,
        step=0,
        member=0,
        attempt=0,
        temperature=1.0,
        token_ids=(),
        sampled=(),
        forced=(),
        fixed=(),
        logprobs=(),
        turn_index=(),
        weights_version=(),
        turns=tuple(environment.turns),
        stop=stop,
        reward=environment.reward,
        reward_parts=dict(environment.parts),
    )


def _action(text: str, calls: tuple[ToolCall, ...]) -> Action:
    return Action(text=text, prose=text, calls=calls, sampled_ids=(), finish=FinishReason.STOP, weights_version=0)

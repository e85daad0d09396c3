"""A trajectory with one call. It imports only the records, so a child process starts fast."""

from __future__ import annotations

from mcprl.errors import Fault
from mcprl.records import FinishReason, Observation, StopReason, ToolCall, Trajectory, Turn

__all__ = ["make_trajectory"]


def make_trajectory(*, step: int = 0, member: int = 0, text: str = "", nested: object = None) -> Trajectory:
    turn = Turn(
        text=text,
        sampled_ids=(1,),
        finish=FinishReason.STOP,
        weights_version=0,
        calls=(ToolCall(name="f", arguments={"x": nested}),),
        observations=(Observation(tool="f", server=None, text="no", fault=Fault.POLICY),),
    )
    return Trajectory(
        task_id="task",
        step=step,
        member=member,
        attempt=0,
        temperature=1.0,
        token_ids=(0, 1),
        sampled=(False, True),
        forced=(False, False),
        fixed=(False, False),
        logprobs=(0.0, -0.1),
        turn_index=(-1, 0),
        weights_version=(-1, 0),
        turns=(turn,),
        stop=StopReason.ANSWERED,
        reward=0.0,
        reward_parts={},
    )

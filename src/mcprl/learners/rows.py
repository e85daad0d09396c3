"""Trajectories as tensors: right-padded token ids, and flat columns for the tokens to score.

Right padding needs no attention mask under causal attention: no real token ever looks at what comes after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mcprl.errors import AlignmentError
from mcprl.records import Trajectory

__all__ = ["Rows", "check_alignment", "make_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Some trajectories, ready for one forward pass. N runs over the tokens to score: the learnable ones of a batch.

    Two trajectories of 4 and 3 tokens, whose last two were sampled; the second under a grammar that admitted the
    tokens 5 and 7 of 64, then token 7 only:

        token_id_BT        [[1, 9, 30, 31], [1, 5, 7, 0]]
        row_N              [0, 0, 1, 1]
        position_N         [2, 3, 1, 2]
        temperature_N      [1.0, 1.0, 1.0, 1.0]
        sampled_logprob_N  [-0.3, -1.2, -0.7, 0.0]
        advantage_N        [0.71, 0.71, -0.71, -0.71]
        admissible_NW      [[-1, -1], [-1, -1], [0b10100000, 0], [0b10000000, 0]]     (int32; None: nothing was held)
    """

    token_id_BT: Tensor
    row_N: Tensor
    position_N: Tensor
    temperature_N: Tensor
    sampled_logprob_N: Tensor
    advantage_N: Tensor
    admissible_NW: Tensor | None

    @property
    def target_id_N(self) -> Tensor:
        """The tokens to score, read from the very tensor that the model is fed."""
        return self.token_id_BT[self.row_N, self.position_N]


def make_rows(
    trajectories: Sequence[Trajectory],
    learnable: Sequence[Sequence[bool]],
    advantages: Sequence[Sequence[float]],
    admissible_NW: Tensor | None,
    device: torch.device,
) -> Rows:
    """Pack trajectories and what belongs to them. The pad id is 0: nothing ever attends to it or learns from it."""
    longest = max(len(t.token_ids) for t in trajectories)
    token_id_BT = torch.zeros(len(trajectories), longest, dtype=torch.long)
    places: list[tuple[int, int]] = []
    for row, (trajectory, mask) in enumerate(zip(trajectories, learnable, strict=True)):
        token_id_BT[row, : len(trajectory.token_ids)] = torch.tensor(trajectory.token_ids)
        places.extend((row, position) for position, carries_loss in enumerate(mask) if carries_loss)
        if mask[0]:
            raise AlignmentError(
                f"task {trajectory.task_id}, member {trajectory.member}: the first token is marked as sampled, but "
                "nothing stands before it that could predict it",
                fix="report this with the trajectory: it is a fault in mcprl",
            )
    row_N, position_N = torch.tensor(places, dtype=torch.long).reshape(-1, 2).unbind(1)

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device)

    return Rows(
        token_id_BT=token_id_BT.to(device),
        row_N=row_N.to(device),
        position_N=position_N.to(device),
        temperature_N=column([trajectories[row].temperature for row, _ in places]),
        sampled_logprob_N=column([trajectories[row].logprobs[position] for row, position in places]),
        advantage_N=column([advantages[row][position] for row, position in places]),
        admissible_NW=None if admissible_NW is None else admissible_NW.to(device),
    )


def check_alignment(rows: Rows, trajectories: Sequence[Trajectory], learnable: Sequence[Sequence[bool]]) -> float:
    """The share of tokens to score that are the tokens the sampler returned, turn by turn. Anything below 1 is raised.

    The two sides come by different ways: the learner's through the packed tensor, the sampler's from the untouched
    answers kept in each turn.
    """
    returned: list[int] = []
    for trajectory, mask in zip(trajectories, learnable, strict=True):
        sampled_ids = [token for turn in trajectory.turns for token in turn.sampled_ids]
        own = [carries_loss for carries_loss, sampled in zip(mask, trajectory.sampled, strict=True) if sampled]
        if len(sampled_ids) != len(own):
            raise AlignmentError(
                f"task {trajectory.task_id}, member {trajectory.member}: {len(own)} tokens are marked as sampled, "
                f"the sampler returned {len(sampled_ids)}",
                fix="report this with the trajectory: it is a fault in mcprl",
            )
        returned.extend(token for token, carries_loss in zip(sampled_ids, own, strict=True) if carries_loss)
    scored_N = rows.target_id_N.cpu()
    returned_N = torch.tensor(returned, dtype=torch.long)
    same_length = scored_N.shape == returned_N.shape
    share = float((scored_N == returned_N).double().mean()) if same_length and returned else float(same_length)
    if share < 1.0:
        raise AlignmentError(
            f"only {share:.2%} of the tokens to learn from are the tokens that were sampled",
            fix="report this with the trajectories of the step: it is a fault in mcprl",
        )
    return share

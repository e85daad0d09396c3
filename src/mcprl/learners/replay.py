"""Replay of the grammar over sampled turns: which tokens could have stood where each scored token stands.

Nothing of it is kept from one pass over a batch to the next: a token's admissible set takes V / 8 bytes (19 KB with
Qwen's vocabulary, a gigabyte for a batch of 50,000 tokens), and to find it again takes some tens of microseconds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mcprl.errors import AlignmentError
from mcprl.records import Trajectory

if TYPE_CHECKING:
    # Only a type here: grammars bring a compiler, and a run that holds nothing to a grammar needs none.
    from mcprl.chat.grammars import Grammars

__all__ = ["Replayer"]

_EVERY_TOKEN = -1  # all 32 bits of an int32


class Replayer:
    """Replays turns, proves the masks that were recorded with them, and counts the seconds that it takes."""

    def __init__(self, grammars: Grammars | None) -> None:
        self._grammars = grammars
        self.spent_s = 0.0

    def admissible(self, trajectories: Sequence[Trajectory], scored: Sequence[Sequence[bool]]) -> Tensor | None:
        """The admissible tokens at each scored token, in order, as int32 words [N, W]; None: every token is.

        The rows of a trajectory without a grammar, beside one with a grammar, are all ones.
        """
        if all(t.grammar is None for t in trajectories):
            return None
        started = time.monotonic()
        grammars = self._required(trajectories)
        parts: list[Tensor] = []
        for trajectory, mask in zip(trajectories, scored, strict=True):
            if trajectory.grammar is None:
                words = -(-grammars.vocab_size // 32)
                parts.append(torch.full((sum(mask), words), _EVERY_TOKEN, dtype=torch.int32))
            else:
                parts.extend(_turn_parts(grammars, trajectory, trajectory.grammar, mask))
        admissible_NW = torch.cat(parts)
        self.spent_s += time.monotonic() - started
        return admissible_NW

    def _required(self, trajectories: Sequence[Trajectory]) -> Grammars:
        if self._grammars is None:
            held = next(t for t in trajectories if t.grammar is not None)
            raise AlignmentError(
                f"task {held.task_id}, member {held.member} was sampled under a grammar, and the learner has no "
                "grammars to replay it with: it would score another distribution than the one sampled from",
                fix="make the learner with the grammars of the model: mcprl.chat.grammars.load_grammars",
            )
        return self._grammars


def _turn_parts(grammars: Grammars, trajectory: Trajectory, grammar: str, mask: Sequence[bool]) -> list[Tensor]:
    """One part a turn: every turn began the grammar anew."""
    places = [place for place, sampled in enumerate(trajectory.sampled) if sampled]
    parts: list[Tensor] = []
    for number, turn in enumerate(trajectory.turns):
        own, places = places[: len(turn.sampled_ids)], places[len(turn.sampled_ids) :]
        replay = grammars.replay(grammar, trajectory.stop_token_ids, turn.sampled_ids)
        for name, replayed, column in (
            ("forced", replay.forced, trajectory.forced),
            ("fixed", replay.fixed, trajectory.fixed),
        ):
            recorded = tuple(column[place] for place in own)
            if recorded != replayed:
                raise AlignmentError(
                    f"task {trajectory.task_id}, member {trajectory.member}, turn {number}: {sum(recorded)} tokens "
                    f"were recorded as {name}, the replay of the grammar finds {sum(replayed)}, or others",
                    fix="report this with the trajectory: it is a fault in mcprl",
                )
        parts.append(replay.admissible[[index for index, place in enumerate(own) if mask[place]]])
    return parts

"""Which trajectories go through the model together, and their packs, with what the grammar admitted."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mcprl.learners.layout import lay_out_rows, lay_out_tree
from mcprl.learners.lessons import Lesson, Pack, make_pack
from mcprl.learners.replay import Replayer

__all__ = ["Packer"]


class Packer:
    """Makes packs of at most `microbatch` trajectories, in which a common prefix is laid out once or in each row."""

    def __init__(self, replayer: Replayer, device: torch.device, *, microbatch: int, share_prefix: bool) -> None:
        self._microbatch = microbatch
        self._share_prefix = share_prefix
        self._replayer = replayer
        self._device = device

    def divide(self, lessons: Sequence[Lesson]) -> list[list[int]]:
        """Indices of lessons that belong together: with the most in common, or, in rows, of similar length."""
        ids = [lesson.trajectory.token_ids for lesson in lessons]
        likeness = ids if self._share_prefix else [(len(own),) for own in ids]
        order = sorted(range(len(lessons)), key=likeness.__getitem__)
        size = self._microbatch
        return [order[first : first + size] for first in range(0, len(order), size)]

    def pack(self, lessons: Sequence[Lesson]) -> Pack:
        trajectories = [lesson.trajectory for lesson in lessons]
        lay_out = lay_out_tree if self._share_prefix else lay_out_rows
        return make_pack(
            lessons,
            lay_out([t.token_ids for t in trajectories], self._device),
            self._replayer.admissible(trajectories, [lesson.scored for lesson in lessons]),
            self._device,
        )

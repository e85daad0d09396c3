"""Which trajectories go through the model together, and their packs, with what the grammar admitted."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mcprl.config import LearnerConfig
from mcprl.learners.layout import lay_out_rows, lay_out_tree
from mcprl.learners.lessons import Lesson, Pack, make_pack
from mcprl.learners.replay import Replayer

__all__ = ["Packer"]


class Packer:
    """Makes packs of at most `learner.microbatch` trajectories."""

    def __init__(self, learner: LearnerConfig, replayer: Replayer, device: torch.device) -> None:
        self._learner = learner
        self._replayer = replayer
        self._device = device

    def divide(self, lessons: Sequence[Lesson]) -> list[list[int]]:
        """Indices of lessons that belong together: with the most in common, or, in rows, of similar length."""
        ids = [lesson.trajectory.token_ids for lesson in lessons]
        likeness = ids if self._learner.share_prefix else [(len(own),) for own in ids]
        order = sorted(range(len(lessons)), key=likeness.__getitem__)
        size = self._learner.microbatch
        return [order[first : first + size] for first in range(0, len(order), size)]

    def pack(self, lessons: Sequence[Lesson]) -> Pack:
        trajectories = [lesson.trajectory for lesson in lessons]
        lay_out = lay_out_tree if self._learner.share_prefix else lay_out_rows
        return make_pack(
            lessons,
            lay_out([t.token_ids for t in trajectories], self._device),
            self._replayer.admissible(trajectories, [lesson.scored for lesson in lessons]),
            self._device,
        )

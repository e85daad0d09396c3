"""Trajectories as tensors: the columns of the tokens to score, and packs of several trajectories for a forward pass.

A token is scored where the policy had a choice. It carries loss where the batch says that it is learnable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from mcprl.errors import AlignmentError
from mcprl.learners.layout import Layout
from mcprl.learners.token_scores import Targets
from mcprl.records import Batch, Trajectory

__all__ = [
    "Lesson",
    "Pack",
    "TokenColumns",
    "check_alignment",
    "first_spoilt",
    "make_lessons",
    "make_pack",
    "plain_lessons",
    "scored_tokens",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenColumns:
    """What the objective knows of each scored token; float32, but for mask and version. None: it does not ask.

    Two sampled tokens of a good episode, the second with one text to choose from (masks text):

        sampled_logprob_N    [-0.3, -1.2]
        old_logprob_N        [-0.3, -1.2]      what ratios are against
        advantage_N          [0.71, 0.0]
        carries_loss_N       [True, False]
        weights_version_N    [3, 4]            of the weights that sampled it
        reference_logprob_N, old_value_N, return_N     None
    """

    sampled_logprob_N: Tensor
    old_logprob_N: Tensor
    advantage_N: Tensor
    carries_loss_N: Tensor
    weights_version_N: Tensor
    reference_logprob_N: Tensor | None = None
    old_value_N: Tensor | None = None
    return_N: Tensor | None = None

    @classmethod
    def joined(cls, parts: Sequence[TokenColumns], device: torch.device) -> TokenColumns:
        """The columns of several, one behind the other."""
        found: dict[str, Tensor | None] = {}
        for field in fields(cls):
            columns = [getattr(part, field.name) for part in parts]
            found[field.name] = None if columns[0] is None else torch.cat(columns).to(device)
        return cls(**found)  # pyright: ignore[reportArgumentType]

    def chosen(self, chosen_N: Tensor) -> TokenColumns:
        """The columns of those tokens only."""
        columns: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: c[chosen_N] for name, c in columns.items() if c is not None})


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One trajectory, where its scored tokens stand, and their columns."""

    trajectory: Trajectory
    scored: tuple[bool, ...]
    position_N: Tensor
    columns: TokenColumns

    @property
    def learnable_tokens(self) -> int:
        return int(self.columns.carries_loss_N.sum())

    @property
    def name(self) -> str:
        t = self.trajectory
        return f"task {t.task_id}, member {t.member} of step {t.step}"

    def on_tokens(self, value_N: Tensor) -> Tensor:
        """A number for each token of the trajectory, 0 where nothing was scored."""
        column_T = torch.zeros(len(self.scored))
        column_T[self.position_N] = value_N.detach().float().cpu()
        return column_T


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """Some trajectories, ready for one forward pass; N runs over their scored tokens.

    `before_N` is the place of the token that each is predicted from; places count over the flattened [B · T] of the
    layout.
    """

    layout: Layout
    before_N: Tensor
    sequence_N: Tensor
    targets: Targets
    columns: TokenColumns


def scored_tokens(trajectory: Trajectory, learnable: Sequence[bool]) -> tuple[bool, ...]:
    """Where the policy had a choice, or is to learn."""
    columns = zip(learnable, trajectory.sampled, trajectory.forced, strict=True)
    return tuple(learn or (sampled and not forced) for learn, sampled, forced in columns)


def make_lessons(batch: Batch) -> list[Lesson]:
    """The lessons of a batch, in the order of its trajectories."""
    readings = batch.readings
    lessons: list[Lesson] = []
    for i, trajectory in enumerate(batch.trajectories):
        scored = scored_tokens(trajectory, batch.learnable[i])

        def column(values: Sequence[float], scored: tuple[bool, ...] = scored) -> Tensor:
            return torch.tensor([value for value, wanted in zip(values, scored, strict=True) if wanted])

        sampled_N = column(trajectory.logprobs)
        columns = TokenColumns(
            sampled_logprob_N=sampled_N,
            old_logprob_N=sampled_N if readings.logprobs is None else column(readings.logprobs[i]),
            advantage_N=column(batch.advantages[i]),
            carries_loss_N=column(batch.learnable[i]).bool(),
            weights_version_N=column(trajectory.weights_version).long(),
            reference_logprob_N=None if (c := readings.reference_logprobs) is None else column(c[i]),
            old_value_N=None if readings.values is None else column(readings.values[i]),
            return_N=None if batch.returns is None else column(batch.returns[i]),
        )
        lessons.append(_lesson(trajectory, scored, columns))
    return lessons


def plain_lessons(trajectories: Sequence[Trajectory], scored: Sequence[tuple[bool, ...]]) -> list[Lesson]:
    """Trajectories to score or to imitate: the columns of an objective are 0, and all scored tokens carry loss."""
    lessons: list[Lesson] = []
    for trajectory, mask in zip(trajectories, scored, strict=True):
        zero_N = torch.zeros(sum(mask))
        columns = TokenColumns(
            sampled_logprob_N=zero_N,
            old_logprob_N=zero_N,
            advantage_N=zero_N,
            carries_loss_N=torch.ones(len(zero_N), dtype=torch.bool),
            weights_version_N=zero_N.long(),
        )
        lessons.append(_lesson(trajectory, mask, columns))
    return lessons


def _lesson(trajectory: Trajectory, scored: tuple[bool, ...], columns: TokenColumns) -> Lesson:
    position_N = torch.tensor([position for position, wanted in enumerate(scored) if wanted], dtype=torch.long)
    if scored[0]:
        raise AlignmentError(
            f"task {trajectory.task_id}, member {trajectory.member}: the first token is marked as sampled, but "
            "nothing stands before it that could predict it",
            fix="report this with the trajectory: it is a fault in mcprl",
        )
    return Lesson(trajectory=trajectory, scored=scored, position_N=position_N, columns=columns)


def make_pack(lessons: Sequence[Lesson], layout: Layout, admissible_NW: Tensor | None, device: torch.device) -> Pack:
    """Join lessons that were laid out together."""
    placed = list(zip(lessons, layout.places, strict=True))
    place_N = torch.cat([place_T[lesson.position_N] for lesson, place_T in placed]).to(device)
    temperatures = [torch.full((len(lesson.position_N),), lesson.trajectory.temperature) for lesson in lessons]
    counts = torch.tensor([len(lesson.position_N) for lesson in lessons])
    targets = Targets(
        # Read from the very tensor that the model is fed.
        token_id_N=layout.token_id_BT.flatten()[place_N],
        temperature_N=torch.cat(temperatures).to(device),
        admissible_NW=None if admissible_NW is None else admissible_NW.to(device),
    )
    return Pack(
        layout=layout,
        before_N=torch.cat([place_T[lesson.position_N - 1] for lesson, place_T in placed]).to(device),
        sequence_N=torch.repeat_interleave(torch.arange(len(lessons)), counts).to(device),
        targets=targets,
        columns=TokenColumns.joined([lesson.columns for lesson in lessons], device),
    )


def check_alignment(pack: Pack, lessons: Sequence[Lesson]) -> float:
    """The share of tokens to score that are the tokens the sampler returned, turn by turn. Anything below 1 is raised.

    The two sides come by different ways: the learner's through the packed tensor, the sampler's from the untouched
    answers kept in each turn.
    """
    returned: list[int] = []
    for lesson in lessons:
        trajectory = lesson.trajectory
        sampled_ids = [token for turn in trajectory.turns for token in turn.sampled_ids]
        own = [wanted for wanted, sampled in zip(lesson.scored, trajectory.sampled, strict=True) if sampled]
        if len(sampled_ids) != len(own):
            raise AlignmentError(
                f"{lesson.name}: {len(own)} tokens are marked as sampled, the sampler returned {len(sampled_ids)}",
                fix="report this with the trajectory: it is a fault in mcprl",
            )
        returned.extend(token for token, wanted in zip(sampled_ids, own, strict=True) if wanted)
    scored_N = pack.targets.token_id_N.cpu()
    returned_N = torch.tensor(returned, dtype=torch.long)
    same_length = scored_N.shape == returned_N.shape
    share = float((scored_N == returned_N).double().mean()) if same_length and returned else float(same_length)
    if share < 1.0:
        raise AlignmentError(
            f"only {share:.2%} of the tokens to learn from are the tokens that were sampled",
            fix="report this with the trajectories of the step: it is a fault in mcprl",
        )
    return share


def first_spoilt(lessons: Sequence[Lesson]) -> str | None:
    """What is no number in the columns of lessons, and in which episodes; None where all is well."""
    for field in fields(TokenColumns):
        spoilt = [
            lesson.name
            for lesson in lessons
            if (column_N := getattr(lesson.columns, field.name)) is not None and not bool(column_N.isfinite().all())
        ]
        if spoilt:
            what = field.name.removesuffix("_N").replace("_", " ")
            return f"the {what} is not a finite number in {'; '.join(spoilt)}"
    return None

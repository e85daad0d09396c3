"""The groups of a step: those that were dealt, or, in the place of those that teach nothing, others.

A group whose episodes all earn the same has no better and no worse episode, so its advantages are 0. With
`algorithm.dead_groups` refill such groups are left out of the batch, and other tasks are played for them, as often as
`algorithm.max_refills` says. They were played all the same: what is measured, noted and recorded is all groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mcprl.config import AlgorithmConfig
from mcprl.episodes import Collector
from mcprl.records import Group, LostEpisode, Trajectory
from mcprl.tasks import Deal

__all__ = ["CollectedStep", "collect_step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedStep:
    """What a step played. Of tasks a, b and c, of which b taught nothing and d was played for it:

    CollectedStep(groups=(a, c, d), dropped=(b,), all_groups=(a, b, c, d), refill_rounds=1, refilled=1)
    """

    groups: tuple[Group, ...]  # for the batch
    dropped: tuple[Group, ...]  # without variance, and out of the batch
    all_groups: tuple[Group, ...]  # in the order in which they were dealt
    refill_rounds: int
    refilled: int  # groups of the batch that stand in for others

    @property
    def metrics(self) -> dict[str, float]:
        return {
            "groups_dropped": float(len(self.dropped)),
            "groups_refilled": float(self.refilled),
            "refill_rounds": float(self.refill_rounds),
        }


async def collect_step(
    deal: Deal,
    collector: Collector,
    step: int,
    algorithm: AlgorithmConfig,
    on_finished: Callable[[Trajectory | LostEpisode], None],
) -> CollectedStep:
    """Collect a step as it was dealt, and fill it up where that is asked for.

    The batch is never larger than the deal. It is smaller where rounds or tasks run out, but never empty: where no
    group at all has variance, it is the deal as it was, and the learner says that there was no signal.
    """
    dealt = await collector.collect(deal.tasks, step, on_finished)
    if algorithm.dead_groups == "keep":
        return CollectedStep(groups=dealt, dropped=(), all_groups=dealt, refill_rounds=0, refilled=0)
    played, others, rounds = dealt, deal.stand_ins, 0
    live = _with_variance(dealt)
    while len(live) < len(dealt) and others and rounds < algorithm.max_refills:
        missing = len(dealt) - len(live)
        refill, others = others[:missing], others[missing:]
        played += await collector.collect(refill, step, on_finished)
        live = _with_variance(played)
        rounds += 1
    groups = live or dealt
    kept = {group.task.id for group in groups}
    return CollectedStep(
        groups=groups,
        dropped=tuple(group for group in played if group.task.id not in kept),
        all_groups=played,
        refill_rounds=rounds,
        refilled=sum(group.task.id in kept for group in played[len(dealt) :]),
    )


def _with_variance(groups: Sequence[Group]) -> tuple[Group, ...]:
    return tuple(group for group in groups if group.has_variance)

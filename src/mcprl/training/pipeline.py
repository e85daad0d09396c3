"""Collects the episodes of the next steps while the learner works on the current step.

Collecting step s may begin when at most `ahead` earlier updates are unfinished. With `ahead` 0, collecting and learning
alternate. Otherwise they overlap:

    step s          ■■■■■■■□□□□□□□        ■ collected   □ trained on
    step s + 1            ■■■■■■■■□□□□□□
    step s + 2                    ■■■■■■■■□□□□□□

So no token is more than `ahead` versions old when it is trained on. The tasks of a step are chosen when the step is
opened, at a fixed point in the order of updates, so they do not depend on timing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mcprl.config import AlgorithmConfig
from mcprl.episodes import Collector
from mcprl.records import Group, LostEpisode, Trajectory
from mcprl.tasks import Deal


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedStep:
    """The groups of a step. Example: all rewards in task b's group were equal, so task d's group replaced it.

    CollectedStep(groups=(a, c, d), dropped=(b,), all_groups=(a, b, c, d), refill_rounds=1, refilled=1,
                  collect_s=41.2, wait_s=3.5)     # mostly collected during an update
    """

    groups: tuple[Group, ...] = ()  # for the batch
    dropped: tuple[Group, ...] = ()  # groups of equal rewards, not in the batch
    all_groups: tuple[Group, ...] = ()  # in the order in which they were chosen
    refill_rounds: int = 0
    refilled: int = 0  # groups in the batch that replace dropped ones
    demonstrations: tuple[Trajectory, ...] = ()
    demonstration_weight: float = 0.0
    validation_loss: float | None = None  # used by supervised fine-tuning
    collect_s: float = 0.0
    wait_s: float = 0.0  # time spent in `Pipeline.take`

    @property
    def trajectories(self) -> list[Trajectory]:
        """The trajectories of the batch."""
        return [trajectory for group in self.groups for trajectory in group.trajectories]

    @property
    def metrics(self) -> dict[str, float]:
        if not self.groups:  # for supervised fine-tuning
            return {} if self.validation_loss is None else {"validation_loss": self.validation_loss}
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
    """Run the episodes of a step. With `algorithm.refill_rounds`, groups whose rewards are all equal are replaced.

    Replacements come from the tasks in `deal.stand_ins`. The batch never has more groups than `deal.tasks`. It has
    fewer if the rounds or the stand-ins run out. If all groups have equal rewards, the batch has the groups of
    `deal.tasks`, and the learner reports that there is nothing to learn.
    """
    dealt = await collector.collect(deal.tasks, step, on_finished)
    if not algorithm.refill_rounds:
        return CollectedStep(groups=dealt, all_groups=dealt)
    played, others, rounds = dealt, deal.stand_ins, 0
    live = _with_variance(dealt)
    while len(live) < len(dealt) and others and rounds < algorithm.refill_rounds:
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


class Pipeline:
    """Collects the episodes of several steps at a time. Steps are opened and returned in order."""

    def __init__(
        self,
        collect: Callable[[int, Deal], Awaitable[CollectedStep]],
        deal: Callable[[int], Deal],
        *,
        steps: int,
        ahead: int,
        known_deals: Mapping[int, Deal],
    ) -> None:
        self._collect = collect
        self._deal = deal
        self._steps = steps
        self._ahead = ahead
        self._deals = dict(known_deals)
        self._open: dict[int, asyncio.Task[CollectedStep]] = {}

    @property
    def open_deals(self) -> Mapping[int, Deal]:
        """The tasks chosen for each step that is open and not yet taken."""
        return dict(self._deals)

    async def take(self, step: int) -> CollectedStep:
        """Open a step and the following ones that may be collected. Wait until the step is collected, and return it."""
        started = time.monotonic()
        self.open_for(step)
        collected = await asyncio.shield(self._open[step])
        del self._open[step], self._deals[step]
        return replace(collected, wait_s=time.monotonic() - started)

    def open_for(self, step: int) -> None:
        """Open the steps that may be collected while `step` is the next one to train on."""
        for coming in range(step, min(step + self._ahead + 1, self._steps)):
            if coming not in self._open:
                if coming not in self._deals:
                    self._deals[coming] = self._deal(coming)
                self._open[coming] = asyncio.create_task(self._timed(coming))

    async def close(self) -> None:
        """Cancel the open steps. Finished episodes remain in the journal."""
        for task in self._open.values():
            task.cancel()
        await asyncio.gather(*self._open.values(), return_exceptions=True)

    async def _timed(self, step: int) -> CollectedStep:
        started = time.monotonic()
        collected = await self._collect(step, self._deals[step])
        return replace(collected, collect_s=time.monotonic() - started)

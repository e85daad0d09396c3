"""One episode whose turns someone else samples: mcprl's own environment, a turn at a time, within its deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from mcprl.config import RunConfig
from mcprl.episodes.deadline import end_at_deadline, longest_life_s
from mcprl.episodes.environment import Action, Environment, Grader, StepResult, ToolAccess
from mcprl.episodes.loop import Leases, lease_for
from mcprl.errors import EpisodeDeadlineError
from mcprl.records import FinishReason, Message, StopReason, Task, ToolCall
from mcprl.skyrl_gym.background import Held

__all__ = ["LiveEpisode"]


class LiveEpisode:
    """An episode from the lease of its tools to their return. All of it runs on one event loop."""

    def __init__(
        self, task: Task, config: RunConfig, *, leases: Leases, preamble: Sequence[Message], judge: Grader | None
    ) -> None:
        self._task = task
        self._config = config
        self._leases = leases
        self._preamble = preamble
        self._judge = judge
        self._held: Held[ToolAccess] | None = None
        self._end_of_life: asyncio.TimerHandle | None = None
        self._environment: Environment | None = None
        self._started = 0.0
        self._played_s = 0.0  # until the end of the last turn

    @property
    def environment(self) -> Environment:
        if self._environment is None:
            raise RuntimeError("the episode is not open")
        return self._environment

    async def open(self) -> None:
        """Lease the task's tools. They go back on their own when the episode is certainly over."""
        self._started = time.monotonic()
        lives_s = longest_life_s(self._config.episodes.deadline_s)
        self._held = Held(lease_for(self._task, self._leases, lives_s=lives_s))
        try:
            async with asyncio.timeout(self._config.episodes.deadline_s):
                access = await self._held.enter()
        except TimeoutError as error:
            raise self._late() from error
        self._end_of_life = asyncio.get_running_loop().call_later(lives_s, self._held.let_go)
        self._environment = Environment(
            self._task,
            access,
            preamble=self._preamble,
            max_turns=self._config.episodes.turn_limit(self._task),
            rewards=self._config.rewards,
            judge=self._judge,
        )

    async def step(self, text: str, prose: str, calls: tuple[ToolCall, ...]) -> StepResult:
        """Carry out one turn. Raises an InfrastructureError where the world failed it."""
        left_s = self._config.episodes.deadline_s - self._age_s()
        if left_s <= 0:
            return await self._end_late()
        # What was sampled stays with the trainer that sampled it, and so does why a turn ended.
        action = Action(
            text=text, prose=prose, calls=calls, sampled_ids=(), finish=FinishReason.STOP, weights_version=0
        )
        try:
            async with asyncio.timeout(left_s):
                result = await self.environment.step(action)
        except TimeoutError:
            return await self._end_late()
        self._played_s = self._age_s()
        return result

    async def close(self) -> None:
        """Give the tools back. A second time does nothing."""
        if self._end_of_life is not None:
            self._end_of_life.cancel()
        if self._held is not None:
            await self._held.leave()

    async def _end_late(self) -> StepResult:
        """At the deadline, as in mcprl's own loop."""
        environment, before = self.environment, self.environment.reward
        deadline_s = self._config.episodes.deadline_s
        await end_at_deadline(environment, played_s=self._played_s, deadline_s=deadline_s, late=self._late())
        return StepResult(
            observations=(), reward=environment.reward - before, stop=StopReason.DEADLINE, parts=environment.parts
        )

    def _late(self) -> EpisodeDeadlineError:
        deadline_s = self._config.episodes.deadline_s
        return EpisodeDeadlineError(
            f"an episode of task {self._task.id} took longer than {deadline_s:g} s, "
            f"{self._age_s() - self._played_s:.3g} s of it waiting for one answer",
            fix="look at what answers so slowly, a tool server or the trainer's engine; or raise episodes.deadline_s",
        )

    def _age_s(self) -> float:
        return time.monotonic() - self._started

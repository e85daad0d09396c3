"""Failures on purpose: now and then a call is not made, and the policy sees what a failing server would have said.

Which calls is a function of the seed and of the call's place in the run, never of chance or of time: the same run
fails the same calls. Only calls that the policy could have made fail, so a mistake of its own is still shown as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mcprl.records import Observation, Source
from mcprl.seeds import derive_seed

__all__ = ["ErrorInjection"]

_SEEDS: Final = 2**63
_FAILURES: Final = (
    "Error: rate limit reached, {tool} was called too often. Please try again.",
    "Error: 429 Too Many Requests. Wait a moment and repeat the request.",
    "Error: {tool} timed out before it returned a result.",
    "Error: the request to the upstream service timed out (504 Gateway Timeout).",
    "Error: {tool} is temporarily unavailable (503 Service Unavailable). Try again later.",
    "Error: 502 Bad Gateway.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInjection:
    """Which calls of one episode fail on purpose.

    ErrorInjection(rate=0.05, seed=7, step=3, task_id="meet-ana", member=0)     # one call in twenty
    """

    rate: float
    seed: int
    step: int
    task_id: str
    member: int

    def failure_of(self, tool: str, *, turn: int, index: int) -> Observation | None:
        """What the policy sees instead of the result of its call number `index` in a turn; None: make the call."""
        place = (self.step, self.task_id, self.member, turn, index)
        if derive_seed(self.seed, "injected error", *place) >= self.rate * _SEEDS:
            return None
        kind = _FAILURES[derive_seed(self.seed, "kind of injected error", *place) % len(_FAILURES)]
        return Observation(tool=tool, server=None, text=kind.format(tool=tool), source=Source.INJECTED)

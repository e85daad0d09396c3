"""What the pipeline keeps for each server: its settings, and the state of the stages that have one."""

from __future__ import annotations

from dataclasses import dataclass

from mcprl.config import ServerSettings
from mcprl.tools.answers import Answer
from mcprl.tools.limits import Desk, Limits, make_limits
from mcprl.tools.stages.breaker import Breaker
from mcprl.tools.stages.cache import ResultCache
from mcprl.tools.stages.disguise import CompiledRule, compile_rules
from mcprl.tools.stages.flights import Flights

__all__ = ["CallKey", "Lane", "open_lane"]

CallKey = tuple[str, str]
"""A tool and its canonical arguments."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One server's lane. Episodes share it, whether or not they share the server's processes."""

    name: str
    settings: ServerSettings
    version: str
    limits: Limits
    breaker: Breaker
    rules: tuple[CompiledRule, ...]
    cache: ResultCache[CallKey, Answer] | None
    flights: Flights[CallKey, tuple[Answer, int]]

    @property
    def is_shared(self) -> bool:
        """Whether episodes share the server's processes."""
        return self.settings.isolation == "shared"


def open_lane(name: str, settings: ServerSettings, version: str, desk: Desk | None = None) -> Lane:
    """A lane with nothing cached, the breaker closed, and nothing spent unless others did at the same desk."""
    return Lane(
        name=name,
        settings=settings,
        version=version,
        limits=make_limits(name, settings, desk),
        breaker=Breaker(name, settings.breaker),
        rules=compile_rules(settings.errors),
        cache=ResultCache(settings.cache_s) if settings.cache_s else None,
        flights=Flights(),
    )

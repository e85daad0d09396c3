"""What a run's finished episodes did with their tools, as far as its watcher hears of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.text import Text

from mcprl.config import ServersConfig
from mcprl.monitoring.printable import printable
from mcprl.records import LostEpisode, Source, Trajectory

__all__ = ["ToolUse"]

_NEAR, _NEARLY_ALL = 0.8, 0.95


class ToolUse:
    """Counts of calls, failures and attempts lost, and the share of each budget that is used.

    Calls of episodes that were lost, or played before a run was resumed, are not heard of: the budget itself, which
    stops the run, counts those too.
    """

    def __init__(self, servers: ServersConfig) -> None:
        self._budgets = {
            name: settings.budget
            for name, settings in servers.settings.items()
            if settings.budget.calls is not None or settings.budget.usd is not None
        }
        self._delivered = Counter[str]()
        self._lost = Counter[str]()
        self._calls = self._failed = self._cached = 0

    def add(self, outcome: Trajectory | LostEpisode) -> None:
        if isinstance(outcome, LostEpisode):
            self._lost[outcome.code] += 1
            return
        for seen in (seen for turn in outcome.turns for seen in turn.observations):
            self._calls += 1
            self._failed += seen.fault is not None
            self._cached += seen.source in (Source.CACHE, Source.CASSETTE)
            # One that was refused before it was sent took no time.
            if seen.server is not None and seen.source is Source.LIVE and seen.latency_s > 0:
                self._delivered[seen.server] += seen.attempts

    def facts(self) -> Iterator[Text]:
        """What to show, a few words each."""
        yield Text(f"{self._calls:,} calls")
        if self._calls:
            yield Text(f"{self._failed / self._calls:.1%} failed")
        if self._cached:
            yield Text(f"{self._cached / self._calls:.0%} from cache or cassette")
        if self._lost:
            (code, _), *_ = self._lost.most_common(1)
            lost = self._lost.total()
            yield Text(f"{lost} attempt{'s' if lost > 1 else ''} lost, most to {printable(code)}", style="yellow")
        for server, budget in self._budgets.items():
            calls, name = self._delivered[server], printable(server)
            if budget.calls is not None:
                yield _used(f"{name} {calls:,}/{budget.calls:,} calls", calls, budget.calls)
            if budget.usd is not None:
                spent = calls * budget.usd_per_call
                yield _used(f"{name} ${spent:,.2f}/${budget.usd:,.2f}", spent, budget.usd)


def _used(words: str, used: float, most: float) -> Text:
    share = used / most if most else 1.0
    return Text(words, style="bold red" if share >= _NEARLY_ALL else "yellow" if share >= _NEAR else "")

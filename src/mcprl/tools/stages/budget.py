"""What a run may spend on one server, in calls and in money."""

from __future__ import annotations

from decimal import Decimal

from mcprl.config import BudgetSettings
from mcprl.errors import BudgetExceededError

__all__ = ["Budget"]


class Budget:
    """Counts each delivery to a server and refuses the first that would exceed a limit.

    Money is counted in decimal, as it is written in the configuration: three calls at 0.1 cost 0.3, not
    0.30000000000000004.
    """

    def __init__(self, server: str, settings: BudgetSettings) -> None:
        self._server = server
        self._max_calls = settings.calls
        # Through the shortest text that means the float: the very digits the user wrote.
        self._max_usd = None if settings.usd is None else Decimal(str(settings.usd))
        self._price = Decimal(str(settings.usd_per_call))
        self._calls = 0

    @property
    def calls(self) -> int:
        """Deliveries so far, repeated attempts included."""
        return self._calls

    @property
    def usd(self) -> float:
        """What they cost."""
        return float(self._calls * self._price)

    def spend(self) -> None:
        """Count the delivery that is about to be made, or raise BudgetExceededError and count nothing."""
        calls = self._calls + 1
        if self._max_calls is not None and calls > self._max_calls:
            raise self._exceeded(f"{self._calls:,} of {self._max_calls:,} calls", "calls")
        if self._max_usd is not None and calls * self._price > self._max_usd:
            raise self._exceeded(
                f"{self._calls * self._price:f} of {self._max_usd:f} USD at {self._price:f} a call", "usd"
            )
        self._calls = calls

    def refund(self) -> None:
        """Take back one `spend` whose delivery provably was not made."""
        assert self._calls > 0
        self._calls -= 1

    def _exceeded(self, spent: str, setting: str) -> BudgetExceededError:
        return BudgetExceededError(
            f"the next call would exceed the budget of server {self._server!r}: the run has used {spent}",
            fix=f"raise servers.settings.{self._server}.budget.{setting}, or make a shorter run",
        )

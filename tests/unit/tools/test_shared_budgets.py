"""A budget over several processes: exact to the call, whatever is given back, cancelled or refused on the way."""
# R15 R24

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from limits_wire import Wire, budgeted, clients_of
from virtual_clock import run_in_virtual_time

from mcprl.errors import BudgetExceededError
from mcprl.tools.limits import LocalLimits, RemoteLimits, SharedLimits


@dataclass(frozen=True)
class Errand:
    """One delivery that a client wants to make, and what becomes of it."""

    client: int
    after_s: float
    takes_s: float
    is_made: bool
    patience_s: float | None


ERRANDS = st.lists(
    st.builds(
        Errand,
        client=st.integers(0, 3),
        after_s=st.floats(0, 2),
        takes_s=st.floats(0, 1),
        is_made=st.booleans(),
        patience_s=st.none() | st.floats(0, 1),
    ),
    max_size=30,
)


class Till:
    """What clients of a service really deliver, as the pipeline does it."""

    def __init__(self, clients: list[RemoteLimits]) -> None:
        self.clients = clients
        self.made = 0
        self.held = 0
        self.most = 0

    async def deliver(self, errand: Errand) -> None:
        limits, is_made = self.clients[errand.client], False
        try:
            await limits.spend()
        except BudgetExceededError:
            return
        self.held += 1
        self.most = max(self.most, self.held)
        try:
            await asyncio.sleep(errand.takes_s)
            is_made = errand.is_made
            self.made += is_made
        finally:
            if not is_made:
                self.held -= 1
                await limits.refund()

    async def run(self, errand: Errand) -> None:
        await asyncio.sleep(errand.after_s)
        try:
            async with asyncio.timeout(errand.patience_s):
                await self.deliver(errand)
        except TimeoutError:
            pass


@given(st.integers(0, 8), st.sampled_from([0.0, 0.05]), ERRANDS)
def test_a_budget_is_exact_over_clients_whatever_is_given_back_or_cancelled(allowed, delay_s, errands):
    async def scenario() -> None:
        service = SharedLimits({"fmp": budgeted(calls=allowed, usd_per_call=0.1)})
        till = Till(clients_of(Wire(service, delay_s), 4, usd_per_call=0.1))
        await asyncio.gather(*(till.run(errand) for errand in errands))
        await asyncio.gather(*(client.settle() for client in till.clients))
        assert till.most <= allowed
        assert sum(client.calls for client in till.clients) == till.made
        assert await service.spent("fmp") == (till.made, pytest.approx(till.made / 10))
        # Exactly the rest is left.
        for _ in range(allowed - till.made):
            await till.clients[0].spend()
        with pytest.raises(BudgetExceededError):
            await till.clients[1].spend()

    run_in_virtual_time(scenario())


async def test_a_refusal_reaches_the_client_with_the_words_of_the_budget():
    settings = budgeted(usd=0.3, usd_per_call=0.1)
    far, near = (
        RemoteLimits(Wire(SharedLimits({"fmp": settings})), "fmp", usd_per_call=0.1),
        LocalLimits("fmp", settings),
    )
    refusals: list[str] = []
    for limits in (far, near):
        for _ in range(3):
            await limits.spend()
        with pytest.raises(BudgetExceededError) as caught:
            await limits.spend()
        refusals.append(str(caught.value))
        assert (limits.calls, limits.usd) == (3, 0.3)
    assert refusals[0] == refusals[1]


@pytest.mark.parametrize("cancelled_at_s", [0.5, 1.5], ids=["on the way out", "on the way back"])
def test_a_spend_that_is_cancelled_counts_nothing_in_the_end(cancelled_at_s):
    async def scenario() -> tuple[int, float]:
        service = SharedLimits({"fmp": budgeted(calls=1)})
        client = RemoteLimits(Wire(service, 1.0), "fmp")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(cancelled_at_s):
                await client.spend()
        await client.settle()
        assert client.calls == 0
        await client.spend()
        return await service.spent("fmp")

    assert run_in_virtual_time(scenario()) == (1, 0.0)


def test_a_refused_spend_that_is_cancelled_gives_nothing_back():
    async def scenario() -> tuple[int, float]:
        service = SharedLimits({"fmp": budgeted(calls=1)})
        await service.spend("fmp")
        client = RemoteLimits(Wire(service, 1.0), "fmp")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await client.spend()
        await client.settle()
        return await service.spent("fmp")

    assert run_in_virtual_time(scenario()) == (1, 0.0)


def test_a_refund_arrives_though_its_caller_is_cancelled():
    async def scenario() -> tuple[int, float]:
        service = SharedLimits({"fmp": budgeted(calls=1)})
        client = RemoteLimits(Wire(service, 1.0), "fmp")
        await client.spend()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await client.refund()
        await client.settle()
        return await service.spent("fmp")

    assert run_in_virtual_time(scenario()) == (0, 0.0)


def test_what_a_client_gave_back_it_can_spend_again_at_once():
    async def scenario() -> None:
        client = RemoteLimits(Wire(SharedLimits({"fmp": budgeted(calls=1)}), 1.0), "fmp")
        for _ in range(3):
            await client.spend()
            await client.refund()

    run_in_virtual_time(scenario())

"""Limits over several processes: one service, many clients, and a limit is never exceeded."""
# R15 R24

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from limits_wire import Wire, budgeted, clients_of, rated
from virtual_clock import run_in_virtual_time

from mcprl.config import ServersConfig, ServerSettings
from mcprl.errors import ServerFileError, WorkerLostError
from mcprl.tools.limits import Limits, LocalLimits, RemoteLimits, SharedLimits, limit_settings, make_limits


def now() -> float:
    return asyncio.get_running_loop().time()


async def pass_at(limits: Limits, delay_s: float, passed: list[float], takes_s: float = 0.0) -> None:
    await asyncio.sleep(delay_s)
    async with limits.passage():
        passed.append(now())
        if takes_s:
            await asyncio.sleep(takes_s)


# Who asks, when, how long the call takes, and how far on its way it arrives at the server.
PLANS = st.lists(st.tuples(st.integers(0, 4), st.floats(0, 5), st.floats(0, 4), st.floats(0, 1)), max_size=30)


@given(st.integers(1, 5), st.sampled_from([0.0, 0.01, 0.3]), PLANS)
def test_no_period_sees_more_arrivals_than_allowed_from_all_clients_together(calls, delay_s, plans):
    per_s = 1.0

    async def call(limits: Limits, after_s: float, takes_s: float, share: float, arrivals: list[float]) -> None:
        await asyncio.sleep(after_s)
        async with limits.passage():
            # What the way from the service took is part of the call's own way.
            arrivals.append(now() + share * min(takes_s, per_s - delay_s))
            await asyncio.sleep(takes_s)

    async def scenario() -> list[float]:
        arrivals: list[float] = []
        clients = clients_of(Wire(SharedLimits({"fmp": rated(calls, per_s)}), delay_s), 5)
        await asyncio.gather(*(call(clients[number], *plan, arrivals) for number, *plan in plans))
        await asyncio.gather(*(client.settle() for client in clients))
        return sorted(arrivals)

    times = run_in_virtual_time(scenario())
    assert len(times) == len(plans)
    for earlier, later in zip(times, times[calls:], strict=False):
        assert later - earlier >= per_s - 1e-6


@given(st.integers(1, 5), PLANS)
def test_clients_of_a_service_pass_when_callers_in_one_process_would(calls, plans):
    async def passages(limits: list[Limits]) -> list[float]:
        passed: list[float] = []
        await asyncio.gather(
            *(pass_at(limits[number], after_s, passed, takes_s) for number, after_s, takes_s, _ in plans)
        )
        return passed

    async def far() -> list[float]:
        return await passages([*clients_of(SharedLimits({"fmp": rated(calls, 1.0)}), 5)])

    near = run_in_virtual_time(passages([LocalLimits("fmp", rated(calls, 1.0))] * 5))
    assert run_in_virtual_time(far()) == pytest.approx(near, abs=1e-6)


def test_waiting_clients_that_are_cancelled_use_up_no_place():
    async def scenario() -> list[float]:
        passed: list[float] = []
        clients = clients_of(SharedLimits({"fmp": rated(1, 10.0)}), 5)
        callers = [asyncio.create_task(pass_at(client, 0.0, passed)) for client in clients]
        await asyncio.sleep(1.0)
        callers[1].cancel()  # the one whose turn is next
        callers[3].cancel()  # one further back
        await asyncio.gather(*callers, return_exceptions=True)
        await pass_at(clients[1], 0.0, passed)
        return passed

    assert run_in_virtual_time(scenario()) == pytest.approx([0, 10, 20, 30])


@pytest.mark.parametrize("settings", [rated(100, 1.0), budgeted(calls=100)], ids=["with a rate", "without"])
def test_a_pause_that_one_client_asks_for_holds_for_all(settings):
    async def scenario() -> list[float]:
        passed: list[float] = []
        first, second, third = clients_of(SharedLimits({"fmp": settings}), 3)
        await pass_at(first, 0.0, passed)
        await first.pause(5.0)
        await second.pause(1.0)
        await asyncio.gather(*(pass_at(client, 1.0, passed) for client in (first, second, third)))
        return passed

    assert run_in_virtual_time(scenario()) == pytest.approx([0, 5, 5, 5])


def test_other_servers_are_not_held_up():
    async def scenario() -> list[float]:
        passed: list[float] = []
        service = SharedLimits({"fmp": rated(1, 10.0), "tavily": rated(1, 10.0)})
        fmp, tavily = RemoteLimits(service, "fmp"), RemoteLimits(service, "tavily")
        await fmp.pause(100.0)
        await pass_at(tavily, 1.0, passed)
        return passed

    assert run_in_virtual_time(scenario()) == pytest.approx([1.0])


def test_the_place_of_a_worker_that_died_is_free_after_two_periods_and_its_ticket_forgotten():
    async def scenario() -> tuple[list[float], int]:
        times: list[float] = []
        service = SharedLimits({"fmp": rated(2, 1.0)})
        for _ in range(7):
            await service.take_place("fmp")
            times.append(now())
        return times, service.num_tickets("fmp")

    times, num_tickets = run_in_virtual_time(scenario())
    assert times == pytest.approx([0, 0, 2, 2, 4, 4, 6])
    assert num_tickets == 1


def test_a_ticket_freed_late_or_twice_or_never_made_makes_no_room():
    async def scenario() -> list[float]:
        times: list[float] = []
        service = SharedLimits({"fmp": rated(1, 1.0)})
        late = await service.take_place("fmp")
        await asyncio.sleep(5.0)
        twice = await service.take_place("fmp")
        times.append(now())
        assert late is not None
        assert twice is not None
        for ticket in (late, late, twice, twice, 12345):
            await service.free_place("fmp", ticket)
        for _ in range(3):
            await service.take_place("fmp")
            times.append(now())
        return times

    # The place that was freed in time is free a period later; those after it are never freed.
    assert run_in_virtual_time(scenario()) == pytest.approx([5.0, 6.0, 8.0, 10.0])


def test_a_place_freed_shortly_before_it_expires_is_not_freed_twice():
    async def scenario() -> list[float]:
        service, passed = SharedLimits({"fmp": rated(1, 1.0)}), []
        ticket = await service.take_place("fmp")
        assert ticket is not None
        await asyncio.sleep(1.5)
        await service.free_place("fmp", ticket)
        for _ in range(3):
            await service.take_place("fmp")
            passed.append(now())
        return passed

    assert run_in_virtual_time(scenario()) == pytest.approx([2.0, 4.0, 6.0])


LOST = WorkerLostError("the driver is gone", fix="resume the run")


async def test_no_call_passes_if_the_service_is_gone():
    wire = Wire(SharedLimits({"fmp": rated(1, 1.0)}))
    client = RemoteLimits(wire, "fmp")
    wire.problem = LOST
    with pytest.raises(WorkerLostError):
        await client.spend()
    assert client.calls == 0
    with pytest.raises(WorkerLostError):
        async with client.passage():
            pytest.fail("nobody may pass")


async def test_what_cannot_be_given_back_any_more_costs_no_answer():
    wire = Wire(SharedLimits({"fmp": rated(1, 1.0)}))
    client = RemoteLimits(wire, "fmp")
    await client.spend()
    async with client.passage():
        wire.problem = LOST
        await client.pause(1.0)
    await client.refund()
    await client.settle()
    assert client.calls == 0


async def test_a_spend_that_is_cancelled_while_the_service_dies_leaves_no_error_behind():
    wire = Wire(SharedLimits({"fmp": rated(1, 1.0)}))
    client = RemoteLimits(wire, "fmp")
    wire.problem = LOST
    spending = asyncio.create_task(client.spend())
    await asyncio.sleep(0)
    spending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await spending
    await client.settle()


async def test_a_server_that_the_service_does_not_know_is_named():
    client = RemoteLimits(SharedLimits({"fmp": ServerSettings()}), "fpm")
    with pytest.raises(ServerFileError, match=r"'fpm'.*did you mean 'fmp'.*run's mcpServers file"):
        await client.spend()


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        (ServerSettings(), LocalLimits),
        (budgeted(usd_per_call=0.1), LocalLimits),
        (budgeted(calls=3), RemoteLimits),
        (budgeted(usd=3.0, usd_per_call=0.1), RemoteLimits),
        (rated(1, 1.0), RemoteLimits),
    ],
)
async def test_only_servers_with_limits_ask_the_service(settings, kind):
    limits = make_limits("fmp", settings, SharedLimits({"fmp": settings}))
    assert type(limits) is kind
    await limits.spend()
    assert (limits.calls, limits.usd) == (1, settings.budget.usd_per_call)
    assert type(make_limits("fmp", settings, None)) is LocalLimits


def servers_file(tmp_path, **entries):
    path = tmp_path / "servers.json"
    path.write_text(json.dumps({"mcpServers": entries}))
    return path


def test_the_service_knows_every_server_that_a_toolbox_would_start(tmp_path):
    off = {"command": "off", "disabled": True}
    path = servers_file(tmp_path, fmp={"command": "fmp"}, time={"command": "time"}, off=off)
    config = ServersConfig(file=path, settings={"fmp": rated(3, 1.0)})
    assert limit_settings(config) == {"fmp": rated(3, 1.0), "time": ServerSettings()}


def test_in_replay_the_service_needs_no_file(tmp_path):
    config = ServersConfig(cassette=tmp_path / "c.sqlite", cassette_mode="replay", settings={"fmp": rated(3, 1.0)})
    assert limit_settings(config) == {"fmp": rated(3, 1.0)}


def test_settings_for_a_server_that_is_not_there_are_refused_before_any_worker_starts(tmp_path):
    config = ServersConfig(file=servers_file(tmp_path, fmp={"command": "fmp"}), settings={"fpm": rated(3, 1.0)})
    with pytest.raises(ServerFileError, match="'fpm'"):
        limit_settings(config)

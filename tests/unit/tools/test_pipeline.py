"""The whole way of a call, through servers inside this process: which stage answers, and whose fault a refusal is."""
# R15 R17

import asyncio
import json
import sqlite3
import sys
from pathlib import Path

import pytest
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

from mcprl.config import (
    BudgetSettings,
    ErrorRule,
    RateSettings,
    ServersConfig,
    ServerSettings,
)
from mcprl.errors import BudgetExceededError, Fault, ServerFaultError, ServerFileError, WorkerLostError
from mcprl.records import Observation, Source, ToolCall
from mcprl.tools import (
    Cassette,
    ServerSpec,
    SharedLimits,
    Toolbox,
    ToolDefinition,
    limit_settings,
    load_specs,
    open_toolbox,
)
from mcprl.tools.calls import FAILURES
from mcprl.tools.connection import Answer, ServerConnection
from mcprl.tools.stats import merge_stats

READ = ToolAnnotations(read_only_hint=True)


class Market:
    """A server that counts what reaches it, and holds back or fails on request."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failures_left = 0
        self.gate = asyncio.Event()
        self.gate.set()

    def make(self) -> MCPServer:
        server = MCPServer("market", version="1.2", log_level="WARNING")

        async def quote(symbol: str) -> str:
            """The price of a share."""
            self.calls.append(f"quote {symbol}")
            await self.gate.wait()
            if self.failures_left:
                self.failures_left -= 1
                return '{"error": "upstream is down"}'
            return f"{symbol}: 213.88"

        def order(symbol: str) -> str:
            """Buy a share."""
            self.calls.append(f"order {symbol}")
            if self.failures_left:
                self.failures_left -= 1
                return '{"error": "upstream is down"}'
            return "bought"

        def shout(text: str) -> str:
            """Say it back."""
            return text

        server.add_tool(quote, annotations=READ)
        server.add_tool(order)
        server.add_tool(shout, annotations=READ)
        return server


def call(name, /, **arguments):
    return ToolCall(name=name, arguments=arguments)


def toolbox(market: Market, tmp_path: Path, **settings) -> Toolbox:
    return Toolbox([ServerSpec(name="market", make=market.make, settings=ServerSettings(**settings))], log_dir=tmp_path)


async def observe(market: Market, tmp_path: Path, *calls: ToolCall, **settings):
    async with toolbox(market, tmp_path, **settings) as box, box.lease(None) as lease:
        return [await lease.call(each) for each in calls]


async def test_an_alias_of_a_tool_and_of_an_argument_reach_the_tool_meant(tmp_path):
    (seen,) = await observe(
        Market(), tmp_path, call("get_quote", ticker="AAPL"),
        tool_aliases={"get_quote": "quote"}, argument_aliases={"ticker": "symbol", "symbol": "ticker"},
    )  # fmt: skip
    assert (seen.tool, seen.text, seen.fault) == ("quote", "AAPL: 213.88", None)
    assert seen.arguments == {"symbol": "AAPL"}


async def test_arguments_that_no_alias_changed_are_not_written_down_twice(tmp_path):
    (seen,) = await observe(Market(), tmp_path, call("quote", symbol="AAPL"), argument_aliases={"ticker": "symbol"})
    assert (seen.text, seen.arguments) == ("AAPL: 213.88", None)


async def test_bad_arguments_reach_no_server_and_are_explained(tmp_path):
    market = Market()
    (seen,) = await observe(market, tmp_path, call("quote", sybmol="AAPL"))
    assert (seen.fault, market.calls) == (Fault.POLICY, [])
    assert seen.text.startswith("Bad arguments for quote: ")


async def test_a_denied_tool_is_not_on_offer_and_unknown_when_called(tmp_path):
    async with toolbox(Market(), tmp_path, deny=("or*",)) as box, box.lease(None) as lease:
        assert [tool.name for tool in lease.tools] == ["quote", "shout"]
        seen = await lease.call(call("order", symbol="AAPL"))
    assert (seen.fault, seen.server) == (Fault.POLICY, None)


async def test_a_tool_that_is_held_back_is_named_by_no_answer_and_reached_by_no_alias(tmp_path):
    market = Market()
    async with toolbox(market, tmp_path, tool_aliases={"buy": "order"}) as box, box.lease(None) as lease:
        for name in ("order", "ordr", "buy", "zzz"):
            seen = await lease.call(call(name, symbol="AAPL"), without={"order"})
            assert (seen.fault, seen.server) == (Fault.POLICY, None)
            assert "order" not in seen.text.replace(f"'{name}'", "")
        assert market.calls == []
        assert (await lease.call(call("buy", symbol="AAPL"))).text == "bought"


async def test_what_is_shown_instead_takes_the_place_of_a_call_that_could_be_made_and_of_no_mistake(tmp_path):
    market, asked = Market(), []

    def instead(tool: str) -> Observation:
        asked.append(tool)
        return Observation(tool=tool, server=None, text="502", source=Source.INJECTED)

    async with toolbox(market, tmp_path, tool_aliases={"buy": "order"}) as box, box.lease(None) as lease:
        seen = [
            await lease.call(each, instead=instead)
            for each in (call("buy", symbol="AAPL"), call("order", sybmol="AAPL"), call("zzz"))
        ]
        assert box.stats()["servers"]["market"]["calls"] == 0
    assert ([each.text == "502" for each in seen], asked) == ([True, False, False], ["order"])
    assert market.calls == []


async def test_the_same_call_of_a_read_only_tool_is_cached_and_a_write_never(tmp_path):
    market = Market()
    calls = [call("quote", symbol="A"), call("quote", symbol="A"), call("order", symbol="A"), call("order", symbol="A")]
    seen = await observe(market, tmp_path, *calls, cache_s=60)
    assert market.calls == ["quote A", "order A", "order A"]
    assert [each.source for each in seen] == [Source.LIVE, Source.CACHE, Source.LIVE, Source.LIVE]
    assert seen[0].text == seen[1].text


async def test_without_a_cache_the_same_call_is_made_again(tmp_path):
    market = Market()
    await observe(market, tmp_path, call("quote", symbol="A"), call("quote", symbol="A"))
    assert market.calls == ["quote A", "quote A"]


async def test_equal_calls_in_flight_of_a_read_only_tool_share_one_delivery(tmp_path):
    market = Market()
    market.gate.clear()
    async with toolbox(market, tmp_path) as box, box.lease(None) as first, box.lease(None) as second:
        calls = [asyncio.create_task(lease.call(call("quote", symbol="A"))) for lease in (first, second) * 4]
        other = asyncio.create_task(first.call(call("quote", symbol="B")))
        while len(market.calls) < 2:  # noqa: ASYNC110 - the server counts, and has no event for it
            await asyncio.sleep(0)
        market.gate.set()
        seen = await asyncio.gather(*calls, other)
        figures = box.stats()["servers"]["market"]["tools"]["quote"]
    assert sorted(market.calls) == ["quote A", "quote B"]
    assert [each.text for each in seen] == ["A: 213.88"] * 8 + ["B: 213.88"]
    assert (figures["calls"], figures["shared"]) == (9, 7)


async def test_an_error_disguised_as_a_success_is_the_policys_where_the_rule_says_so(tmp_path):
    market = Market()
    market.failures_left = 1
    (seen,) = await observe(market, tmp_path, call("quote", symbol="A"), errors=(ErrorRule(match='"error"'),))
    assert (seen.fault, seen.text) == (Fault.POLICY, '{"error": "upstream is down"}')


RULE = ErrorRule(match='^\\{"error"', fault="infrastructure")


async def test_a_read_only_call_that_the_infrastructure_failed_is_made_again(tmp_path):
    market = Market()
    market.failures_left = 2
    (seen,) = await observe(market, tmp_path, call("quote", symbol="A"), errors=(RULE,))
    assert (seen.text, seen.attempts, len(market.calls)) == ("A: 213.88", 3, 3)


async def test_a_write_that_the_infrastructure_failed_is_raised_and_never_made_again(tmp_path):
    market = Market()
    market.failures_left = 1
    with pytest.raises(ServerFaultError, match="upstream is down"):
        await observe(market, tmp_path, call("order", symbol="A"), errors=(RULE,))
    assert market.calls == ["order A"]


async def test_the_budget_stops_before_the_call_that_would_exceed_it_and_cached_answers_cost_nothing(tmp_path):
    market = Market()
    budget = BudgetSettings(usd=0.3, usd_per_call=0.1)
    async with toolbox(market, tmp_path, budget=budget, cache_s=60) as box, box.lease(None) as lease:
        for symbol in "AABBCC":
            await lease.call(call("quote", symbol=symbol))
        with pytest.raises(BudgetExceededError, match=r"servers\.settings\.market\.budget\.usd"):
            await lease.call(call("quote", symbol="D"))
        assert box.stats()["servers"]["market"]["usd"] == 0.3
    assert market.calls == ["quote A", "quote B", "quote C"]


async def test_a_budget_holds_over_toolboxes_that_share_a_service_and_their_figures_add_up(tmp_path):
    market = Market()
    settings = ServerSettings(budget=BudgetSettings(usd=0.5, usd_per_call=0.1))
    spec, service = ServerSpec(name="market", make=market.make, settings=settings), SharedLimits({"market": settings})
    async with (
        Toolbox([spec], log_dir=tmp_path, limits=service) as one,
        Toolbox([spec], log_dir=tmp_path, limits=service) as other,
        one.lease(None) as first,
        other.lease(None) as second,
    ):
        calls = [lease.call(call("order", symbol=f"S{n}")) for n in range(4) for lease in (first, second)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        merged = merge_stats([one.stats(), other.stats()])["servers"]["market"]
    assert len(market.calls) == 5
    assert [type(outcome) for outcome in outcomes].count(BudgetExceededError) == 3
    assert await service.spent("market") == (5, 0.5) == (merged["calls"], merged["usd"])
    assert merged["tools"]["order"]["ok"] == 5


async def test_a_lost_limits_service_is_not_a_fault_of_the_policy_nor_of_the_server(tmp_path):
    class Lost(SharedLimits):
        async def take_place(self, server: str) -> int | None:
            raise WorkerLostError("the driver is gone", fix="resume the run")

    market, settings = Market(), ServerSettings(rate=RateSettings(calls=9))
    spec, service = ServerSpec(name="market", make=market.make, settings=settings), Lost({"market": settings})
    async with Toolbox([spec], log_dir=tmp_path, limits=service) as box, box.lease(None) as lease:
        for _ in range(FAILURES + 1):
            with pytest.raises(WorkerLostError, match="the driver is gone"):
                await lease.call(call("quote", symbol="A"))
        figures = box.stats()["servers"]["market"]
    assert figures["tools"]["quote"]["failures"] == {"E-WORK-011": FAILURES + 1}
    assert (figures["calls"], figures["breaker_openings"], market.calls) == (0, 0, [])
    assert await service.spent("market") == (0, 0.0)


async def test_a_toolbox_that_closes_leaves_no_place_taken_longer_than_needed(tmp_path):
    class Slow(SharedLimits):
        freed = 0
        may_free = asyncio.Event()

        async def free_place(self, server: str, ticket: int) -> None:
            await self.may_free.wait()
            await super().free_place(server, ticket)
            self.freed += 1

    settings = ServerSettings(rate=RateSettings(calls=9))
    spec, service = ServerSpec(name="market", make=Market().make, settings=settings), Slow({"market": settings})
    async with Toolbox([spec], log_dir=tmp_path, limits=service) as box, box.lease(None) as lease:
        await lease.call(call("quote", symbol="A"))
        assert service.freed == 0
        asyncio.get_running_loop().call_later(0.05, service.may_free.set)  # while the toolbox closes
    assert service.freed == 1


@pytest.mark.process
async def test_the_toolbox_of_a_recipe_counts_what_others_spent_at_its_service(tmp_path):
    file = tmp_path / "servers.json"
    entry = {"command": sys.executable, "args": ["-m", "mcprl", "serve", "directory"]}
    file.write_text(json.dumps({"mcpServers": {"directory": entry}}))
    config = ServersConfig(file=file, settings={"directory": ServerSettings(budget=BudgetSettings(calls=3))})
    service = SharedLimits(limit_settings(config))
    await service.spend("directory")
    await service.spend("directory")
    async with open_toolbox(config, log_dir=tmp_path, limits=service) as box, box.lease(None) as lease:
        assert (await lease.call(call("list_people", city="Lima"))).source is Source.LIVE
        with pytest.raises(BudgetExceededError, match="3 of 3 calls"):
            await lease.call(call("list_people", city="Oslo"))
        assert box.stats()["servers"]["directory"]["calls"] == 1


async def test_a_result_is_cut_cleaned_and_says_so(tmp_path):
    text = "\x1b[31mred\x1b[0m\x00 " + "x" * 5000
    (seen,) = await observe(Market(), tmp_path, call("shout", text=text), max_result_bytes=1000)
    assert seen.truncated
    assert seen.text.startswith("red xxx")
    assert seen.text.splitlines()[-1].startswith("[cut: ")
    assert len(seen.text.encode()) <= 1000


@pytest.mark.parametrize(("size", "note"), [(5, "[cut: the result is longer than the limit]"), (5000, "[cut: ")])
async def test_a_result_that_the_transport_cut_says_so_within_its_limit(tmp_path, monkeypatch, size, note):
    async def call_server(*_given: object, **_named: object) -> Answer:
        return Answer("x" * size, truncated=True)

    monkeypatch.setattr(ServerConnection, "call", call_server)
    (seen,) = await observe(Market(), tmp_path, call("shout", text="x"), max_result_bytes=1000)
    assert seen.truncated
    assert seen.text.startswith("xxxxx")
    assert seen.text.splitlines()[-1].startswith(note)
    assert len(seen.text.encode()) <= 1000


async def test_what_was_recorded_is_replayed_without_the_server_and_nothing_else_is(tmp_path):
    market, path = Market(), tmp_path / "calls.sqlite"
    spec = ServerSpec(name="market", make=market.make)
    cassette = Cassette.open(path, writable=True)
    async with (
        Toolbox([spec], log_dir=tmp_path, cassette=cassette, cassette_mode="record") as box,
        box.lease(None) as lease,
    ):
        live = await lease.call(call("quote", symbol="A"))
        await lease.call(call("order", symbol="A"))
    cassette.close()
    config = ServersConfig(cassette=path, cassette_mode="replay")
    async with open_toolbox(config, log_dir=tmp_path) as box, box.lease(None) as lease:
        assert box.catalog.names == ("quote", "order", "shout")
        replayed = await lease.call(call("quote", symbol="A"))
        missing = await lease.call(call("quote", symbol="B"))
        write = await lease.call(call("order", symbol="A"))
    assert (replayed.text, replayed.source, replayed.fault) == (live.text, Source.CASSETTE, None)
    assert (missing.text, missing.source, missing.fault) == ("No data found for B.", Source.MISSING, None)
    assert (write.source, write.fault) == (Source.MISSING, Fault.POLICY)
    assert write.text.startswith("There is no recorded answer")
    assert market.calls == ["quote A", "order A"]


async def test_in_mixed_mode_recorded_tools_are_replayed_and_the_others_run(tmp_path):
    market, news, path = Market(), Market(), tmp_path / "calls.sqlite"
    with Cassette.open(path, writable=True) as cassette:
        quote = ToolDefinition(name="old_quote", description="", parameters={"type": "object"}, read_only=True)
        cassette.record_tools("archive", "", [quote])
        cassette.record("archive", "", "old_quote", {"symbol": "A"}, "A: 7")
        cassette.record("archive", "", "old_quote", {"symbol": "Z"}, "No prices were found for Z.")
        for server in ("market", "news"):
            cassette.record(server, "", "quote", {"symbol": "A"}, "A: 8")
    with Cassette.open(path, writable=False) as cassette:
        specs = [
            ServerSpec(name="market", make=market.make, settings=ServerSettings(deny=("shout",))),
            ServerSpec(name="news", make=news.make, settings=ServerSettings(allow=("shout",))),
        ]
        async with (
            Toolbox(specs, log_dir=tmp_path, cassette=cassette, cassette_mode="mixed") as box,
            box.lease(None) as lease,
        ):
            worlds = {name: box.world_of(name) for name in box.catalog.names}
            calls = [call("old_quote", symbol="A"), call("old_quote", symbol="B"), call("quote", symbol="A")]
            seen = [await lease.call(each) for each in [*calls, call("order", symbol="A"), call("shout", text="x")]]
            stats = box.stats()["servers"]
        assert dict(cassette.tools()).keys() == {"archive"}, "nothing is written to the cassette"
    assert worlds == {"old_quote": "recorded", "quote": "recorded", "order": "live", "shout": "live"}
    assert [each.text for each in seen] == ["A: 7", "No prices were found for B.", "A: 8", "bought", "x"]
    assert [each.source.value for each in seen] == ["cassette", "missing", "cassette", "live", "live"]
    assert market.calls == ["order A"]
    assert (stats["archive"]["tools"]["old_quote"]["replayed"], stats["archive"]["tools"]["old_quote"]["missing"]) == (
        1,
        1,
    )


async def test_in_mixed_mode_a_recorded_tool_is_called_if_the_settings_say_so(tmp_path):
    market, path = Market(), tmp_path / "calls.sqlite"
    with Cassette.open(path, writable=True) as cassette:
        cassette.record("market", "", "quote", {"symbol": "A"}, "A: 8")
    with Cassette.open(path, writable=False) as cassette:
        spec = ServerSpec(name="market", make=market.make, settings=ServerSettings(recorded=("nothing*",)))
        box = Toolbox([spec], log_dir=tmp_path, cassette=cassette, cassette_mode="mixed")
        async with box, box.lease(None) as lease:
            seen = await lease.call(call("quote", symbol="A"))
    assert (seen.text, seen.source) == ("A: 213.88", Source.LIVE)


def test_settings_in_mixed_mode_are_for_servers_of_the_file_and_of_the_cassette(tmp_path):
    file, path = tmp_path / "servers.json", tmp_path / "calls.sqlite"
    file.write_text(json.dumps({"mcpServers": {"market": {"command": "market"}}}))
    with Cassette.open(path, writable=True) as cassette:
        cassette.record_tools("archive", "", [])
    config = ServersConfig(
        file=file,
        cassette=path,
        cassette_mode="mixed",
        settings={
            "archive": ServerSettings(argument_aliases={"ticker": "symbol"}),
            "market": ServerSettings(attempts=1),
        },
    )
    (spec,) = load_specs(config)
    assert (spec.name, spec.settings.attempts) == ("market", 1)
    unknown = config.model_copy(update={"settings": {"archiv": ServerSettings()}})
    with pytest.raises(ServerFileError, match="archiv"):
        load_specs(unknown)


async def test_replay_else_live_asks_the_server_only_for_what_is_not_recorded(tmp_path):
    market = Market()
    cassette = Cassette.open(tmp_path / "calls.sqlite", writable=True)
    spec = ServerSpec(name="market", make=market.make)
    async with (
        Toolbox([spec], log_dir=tmp_path, cassette=cassette, cassette_mode="replay_else_live") as box,
        box.lease(None) as lease,
    ):
        sources = [(await lease.call(call("quote", symbol=symbol))).source for symbol in "ABAB"]
    cassette.close()
    assert sources == [Source.LIVE, Source.LIVE, Source.CASSETTE, Source.CASSETTE]
    assert market.calls == ["quote A", "quote B"]


async def test_an_error_is_never_recorded(tmp_path):
    market = Market()
    market.failures_left = 1
    cassette = Cassette.open(tmp_path / "calls.sqlite", writable=True)
    spec = ServerSpec(name="market", make=market.make, settings=ServerSettings(errors=(ErrorRule(match='"error"'),)))
    async with (
        Toolbox([spec], log_dir=tmp_path, cassette=cassette, cassette_mode="replay_else_live") as box,
        box.lease(None) as lease,
    ):
        seen = [await lease.call(call("quote", symbol="A")) for _ in range(2)]
    cassette.close()
    assert [each.fault for each in seen] == [Fault.POLICY, None]
    assert seen[1].source is Source.LIVE


@pytest.mark.parametrize("mode", ["record", "replay_else_live"])
async def test_the_event_loop_answers_while_the_cassette_is_locked(tmp_path, monkeypatch, mode):
    market, path = Market(), tmp_path / "calls.sqlite"
    loop, reached, record = asyncio.get_running_loop(), asyncio.Event(), Cassette.record

    def announced(*arguments: object, **named: object) -> None:
        loop.call_soon_threadsafe(reached.set)
        record(*arguments, **named)

    monkeypatch.setattr(Cassette, "record", announced)
    monkeypatch.setattr("mcprl.tools.cassette._BUSY_S", 10.0)
    cassette = Cassette.open(path, writable=True)
    locked = sqlite3.connect(path, isolation_level=None)
    spec = ServerSpec(name="market", make=market.make, settings=ServerSettings())
    async with (
        Toolbox([spec], log_dir=tmp_path, cassette=cassette, cassette_mode=mode) as box,
        box.lease(None) as lease,
    ):
        locked.execute("BEGIN IMMEDIATE")
        called = asyncio.create_task(lease.call(call("quote", symbol="A")))
        await reached.wait()
        locked.execute("ROLLBACK")
        assert (await called).text == "A: 213.88"
    locked.close()
    cassette.close()


async def test_settings_of_a_server_that_the_cassette_does_not_hold_are_refused(tmp_path):
    cassette = Cassette.open(tmp_path / "calls.sqlite", writable=True)
    spec = ServerSpec(name="market", make=Market().make)
    async with Toolbox([spec], log_dir=tmp_path, cassette=cassette, cassette_mode="record"):
        pass
    cassette.close()
    config = ServersConfig(
        cassette=tmp_path / "calls.sqlite", cassette_mode="replay", settings={"markt": ServerSettings()}
    )
    with pytest.raises(ServerFileError, match="did you mean 'market'"):
        async with open_toolbox(config, log_dir=tmp_path):
            pass

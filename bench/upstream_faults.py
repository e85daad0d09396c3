"""A paid API that misbehaves, and what reaches it: a real MCP server over HTTP behind a gateway that keeps the times.

    busy       429 with Retry-After: 2. No request may arrive before the two seconds are over, from any episode.
    rate       A burst of 60 calls with a limit of 10 a second: never more than 10 in any second, at the vendor's door.
    breaker    500s. After five in a row the server rests: no request arrives until then, one probe, and all go on.
    slow       Answers later than the deadline fail alone, and their connections are closed; those beside them do not.
    malformed  Bodies that are no JSON, no JSON-RPC, of the wrong type or empty are ServerFaultError, a stream that
               breaks off is ServerLostError, and the next call works on the same session.
    budget     With 50 calls, or the money for 50, exactly 50 requests arrive, and the 51st stops the run.

`violations` counts everything that should not have been; each is printed. Figures with `_s` are seconds.

    python bench/upstream_faults.py [--ci]          (both sizes are the same)
"""

from __future__ import annotations

import asyncio
import bisect
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcprl.config import BudgetSettings, RateSettings, ServerSettings
from mcprl.errors import (
    BudgetExceededError,
    CallDeadlineError,
    InfrastructureError,
    McprlError,
    ServerFaultError,
    ServerLostError,
)
from mcprl.records import Observation, ToolCall
from mcprl.tools import ServerSpec, Toolbox
from mcprl.tools.calls import FAILURES, REST_S
from servers.gateway import Gateway, Reply
from servers.harness import run_bench, say

BARS = {"violations": ("==", 0)}
# 60 calls at 10 a second, and calls with a deadline of a second.
SPEED_BARS = {"burst_of_60_s": ("<=", 7.0), "slow_ended_s": ("<=", 1.5)}
JSON = {"Content-Type": "application/json"}


class Scenario:
    """A toolbox before a gateway, and a list of what should not have been."""

    def __init__(self, gateway: Gateway, toolbox: Toolbox, lease: Any, violations: list[str]) -> None:
        self.gateway = gateway
        self.toolbox = toolbox
        self._lease = lease
        self._violations = violations

    async def call(self, number: int, tool: str = "look") -> Observation:
        return await self._lease.call(ToolCall(name=tool, arguments={"number": number}))

    async def outcome(self, number: int, tool: str = "look") -> Observation | McprlError:
        try:
            return await self.call(number, tool)
        except McprlError as error:
            return error

    async def outcomes(self, numbers: range, tool: str = "look") -> list[Observation | McprlError]:
        return list(await asyncio.gather(*(self.outcome(number, tool) for number in numbers)))

    def expect(self, holds: bool, sentence: str) -> None:
        if not holds:
            self._violations.append(sentence)
            say(f"VIOLATION: {sentence}")


@asynccontextmanager
async def scenario(folder: Path, violations: list[str], settings: ServerSettings) -> AsyncGenerator[Scenario]:
    gateway = Gateway()
    async with gateway.serve() as url:
        spec = ServerSpec(name="vendor", url=url, settings=settings)
        async with Toolbox([spec], log_dir=folder) as toolbox, toolbox.lease(None) as lease:
            yield Scenario(gateway, toolbox, lease, violations)


async def busy(folder: Path, violations: list[str]) -> dict[str, Any]:
    settings = ServerSettings(attempts=3)
    async with scenario(folder, violations, settings) as vendor:
        vendor.gateway.replies = [Reply(status=429, headers={"Retry-After": "2"})]
        first = asyncio.create_task(vendor.outcome(0, "order"))
        while not vendor.gateway.arrivals:  # noqa: ASYNC110 - the gateway keeps times, no events
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.1)
        # Other episodes, which know nothing of the refusal.
        others = await vendor.outcomes(range(1, 11))
        outcomes = [await first, *others]
        refused, *later = vendor.gateway.arrivals
        early = [arrival - refused for arrival in later if arrival - refused < 2.0]
        vendor.expect(not early, f"requests arrived {early} s after a 429 with Retry-After: 2")
        failed = [str(outcome) for outcome in outcomes if isinstance(outcome, McprlError)]
        vendor.expect(not failed, f"calls failed that had only to wait: {failed}")
        vendor.expect(len(later) == 11, f"{len(later)} requests arrived after the refusal, not 11")
        return {"first_after_429_s": round(min(later, default=refused) - refused, 3)}


def most_in_window(arrivals: list[float], window_s: float) -> int:
    """The most arrivals in any window of that length, open at its end."""
    ordered = sorted(arrivals)
    return max(bisect.bisect_left(ordered, start + window_s) - place for place, start in enumerate(ordered))


async def rate(folder: Path, violations: list[str]) -> dict[str, Any]:
    settings = ServerSettings(rate=RateSettings(calls=10, per_s=1.0))
    async with scenario(folder, violations, settings) as vendor:
        started = time.monotonic()
        outcomes = await vendor.outcomes(range(60))
        elapsed_s = time.monotonic() - started
        most = most_in_window(vendor.gateway.arrivals, 1.0)
        vendor.expect(most <= 10, f"{most} requests arrived within one second, the limit is 10")
        failed = [str(outcome) for outcome in outcomes if isinstance(outcome, McprlError)]
        vendor.expect(not failed, f"calls failed that had only to wait: {failed[:3]}")
        return {"most_in_a_second": most, "burst_of_60_s": round(elapsed_s, 2)}


async def breaker(folder: Path, violations: list[str]) -> dict[str, Any]:
    rest_s = REST_S
    settings = ServerSettings(attempts=1, call_deadline_s=10 * REST_S)
    async with scenario(folder, violations, settings) as vendor:
        vendor.gateway.replies = [Reply(status=500)] * 6
        for number in range(FAILURES):
            outcome = await vendor.outcome(number)
            vendor.expect(isinstance(outcome, ServerFaultError), f"a 500 gave {outcome!r}")
        opened = time.monotonic()
        # Twenty calls meet the open breaker: one probes and fails, a second probe works, then the rest go.
        waiting = asyncio.create_task(vendor.outcomes(range(5, 25)))
        await asyncio.sleep(rest_s * 1.5)
        resting = vendor.gateway.arrivals[5:]
        outcomes = await waiting
        vendor.expect(len(resting) == 1, f"{len(resting)} requests arrived in the first rest, not one probe after it")
        probes = [arrival - opened for arrival in vendor.gateway.arrivals[5:]]
        # Two clocks read a moment apart: the breaker's began before ours.
        vendor.expect(min(probes) >= rest_s - 0.05, f"a request arrived after {min(probes):.3f} s of rest")
        after_second = [probe for probe in probes[1:] if probe < probes[0] + rest_s - 0.05]
        vendor.expect(not after_second, f"requests arrived {after_second} s in, while a failed probe made it rest")
        answered = sum(isinstance(outcome, Observation) for outcome in outcomes)
        vendor.expect(answered == 19, f"{answered} of 20 calls were answered, not all but the failed probe")
        return {"rest_before_probe_s": round(min(probes), 3), "answered_after_rest": answered}


async def slow(folder: Path, violations: list[str]) -> dict[str, Any]:
    settings = ServerSettings(call_deadline_s=1.0)
    async with scenario(folder, violations, settings) as vendor:
        vendor.gateway.replies = [Reply(delay_s=30.0), Reply(delay_s=0.3), Reply(delay_s=30.0), Reply(delay_s=0.6)]
        started = time.monotonic()
        outcomes = await vendor.outcomes(range(4), "order")
        elapsed_s = time.monotonic() - started
        late = sum(isinstance(outcome, CallDeadlineError) for outcome in outcomes)
        answered = sum(isinstance(outcome, Observation) for outcome in outcomes)
        vendor.expect((late, answered) == (2, 2), f"{late} calls were late and {answered} answered, not 2 and 2")
        vendor.expect(len(vendor.gateway.arrivals) == 4, "an order that was late was sent again")
        async with asyncio.timeout(5):
            while vendor.gateway.hung_up < 2:  # noqa: ASYNC110 - the gateway counts, it sends no events
                await asyncio.sleep(0.01)
        again = await vendor.outcome(4)
        vendor.expect(isinstance(again, Observation), f"the next call failed: {again}")
        return {"slow_ended_s": round(elapsed_s, 3)}


MALFORMED = {
    "no JSON": Reply(status=200, headers=JSON, body=b"<html>Bad Gateway</html>"),
    "half of a JSON": Reply(status=200, headers=JSON, body=b'{"jsonrpc": "2.0", "id": 1, "resu'),
    "no JSON-RPC": Reply(status=200, headers=JSON, body=b'{"error": "quota"}'),
    "a page": Reply(status=200, headers={"Content-Type": "text/html"}, body=b"<html>Sign in</html>"),
    "nothing": Reply(status=200, headers=JSON),
    "no content type": Reply(status=200),
    "accepted": Reply(status=202),
    "an event that is no JSON": Reply(
        status=200, headers={"Content-Type": "text/event-stream"}, body=b"event: message\ndata: nonsense\n\n"
    ),
}
# Without an answer in it, a stream that ends cannot be told from a server that went away.
BROKEN_OFF = Reply(status=200, headers={"Content-Type": "text/event-stream"})


async def malformed(folder: Path, violations: list[str]) -> dict[str, Any]:
    settings = ServerSettings(attempts=1, call_deadline_s=5.0)
    async with scenario(folder, violations, settings) as vendor:
        for number, (name, reply) in enumerate(MALFORMED.items()):
            vendor.gateway.replies = [reply]
            outcome = await vendor.outcome(2 * number, "order")
            vendor.expect(isinstance(outcome, ServerFaultError), f"{name}: gave {type(outcome).__name__} {outcome}")
            again = await vendor.outcome(2 * number + 1, "order")
            vendor.expect(isinstance(again, Observation), f"{name}: the next call failed: {again}")
        vendor.gateway.replies = [BROKEN_OFF]
        outcome = await vendor.outcome(1000, "order")
        vendor.expect(isinstance(outcome, ServerLostError), f"a stream that broke off gave {outcome}")
        again = await vendor.outcome(1001, "order")
        vendor.expect(isinstance(again, Observation), f"after a stream that broke off the next call failed: {again}")
        vendor.expect(vendor.toolbox.restarts == 0, f"the session was opened {vendor.toolbox.restarts} times again")
        return {"malformed_kinds": len(MALFORMED)}


async def budget(folder: Path, violations: list[str], settings: BudgetSettings, unit: str) -> dict[str, Any]:
    async with scenario(folder, violations, ServerSettings(budget=settings)) as vendor:
        for start in range(0, 50, 10):
            await asyncio.gather(*(vendor.call(number) for number in range(start, start + 10)))
        text = str(await vendor.outcome(50))
        refusals = [await vendor.outcome(number) for number in range(51, 56)]
        refused = sum(isinstance(outcome, BudgetExceededError) for outcome in refusals)
        arrived = len(vendor.gateway.arrivals)
        vendor.expect(arrived == 50, f"{arrived} requests arrived on a budget for 50 ({unit})")
        vendor.expect(text.startswith("E-TOOL-008"), f"the 51st call gave: {text}")
        vendor.expect("vendor" in text and f"budget.{unit}" in text, f"the text names no server or setting: {text}")
        vendor.expect(refused == 5, f"{5 - refused} calls after the 51st were not refused")
        say(text)
        return {f"requests_on_a_budget_of_50_{unit}": arrived}


async def measure(_ci: bool, folder: Path) -> dict[str, Any]:
    violations: list[str] = []
    figures: dict[str, Any] = {}
    steps = {
        "busy": lambda: busy(folder, violations),
        "rate": lambda: rate(folder, violations),
        "breaker": lambda: breaker(folder, violations),
        "slow": lambda: slow(folder, violations),
        "malformed": lambda: malformed(folder, violations),
        "budget in calls": lambda: budget(folder, violations, BudgetSettings(calls=50), "calls"),
        "budget in usd": lambda: budget(folder, violations, BudgetSettings(usd=0.05, usd_per_call=0.001), "usd"),
    }
    for name, step in steps.items():
        try:
            figures |= (found := await step())
            say(f"{name}: {found}")
        except InfrastructureError as error:
            violations.append(f"{name}: {error}")
            say(f"VIOLATION: {name}: {error}")
    return {"violations": len(violations), **figures}


if __name__ == "__main__":
    sys.exit(run_bench(__doc__, measure, BARS, speed=SPEED_BARS))

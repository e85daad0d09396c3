"""SIGTERM and Ctrl-C at places of every phase of a run: what is saved, how soon, and what is left behind.

A small run (that of crash.py: tiny model, transformers sampler, a real MCP server) gets SIGTERM at a chosen place, from
itself, so that the place is exact. It must end with exit code 75 within 10 s, with a whole
checkpoint that covers every step on record. One of them is in an update that takes a minute: it cannot be saved, and
ends in time all the same. Then the run is resumed, stopped again at another place, and in the end resumed to its last
step; it must be the same, to the last bit, as one that was never stopped (see crash.py for what is compared).

Others get SIGINT twice, half a second apart, in the middle of what takes a minute: a tool call, an update, a save.

  signals, phases      SIGTERM sent, and how many of them in each phase
  durable_s_max        the longest from a signal to the end of the last save
  exit_s_max           the longest from a signal to the end of the process
  wrong_exit_codes     processes that ended otherwise than with 75; with 0, where the step under way was the last and is
                       done; after a second SIGINT, with 130
  uncovered_steps      steps on record at the end of a process that its newest whole checkpoint does not cover
  second_signals       pairs of SIGINT sent
  second_signal_s_max  the longest from the second to the end of the process
  orphans              processes of a run that were alive two seconds after its end
  resumed              runs that were stopped, resumed and stopped again, and at last came to their end
  resumed_identical    those of them that ended like the one that was never stopped
  finished_lost, used_twice, played_again
                       episodes that were durable before a signal and are not in the record, are there twice, or were
                       played again

    python bench/shutdown.py [--ci]
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from crash import run_in
from crashing.evidence import Account, differences, evidence
from crashing.nurseries import Nursery, open_nursery
from crashing.places import PLACES, Place
from crashing.small_runs import VARIANTS
from mcprl.runs.checkpoints import Checkpoints
from mcprl.training.shutdown import EXIT_STOPPED
from servers.harness import run_bench, say
from soaking.left_behind import left_behind

HERE = Path(__file__).resolve().parent
SEED = 5
SIGNALS, CI_SIGNALS = 20, 4
AGAIN_S = 0.5
UPDATE = "mcprl.learning.optimizer:Optimisation.step"
# What takes a minute, and where the first of two signals is sent meanwhile.
SECOND_SIGNALS = (
    ("mcprl.runs.checkpoints:Checkpoints.commit", "mcprl.training.loop:write_state", "after"),
    (UPDATE, "mcprl.training.loop:make_batch", "after"),
    ("mcprl.samplers.transformers:TransformersSampler._sample", "mcprl.episodes.loop:lease_for", "after"),
)
BARS = {
    "wrong_exit_codes": ("==", 0),
    "uncovered_steps": ("==", 0),
    "orphans": ("==", 0),
    "different": ("==", 0),
    "finished_lost": ("==", 0),
    "used_twice": ("==", 0),
    "played_again": ("==", 0),
}
SPEED_BARS = {"durable_s_max": ("<=", 10.0), "second_signal_s_max": ("<=", 1.0)}
STARTING = tuple(
    Place(phase="starting", call=call, when=when)
    for call, when in (
        ("mcprl.training.run:RunFolder.create", "after"),
        ("mcprl.episodes.stage:require_tools", "after"),
        ("mcprl.episodes.stage:load_chat", "before"),
        ("mcprl.episodes.stage:make_sampler", "after"),
        ("mcprl.training.run:open_learner", "before"),
        ("mcprl.training.run:_forecast", "before"),
    )
)
# An update that takes a minute. It is not saved, so all before it must be: in the variant that saves every step.
LONG_UPDATE = Place(phase="long update", call="mcprl.training.loop:make_batch", when="after")
PHASES = ("collecting", "restoring", "updating", "mid-save", "publishing", "mid-journal", "recording", "starting")
RECORDING = ("RunFolder.record_step", "write_trajectories", "_append")


@dataclass(slots=True)
class Found:
    """What the signals showed so far."""

    phases: Counter[str] = field(default_factory=Counter[str])
    durable_s: list[float] = field(default_factory=list[float])
    exit_s: list[float] = field(default_factory=list[float])
    second_s: list[float] = field(default_factory=list[float])
    wrong_exit_codes: int = 0
    uncovered_steps: int = 0
    orphans: int = 0
    resumed: int = 0
    different: int = 0
    episodes: Account = field(default_factory=Account)


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that has ended: how, when on the monotonic clock, and what it noted meanwhile."""

    status: int
    at: float
    events: list[dict[str, Any]]

    def times(self, event: str) -> list[float]:
        return [noted["at"] for noted in self.events if noted["event"] == event]

    @property
    def mark(self) -> str:
        return next(noted["value"] for noted in self.events if noted["event"] == "mark")


class Trainers:
    """Has processes train, one after the other."""

    def __init__(self, nursery: Nursery) -> None:
        self._nursery = nursery
        self._jobs = 0

    async def train(self, folder: Path, variant: str, **signals: Any) -> Ended:
        """Begin the run in a folder, or go on with it."""
        run, events = run_in(folder, variant), folder / f"events-{self._jobs}.jsonl"
        self._jobs += 1
        job = {"call": None, "when": None, "time": 1, "number": None, "again_s": None, "sleeps": None, **signals}
        job |= {"variant": variant, "folder": str(folder), "log": str(folder / "finished.txt"), "events": str(events)}
        job["run"] = str(run) if (run / "config.yaml").exists() else None
        status = await self._nursery.work(job)
        at = time.monotonic()
        return Ended(status, at, [json.loads(line) for line in events.read_text().splitlines()])


def places_by_phase() -> dict[str, list[Place]]:
    """The places of the crash bench at which a call can go on after it, by the phases of this one."""
    found: dict[str, list[Place]] = {"starting": list(STARTING)}
    for place in PLACES:
        if place.when == "half" or place.phase == "finishing":
            continue
        if place.phase == "publishing" and place.call.rpartition(":")[2] in RECORDING:
            place = replace(place, phase="recording")
        found.setdefault(place.phase, []).append(place)
    return found


def endless_places(draw: random.Random) -> Generator[tuple[Place, int]]:
    """Places and how often the process comes by before, the phases in turns, each place once before any comes again."""
    by_phase = places_by_phase()
    queues: dict[str, list[Place]] = {phase: [] for phase in PHASES}
    while True:
        for phase in PHASES:
            queues[phase] = queues[phase] or draw.sample(by_phase[phase], len(by_phase[phase]))
            place = queues[phase].pop()
            yield place, draw.randint(1, place.latest)


def drawn_chain(places: Iterator[tuple[Place, int]], length: int) -> list[tuple[Place, int]]:
    """In an order in which they are come to: what a resumed run does not do first, what only it does not first."""
    chosen = [next(places) for _ in range(length)]
    chosen.sort(key=lambda one: one[0].phase != "starting")
    if chosen[0][0].phase == "restoring":
        chosen[0], chosen[1] = chosen[1], chosen[0]
    return chosen


async def stop_once(trainers: Trainers, found: Found, folder: Path, variant: str, place: Place, **job: Any) -> bool:
    """Whether the process came to the place. If so, it was sent SIGTERM there."""
    ended = await trainers.train(folder, variant, call=place.call, when=place.when, number=int(signal.SIGTERM), **job)
    found.orphans += await asyncio.to_thread(left_behind, ended.mark)
    if not ended.times("signal"):
        if ended.status != 0:
            raise RuntimeError(f"exit status {ended.status}:\n{(folder / 'finished.txt.output').read_text()}")
        say(f"{variant}: ended before it came to {place.name}")
        return False
    [sent] = ended.times("signal")
    durable_s = max([0.0, *(at - sent for at in ended.times("saved"))])
    found.phases[place.phase] += 1
    found.durable_s.append(durable_s)
    found.exit_s.append(ended.at - sent)
    run = run_in(folder, variant)
    # The update under way may be the last, and then the run is not stopped but done.
    found.wrong_exit_codes += ended.status != (0 if (run / "summary.json").exists() else EXIT_STOPPED)
    uncovered = uncovered_steps(run)
    found.uncovered_steps += uncovered
    say(
        f"{variant}: SIGTERM {place.name}: exit {ended.status} after {ended.at - sent:.2f} s, durable after "
        f"{durable_s:.2f} s, {uncovered} steps uncovered"
    )
    return True


def uncovered_steps(run: Path) -> int:
    """Steps with a line of metrics that the newest checkpoint, read from end to end, does not cover."""
    metrics = run / "metrics.jsonl"
    recorded = len(metrics.read_text().splitlines()) if metrics.exists() else 0
    newest, _ = Checkpoints(run / "checkpoints").newest()
    return max(0, recorded - (0 if newest is None else newest.step))


async def stop_and_resume(
    trainers: Trainers, found: Found, folder: Path, variant: str, chosen: Iterable[tuple[Place, int]]
) -> None:
    """One run: stopped, resumed and stopped again, and at last resumed to its end."""
    for place, nth in chosen:
        sleeps = UPDATE if place.phase == "long update" else None
        reached = await stop_once(trainers, found, folder, variant, place, time=nth, sleeps=sleeps)
        if not reached or (run_in(folder, variant) / "summary.json").exists():
            break
    run = run_in(folder, variant)
    if not (run / "summary.json").exists():
        ended = await trainers.train(folder, variant)
        if ended.status != 0:
            raise RuntimeError(f"exit status {ended.status}:\n{(folder / 'finished.txt.output').read_text()}")
    found.episodes.look_at(run, folder / "finished.txt")
    found.resumed += 1


async def send_two(trainers: Trainers, found: Found, folder: Path, sleeps: str, call: str, when: str) -> None:
    ended = await trainers.train(
        folder, "critic", call=call, when=when, number=int(signal.SIGINT), again_s=AGAIN_S, sleeps=sleeps
    )
    found.orphans += await asyncio.to_thread(left_behind, ended.mark)
    [second] = ended.times("again")
    found.second_s.append(ended.at - second)
    found.wrong_exit_codes += ended.status != 128 + signal.SIGINT
    say(f"second SIGINT in {sleeps}: exit {ended.status} after {ended.at - second:.3f} s")


async def measure(ci: bool, folder: Path) -> dict[str, Any]:
    found, places = Found(), endless_places(random.Random(SEED))
    signals, chain_length = (CI_SIGNALS, CI_SIGNALS) if ci else (SIGNALS, 4)
    whole: dict[str, dict[str, str]] = {}
    async with open_nursery(HERE / "soaking" / "stopped_trainer.py") as nursery:
        trainers = Trainers(nursery)
        while (left := signals - found.phases.total()) > 0:
            variant = list(VARIANTS)[found.resumed % len(VARIANTS)]
            if variant not in whole:
                await trainers.train(folder / f"whole-{variant}", variant)
                whole[variant] = evidence(run_in(folder / f"whole-{variant}", variant))
                say(f"{variant}: the run that is never stopped has ended")
            own, long_update = folder / f"stopped-{found.resumed}", [(LONG_UPDATE, 1)] * (found.resumed == 0)
            chain = drawn_chain(places, min(left, chain_length) - len(long_update))
            await stop_and_resume(trainers, found, own, variant, [*chain[:2], *long_update, *chain[2:]])
            differing = differences(whole[variant], evidence(run_in(own, variant)))
            if differing:
                say(f"DIFFERENT: {len(differing)}, among them {differing[:8]}")
            found.different += bool(differing)
        for number, (sleeps, call, when) in enumerate(SECOND_SIGNALS[: 2 if ci else None]):
            await send_two(trainers, found, folder / f"twice-{number}", sleeps, call, when)
    return {
        "signals": found.phases.total(),
        "phases": dict(found.phases),
        "durable_s_max": round(max(found.durable_s), 2),
        "exit_s_max": round(max(found.exit_s), 2),
        "wrong_exit_codes": found.wrong_exit_codes,
        "uncovered_steps": found.uncovered_steps,
        "second_signals": len(found.second_s),
        "second_signal_s_max": round(max(found.second_s), 3),
        "orphans": found.orphans,
        "resumed": found.resumed,
        "resumed_identical": found.resumed - found.different,
        "different": found.different,
        **asdict(found.episodes),
    }


if __name__ == "__main__":
    sys.exit(run_bench(__doc__, measure, BARS, speed=SPEED_BARS))

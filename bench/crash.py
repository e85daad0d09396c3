"""kill -9 of a trainer, at seeded places of every phase: the resumed run ends as the one that was never killed.

A small run (tiny model, transformers sampler, a real MCP server; a curriculum, a moving reference, an adaptive KL
coefficient, a schedule, a value head) is killed at a place, resumed and killed again at another, three to five times,
and then resumed to its end. What it leaves is compared with what the same run leaves that was never killed: every
tensor of the last checkpoint (weights, moments, reference, value head, state of the random generator), the state of the
run (cursor, curriculum, KL coefficient, versions), the adapter, all columns of all episodes but times, all metrics but
times. The process logs each episode that the journal says is durable; it must be in the record with all that it held.

  points         kills, over all chains of kills
  phases         how many of them in each phase
  chains, identical  chains, and those that ended like the run that was never killed
  finished_lost  episodes that were durable before a kill and are not in the record as they were
  used_twice     episodes that are in the record twice
  played_again   episodes that were played again after they were durable
  point_s        seconds a point, resuming included
  vllm_chains, vllm_points, vllm_finished_lost, vllm_used_twice, vllm_played_again
                 the same with vLLM, for which no equality to the last bit is claimed; full size, or --vllm alone

    python bench/crash.py [--ci] [--sft | --functions | --agent | --vllm]

With --sft it is supervised fine-tuning that is killed, at 10 places; with --functions a run with reward functions of
the user, at 20 places (5 with --ci); with --agent one whose episodes a program plays, at 20 places (3 with --ci).
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from crashing.evidence import Account, differences, evidence
from crashing.nurseries import Nursery, open_nursery
from crashing.places import PLACES, Place
from crashing.small_runs import AGENT, FUNCTIONS, SFT, VARIANTS
from servers.harness import run_bench, say

NURSERY = Path(__file__).resolve().parent / "crashing" / "nursery.py"
POINTS, SFT_POINTS, CI_POINTS = 100, 10, 3
FUNCTIONS_POINTS, FUNCTIONS_CI_POINTS = 20, 5
RL_VARIANTS = [variant for variant in VARIANTS if variant not in (SFT, FUNCTIONS, AGENT)]
VLLM_CHAINS, VLLM_KILLS = 3, 2
SEED = 3
KILLED = -9
BARS = dict.fromkeys(("different", "finished_lost", "used_twice", "played_again"), ("==", 0))
VLLM_BARS = dict.fromkeys(("vllm_finished_lost", "vllm_used_twice", "vllm_played_again"), ("==", 0))


@dataclass(slots=True)
class Found:
    """What the chains showed so far."""

    phases: Counter[str] = field(default_factory=Counter[str])
    chains: int = 0
    different: int = 0
    episodes: Account = field(default_factory=Account)

    @property
    def points(self) -> int:
        return self.phases.total()

    def look_at(self, run: Path, log: Path) -> None:
        self.chains += 1
        self.episodes.look_at(run, log)


class Trainer:
    """Has processes train, one after the other."""

    def __init__(self, nursery: Nursery, engine: str) -> None:
        self._nursery = nursery
        self._engine = engine

    async def train(self, folder: Path, variant: str, place: Place | None = None, nth: int = 1) -> int:
        """Begin the run in a folder, or go on with it. The exit status of the process."""
        run = run_in(folder, variant)
        job = {
            "place": None if place is None else place.name,
            "time": nth,
            "variant": variant,
            "folder": str(folder),
            "run": str(run) if (run / "config.yaml").exists() else None,
            "log": str(folder / "finished.txt"),
            "engine": self._engine,
        }
        status = await self._nursery.work(job)
        if status not in (0, KILLED):
            raise RuntimeError(f"exit status {status} of {job}:\n{(folder / 'finished.txt.output').read_text()}")
        return status


def run_in(folder: Path, variant: str) -> Path:
    return folder / "outputs" / variant


def has_checkpoint(run: Path) -> bool:
    return any((run / "checkpoints").glob("step-?????"))


def endless_places(draw: random.Random, *phases: str) -> Any:
    """All places of these phases in a drawn order, the phases in turns, again and again."""
    by_phase = {phase: [place for place in PLACES if place.phase == phase] for phase in phases}
    queues: dict[str, list[Place]] = {phase: [] for phase in phases}
    while True:
        for phase in phases:
            if not queues[phase]:
                queues[phase] = draw.sample(by_phase[phase], len(by_phase[phase]))
            yield queues[phase].pop()


async def break_and_resume(trainer: Trainer, found: Found, folder: Path, variant: str, places: list[Any]) -> None:
    """One chain: kill, resume and kill again, and at last resume to the end."""
    for place, nth in places:
        if place.phase == "restoring" and not has_checkpoint(run_in(folder, variant)):
            continue  # there is nothing to restore
        if await trainer.train(folder, variant, place, nth) != KILLED:
            say(f"{variant}: ended before it came to {place.name} for time {nth}")
            return
        found.phases[place.phase] += 1
        say(f"{variant}: killed {place.name}, time {nth}")
    if await trainer.train(folder, variant) == KILLED:
        raise RuntimeError(f"the process that was to end the run in {folder} was killed")


async def measure_sft(ci: bool, folder: Path) -> dict[str, Any]:
    return await kill_and_compare(folder, [SFT], CI_POINTS if ci else SFT_POINTS)


async def measure_functions(ci: bool, folder: Path) -> dict[str, Any]:
    return await kill_and_compare(folder, [FUNCTIONS], FUNCTIONS_CI_POINTS if ci else FUNCTIONS_POINTS)


async def measure_agent(ci: bool, folder: Path) -> dict[str, Any]:
    return await kill_and_compare(folder, [AGENT], CI_POINTS if ci else FUNCTIONS_POINTS)


async def measure(ci: bool, folder: Path) -> dict[str, Any]:
    figures = await kill_and_compare(folder, RL_VARIANTS, CI_POINTS if ci else POINTS)
    return figures if ci else figures | await measure_vllm(ci, folder)


async def kill_and_compare(folder: Path, variants: list[str], points: int) -> dict[str, Any]:
    draw, found = random.Random(SEED), Found()
    middle = endless_places(draw, "collecting", "mid-journal", "updating", "mid-save", "publishing", "restoring")
    last = endless_places(draw, "finishing")
    whole: dict[str, dict[str, str]] = {}
    started = time.monotonic()
    async with open_nursery(NURSERY) as nursery:
        trainer = Trainer(nursery, "transformers")
        for variant in variants:
            await trainer.train(folder / f"whole-{variant}", variant)
            whole[variant] = evidence(run_in(folder / f"whole-{variant}", variant))
            say(f"{variant}: {len(whole[variant])} digests of the run that is never killed")
        started = time.monotonic()
        while found.points < points:
            variant = variants[found.chains % len(variants)]
            chosen = [next(middle) for _ in range(draw.randint(3, 4))] + [next(last)] * draw.randint(0, 1)
            own = folder / f"chain-{found.chains}"
            places = [(place, draw.randint(1, place.latest)) for place in chosen]
            await break_and_resume(trainer, found, own, variant, places)
            run = run_in(own, variant)
            differing = differences(whole[variant], evidence(run))
            if differing:
                say(f"DIFFERENT: {len(differing)}, among them {differing[:8]}")
            found.different += bool(differing)
            found.look_at(run, own / "finished.txt")
    return {
        "points": found.points,
        "phases": dict(found.phases),
        "chains": found.chains,
        "identical": found.chains - found.different,
        "different": found.different,
        **asdict(found.episodes),
        "point_s": round((time.monotonic() - started) / found.points, 2),
    }


async def measure_vllm(_ci: bool, folder: Path) -> dict[str, Any]:
    draw, found = random.Random(SEED), Found()
    places = endless_places(draw, "mid-journal", "updating", "publishing", "mid-save")
    async with open_nursery(NURSERY) as nursery:
        trainer = Trainer(nursery, "vllm")
        for chain in range(VLLM_CHAINS):
            own, variant = folder / f"vllm-{chain}", RL_VARIANTS[chain % len(RL_VARIANTS)]
            chosen = [place for place in (next(places) for _ in range(VLLM_KILLS)) if "transformers" not in place.call]
            await break_and_resume(
                trainer, found, own, variant, [(place, draw.randint(1, place.latest)) for place in chosen]
            )
            found.look_at(run_in(own, variant), own / "finished.txt")
    return {
        "vllm_chains": found.chains,
        "vllm_points": found.points,
        **{f"vllm_{name}": number for name, number in asdict(found.episodes).items()},
    }


def main() -> int:
    if "--vllm" in sys.argv:
        sys.argv.remove("--vllm")
        return run_bench(__doc__, measure_vllm, VLLM_BARS)
    if "--functions" in sys.argv:
        sys.argv.remove("--functions")
        return run_bench(__doc__, measure_functions, BARS)
    if "--agent" in sys.argv:
        sys.argv.remove("--agent")
        return run_bench(__doc__, measure_agent, BARS)
    if "--sft" in sys.argv:
        sys.argv.remove("--sft")
        return run_bench(__doc__, measure_sft, BARS)
    return run_bench(__doc__, measure, BARS, at_full_size=VLLM_BARS)


if __name__ == "__main__":
    sys.exit(main())

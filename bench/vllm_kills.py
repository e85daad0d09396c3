"""kill -9 of vLLM's engine and of its server, again and again, within one training run: the run goes on.

A small run (that of crash.py, with vLLM and merged adapters) is trained while every few finished episodes a process of
vLLM is killed: two times out of three the engine, once the process that takes requests. Some kills hit an update, some
a publication of weights, most of them turns in flight.

  engine_kills, server_kills  how often each was killed
  runs_ended                  1 if the run ended with an error
  episodes_missing            episodes that the run should have and does not have at its end
  attempts_lost               attempts that were lost and played again
  restarts                    servers that were started in the place of another
  replaced_s_median           seconds from a kill until turns are sampled again

    python bench/vllm_kills.py [--ci]
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from crashing.small_runs import small_run
from mcprl.config import RunConfig
from mcprl.errors import McprlError, SamplerLostError
from mcprl.records import LostEpisode, Trajectory
from mcprl.samplers.vllm import VllmSampler
from mcprl.training.loop import Run, train
from mcprl.training.run import open_run
from servers.harness import run_bench, say

KILLS, CI_KILLS = 15, 3
EPISODES_BETWEEN = 5
BARS = {"runs_ended": ("==", 0), "episodes_missing": ("==", 0)}


class Killer:
    """Follows the run and kills after every few episodes, until it has killed often enough."""

    def __init__(self, kills: int) -> None:
        self.kills = kills
        self.sampler: VllmSampler | None = None
        self.engine_kills = self.server_kills = self.attempts_lost = 0
        self.replaced_s: list[float] = []
        self._finished = 0
        self._killed_at: float | None = None
        self._killed: int | None = None  # the server that was, or whose engine was

    def stage(self, text: str) -> None:
        say(text)

    def episode_finished(self, step: int, outcome: Trajectory | LostEpisode) -> None:
        if isinstance(outcome, LostEpisode):
            self.attempts_lost += 1
            return
        server = self._server()
        if server is None or server.pid == self._killed:
            return  # the turns of this episode were sampled before the kill
        if self._killed_at is not None:
            self.replaced_s.append(time.monotonic() - self._killed_at)
            self._killed_at = None
        self._finished += 1
        if self._finished >= EPISODES_BETWEEN and self.engine_kills + self.server_kills < self.kills:
            self._kill(server)

    def step_finished(self, step: int, metrics: Any, verdicts: Any) -> None:
        say(f"step {step + 1}: {self.engine_kills} kills of the engine, {self.server_kills} of the server")

    def _server(self) -> psutil.Process | None:
        """vLLM's process, None while there is none."""
        assert self.sampler is not None
        try:
            return psutil.Process(self.sampler.replicas[0].pid)
        except (SamplerLostError, psutil.NoSuchProcess):
            return None

    def _kill(self, server: psutil.Process) -> None:
        """Kill one of the two processes."""
        engines = [p for p in server.children(recursive=True) if any("EngineCore" in word for word in p.cmdline())]
        if (self.engine_kills + self.server_kills) % 3 == 2:
            self.server_kills += 1
            os.kill(server.pid, signal.SIGKILL)
        else:
            self.engine_kills += 1
            os.kill(engines[0].pid, signal.SIGKILL)
        self._killed_at, self._killed = time.monotonic(), server.pid
        self._finished = 0
        say(f"{self.engine_kills} kills of the engine, {self.server_kills} of the server")


async def measure(ci: bool, folder: Path) -> dict[str, Any]:
    killer = Killer(CI_KILLS if ci else KILLS)
    settings = small_run(folder, "critic", engine="vllm").model_dump(mode="json")
    settings["sampling"]["vllm"]["merge_adapters"] = True
    per_step = settings["training"]["tasks_per_step"] * settings["episodes"]["group_size"]
    steps = settings["training"]["steps"] = killer.kills + 2  # at most one kill per step
    config = RunConfig.model_validate(settings)
    run, failure = await _trained(config, killer)
    played = 0 if run is None else int(run.summary.as_dict()["groups_complete"]) * config.episodes.group_size
    if failure is not None:
        say(f"the run ended: {failure}")
    return {
        "engine_kills": killer.engine_kills,
        "server_kills": killer.server_kills,
        "runs_ended": int(failure is not None),
        "episodes_missing": steps * per_step - played,
        "attempts_lost": killer.attempts_lost,
        "restarts": 0 if run is None else run.sampler.restarts,
        "replaced_s_median": round(statistics.median(killer.replaced_s), 1) if killer.replaced_s else None,
    }


async def _trained(config: RunConfig, killer: Killer) -> tuple[Run | None, McprlError | None]:
    run: Run | None = None
    try:
        async with open_run(config, killer) as run:
            killer.sampler = run.sampler._sampler  # pyright: ignore[reportPrivateUsage]
            await train(run)
    except McprlError as error:
        return run, error
    return run, None


if __name__ == "__main__":
    sys.exit(run_bench(__doc__, measure, BARS))

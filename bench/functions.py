"""What a trivial reward function costs: its share of the time of an episode whose tools answer at once.

SmolLM2-135M samples up to two turns of at most 64 tokens on the CPU, one episode after the other. Three of four turns
are calls that are put into its mouth and scored in one pass. That is cheaper than sampling, so the share is too high
rather than too low. The function returns 1.0; its cost is a process, the pipe, the copy of the episode and the checks.

  share_percent   time in the functions ÷ time of the episodes, in percent
  grade_ms        median per episode
  episode_ms      median, without the function
  episodes

    python bench/functions.py [--ci]
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from crashing.small_runs import small_run
from crashing.speaking import calling_tools
from mcprl.config import RewardFunctionConfig, RewardsConfig, SamplingConfig
from mcprl.episodes.reward_functions import RewardFunctions
from mcprl.episodes.stage import open_stage
from mcprl.functions import EpisodeView
from mcprl.progress import Silent
from mcprl.tasks import load_tasks
from servers.harness import run_bench

MODEL = Path(__file__).resolve().parents[1] / ".cache" / "models" / "smollm2-135m"
EPISODES, CI_EPISODES, WARM_UP = 48, 12, 2
SPEED_BARS = {"share_percent": ("<=", 1.0)}
SERVER = """
from typing import Literal
from mcp.server.mcpserver import MCPServer

server = MCPServer("bells", log_level="ERROR")


@server.tool()
async def ring(bell: Literal["low", "high"]) -> str:
    return "dong" if bell == "low" else "ding"


server.run("stdio")
"""


async def measure(ci: bool, folder: Path) -> dict[str, Any]:
    config = small_run(folder, "refill", model=MODEL)
    (folder / "server.py").write_text(SERVER)
    server = {"command": sys.executable, "args": [str(folder / "server.py")]}
    (folder / "servers.json").write_text(json.dumps({"mcpServers": {"bells": server}}))
    (folder / "rewards.py").write_text("def trivial(episode):\n    return 1.0\n")
    function = RewardFunctionConfig(function=f"{folder}/rewards.py:trivial", weight=1.0)
    config = config.model_copy(
        update={"rewards": RewardsConfig(functions={"trivial": function}), "sampling": SamplingConfig(max_tokens=64)}
    )
    graded: list[float] = []
    plain = RewardFunctions.grade

    async def grade(self: RewardFunctions, episode: EpisodeView) -> dict[str, float | list[float]]:
        began = time.perf_counter()
        values = await plain(self, episode)
        graded.append(time.perf_counter() - began)
        return values

    RewardFunctions.grade = grade
    tasks, played = load_tasks(config.tasks.train), list[float]()
    with calling_tools():
        async with open_stage(config, tasks, Silent(), logs=folder / "logs") as stage:
            for number in range(WARM_UP + (CI_EPISODES if ci else EPISODES)):
                began = time.perf_counter()
                await stage.runner.run(tasks[number % len(tasks)], step=0, member=number, attempt=0)
                played.append(time.perf_counter() - began)
    graded, played = graded[WARM_UP:], played[WARM_UP:]
    alone = [whole - own for whole, own in zip(played, graded, strict=True)]
    return {
        "share_percent": round(100 * sum(graded) / sum(alone), 3),
        "grade_ms": round(1000 * statistics.median(graded), 3),
        "episode_ms": round(1000 * statistics.median(alone), 1),
        "episodes": len(played),
    }


if __name__ == "__main__":
    sys.exit(run_bench(__doc__, measure, {}, speed=SPEED_BARS))

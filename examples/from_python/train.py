"""Train and evaluate from Python, without a recipe file: python train.py [MODEL]

Ctrl-C stops the run; start the script again to resume it. The settings are those of docs/configuration.md, as typed
objects. Paths are relative to the working directory.
"""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import mcprl
from mcprl.config import (
    AlgorithmConfig,
    EpisodesConfig,
    ModelConfig,
    RunConfig,
    SamplingConfig,
    ServersConfig,
    TasksConfig,
    TrainingConfig,
)

HERE = Path(__file__).resolve().parent
RECIPE = RunConfig(
    name="from-python",
    engine="transformers",
    model=ModelConfig(path=sys.argv[1] if sys.argv[1:] else "Qwen/Qwen3-0.6B", renderer="chatml", dtype="float32"),
    tasks=TasksConfig(train=HERE / "tasks.jsonl"),
    servers=ServersConfig(file=HERE / "servers.json"),
    sampling=SamplingConfig(max_tokens=16),
    episodes=EpisodesConfig(group_size=2),
    algorithm=AlgorithmConfig(min_learnable_tokens=1),  # otherwise such a small step is skipped
    training=TrainingConfig(steps=2, tasks_per_step=1),
)


async def watch(steps: AsyncIterator[mcprl.Step]) -> None:
    """Each step comes when it is done. An exception here stops the run, after it has saved its state."""
    async for step in steps:
        print(f"step {step.index}: reward {step.metrics['reward']:.2f}, {step.verdict}", flush=True)


def main() -> None:
    run = Path("outputs") / RECIPE.name
    try:
        unfinished = run.exists() and not (run / "summary.json").exists()
        summary = mcprl.resume(run, watch=watch) if unfinished else mcprl.train(RECIPE, watch=watch)
    except mcprl.RunStopped as stopped:
        sys.exit(str(stopped))
    adapter = summary.folder / "adapter"  # not there if all rewards of each group were equal: nothing to learn
    after = mcprl.evaluate(RECIPE, adapter=adapter if adapter.exists() else None, tasks=HERE / "tasks.jsonl")
    print(f"{summary.folder}: {after.figures.success.value:.0%} solved")


if __name__ == "__main__":
    main()

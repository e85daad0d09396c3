"""What the grammar of the tools gives and what it costs: SmolLM2-135M untrained, vLLM, the tools of the offline market.

The first turn of tasks, with every tool of the five servers on offer, sampled three times: held to nothing (`off`), a
call once begun is valid (`calls`), nothing but calls or an answer (`act`).

  NAME_turns           turns sampled
  NAME_begun           turns in which a call begins
  NAME_whole           of these, turns that the limit of tokens did not cut
  NAME_valid, NAME_invalid  of these, turns whose every call names a real tool and passes its schema, and the others
  NAME_tokens_per_s    16 turns at a time, the same prompts, in turns with the other two; median of the rounds
  calls_speed, act_speed  tokens a second against `off` in the same round; median
  forced_share, fixed_text_share  of the tokens sampled under `act`
  replay_share         of an update's time, what the replay of the grammar takes
  update_s             that update

    python bench/grammar.py [--ci]
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema

from mcprl.concurrency import run_all
from mcprl.config import RunConfig
from mcprl.episodes import EpisodeRunner
from mcprl.episodes.stage import Stage, open_stage
from mcprl.grammar.masks import TurnGrammars
from mcprl.learning import TorchLearner
from mcprl.learning.algorithms import make_batch, mask_shares
from mcprl.recipe import load_recipe
from mcprl.records import FinishReason, Group, Task, Trajectory, Turn
from mcprl.samplers import SampleRequest
from mcprl.tasks import load_preamble, load_tasks
from servers.harness import run_bench, say

RECIPE = Path(__file__).resolve().parent.parent / "recipes" / "finance-cpu.yaml"
# The tasks and the examples that come with mcprl: an untrained model calls tools there. All tools at once need room.
SETTING = (
    "tasks.train=mcprl:market/train.jsonl",
    "tasks.preamble=mcprl:market/preamble.json",
    "model.context_tokens=3072",
    "sampling.temperature=0.7",
    "sampling.max_tokens=96",
    "episodes.max_concurrent=16",
)
MODES = ("off", "calls", "act")
AT_ONCE = 16
SPEED_TOKENS = 32  # a turn: short ones leave less of a round to the turns that are last
BARS = {
    "calls_invalid": ("==", 0),
    "act_invalid": ("==", 0),
    "calls_valid": (">=", 4),
    "act_valid": (">=", 4),
}
SPEED_BARS = {
    "calls_speed": (">=", 0.85),
    "act_speed": (">=", 0.85),
    "replay_share": ("<=", 0.05),
}


class Progress:
    """Hears what the stage is busy with."""

    def stage(self, text: str) -> None:
        say(text)

    def episode_finished(self, step: int, outcome: object) -> None: ...

    def step_finished(self, step: int, metrics: object, verdicts: object) -> None: ...


def recipe(mode: str, *overrides: str) -> RunConfig:
    return load_recipe(RECIPE, [f"sampling.constrain={mode}", *SETTING, *overrides])


def runner_of(stage: Stage, config: RunConfig) -> EpisodeRunner:
    assert stage.grammars is not None
    grammars = None
    if config.sampling.constrain != "off":
        grammars = TurnGrammars(stage.chat, stage.grammars, config.sampling)
    return EpisodeRunner(
        config,
        chat=stage.chat,
        sampler=stage.sampler,
        leases=stage.toolbox,
        preamble=load_preamble(config.tasks.preamble),
        grammars=grammars,
    )


def is_valid(turn: Turn, stage: Stage) -> bool:
    """Whether every call names a real tool and passes its schema, by another judge than the one that ran it."""
    for call in turn.calls:
        if call.problem is not None or call.name not in stage.toolbox.catalog:
            return False
        schema = stage.toolbox.catalog[call.name].parameters
        if not jsonschema.Draft202012Validator(schema).is_valid(call.arguments):
            return False
    return True


async def validity(stage: Stage, tasks: Sequence[Task], mode: str) -> tuple[dict[str, Any], tuple[Trajectory, ...]]:
    runner = runner_of(stage, recipe(mode))
    trajectories = await run_all(runner.run(task, step=0, member=0, attempt=0) for task in tasks)
    turns = [t.turns[0] for t in trajectories]
    begun = [turn for turn in turns if "<tool_call>" in turn.text]
    whole = [turn for turn in begun if turn.finish is not FinishReason.LENGTH]
    valid = [turn for turn in whole if is_valid(turn, stage)]
    figures = {"turns": len(turns), "begun": len(begun), "whole": len(whole), "valid": len(valid)}
    figures["invalid"] = len(whole) - len(valid)
    say(f"{mode}: {figures}")
    return {f"{mode}_{name}": figure for name, figure in figures.items()}, trajectories


async def tokens_per_second(stage: Stage, requests: Sequence[SampleRequest], seconds: float) -> float:
    """With as many turns under way as vLLM decodes at once, so that short turns leave no place empty."""
    endless = itertools.cycle(requests)
    numbers = itertools.count()
    tokens = 0
    started = time.perf_counter()

    async def sample() -> None:
        nonlocal tokens
        while time.perf_counter() - started < seconds:
            completion = await stage.sampler.sample(replace(next(endless), seed=next(numbers)))
            tokens += len(completion.token_ids)

    await asyncio.gather(*[sample() for _ in range(AT_ONCE)])
    return tokens / (time.perf_counter() - started)


def requests_of(trajectories: Sequence[Trajectory]) -> list[SampleRequest]:
    """The prompts of these episodes' first turns, to be sampled again."""
    config = recipe("off")
    return [
        SampleRequest(
            prompt_ids=t.token_ids[: t.sampled.index(True)],
            max_tokens=SPEED_TOKENS,
            temperature=t.temperature,
            stop=config.sampling.stop,
            stop_token_ids=t.stop_token_ids,
            seed=0,
            grammar=t.grammar,
        )
        for t in trajectories
    ]


async def speeds(
    stage: Stage, played: dict[str, tuple[Trajectory, ...]], *, rounds: int, seconds: float
) -> dict[str, float]:
    per_mode: dict[str, list[float]] = {mode: [] for mode in MODES}
    requests = {mode: requests_of(played[mode][:AT_ONCE]) for mode in MODES}
    for number in range(rounds):
        for mode in MODES if number % 2 else reversed(MODES):
            per_mode[mode].append(await tokens_per_second(stage, requests[mode], seconds))
        say(", ".join(f"{mode} {per_mode[mode][-1]:.0f} tokens/s" for mode in MODES))
    figures = {f"{mode}_tokens_per_s": statistics.median(per_mode[mode]) for mode in MODES}
    for mode in ("calls", "act"):
        ratios = [held / free for held, free in zip(per_mode[mode], per_mode["off"], strict=True)]
        figures[f"{mode}_speed"] = statistics.median(ratios)
    return figures


async def replay_share(stage: Stage, tasks: Sequence[Task], folder: Path, group_size: int) -> dict[str, float]:
    """A group with the tools that its task offers, the way a run samples it, and one update from it."""
    config = recipe("act", "algorithm.minibatches=1")
    runner = runner_of(stage, config)
    members = await run_all(runner.run(tasks[0], step=0, member=n, attempt=0) for n in range(group_size))
    shares = mask_shares(members, [t.sampled for t in members])
    say(f"an update from {sum(len(t.token_ids) for t in members)} tokens")
    # What they earned does not matter here; that they differ does, since a group without variance is not learnt from.
    group = Group(task=tasks[0], trajectories=tuple(replace(t, reward=float(n % 2)) for n, t in enumerate(members)))
    learner = await asyncio.to_thread(TorchLearner, config, folder=folder, grammars=stage.grammars)
    update = await learner.update(make_batch(0, [group], config.algorithm))
    return {
        "replay_share": update.metrics["replay_s"] / update.metrics["update_s"],
        "update_s": update.metrics["update_s"],
        "forced_share": shares["forced_share"],
        "fixed_text_share": shares["fixed_text_share"],
        "parity_logprob_max_abs_error": update.metrics["parity_logprob_max_abs_error"],
    }


async def measure(ci: bool, folder: Path) -> dict[str, Any]:
    config = recipe("act")
    tasks = load_tasks(config.tasks.train)[: 16 if ci else 128]
    with_all_tools = [replace(task, tools=None, max_turns=1) for task in tasks]
    async with open_stage(config, with_all_tools, Progress(), logs=folder) as stage:
        assert stage.grammars is not None
        figures: dict[str, Any] = {"tools": len(stage.toolbox.catalog.names)}
        played: dict[str, tuple[Trajectory, ...]] = {}
        for mode in MODES:
            counted, played[mode] = await validity(stage, with_all_tools, mode)
            figures |= counted
        figures |= await speeds(stage, played, rounds=3 if ci else 7, seconds=3.0 if ci else 20.0)
        figures |= await replay_share(stage, tasks, folder, group_size=2 if ci else 8)
    return {name: round(figure, 4) if isinstance(figure, float) else figure for name, figure in figures.items()}


if __name__ == "__main__":
    sys.exit(run_bench(__doc__, measure, BARS, speed=SPEED_BARS))

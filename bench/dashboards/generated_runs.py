"""Writes the folder of a run that never was: as many episodes as wanted, in every file that a real run writes.

The Parquet files are built column by column and have the schema of `mcprl.runs.trajectories`; a test reads them
back with it. Rewards rise over the steps, as they should.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow
import pyarrow.parquet

from dashboards.phrases import TOOLS, Phrase, Scene, digit_ids, make_scenes
from dashboards.side_files import write_health, write_metrics, write_timeline, write_tool_stats
from mcprl.config import RunConfig
from mcprl.goals import Contains, ExpectedCall, Goal
from mcprl.records import Task
from mcprl.tasks import write_tasks

__all__ = ["GROUP_SIZE", "TASKS_PER_STEP", "make_run"]

GROUP_SIZE, TASKS_PER_STEP, TASKS = 8, 50, 240
_PER_STEP = GROUP_SIZE * TASKS_PER_STEP
_ARROW, _PARQUET = cast("Any", pyarrow), cast("Any", pyarrow.parquet)
_STOPS = ("answered", "cut_by_length", "turn_limit", "context_limit", "deadline")


@dataclass(slots=True)
class _Episode:
    """The row of an episode that is being put together, its tokens as a row of phrases with their roles."""

    pieces: list[tuple[Any, int]]  # token ids, turn (-1: context)
    turns: list[dict[str, Any]]
    reward: float
    parts: dict[str, float]
    stop: str


@dataclass(frozen=True, slots=True)
class _Share:
    """What a process needs to know to write any step."""

    folder: Path
    episodes: int
    steps: int
    scenes: Sequence[Scene]
    digits: list[int]
    seed: int

    def write_step(self, step: int) -> float:
        """Write the two Parquet files of a step; gives its mean reward."""
        count = min(_PER_STEP, self.episodes - step * _PER_STEP)
        draws = np.random.default_rng((self.seed, step))
        draw = random.Random(step)
        chosen = draw.sample(range(len(self.scenes)), TASKS_PER_STEP)
        played = [self.scenes[chosen[number // GROUP_SIZE]] for number in range(count)]
        rows = [
            _episode(scene, step, number, step / self.steps, self.digits, draw) for number, scene in enumerate(played)
        ]
        task_ids = [scene.task_id for scene in played]
        members = [number % GROUP_SIZE for number in range(count)]
        lengths = [sum(len(ids) for ids, _ in row.pieces) for row in rows]
        ids = np.concatenate([ids for row in rows for ids, _ in row.pieces])
        turn_index = np.repeat(
            [turn for row in rows for _, turn in row.pieces], [len(ids) for row in rows for ids, _ in row.pieces]
        ).astype(np.int64)
        sampled = turn_index >= 0
        offsets = np.array([0, *accumulate(lengths)], dtype=np.int32)
        forced = sampled & (draws.random(len(ids)) < 0.15)
        logprobs = np.where(sampled & ~forced, -draws.exponential(0.5, len(ids)), 0.0)

        def column(values: Any) -> Any:
            return _ARROW.ListArray.from_arrays(offsets, _ARROW.array(values))

        table = {
            "task_id": task_ids,
            "step": [step] * count,
            "member": members,
            "attempt": [0] * count,
            "temperature": [1.0] * count,
            "token_ids": column(ids),
            "sampled": column(sampled),
            "forced": column(forced),
            "fixed": column(forced & (draws.random(len(ids)) < 0.5)),
            "logprobs": column(logprobs),
            "turn_index": column(turn_index),
            "weights_version": column(np.where(sampled, step, -1)),
            "turns": [json.dumps(row.turns) for row in rows],
            "stop": [row.stop for row in rows],
            "reward": [row.reward for row in rows],
            "reward_parts": [json.dumps(row.parts) for row in rows],
            "duration_s": [round(draw.lognormvariate(1.0, 0.6), 3) for _ in rows],
            "grammar": _ARROW.nulls(count),
            "stop_token_ids": [[int(rows[0].pieces[0][0][0])]] * count,
        }
        name = f"step-{step:05d}.parquet"
        _PARQUET.write_table(_ARROW.table(table), self.folder / "trajectories" / name)
        _write_token_notes(
            self.folder / "tokens" / name, task_ids, members, rows, lengths, sampled & ~forced, offsets, draws
        )
        return float(np.mean([row.reward for row in rows]))


def make_run(folder: Path, *, model: Path, episodes: int, steps_ahead: int = 0, seed: int = 5) -> None:
    """Write a run of so many episodes into a new folder. `steps_ahead` steps are still to come by its settings."""
    scenes = make_scenes(model / "tokenizer.json", TASKS, seed)
    steps = math.ceil(episodes / _PER_STEP)
    for name in ("trajectories", "tokens", "journal", "checkpoints", "logs", "weights"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    _write_settings(folder, scenes, model, steps + steps_ahead)
    share = _Share(folder, episodes, steps, scenes, digit_ids(model / "tokenizer.json"), seed)
    # Not forked: a test's process has threads, and a lock that one of them holds would stay held in the copy for ever.
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as workers:
        rewards = list(workers.map(share.write_step, range(steps), chunksize=4))
    started = time.time() - 40.0 * steps
    write_metrics(folder, rewards, _PER_STEP)
    write_health(folder, steps)
    write_timeline(folder, steps, started)
    write_tool_stats(folder, episodes)


def _write_settings(folder: Path, scenes: Sequence[Scene], model: Path, steps: int) -> None:
    tasks = [
        Task(
            id=scene.task_id,
            prompt=({"role": "user", "content": scene.question},),
            goal=Goal(answer=Contains(text=scene.right.text.split()[0]), calls=(ExpectedCall(tool=scene.tools[0]),)),
            tools=tuple(dict.fromkeys(scene.tools)),
        )
        for scene in scenes
    ]
    write_tasks(tasks, folder / "tasks.jsonl")
    (folder / "servers.json").write_text(
        json.dumps({"mcpServers": {name: {"command": "true"} for name in sorted(set(TOOLS.values()))}})
    )
    config = RunConfig.model_validate(
        {
            "name": folder.name,
            "model": {"path": str(model), "renderer": "qwen3"},
            "tasks": {"train": str(folder / "tasks.jsonl")},
            "servers": {
                "file": str(folder / "servers.json"),
                "settings": {"market": {"budget": {"calls": 500_000, "usd": 50.0, "usd_per_call": 0.0002}}},
            },
            "episodes": {"group_size": GROUP_SIZE},
            "algorithm": {"kl": {"coefficient": 0.05, "target": 0.02, "cap": 0.1}},
            "training": {"steps": steps, "tasks_per_step": TASKS_PER_STEP},
        }
    )
    (folder / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")


def _write_token_notes(
    path: Path,
    task_ids: list[str],
    members: list[int],
    rows: list[_Episode],
    lengths: list[int],
    learnable: Any,
    offsets: Any,
    draws: Any,
) -> None:
    rewards = np.array([row.reward for row in rows])
    advantage = np.repeat((rewards - rewards.mean()) / (rewards.std() + 1e-6), lengths)
    shift = draws.normal(0.0, 0.08, len(learnable)) + 0.02 * np.sign(advantage)

    def column(values: Any) -> Any:
        return _ARROW.ListArray.from_arrays(offsets, _ARROW.array(values))

    table = {
        "task_id": task_ids,
        "member": members,
        "learnable": column(learnable),
        "advantages": column(np.where(learnable, advantage, 0.0).astype(np.float32)),
        "ratios": column(np.where(learnable, np.exp(shift), 0.0).astype(np.float32)),
    }
    _PARQUET.write_table(_ARROW.table(table), path)


def _episode(scene: Scene, step: int, number: int, skill: float, digits: list[int], draw: random.Random) -> _Episode:
    solved = draw.random() < 0.15 + 0.7 * skill
    episode = _Episode(pieces=[(scene.prompt.ids, -1)], turns=[], reward=0.0, parts={}, stop="answered")
    faults = 0
    for turn in range(draw.choice((1, 2, 2, 2, 3))):
        mistaken = draw.random() < 0.3 * (1.1 - skill)
        faults += mistaken
        place = len(scene.calls) - 1 if mistaken else turn % (len(scene.calls) - 1)
        _add_call(episode, scene, place, turn, f"{step:05d}{number:03d}", digits, draw)
    if solved or draw.random() < 0.8:
        answer = scene.right if solved else scene.wrong
        episode.pieces.append((answer.ids, len(episode.turns)))
        episode.turns.append(_turn(answer.text, answer, step))
    else:
        episode.stop = draw.choice(_STOPS[1:])
    episode.parts = {"answer": float(solved), "calls": max(0.0, 1.0 - 0.5 * faults), "format": float(not faults)}
    episode.reward = round(0.7 * solved + 0.2 * episode.parts["calls"] + 0.1 * episode.parts["format"], 4)
    return episode


def _add_call(
    episode: _Episode, scene: Scene, place: int, turn: int, reference: str, digits: list[int], draw: random.Random
) -> None:
    thought, call, result = draw.choice(scene.thoughts), scene.calls[place], scene.results[place]
    mistaken = place == len(scene.calls) - 1
    number = np.array([digits[int(digit)] for digit in reference], dtype=np.int64)
    episode.pieces += [(thought.ids, turn), (call.ids, turn), (result.ids, -1), (number, -1)]
    tool = scene.tools[place]
    episode.turns.append(
        _turn(thought.text + call.text, call, int(reference[:5]))
        | {
            "calls": [{"name": tool, "arguments": scene.arguments[place], "problem": None}],
            "observations": [
                {
                    "tool": tool,
                    "server": TOOLS[tool],
                    "text": result.text + reference,
                    "fault": "policy" if mistaken else None,
                    "latency_s": round(draw.lognormvariate(-3.0, 0.8), 4),
                    "source": draw.choice(("live", "live", "live", "cache")),
                    "attempts": 1,
                    "truncated": False,
                    "arguments": None,
                }
            ],
        }
    )


def _turn(text: str, sampled: Phrase, version: int) -> dict[str, Any]:
    return {
        "text": text,
        "sampled_ids": sampled.ids.tolist(),
        "finish": "stop",
        "weights_version": version,
        "calls": [],
        "observations": [],
        "reward": 0.0,
    }

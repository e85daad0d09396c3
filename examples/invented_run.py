"""Writes the folder of a small run that never was, for trying out what reads runs: no model, no server, a few seconds.

The folder is written by the code that writes real ones, and rewards and episode metrics are computed as in training.
Invented is what a policy would have done: its texts, its logprobs, and that it gets better from step to step.
"""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path
from statistics import fmean, pstdev

from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from mcprl.config import RewardsConfig, RunConfig
from mcprl.episodes import episode_metrics
from mcprl.episodes.rewards import score, weigh
from mcprl.errors import Fault
from mcprl.goals import Contains, ExpectedCall, Goal
from mcprl.records import (
    Batch,
    FinishReason,
    Group,
    Observation,
    StopReason,
    Task,
    ToolCall,
    Trajectory,
    Turn,
    Weights,
)
from mcprl.runs.folder import RunFolder, StepRecord

STEPS, GROUP_SIZE = 12, 4
CITIES = {
    "Ana": "Lima",
    "Bola": "Lagos",
    "Chidi": "Abuja",
    "Dana": "Denver",
    "Emre": "Izmir",
    "Fatima": "Tunis",
    "Goran": "Zagreb",
    "Hiro": "Osaka",
    "Ines": "Porto",
    "Jun": "Busan",
    "Kaya": "Perth",
    "Lena": "Graz",
}
END = "<end>"
PIECES = re.compile(r"<end>|\s*\w+|\s*[^\w\s]|\s+")


class Words:
    """A vocabulary that grows with what is said: every word and every sign is a token."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {"<unknown>": 0, END: 1}

    def tokens(self, text: str) -> list[int]:
        return [self.ids.setdefault(piece, len(self.ids)) for piece in PIECES.findall(text)]

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        Tokenizer(WordLevel(self.ids, unk_token="<unknown>")).save(str(folder / "tokenizer.json"))


def make_task(person: str) -> Task:
    return Task(
        id=f"city-of-{person.lower()}",
        prompt=({"role": "user", "content": f"In which city does {person} work?"},),
        goal=Goal(
            answer=Contains(text=CITIES[person]),
            calls=(ExpectedCall(tool="find_person", arguments={"name": person}),),
        ),
        tools=("find_person",),
    )


def make_turns(person: str, skill: float, step: int, words: Words, draw: random.Random) -> tuple[Turn, ...]:
    """A call, often with the right name, and an answer, often with the right city."""
    works = draw.random() < 0.3 + 0.7 * skill
    name = person if works else f"{person}s"
    called = f'<tool_call>{{"name": "find_person", "arguments": {{"name": "{name}"}}}}</tool_call>{END}'
    seen = Observation(
        tool="find_person",
        server="directory",
        text=f"{person}: {CITIES[person]}" if works else f"Nobody here is called {name}.",
        fault=None if works else Fault.POLICY,
        latency_s=round(draw.uniform(0.002, 0.02), 4),
    )
    right = works and draw.random() < 0.4 + 0.6 * skill
    answer = f"{person} works in {CITIES[person] if right else draw.choice(['Oslo', 'Quito'])}.{END}"
    return (
        Turn(
            text=called,
            sampled_ids=tuple(words.tokens(called)),
            finish=FinishReason.STOP,
            weights_version=step,
            calls=(ToolCall(name="find_person", arguments={"name": name}),),
            observations=(seen,),
        ),
        Turn(text=answer, sampled_ids=tuple(words.tokens(answer)), finish=FinishReason.STOP, weights_version=step),
    )


def make_trajectory(task: Task, person: str, step: int, member: int, words: Words) -> Trajectory:
    draw = random.Random(f"{step} {task.id} {member}")
    turns = make_turns(person, 0.95 * step / (STEPS - 1), step, words, draw)
    ids = words.tokens(f"user: {task.prompt[0]['content']}\nassistant: ")
    owners = [-1] * len(ids)
    for number, turn in enumerate(turns):
        observed = "".join(f"\ntool: {seen.text}\nassistant: " for seen in turn.observations)
        ids += [*turn.sampled_ids, *words.tokens(observed)]
        owners += [number] * len(turn.sampled_ids) + [-1] * len(words.tokens(observed))
    sampled = tuple(owner >= 0 for owner in owners)
    # As if a grammar had held the call to the one tool: it left open whether to call, whom to ask for, and to end.
    open_ids = {turns[0].sampled_ids[0], turns[0].sampled_ids[-1], *words.tokens(turns[0].calls[0].arguments["name"])}
    forced = tuple(owner == 0 and token not in open_ids for owner, token in zip(owners, ids, strict=True))
    parts = score(task.goal, turns, turns[-1].text.removesuffix(END), StopReason.ANSWERED, weights=RewardsConfig())
    return Trajectory(
        task_id=task.id,
        step=step,
        member=member,
        attempt=0,
        temperature=1.0,
        token_ids=tuple(ids),
        sampled=sampled,
        forced=forced,
        fixed=(False,) * len(ids),
        logprobs=tuple(
            -draw.expovariate(3.0) if own and not one_choice else 0.0
            for own, one_choice in zip(sampled, forced, strict=True)
        ),
        turn_index=tuple(owners),
        weights_version=tuple(step if own else -1 for own in sampled),
        turns=turns,
        stop=StopReason.ANSWERED,
        reward=weigh(parts, RewardsConfig()),
        reward_parts=parts,
        duration_s=round(draw.uniform(0.5, 1.5), 3),
    )


def make_record(step: int, words: Words) -> StepRecord:
    groups: list[Group] = []
    for person in CITIES:
        task = make_task(person)
        members = (make_trajectory(task, person, step, member, words) for member in range(GROUP_SIZE))
        groups.append(Group(task=task, trajectories=tuple(members)))
    learnable, advantages, ratios = [], [], []
    draw = random.Random(step)
    for group in groups:
        rewards = [t.reward for t in group.trajectories]
        for trajectory in group.trajectories:
            worth = (trajectory.reward - fmean(rewards)) / (pstdev(rewards) + 1e-6)
            mask = [own and not held for own, held in zip(trajectory.sampled, trajectory.forced, strict=True)]
            learnable.append(tuple(mask))
            advantages.append(tuple(worth if learnt else 0.0 for learnt in mask))
            ratios.append(tuple(draw.gauss(1.0 + 0.01 * worth, 0.02) if learnt else 0.0 for learnt in mask))
    batch = Batch(step=step, groups=tuple(groups), learnable=tuple(learnable), advantages=tuple(advantages))
    metrics = episode_metrics(groups, seconds=6.0)
    return StepRecord(played=groups, batch=batch, ratios=tuple(ratios), spans=(), metrics=metrics, verdicts=())


def write_run(outputs: Path) -> Path:
    """Write the run into a new folder inside of `outputs`; gives that folder."""
    words, model = Words(), outputs / "words-as-tokens"
    records = [make_record(step, words) for step in range(STEPS)]
    words.save(model)
    config = RunConfig.model_validate(
        {
            "name": "invented",
            "model": {"path": str(model)},
            "tasks": {"train": "never-read.jsonl"},
            "servers": {"file": "never-read.json"},
            "episodes": {"group_size": GROUP_SIZE},
            "training": {"steps": STEPS, "tasks_per_step": len(CITIES), "outputs": str(outputs)},
        }
    )
    with RunFolder.create(config) as folder:
        for step, record in enumerate(records):
            folder.record_step(step, record)
        folder.finish(Weights(version=0), {"invented": True})
    return folder.path


if __name__ == "__main__":
    print(write_run(Path(sys.argv[1] if len(sys.argv) > 1 else "outputs")))

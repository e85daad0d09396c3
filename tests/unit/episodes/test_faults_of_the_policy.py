"""A policy that kills its tool server must not score better than one that simply fails."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import pytest
import torch
from staged_episodes import make_config, make_task

from mcprl.config import RunConfig, ServerSettings
from mcprl.episodes import Collector, EpisodeRunner, succeeded
from mcprl.evaluation.harness import Player
from mcprl.evaluation.outcomes import TaskSuite
from mcprl.learning.algorithms import grpo_advantages
from mcprl.records import Group, LostEpisode, StopReason, Trajectory
from mcprl.samplers import SampleRequest
from mcprl.samplers.sampler import ScriptedSampler
from mcprl.tools import ServerSpec, Toolbox

pytestmark = pytest.mark.process

SERVER = Path(__file__).with_name("marker_server.py")
TASKS = [make_task(name, answer="42", tools=("look",)) for name in ("a", "b", "c")]
GROUP_SIZE = 4

Script = Callable[[SampleRequest], tuple[int, ...]]


class Silent:
    def stage(self, text: str) -> None: ...

    def episode_finished(self, step: int, outcome: Trajectory | LostEpisode) -> None: ...

    def step_finished(self, *_: object) -> None: ...


def policy(chat, encode, when_hard: Callable[[str], str]) -> Script:
    """Looks at the riddle that its seed names, answers an easy one, and does with a hard one as it is told."""

    def look(text: str) -> str:
        return f"<tool_call>\n{json.dumps({'name': 'look', 'arguments': {'text': text}})}\n</tool_call>"

    def turn(request: SampleRequest) -> tuple[int, ...]:
        said = chat.decode(request.prompt_ids)
        looked = re.search(r'"arguments": \{"text": "(\d+)"\}', said)
        if looked is None:
            return tuple(encode(look(str(request.seed))))
        if "easy" in said:
            return tuple(encode("42<|im_end|>"))
        words = when_hard(looked[1])
        return tuple(encode(look(words) if words.startswith("MARKER") else f"{words}<|im_end|>"))

    return turn


@dataclass
class Score:
    groups: tuple[Group, ...]
    eval_solved: list[bool]
    eval_stops: list[StopReason]

    @property
    def trajectories(self) -> list[Trajectory]:
        return [t for group in self.groups for t in group.trajectories]

    @property
    def reward(self) -> float:
        return fmean(t.reward for t in self.trajectories)

    @property
    def eval_success(self) -> float:
        return fmean(self.eval_solved)

    @property
    def success(self) -> float:
        return fmean(succeeded(t.reward_parts) for t in self.trajectories)


async def score(script: Script, config: RunConfig, chat, folder: Path) -> Score:
    """What reaches the learner from the policy's groups, and what an evaluation says of it, each in a new world."""
    groups, played = (), []
    for part in ("train", "eval"):
        world = folder / part
        world.mkdir(parents=True)
        spec = ServerSpec(
            name="riddles",
            command=sys.executable,
            args=(str(SERVER), str(world)),
            settings=ServerSettings(isolation="per_episode", call_deadline_s=60.0),
        )
        async with Toolbox([spec], log_dir=folder / "logs") as toolbox:
            runner = EpisodeRunner(config, chat=chat, sampler=ScriptedSampler(script), leases=toolbox, preamble=())
            if part == "train":
                groups = await Collector(runner, config.episodes).collect(TASKS, 0, lambda _: None)
            else:
                player = Player(runner, config.episodes, TaskSuite("riddles", TASKS), Silent())
                played = [one for task in TASKS for one in await player.play(task, GROUP_SIZE)]
    return Score(groups, [o.success for _, o in played], [o.stop for _, o in played])


def advantages(group: Group) -> list[float]:
    return grpo_advantages(torch.tensor([t.reward for t in group.trajectories], dtype=torch.float64)).tolist()


async def test_a_policy_that_kills_its_server_scores_no_better_than_one_that_fails(
    chat, encode, tmp_path, record_property
):
    config = make_config(group_size=GROUP_SIZE, max_concurrent=4)
    honest = await score(policy(chat, encode, lambda _: "I do not know"), config, chat, tmp_path / "honest")
    cheating = await score(policy(chat, encode, lambda label: f"MARKER {label}"), config, chat, tmp_path / "cheating")
    for name, figures in (("honest", honest), ("cheating", cheating)):
        record_property(name, (figures.reward, figures.success, figures.eval_success))
    assert 0.2 < honest.success < 0.8
    assert cheating.reward < honest.reward
    assert cheating.success == honest.success
    assert cheating.eval_success == honest.eval_success
    # It is in the record of both, and each hard riddle was given up after one attempt.
    failed = [t.stop is StopReason.CAUSED_FAULT for t in cheating.trajectories]
    assert failed == [not succeeded(t.reward_parts) for t in honest.trajectories]
    assert cheating.eval_stops.count(StopReason.CAUSED_FAULT) == sum(not done for done in honest.eval_solved)
    assert not any(group.lost for group in cheating.groups)
    # No member left its group: nobody's advantage is larger than beside an honest failure of the same worth.
    for ours, theirs in zip(cheating.groups, honest.groups, strict=True):
        assert [t.member for t in ours.trajectories] == [t.member for t in theirs.trajectories]
        assert advantages(ours) == pytest.approx(advantages(theirs))

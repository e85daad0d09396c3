"""One episode of three turns over two real MCP servers, read back from disk and checked token by token."""
# R14, R16

from __future__ import annotations

import json

import pytest
from staged_episodes import make_config
from transformers import AutoTokenizer

from mcprl.chat import load_chat
from mcprl.episodes import EpisodeRunner
from mcprl.goals import Contains, ExpectedCall, Goal
from mcprl.records import Group, StopReason, Task, Trajectory
from mcprl.runs.folder import RunFolder
from mcprl.runs.trajectories import read_trajectories
from mcprl.samplers.sampler import ScriptedSampler
from mcprl.tools import Toolbox
from step_records import step_record

pytestmark = pytest.mark.process

FIND = {"name": "find_person", "arguments": {"name": "Grace"}}
CONVERT = {
    "name": "convert_time",
    "arguments": {"source_timezone": "Africa/Nairobi", "time": "10:10", "target_timezone": "Asia/Tokyo"},
}
TEXTS = [
    f"I look Grace up.\n<tool_call>\n{json.dumps(FIND)}\n</tool_call>",  # ends at the stop text, without an end token
    f"<tool_call>\n{json.dumps(CONVERT)}\n</tool_call><|im_end|>",
    "It is 16:10 in Tokyo.<|im_end|>",
]
TASK = Task(
    id="call-grace",
    prompt=({"role": "user", "content": "It is 10:10 at Grace's office. What time is it in Asia/Tokyo?"},),
    goal=Goal(
        answer=Contains(text="16:10"),
        calls=(
            ExpectedCall(tool="find_person", arguments=FIND["arguments"]),
            ExpectedCall(tool="convert_time", arguments=CONVERT["arguments"]),
        ),
    ),
    tools=("find_person", "convert_time"),
    max_turns=3,
)


def segments(trajectory: Trajectory) -> list[tuple[int, tuple[int, ...]]]:
    """The tokens in runs of one turn index each: (−1, context), (0, first turn), (−1, context), …"""
    runs: list[tuple[int, list[int]]] = []
    for turn, token in zip(trajectory.turn_index, trajectory.token_ids, strict=True):
        if not runs or runs[-1][0] != turn:
            runs.append((turn, []))
        runs[-1][1].append(token)
    return [(turn, tuple(ids)) for turn, ids in runs]


async def test_three_turns_two_servers_one_episode_read_back_from_disk(time_spec, directory_spec, smollm2, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    chat = load_chat(str(smollm2), "chatml")
    script = iter(TEXTS * 2)
    sampler = ScriptedSampler(lambda _: tuple(tokenizer.encode(next(script), add_special_tokens=False)), logprob=-0.125)
    config = make_config(model=smollm2)
    config = config.model_copy(update={"training": config.training.model_copy(update={"outputs": tmp_path})})
    async with Toolbox([time_spec, directory_spec], log_dir=tmp_path / "logs") as toolbox, sampler:
        runner = EpisodeRunner(config, chat=chat, sampler=sampler, leases=toolbox, preamble=())
        played = [await runner.run(TASK, step=0, member=member, attempt=0) for member in (0, 1)]

    folder = RunFolder.create(config)
    folder.record_step(0, step_record([Group(task=TASK, trajectories=tuple(played))], {"reward": played[0].reward}, []))
    read = read_trajectories(folder.path / "trajectories" / "step-00000.parquet")
    assert read == played

    trajectory = read[0]
    assert trajectory.stop is StopReason.ANSWERED
    assert trajectory.reward_parts == {
        "answer": 1.0,
        "calls": 1.0,
        "arguments": 1.0,
        "efficiency": 1.0,
        "invalid_call": 0.0,
        "unanswered": 0.0,
    }
    assert trajectory.reward == 1.0
    # Half of the calls and one of four arguments came with the first turn; only the answer was missing after two.
    weights, total = config.rewards, 2.1
    progress = (0.5 * weights.calls + 0.25 * weights.arguments + 0.5 * weights.efficiency) / total
    assert [turn.reward for turn in trajectory.turns] == pytest.approx([progress, 1.1 / 2.1 - progress, 1 / 2.1])
    assert sum(turn.reward for turn in trajectory.turns) == 1.0

    # Which server answered which call, and what it said.
    observations = [seen for turn in trajectory.turns for seen in turn.observations]
    assert [(seen.tool, seen.server, seen.fault) for seen in observations] == [
        ("find_person", "directory", None),
        ("convert_time", "time", None),
    ]
    assert observations[0].text == "Grace: Nairobi, Africa/Nairobi"
    assert "T16:10:00+09:00" in observations[1].text

    # Which tokens the policy sampled, turn by turn, and which it was shown.
    runs = segments(trajectory)
    assert [turn for turn, _ in runs] == [-1, 0, -1, 1, -1, 2]
    (_, prompt), (_, first), (_, between), (_, second), (_, after), (_, third) = runs
    for turn, ids, text in zip(trajectory.turns, (first, second, third), TEXTS, strict=True):
        assert ids == turn.sampled_ids
        assert tokenizer.decode(ids) == turn.text == text
    assert tokenizer.decode(prompt).startswith("<|im_start|>system\nYou can call these tools:\n<tools>")
    assert tokenizer.decode(prompt).endswith(f"user\n{TASK.prompt[0]['content']}<|im_end|>\n<|im_start|>assistant\n")
    opening = "<|im_start|>assistant\n"
    # The first turn stopped at its stop text, so its close is the template's; the second sampled its own.
    assert tokenizer.decode(between) == f"<|im_end|>\n<|im_start|>tool\n{observations[0].text}<|im_end|>\n{opening}"
    assert tokenizer.decode(after) == f"\n<|im_start|>tool\n{observations[1].text}<|im_end|>\n{opening}"

    for place, turn in enumerate(trajectory.turn_index):
        assert trajectory.sampled[place] is (turn >= 0)
        assert trajectory.logprobs[place] == (-0.125 if turn >= 0 else 0.0)
    assert sum(trajectory.sampled) == len(first) + len(second) + len(third)

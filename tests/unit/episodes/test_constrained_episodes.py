"""Episodes under a grammar: the requests to the sampler, and what the trajectory records."""
# R7, R12

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from staged_episodes import Face, FunctionTools, RecordingSampler, make_config, make_task

from mcprl.config import SamplingConfig
from mcprl.episodes import EpisodeRunner
from mcprl.errors import AlignmentError, InadmissibleTokenError
from mcprl.grammar.masks import TurnGrammars, load_grammars
from mcprl.learning.packing import Replayer
from mcprl.records import FollowUp
from mcprl.runs.trajectories import decode_trajectory, encode_trajectory, read_trajectories, write_trajectories

pytestmark = pytest.mark.slow

END = "<|im_end|>"
CALL = '<tool_call>\n{"name": "echo", "arguments": {"text": "blue"}}\n</tool_call>'
PARAMETERS = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


@pytest.fixture(scope="module")
def grammars(tiny_qwen3):
    return load_grammars(str(tiny_qwen3))


@pytest.fixture
def stage(chat, encode, grammars):
    """(runner, sampler) that says `texts` under a grammar of one tool."""

    def make(*texts: str, constrain: str = "act", later: bool = False):
        sampling = SamplingConfig(constrain=constrain)
        sampler = RecordingSampler(encode, texts)
        tools = FunctionTools(echo=lambda text: text, shout=lambda text: text.upper())
        tools.tools = [Face("echo", parameters=PARAMETERS), *([Face("shout", parameters=PARAMETERS)] if later else [])]
        config = make_config().model_copy(update={"sampling": sampling})
        held = TurnGrammars(chat, grammars, sampling)
        return EpisodeRunner(config, chat=chat, sampler=sampler, leases=tools, preamble=(), grammars=held), sampler

    return make


def play(runner: EpisodeRunner):
    return runner.run(make_task(answer="blue"), step=0, member=0, attempt=0)


async def test_every_turn_is_sampled_under_the_grammar_of_the_tools_on_offer(stage):
    runner, sampler = stage(CALL + END, f"It is blue.{END}")
    trajectory = await play(runner)
    tag = json.loads(trajectory.grammar)
    assert tag["type"] == "structural_tag"
    assert "echo" in trajectory.grammar
    assert [request.grammar for request in sampler.requests] == [trajectory.grammar] * 2
    assert all(request.stop_token_ids == trajectory.stop_token_ids for request in sampler.requests)


async def test_a_follow_up_with_more_tools_brings_a_grammar_that_the_learner_replays_too(stage, grammars, tmp_path):
    turns = (f"Blue.{END}", CALL.replace("echo", "shout") + END, f"BLUE.{END}")
    runner, sampler = stage(*turns, later=True)
    follow_up = FollowUp(messages=({"role": "user", "content": "Louder?"},), tools=("shout",))
    task = replace(make_task(answer="blue", tools=("echo",)), follow_ups=(follow_up,))
    trajectory = await runner.run(task, step=0, member=0, attempt=0)
    ((first, later),) = trajectory.later_grammars
    assert (first, "shout" in trajectory.grammar, "shout" in later) == (1, False, True)
    assert [request.grammar for request in sampler.requests] == [trajectory.grammar, later, later]
    assert "You can now use these tools too" in trajectory.turns[0].follow_up[0]["content"]
    assert trajectory.turns[1].observations[0].text == "BLUE"
    write_trajectories(tmp_path / "t.parquet", [trajectory])
    (read,) = read_trajectories(tmp_path / "t.parquet")
    assert read == decode_trajectory(encode_trajectory(trajectory)) == trajectory
    assert len(Replayer(grammars).admissible([read], [read.sampled])) == sum(read.sampled)
    with pytest.raises((AlignmentError, InadmissibleTokenError)):
        Replayer(grammars).admissible([replace(read, later_grammars=())], [read.sampled])


async def test_what_the_grammar_left_no_choice_about_is_recorded_token_by_token(stage, chat):
    runner, _ = stage(CALL + END, f"It is blue.{END}")
    trajectory = await play(runner)
    marked = {
        kind: "".join(
            chat.decode([token]) for token, is_kind in zip(trajectory.token_ids, column, strict=True) if is_kind
        )
        for kind, column in {"forced": trajectory.forced, "fixed": trajectory.fixed}.items()
    }
    # One tool: its name and the only argument's are text that could not be otherwise; the value could.
    assert "echo" in marked["forced"] + marked["fixed"]
    assert "blue" not in marked["forced"] + marked["fixed"]
    assert not any(f and x for f, x in zip(trajectory.forced, trajectory.fixed, strict=True))
    answer = trajectory.turn_index.index(1)
    assert not any(trajectory.fixed[answer:])


async def test_without_a_grammar_nothing_is_forced(chat, encode):
    sampler = RecordingSampler(encode, [CALL + END, f"It is blue.{END}"])
    tools = FunctionTools(echo=lambda text: text)
    trajectory = await play(EpisodeRunner(make_config(), chat=chat, sampler=sampler, leases=tools, preamble=()))
    assert trajectory.grammar is None
    assert not any((*trajectory.forced, *trajectory.fixed))


@pytest.mark.parametrize(
    ("constrain", "text"),
    [
        ("act", f"Let me look. {CALL}"),
        ("act", CALL.replace("echo", "ecco")),
        ("calls", f"Let me look. {CALL.replace('text', 'txt')}"),
    ],
)
async def test_a_sampler_that_does_not_keep_to_the_grammar_stops_the_run(stage, constrain, text):
    runner, _ = stage(text + END, constrain=constrain)
    with pytest.raises(InadmissibleTokenError):
        await play(runner)


async def test_prose_before_a_call_is_free_if_only_calls_are_constrained(stage):
    runner, _ = stage(f"Let me look. {CALL}{END}", f"It is blue.{END}", constrain="calls")
    trajectory = await play(runner)
    assert trajectory.turns[0].observations[0].text == "blue"


def test_a_runner_under_a_grammar_needs_one(chat):
    config = make_config().model_copy(update={"sampling": SamplingConfig(constrain="act")})
    with pytest.raises(ValueError, match="pass grammars if"):
        EpisodeRunner(config, chat=chat, sampler=None, leases=None, preamble=())

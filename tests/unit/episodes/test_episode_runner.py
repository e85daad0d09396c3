"""One episode from prompt to trajectory: how it ends, what it records, and its seeds."""

from __future__ import annotations

import asyncio
import json
from itertools import product
from types import SimpleNamespace

import pytest
from staged_episodes import FunctionTools, RecordingSampler, make_config, make_task

from mcprl.config import JudgeConfig, RewardsConfig
from mcprl.episodes import EpisodeRunner, loop
from mcprl.errors import BadValueError, EpisodeDeadlineError, Fault, ServerLostError
from mcprl.goals import Contains, ExpectedState
from mcprl.records import FinishReason, Source, StopReason
from mcprl.seeds import derive_seed

END = "<|im_end|>"
PREAMBLE = ({"role": "system", "content": "Use the tools."},)


def calling(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.fixture
def stage(chat, encode):
    """An episode's stage: (runner, sampler) that says `texts` and has these tools."""

    def make(*texts, tools: FunctionTools | None = None, version: int = 0, **settings):
        sampler = RecordingSampler(encode, texts, version=version)
        leases = tools or FunctionTools(echo=lambda text: text)
        config = make_config(**settings)
        return EpisodeRunner(config, chat=chat, sampler=sampler, leases=leases, preamble=PREAMBLE), sampler

    return make


async def play(runner: EpisodeRunner, *, step: int = 0, member: int = 0, attempt: int = 0, **task):
    return await runner.run(make_task(**task), step=step, member=member, attempt=attempt)


async def test_an_episode_lays_down_the_tokens_in_the_order_the_model_saw_them(stage, chat):
    runner, sampler = stage(calling("echo", text="blue"), f"It is blue.{END}", version=4)
    trajectory = await play(runner, step=2, member=3, attempt=1, answer="blue")
    assert (trajectory.step, trajectory.member, trajectory.attempt) == (2, 3, 1)
    assert (trajectory.stop, trajectory.temperature) == (StopReason.ANSWERED, 0.7)
    # What the sampler was shown for each turn is exactly what stands before that turn.
    for turn, request in enumerate(sampler.requests):
        start = trajectory.turn_index.index(turn)
        assert trajectory.token_ids[:start] == request.prompt_ids
        own = trajectory.token_ids[start : start + len(trajectory.turns[turn].sampled_ids)]
        assert own == trajectory.turns[turn].sampled_ids
    for place, turn in enumerate(trajectory.turn_index):
        assert trajectory.sampled[place] is (turn >= 0)
        assert trajectory.weights_version[place] == (4 if turn >= 0 else -1)
    assert [turn.weights_version for turn in trajectory.turns] == [4, 4]
    first = trajectory.turn_index.index(0)
    assert trajectory.logprobs[first : first + 3] == (-0.125, -0.25, -0.375)
    assert "<|im_start|>tool\nblue<|im_end|>" in chat.decode(sampler.requests[1].prompt_ids)


async def test_a_request_carries_the_settings_of_the_run_and_the_stops_of_the_chat(stage, chat):
    runner, sampler = stage(f"Hello.{END}", max_tokens=33)
    await play(runner)
    [request] = sampler.requests
    assert (request.temperature, request.max_tokens, request.stop) == (0.7, 33, ("</tool_call>",))
    assert request.stop_token_ids == chat.stop_token_ids


async def test_a_turn_gets_no_more_tokens_than_the_context_has_room_for(stage, chat):
    runner, sampler = stage(f"Hello.{END}", max_tokens=500, context_tokens=128)
    await play(runner)
    [request] = sampler.requests
    assert request.max_tokens == 128 - len(request.prompt_ids) < 500


async def test_what_the_policy_did_wrong_is_shown_to_it_and_costs(stage, chat):
    runner, sampler = stage(calling("ecko"), "<tool_call>\n{oops}\n</tool_call>", f"I give up.{END}")
    trajectory = await play(runner)
    assert trajectory.stop is StopReason.ANSWERED
    assert [turn.observations[0].fault for turn in trajectory.turns[:2]] == [Fault.POLICY] * 2
    assert trajectory.reward_parts["invalid_call"] == 2.0
    shown = chat.decode(sampler.requests[2].prompt_ids)
    assert "There is no tool 'ecko'." in shown
    assert "the call is not valid JSON" in shown


@pytest.mark.parametrize(
    "written",
    [
        r'{"name": "\ud800", "arguments": {}}',
        r'{"name": "echo", "arguments": {"text": "\ud800"}}',
        r'{"name": "echo", "arguments": {"text": NaN}}',
    ],
)
async def test_a_call_with_what_no_file_can_hold_is_the_policys_fault_and_no_crash(stage, written):
    runner, _ = stage(f"<tool_call>\n{written}\n</tool_call>", f"Sorry.{END}")
    trajectory = await play(runner)
    assert trajectory.stop is StopReason.ANSWERED
    assert trajectory.turns[0].observations[0].fault is Fault.POLICY


async def test_the_turn_limit_of_the_task_goes_before_that_of_its_difficulty(stage):
    runner, sampler = stage(calling("echo", text="again"))
    assert (await play(runner, max_turns=3)).stop is StopReason.TURN_LIMIT
    assert len(sampler.requests) == 3
    runner, sampler = stage(calling("echo", text="again"), max_turns={"easy": 1, "medium": 2, "hard": 1})
    assert (await play(runner)).stop is StopReason.TURN_LIMIT
    assert len(sampler.requests) == 2


async def test_a_last_turn_of_full_length_without_a_call_is_cut(stage):
    runner, _ = stage("one two three four five six seven eight", max_tokens=4)
    trajectory = await play(runner)
    assert trajectory.stop is StopReason.CUT_BY_LENGTH
    assert trajectory.turns[0].finish is FinishReason.LENGTH
    assert sum(trajectory.sampled) == 4


async def test_a_call_cut_by_length_is_a_fault_that_the_policy_may_correct(stage):
    runner, sampler = stage(calling("echo", text="far too long for this turn"), f"Done.{END}", max_tokens=12)
    trajectory = await play(runner)
    assert trajectory.turns[0].observations[0].fault is Fault.POLICY
    assert trajectory.stop is StopReason.ANSWERED
    assert len(sampler.requests) == 2


async def test_an_observation_too_long_for_the_context_ends_the_episode_before_it(stage, chat):
    tools = FunctionTools(flood=lambda: "word " * 400)
    runner, sampler = stage(calling("flood"), tools=tools, context_tokens=256)
    trajectory = await play(runner)
    assert trajectory.stop is StopReason.CONTEXT_LIMIT
    assert len(trajectory.token_ids) < 256
    assert "word word" not in chat.decode(trajectory.token_ids)
    assert trajectory.sampled[-1]  # the call is the last thing the model saw
    assert trajectory.turns[0].observations[0].text.startswith("word word")
    assert trajectory.reward_parts["unanswered"] == 1.0
    assert sum(turn.reward for turn in trajectory.turns) == pytest.approx(trajectory.reward)
    assert len(sampler.requests) == 1


async def test_a_prompt_longer_than_the_context_is_a_configuration_error(stage, chat):
    tools = FunctionTools(**{f"tool_{n}": lambda: "" for n in range(12)})
    runner, sampler = stage(f"Hello.{END}", tools=tools, context_tokens=64)
    with pytest.raises(BadValueError, match=r"the prompt of task task has \d+ tokens, but model\.context_tokens is 64"):
        await play(runner)
    assert sampler.requests == []
    assert tools.open_leases == 0


@pytest.fixture
def leap(monkeypatch):
    """Moves the clock of the episode on, and that of its event loop: waits that this is too long for are over."""
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time()))

    def move(seconds: float) -> None:
        running = asyncio.get_running_loop()
        before = running.time
        running.time = lambda: before() + seconds

    return move


async def test_an_episode_past_its_deadline_is_lost_and_gives_its_tools_back(stage, leap):
    async def never() -> str:
        leap(600.0)
        await asyncio.Event().wait()
        return ""

    tools = FunctionTools(echo=lambda text: text)
    runner, sampler = stage(never, tools=tools, deadline_s=600.0)
    with pytest.raises(EpisodeDeadlineError, match=r"episode 2 of task task took longer than 600 s"):
        await play(runner, member=2)
    assert len(sampler.requests) == 1
    assert tools.open_leases == 0


async def test_an_episode_whose_own_turns_took_the_time_ends_at_its_deadline_and_is_scored(stage, leap):
    async def slow() -> str:
        leap(360.0)  # more than half of the deadline, in a turn that ends
        return "slept"

    async def never() -> str:
        leap(240.0)
        await asyncio.Event().wait()
        return ""

    tools = FunctionTools(slow=slow, never=never, _look=lambda: "blue")
    runner, sampler = stage(calling("slow"), calling("never"), tools=tools, deadline_s=600.0)
    trajectory = await play(runner, state=(ExpectedState(tool="_look", texts=(Contains(text="blue"),)),))
    assert trajectory.stop is StopReason.DEADLINE
    assert [turn.observations[0].text for turn in trajectory.turns] == ["slept"]
    assert trajectory.sampled[-1]  # the turn under way is gone, and so is what was shown before it
    assert sum(trajectory.sampled) == len(trajectory.turns[0].sampled_ids)
    assert trajectory.reward_parts["unanswered"] == 1.0
    assert trajectory.reward_parts["state"] == 1.0  # the world was still asked
    assert sum(turn.reward for turn in trajectory.turns) == pytest.approx(trajectory.reward)
    assert len(sampler.requests) == 2
    assert tools.open_leases == 0


async def test_an_episode_whose_last_look_at_the_world_never_ends_is_lost(stage, leap):
    async def slow() -> str:
        leap(360.0)
        return "slept"

    async def never() -> str:
        leap(240.0)
        await asyncio.Event().wait()
        return ""

    tools = FunctionTools(slow=slow, never=never, _look=never)
    runner, _ = stage(calling("slow"), calling("never"), tools=tools, deadline_s=600.0)
    with pytest.raises(EpisodeDeadlineError):
        await play(runner, state=(ExpectedState(tool="_look", texts=(Contains(text="blue"),)),))
    assert tools.open_leases == 0


async def test_a_fault_of_the_world_leaves_the_episode_as_it_is(stage):
    error = ServerLostError("gone", fix="none")

    async def fail() -> str:
        raise error

    tools = FunctionTools(fail=fail)
    runner, _ = stage(calling("fail"), tools=tools)
    with pytest.raises(ServerLostError) as caught:
        await play(runner)
    assert caught.value is error
    assert tools.open_leases == 0


async def test_an_episode_leases_the_tools_of_its_task(stage):
    tools = FunctionTools(echo=lambda text: text)
    runner, _ = stage(f"Hello.{END}", tools=tools)
    await play(runner, tools=("echo",))
    await play(runner)
    assert tools.leased == [("echo",), None]
    assert tools.probes == [(), ()]


async def test_an_episode_also_leases_the_tools_that_its_goal_asks_about_the_world_and_says_how_long_it_lives(stage):
    tools = FunctionTools(echo=lambda text: text, _look=lambda: "blue")
    runner, _ = stage(f"Hello.{END}", tools=tools, deadline_s=77.0)
    blue = ExpectedState(tool="_look", texts=(Contains(text="blue"),))
    trajectory = await play(runner, tools=("echo",), answer=None, state=[blue, blue])
    assert (tools.leased, tools.probes, tools.lives_s) == ([("echo",)], [("_look",)], [pytest.approx(77.0 * 1.2)])
    assert trajectory.reward_parts["state"] == trajectory.reward == 1.0


async def test_calls_fail_on_purpose_at_the_rate_asked_for_and_the_same_ones_each_time(stage):
    tools = FunctionTools(echo=lambda text: text)

    async def sources(rate: float) -> list[Source]:
        runner, _ = stage(calling("echo", text="a"), f"Done.{END}", tools=tools, injected_errors=rate)
        played = [await play(runner, member=member) for member in range(24)]
        return [trajectory.turns[0].observations[0].source for trajectory in played]

    first, again, never = await sources(0.5), await sources(0.5), await sources(0.0)
    assert first == again
    assert 4 <= first.count(Source.INJECTED) <= 20
    assert Source.INJECTED not in never


async def test_an_injected_failure_is_shown_to_the_policy_like_any_other_result(stage, chat):
    runner, sampler = stage(*[calling("echo", text="a")] * 3, f"Done.{END}", injected_errors=0.9)
    trajectory = await play(runner)
    [seen] = trajectory.turns[0].observations
    assert seen.source is Source.INJECTED
    assert f"<|im_start|>tool\n{seen.text}<|im_end|>" in chat.decode(sampler.requests[1].prompt_ids)


async def test_a_judge_and_its_setting_go_together(chat):
    config = make_config(rewards=RewardsConfig(judge=JudgeConfig(url="http://127.0.0.1:1/v1", model="m")))
    with pytest.raises(ValueError, match=r"pass a judge if and only if rewards\.judge is set"):
        EpisodeRunner(config, chat=chat, sampler=None, leases=None, preamble=())


async def test_the_seed_of_a_turn_is_made_of_step_task_member_and_turn_and_nothing_else(stage):
    seeds: dict[tuple, set[int]] = {}
    for step, name, member, attempt in product((0, 1), ("a", "b"), (0, 1), (0, 1)):
        runner, sampler = stage(calling("echo", text=f"attempt {attempt}"), f"Done.{END}", seed=5)
        await play(runner, task_id=name, step=step, member=member, attempt=attempt)
        for turn, request in enumerate(sampler.requests):
            seeds.setdefault((step, name, member, turn), set()).add(request.seed)
    assert all(seen == {derive_seed(5, "turn", *place)} for place, seen in seeds.items())
    assert len(set.union(*seeds.values())) == len(seeds) == 16


async def test_another_root_seed_gives_other_turns(stage):
    runner, first = stage(f"Hello.{END}", seed=1)
    await play(runner)
    runner, second = stage(f"Hello.{END}", seed=2)
    await play(runner)
    assert first.requests[0].seed != second.requests[0].seed

"""Conversations with several user messages: limits, tools that are offered later, and the tokens."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest
from staged_episodes import FunctionTools, RecordingSampler, Refusal, call, make_config, make_task

from mcprl.config import RewardsConfig
from mcprl.episodes.demonstrations import play
from mcprl.episodes.environment import Action, Environment
from mcprl.episodes.loop import EpisodeRunner, lease_for
from mcprl.errors import BadValueError
from mcprl.records import FinishReason, FollowUp, Solution, StopReason, turns_by_message


def said(text):
    return ({"role": "user", "content": text},)


def act(*calls, text="Fine.", finish=FinishReason.STOP):
    return Action(text=text, prose=text, calls=calls, sampled_ids=(1,), finish=finish, weights_version=0)


def tools_of_an_office():
    return FunctionTools(find=lambda: "Ana: Lima", convert=lambda: "23:30", _begin=lambda: "ready")


def three_questions(**changes):
    follow_ups = (FollowUp(messages=said("And then?")), FollowUp(messages=said("Now?"), tools=("convert",)))
    return replace(make_task(tools=("find",)), follow_ups=follow_ups, **changes)


def environment_of(task, tools, max_turns=3):
    return Environment(task, tools, preamble=(), max_turns=max_turns, rewards=RewardsConfig())


async def test_an_answer_brings_the_next_message_until_the_last_one_ends_the_episode():
    environment = environment_of(three_questions(), tools_of_an_office())
    first = await environment.step(act())
    second = await environment.step(act(call("find")))
    third = await environment.step(act())
    last = await environment.step(act())
    assert [step.stop for step in (first, second, third, last)] == [None, None, None, StopReason.ANSWERED]
    announced = third.follow_up[0]["content"]
    assert [step.follow_up for step in (first, second, last)] == [said("And then?"), (), ()]
    assert announced.startswith('Now?\n\nYou can now use these tools too:\n[{"name": "convert"')
    assert [turn.follow_up for turn in environment.turns] == [said("And then?"), (), third.follow_up, ()]
    assert [len(group) for group in turns_by_message(environment.turns)] == [1, 2, 1]


async def test_a_turn_that_was_cut_ends_its_question_and_only_at_the_end_the_episode():
    environment = environment_of(three_questions(), tools_of_an_office())
    results = [await environment.step(act(finish=FinishReason.LENGTH)) for _ in range(3)]
    assert [result.stop for result in results] == [None, None, StopReason.CUT_BY_LENGTH]


async def test_the_limit_of_turns_is_for_each_message():
    environment = environment_of(three_questions(), tools_of_an_office(), max_turns=2)
    stops = [(await environment.step(turn)).stop for turn in (act(call("find")), act(), act(call("find")))]
    assert stops == [None, None, None]
    assert (await environment.step(act(call("find")))).stop is StopReason.TURN_LIMIT
    assert [len(group) for group in turns_by_message(environment.turns)] == [2, 2]


async def test_a_tool_that_comes_later_is_neither_shown_nor_called_before():
    tools = tools_of_an_office()
    environment = environment_of(three_questions(), tools)
    assert [spec["name"] for spec in environment.tool_specs] == ["find"]
    refused = await environment.step(act(call("convert")))
    assert refused.observations[0].text == "There is no tool 'convert'."
    assert not refused.observations[0].worked
    assert tools.called == []
    await environment.step(act())
    await environment.step(act())
    assert [spec["name"] for spec in environment.tool_specs] == ["find", "convert"]
    assert (await environment.step(act(call("convert")))).observations[0].text == "23:30"


async def test_calls_in_order_wait_for_each_other():
    running, most = 0, 0

    async def slow():
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return "done"

    for in_order, at_once in ((True, 1), (False, 3)):
        most = 0
        task = replace(make_task(), calls_in_order=in_order)
        await environment_of(task, FunctionTools(slow=slow)).step(act(call("slow"), call("slow"), call("slow")))
        assert most == at_once


async def test_a_lease_holds_the_later_tools_and_puts_the_world_in_place():
    tools = tools_of_an_office()
    async with lease_for(three_questions(setup=(call("_begin"),)), tools, lives_s=60.0):
        assert tools.probed == ["_begin"]
    assert tools.leased == [("find", "convert")]
    assert tools.probes == [("_begin",)]


async def test_a_world_that_cannot_be_put_in_place_is_reported_and_the_lease_given_back():
    def refuse():
        raise Refusal("no such world")

    tools = FunctionTools(find=lambda: "x", convert=lambda: "y", _begin=refuse)
    with pytest.raises(BadValueError, match="no such world"):
        async with lease_for(three_questions(setup=(call("_begin"),)), tools, lives_s=60.0):
            pass
    assert tools.open_leases == 0


def runner_of(chat, tools, texts, **config):
    sampler = RecordingSampler(lambda text: chat.tokenizer.encode(text, add_special_tokens=False), texts)
    return EpisodeRunner(make_config(**config), chat=chat, sampler=sampler, leases=tools, preamble=()), sampler


async def test_what_the_user_says_next_follows_the_sampled_tokens_as_they_are(chat):
    find = '<tool_call>\n{"name": "find", "arguments": {}}\n</tool_call>'
    runner, sampler = runner_of(
        chat, tools_of_an_office(), ["Hello.<|im_end|>", find, "Lima.<|im_end|>", "Bye.<|im_end|>"]
    )
    trajectory = await runner.run(three_questions(), step=0, member=0, attempt=0)
    assert trajectory.stop is StopReason.ANSWERED
    assert [len(group) for group in turns_by_message(trajectory.turns)] == [1, 2, 1]
    prompts = [request.prompt_ids for request in sampler.requests]
    for number, (before, after) in enumerate(pairwise(prompts)):
        kept = before + trajectory.turns[number].sampled_ids
        assert after[: len(kept)] == kept
    assert chat.decode(prompts[1]).endswith(
        "Hello.<|im_end|>\n<|im_start|>user\nAnd then?<|im_end|>\n<|im_start|>assistant\n"
    )
    # In one piece the conversation has the same tokens as its turns.
    whole = chat.decode(trajectory.token_ids)
    assert whole.count("<|im_start|>user") == 3 + whole.count("<tool_response>")
    assert [trajectory.turn_index.count(turn) for turn in range(4)] == [len(t.sampled_ids) for t in trajectory.turns]


async def test_a_prompt_that_need_not_fit_ends_at_the_context_limit_before_the_first_turn(chat):
    runner, sampler = runner_of(chat, tools_of_an_office(), ["never"], context_tokens=64)
    with pytest.raises(BadValueError, match="the prompt of task"):
        await runner.run(three_questions(), step=0, member=0, attempt=0)
    trajectory = await runner.run(three_questions(must_fit=False), step=0, member=0, attempt=0)
    assert trajectory.stop is StopReason.CONTEXT_LIMIT
    assert trajectory.turns == ()
    assert trajectory.reward == 0.0
    assert not any(trajectory.sampled)
    assert sampler.requests == []


async def test_a_follow_up_that_describes_its_tools_itself_is_sent_as_it_is():
    follow_up = FollowUp(messages=said("Use convert."), tools=("convert",), described=True)
    environment = environment_of(replace(make_task(tools=("find",)), follow_ups=(follow_up,)), tools_of_an_office())
    assert (await environment.step(act())).follow_up == said("Use convert.")


async def test_the_solution_of_each_message_is_played_in_its_turn():
    tools = tools_of_an_office()
    first, last = Solution(calls=(call("find"),), answer="Lima"), Solution(calls=(call("convert"),), answer="23:30")
    follow_ups = (FollowUp(messages=said("Sure?")), FollowUp(messages=said("When?"), tools=("convert",), solution=last))
    task = replace(make_task(answer="23:30", tools=("find",)), follow_ups=follow_ups, solution=first)
    trial = await play(task, tools, first.calls, first.answer, RewardsConfig())
    assert trial.success
    assert [turn.text for turn in trial.turns if not turn.calls] == ["Lima", "Lima", "23:30"]
    assert [made.name for turn in trial.turns for made in turn.calls] == ["find", "convert"]
    assert [len(turns) for turns in turns_by_message(trial.turns)] == [2, 1, 2]

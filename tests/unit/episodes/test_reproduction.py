"""A fault that the same call reproduces is the policy's; a random fault, or one of a dead server, is not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from staged_episodes import FunctionTools, RecordingSampler, call, made_turn, make_config, make_task

from mcprl.episodes import Action, EpisodeRunner
from mcprl.episodes.collector import lost_to
from mcprl.episodes.loop import TRIALS, Reproduction
from mcprl.errors import (
    EpisodeDeadlineError,
    InfrastructureError,
    ServerBusyError,
    ServerFaultError,
    ServerLostError,
)
from mcprl.records import FinishReason, Source, StopReason, ToolCall

TASK = make_task(answer="42", calls=(), tools=None)


def says(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


LOOK, BOOM = says("look", at="Lima"), says("look", at="BOOM")


def tools_that(fails: Callable[[str, int], InfrastructureError | None]) -> FunctionTools:
    """A tool `look` that fails as `fails` says, which sees where it looks and the number of the call."""
    count = 0

    def look(at: str) -> str:
        nonlocal count
        count += 1
        if (error := fails(at, count)) is not None:
            raise error
        return "seen"

    return FunctionTools(look=look, other=lambda: "fine")


async def play(chat, encode, tools: FunctionTools, *texts: str):
    sampler = RecordingSampler(encode, [*texts, "42<|im_end|>"])
    runner = EpisodeRunner(make_config(), chat=chat, sampler=sampler, leases=tools, preamble=())
    return await runner.run(TASK, step=0, member=0, attempt=0)


def lost(what: str = "server died") -> ServerLostError:
    return ServerLostError(what, fix="none")


async def test_a_call_that_ends_the_server_each_time_is_the_policys_fault(chat, encode):
    tools = tools_that(lambda at, _: lost() if at == "BOOM" else None)
    played = await play(chat, encode, tools, LOOK, BOOM)
    assert played.stop is StopReason.CAUSED_FAULT
    # Nothing that it achieved counts; the call that failed and the missing answer are taken off.
    assert played.reward_parts == {"answer": 0.0, "invalid_call": 1.0, "unanswered": 1.0}
    assert played.reward == pytest.approx(-0.1)
    assert sum(turn.reward for turn in played.turns) == played.reward
    assert [turn.calls for turn in played.turns] == [(call("look", at="Lima"),), (call("look", at="BOOM"),)]
    assert played.turns[-1].observations[0].text == "server died"
    # The tokens of the turn that did it are there to be learned from.
    assert played.turn_index[-1] == 1
    assert played.sampled[-1]
    # Each trial makes a known call and then both turns; every lease is given back.
    assert tools.called.count("look") == 2 + TRIALS * 3
    assert tools.open_leases == 0


async def test_a_fault_that_does_not_come_back_is_lost_with_what_was_done_last(chat, encode):
    tools = tools_that(lambda _, number: lost() if number == 2 else None)
    with pytest.raises(ServerLostError) as caught:
        await play(chat, encode, tools, LOOK, BOOM)
    left = lost_to(caught.value, TASK, 0, 0)
    assert str(left) == 'task/0 (E-TOOL-011 server died, after look {"at": "BOOM"})'


async def test_a_server_that_is_down_is_not_the_policys_fault(chat, encode):
    tools = tools_that(lambda _, number: lost() if number >= 2 else None)
    with pytest.raises(ServerLostError):
        await play(chat, encode, tools, LOOK, BOOM)
    assert tools.called.count("look") == 3  # the known call failed too, so nothing else was tried


async def test_a_fault_that_hits_earlier_turns_too_is_not_the_policys(chat, encode):
    tools = tools_that(lambda _, number: lost() if number % 2 == 0 else None)
    with pytest.raises(ServerLostError):
        await play(chat, encode, tools, LOOK, BOOM)
    assert tools.called.count("look") == 4  # of the replay, only the known call and the first turn


async def test_a_server_that_is_busy_when_it_is_asked_again_shows_nothing(chat, encode):
    busy = ServerBusyError("come back later", fix="none")
    tools = tools_that(lambda at, number: None if at == "Lima" else lost() if number == 2 else busy)
    with pytest.raises(ServerLostError):
        await play(chat, encode, tools, LOOK, BOOM)


def new_server_per_lease(fails: Callable[[list[str]], bool]) -> FunctionTools:
    """A tool `look` that ends its server if `fails` says so, which sees where it looked since the lease began."""
    looks: list[str] = []

    class Leased(FunctionTools):
        @asynccontextmanager
        async def lease(self, *given, **named):
            looks.clear()
            async with super().lease(*given, **named) as access:
                yield access

    def look(at: str) -> str:
        looks.append(at)
        if fails(looks):
            raise lost()
        return "seen"

    return Leased(look=look)


async def test_all_earlier_turns_are_made_again_because_the_fault_may_need_them(chat, encode):
    tools = new_server_per_lease(lambda looks: looks == ["Lima", "Oslo", "BOOM"])
    played = await play(chat, encode, tools, LOOK, says("look", at="Oslo"), BOOM)
    assert played.stop is StopReason.CAUSED_FAULT


async def test_an_earlier_success_of_the_suspected_call_does_not_show_that_the_server_works(chat, encode):
    tools = new_server_per_lease(lambda looks: looks.count("BOOM") == 2)
    with pytest.raises(ServerLostError):
        await play(chat, encode, tools, BOOM, BOOM)
    assert tools.called.count("look") == 2


def suspected(*calls: ToolCall) -> list[Action]:
    return [Action(text="", prose="", calls=calls, sampled_ids=(1,), finish=FinishReason.STOP, weights_version=0)]


@pytest.mark.parametrize("change", [{"server": None}, {"source": Source.CACHE}, {"source": Source.INJECTED}])
async def test_only_an_answer_of_the_server_itself_shows_that_it_worked(change):
    asked: list[ToolCall] = []

    class Dead:
        async def call(self, control: ToolCall) -> None:
            asked.append(control)
            raise lost()

    @asynccontextmanager
    async def open_again():
        yield None, Dead()

    reproduction = Reproduction(60.0)
    reproduction.note(made_turn((call("look", at="Lima"), True)))
    other = made_turn((call("look", at="Oslo"), True))
    reproduction.note(replace(other, observations=(replace(other.observations[0], **change),)))
    assert not await reproduction.is_caused(suspected(call("look", at="BOOM")), lost(), open_again)
    assert asked == [call("look", at="Lima")]


async def test_a_replay_that_does_not_end_shows_nothing():
    @asynccontextmanager
    async def open_again():
        await asyncio.Event().wait()
        yield

    reproduction = Reproduction(0.01)
    reproduction.note(made_turn((call("look", at="Lima"), True)))
    assert not await reproduction.is_caused(suspected(call("look", at="BOOM")), lost(), open_again)


async def test_a_tool_of_which_no_call_is_known_to_work_is_not_blamed_on_the_policy(chat, encode):
    tools = tools_that(lambda *_: ServerFaultError("upstream is down", fix="none"))
    with pytest.raises(ServerFaultError):
        await play(chat, encode, tools, says("other"), LOOK)
    assert tools.called == ["other", "look"]


async def test_a_server_killed_by_a_tool_that_never_worked_is_checked_with_another_tool(chat, encode):
    tools = tools_that(lambda *_: lost())
    played = await play(chat, encode, tools, says("other"), LOOK)
    assert played.stop is StopReason.CAUSED_FAULT


@pytest.mark.parametrize(
    "error",
    [
        ServerBusyError("come back later", fix="none"),
        ServerFaultError("not reached", fix="none", delivered=False),
        EpisodeDeadlineError("too late", fix="none"),
    ],
)
async def test_what_no_call_can_cause_is_not_repeated(chat, encode, error):
    tools = tools_that(lambda at, _: error if at == "BOOM" else None)
    with pytest.raises(type(error)):
        await play(chat, encode, tools, LOOK, BOOM)
    assert tools.called.count("look") == 2


def test_a_long_program_is_shown_by_its_beginning_and_a_digest():
    error = lost()
    error.turns = ((("run", {"code": "x" * 5000}),),)
    text = str(lost_to(error, TASK, 0, 0))
    assert len(text) < 300
    assert "5012 characters, sha256 " in text

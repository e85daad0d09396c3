"""The contract of a step: calls in parallel, faults of the policy observed, faults of the world raised."""
# R16, R18

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from staged_episodes import Face, FunctionTools, Refusal, call, make_task

from mcprl.config import RewardsConfig
from mcprl.episodes import Action, Environment
from mcprl.errors import Fault, ServerLostError
from mcprl.records import ExpectedCall, FinishReason, StopReason, ToolCall


def refuse(**_arguments: object) -> str:
    raise Refusal("No.")


def make_environment(tools: FunctionTools, *, max_turns: int = 5, **task) -> Environment:
    preamble = ({"role": "system", "content": "Use the tools."},)
    return Environment(
        make_task(**task), tools, preamble=preamble, max_turns=max_turns, rewards=RewardsConfig(answer=1.0, calls=0.5)
    )


def act(*calls: ToolCall, prose: str = "", finish: FinishReason = FinishReason.STOP) -> Action:
    return Action(text=f"<{prose}>", prose=prose, calls=calls, sampled_ids=(5, 6), finish=finish, weights_version=3)


async def test_a_turn_with_calls_gives_observations_and_the_episode_goes_on():
    environment = make_environment(
        FunctionTools(echo=lambda text: text), calls=[ExpectedCall(tool="echo", arguments={"text": "a"})]
    )
    result = await environment.step(act(call("echo", text="b"), call("echo", text="a")))
    assert [seen.text for seen in result.observations] == ["b", "a"]
    assert result.stop is None
    assert result.reward == pytest.approx(1.0)
    assert result.parts["calls"] == result.parts["arguments"] == 1.0


async def test_a_turn_without_calls_is_the_answer():
    environment = make_environment(FunctionTools(), answer="42")
    result = await environment.step(act(prose="It is 42."))
    assert (result.stop, result.parts["answer"]) == (StopReason.ANSWERED, 1.0)
    [turn] = environment.turns
    assert (turn.text, turn.sampled_ids, turn.weights_version) == ("<It is 42.>", (5, 6), 3)
    assert turn.reward == result.reward


async def test_an_answer_cut_by_length_is_none():
    environment = make_environment(FunctionTools(), answer="42")
    result = await environment.step(act(prose="It is 42 beca", finish=FinishReason.LENGTH))
    assert result.stop is StopReason.CUT_BY_LENGTH
    assert (result.parts["answer"], result.parts["unanswered"]) == (0.0, 1.0)


async def test_the_last_turn_allowed_ends_the_episode_after_its_calls():
    environment = make_environment(FunctionTools(echo=lambda text: text), max_turns=2)
    assert (await environment.step(act(call("echo", text="a")))).stop is None
    last = await environment.step(act(call("echo", text="b")))
    assert (last.stop, last.observations[0].text) == (StopReason.TURN_LIMIT, "b")
    assert last.reward == pytest.approx(-0.1)


async def test_calls_of_one_turn_run_at_the_same_time():
    barrier = asyncio.Barrier(3)

    async def meet() -> str:
        return str(await barrier.wait())  # passes only when all three are in here

    environment = make_environment(FunctionTools(meet=meet))
    async with asyncio.timeout(10):
        result = await environment.step(act(call("meet"), call("meet"), call("meet")))
    assert sorted(seen.text for seen in result.observations) == ["0", "1", "2"]


async def test_observations_come_in_the_order_of_the_calls_whichever_ends_first():
    second_done = asyncio.Event()

    async def slow() -> str:
        await second_done.wait()
        return "slow"

    async def quick() -> str:
        second_done.set()
        return "quick"

    result = await make_environment(FunctionTools(slow=slow, quick=quick)).step(act(call("slow"), call("quick")))
    assert [seen.text for seen in result.observations] == ["slow", "quick"]


async def test_a_fault_of_the_policy_is_an_observation_and_costs():
    environment = make_environment(FunctionTools(refuse=refuse), calls=[ExpectedCall(tool="refuse")])
    result = await environment.step(act(call("refuse"), call("nothing"), ToolCall(name="", arguments={}, problem="?")))
    assert [seen.fault for seen in result.observations] == [Fault.POLICY] * 3
    assert result.stop is None
    assert result.reward == pytest.approx(-0.3)


async def test_a_fault_of_the_world_is_raised_as_it_is_and_ends_the_other_calls():
    waiting, ended = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    error = ServerLostError("gone", fix="none")

    async def fail() -> str:
        await waiting.wait()
        raise error

    environment = make_environment(FunctionTools(wait=wait, fail=fail))
    with pytest.raises(ServerLostError) as caught:
        await environment.step(act(call("wait"), call("fail")))
    assert caught.value is error
    assert ended.is_set()
    assert environment.turns == []


async def test_an_end_from_outside_is_borne_by_the_last_turn():
    environment = make_environment(FunctionTools(echo=lambda text: text), calls=[ExpectedCall(tool="echo")])
    await environment.step(act(call("echo", text="a")))
    before = environment.reward
    environment.end(StopReason.CONTEXT_LIMIT)
    assert environment.reward == pytest.approx(before - 0.1)
    assert [turn.reward for turn in environment.turns] == [pytest.approx(before - 0.1)]
    assert environment.parts["unanswered"] == 1.0


def test_the_conversation_is_the_preamble_and_then_the_task():
    assert [message["role"] for message in make_environment(FunctionTools()).messages] == ["system", "user"]


def test_titles_are_left_out_of_schemas_but_a_property_called_title_stays():
    tools = FunctionTools()
    tools.tools = [
        Face(
            "f",
            "Finds.",
            {
                "title": "fArguments",
                "type": "object",
                "properties": {"title": {"title": "Title", "anyOf": [{"type": "string", "title": "T"}]}},
                "required": ["title"],
            },
        )
    ]
    [spec] = make_environment(tools).tool_specs
    assert spec == {
        "name": "f",
        "description": "Finds.",
        "parameters": {
            "type": "object",
            "properties": {"title": {"anyOf": [{"type": "string"}]}},
            "required": ["title"],
        },
    }


turns = st.lists(
    st.lists(st.sampled_from([call("echo", text="a"), call("echo", text="b"), call("refuse"), call("nothing")])),
    max_size=5,
)


goals = st.sampled_from([(), (ExpectedCall(tool="echo", arguments={"text": "b"}), ExpectedCall(tool="echo"))])


@given(turns, st.sampled_from(["42", "no idea", None]), goals)
@settings(deadline=None)
def test_the_rewards_of_the_turns_add_up_to_that_of_the_episode(turns, answer, goal):
    async def play() -> None:
        environment = make_environment(
            FunctionTools(echo=lambda text: text, refuse=refuse),
            max_turns=6,
            answer="42",
            calls=goal,
        )
        base = environment.reward
        results = [await environment.step(act(*calls)) for calls in turns if calls]
        if answer is not None:
            results.append(await environment.step(act(prose=answer)))
        elif results:
            environment.end(StopReason.CONTEXT_LIMIT)
        assert base == 0.0
        assert sum(turn.reward for turn in environment.turns) == pytest.approx(environment.reward)
        if answer is not None:
            assert sum(result.reward for result in results) == pytest.approx(environment.reward)

    asyncio.run(play())

"""The contract of a step: calls in parallel, policy faults observed, infrastructure faults raised."""
# R16, R18, R19, R20

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from staged_episodes import Face, FunctionTools, Refusal, call, make_task

from mcprl.config import RewardsConfig
from mcprl.episodes import Action, Environment
from mcprl.episodes.environment import ErrorInjection
from mcprl.errors import BadValueError, Fault, ServerLostError
from mcprl.goals import Contains, ExpectedCall, ExpectedState
from mcprl.records import FinishReason, Source, StopReason, ToolCall


def refuse(**_arguments: object) -> str:
    raise Refusal("No.")


def make_environment(tools: FunctionTools, *, max_turns: int = 5, judge=None, injection=None, **task) -> Environment:
    return Environment(
        make_task(**task),
        tools,
        preamble=({"role": "system", "content": "Use the tools."},),
        max_turns=max_turns,
        rewards=RewardsConfig(answer=1.0, calls=0.5, arguments=0.5, efficiency=0.0, penalty=0.1),
        judge=judge,
        injection=injection,
    )


def act(*calls: ToolCall, prose: str = "", finish: FinishReason = FinishReason.STOP) -> Action:
    return Action(text=f"<{prose}>", prose=prose, calls=calls, sampled_ids=(5, 6), finish=finish, weights_version=3)


async def test_a_turn_with_calls_gives_observations_and_the_episode_continues():
    environment = make_environment(
        FunctionTools(echo=lambda text: text), calls=[ExpectedCall(tool="echo", arguments={"text": "a"})]
    )
    result = await environment.step(act(call("echo", text="b"), call("echo", text="a")))
    assert [seen.text for seen in result.observations] == ["b", "a"]
    assert result.stop is None
    assert result.reward == pytest.approx(0.5)  # all of calls and arguments, which are half of the weights
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
    await environment.end(StopReason.CONTEXT_LIMIT)
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


class Notes:
    """A world with a state: the policy writes notes, the environment reads them."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.tools = FunctionTools(write=self._write, _read=self._read)

    def _write(self, text: str) -> str:
        self.written.append(text)
        return "Written."

    def _read(self, about: str) -> str:
        if not self.written:
            raise Refusal("There are no notes.")
        return " ".join(note for note in self.written if about in note)


def reads(about: str, *texts: str) -> ExpectedState:
    return ExpectedState(tool="_read", arguments={"about": about}, texts=tuple(Contains(text=t) for t in texts))


BOTH = [reads("Ana", "Lima", "9:30"), reads("Bo", "Oslo")]


async def test_the_state_of_the_world_is_looked_at_once_when_the_episode_is_over():
    notes = Notes()
    environment = make_environment(notes.tools, answer=None, state=BOTH)
    first = await environment.step(act(call("write", text="Ana: Lima, 9:30")))
    assert (first.parts["state"], first.reward, notes.tools.probed) == (0.0, 0.0, [])
    last = await environment.step(act(prose="Done."))
    assert (last.parts["state"], last.reward) == (0.5, 0.5)
    assert notes.tools.probed == ["_read", "_read"]
    assert notes.tools.called == ["write"]


async def test_a_limit_that_ends_the_episode_does_not_undo_what_was_done():
    for max_turns, is_ended in ((1, False), (5, True)):
        notes = Notes()
        environment = make_environment(notes.tools, answer=None, state=BOTH[:1], max_turns=max_turns)
        result = await environment.step(act(call("write", text="Ana: Lima, 9:30")))
        assert (result.stop is None) is is_ended
        if is_ended:
            await environment.end(StopReason.CONTEXT_LIMIT)
        assert environment.parts["state"] == 1.0
        assert environment.reward == pytest.approx(0.9)
        assert [turn.reward for turn in environment.turns] == [environment.reward]


async def test_a_probe_that_is_refused_means_that_the_state_is_not_reached():
    environment = make_environment(Notes().tools, answer=None, state=[reads("Ana")])
    result = await environment.step(act(prose="Done."))
    assert (result.parts["state"], result.reward) == (0.0, 0.0)
    assert result.parts["invalid_call"] == 0.0


async def test_a_probe_that_the_world_fails_is_raised_and_never_scored():
    async def fail() -> str:
        raise ServerLostError("gone", fix="none")

    environment = make_environment(FunctionTools(_fail=fail), state=[ExpectedState(tool="_fail")])
    with pytest.raises(ServerLostError):
        await environment.step(act(prose="Done."))
    assert environment.turns == []


def test_a_tool_that_only_the_environment_asks_is_not_shown():
    assert [spec["name"] for spec in make_environment(Notes().tools, state=BOTH).tool_specs] == ["write"]


class Strict:
    """A judge that likes one answer."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def grade(self, task, answer: str) -> float:
        self.asked.append(answer)
        return 0.8 if answer == "Please." else 0.1


async def test_the_judge_grades_the_final_answer_and_nothing_before_it():
    judge = Strict()
    environment = make_environment(FunctionTools(echo=lambda text: text), answer=None, rubric="Polite.", judge=judge)
    first = await environment.step(act(call("echo", text="a"), prose="Please."))
    assert (first.parts["rubric"], judge.asked) == (0.0, [])
    last = await environment.step(act(prose="Please."))
    assert (last.parts["rubric"], last.reward, judge.asked) == (0.8, pytest.approx(0.8), ["Please."])


@pytest.mark.parametrize("action", [{"prose": " "}, {"prose": "Please.", "finish": FinishReason.LENGTH}])
async def test_without_an_answer_the_judge_is_not_asked(action):
    judge = Strict()
    environment = make_environment(FunctionTools(), answer=None, rubric="Polite.", judge=judge)
    result = await environment.step(act(**action))
    assert (result.parts["rubric"], judge.asked) == (0.0, [])


async def test_without_a_rubric_or_without_a_judge_nothing_is_graded():
    judge = Strict()
    for options in ({"judge": judge}, {"rubric": "Polite."}):
        result = await make_environment(FunctionTools(), **options).step(act(prose="Please."))
        assert "rubric" not in result.parts
        assert result.reward == 1.0
    assert judge.asked == []


def test_a_goal_that_nothing_can_be_gained_from_is_reported_before_the_first_turn():
    with pytest.raises(BadValueError, match="an episode cannot earn a reward: the goal checks nothing"):
        make_environment(FunctionTools(), answer=None)


ALWAYS = ErrorInjection(rate=1.0, seed=0, step=0, task_id="task", member=0)


async def test_an_injected_failure_is_seen_instead_of_the_call_and_costs_nothing():
    tools = FunctionTools(echo=lambda text: text)
    environment = make_environment(tools, calls=[ExpectedCall(tool="echo")], injection=ALWAYS)
    result = await environment.step(act(call("echo", text="a")))
    [seen] = result.observations
    assert (seen.source, seen.fault, seen.worked) == (Source.INJECTED, None, False)
    assert (result.reward, result.parts["calls"], result.parts["invalid_call"]) == (0.0, 0.0, 0.0)
    assert tools.called == []


async def test_a_mistake_of_the_policy_is_shown_as_one_whatever_is_injected():
    environment = make_environment(FunctionTools(echo=lambda text: text), injection=ALWAYS)
    result = await environment.step(act(call("nothing"), ToolCall(name="echo", arguments={}, problem="No JSON.")))
    assert [seen.text for seen in result.observations] == ["There is no tool 'nothing'.", "No JSON."]
    assert result.parts["invalid_call"] == 2.0


async def test_probes_never_fail_on_purpose():
    notes = Notes()
    notes.written.append("Ana: Lima, 9:30")
    environment = make_environment(notes.tools, answer=None, state=BOTH[:1], injection=ALWAYS)
    assert (await environment.step(act(prose="Done."))).parts["state"] == 1.0


turns = st.lists(
    st.lists(st.sampled_from([call("echo", text="a"), call("echo", text="b"), call("refuse"), call("nothing")])),
    max_size=5,
)


goals = st.sampled_from([(), (ExpectedCall(tool="echo", arguments={"text": "b"}), ExpectedCall(tool="echo"))])
weights = st.builds(
    RewardsConfig,
    **{name: st.floats(0.01, 3) for name in ("answer", "calls", "arguments", "efficiency", "penalty")},
)


@given(turns, st.sampled_from(["42", "no idea", None]), goals, weights)
def test_the_rewards_of_the_turns_add_up_to_that_of_the_episode_exactly(turns, answer, goal, weights):
    async def play() -> None:
        tools = FunctionTools(echo=lambda text: text, refuse=refuse)
        task = make_task(answer="42", calls=goal)
        environment = Environment(task, tools, preamble=(), max_turns=6, rewards=weights)
        assert environment.reward == 0.0
        results = [await environment.step(act(*calls)) for calls in turns if calls]
        assert sum(result.reward for result in results) == environment.reward
        if answer is not None:
            results.append(await environment.step(act(prose=answer)))
            assert sum(result.reward for result in results) == environment.reward
        elif results:
            await environment.end(StopReason.CONTEXT_LIMIT)
        rewards = [turn.reward for turn in environment.turns]
        assert sum(rewards) == sum(reversed(rewards)) == environment.reward

    asyncio.run(play())

"""Demonstrations: solutions played as episodes on the shipped servers, in the policy's tokens."""
# R10

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from staged_episodes import Face, FunctionTools, call, make_config, make_task

import mcprl_market
from mcprl.chat import load_chat
from mcprl.config import AlgorithmConfig, JudgeConfig, RewardsConfig, RunConfig, SamplingConfig, WarmStartConfig
from mcprl.episodes.collector import MAX_ATTEMPTS
from mcprl.episodes.demonstrations import Demonstrator, require_solutions
from mcprl.errors import (
    BadValueError,
    GroupIncompleteError,
    InadmissibleTokenError,
    ServerLostError,
    TaskFileError,
)
from mcprl.goals import ExpectedCall
from mcprl.grammar.masks import TurnGrammars, load_grammars
from mcprl.records import Solution, StopReason, Task
from mcprl.servers import make_server
from mcprl.tasks import load_preamble, load_tasks
from mcprl.tools import ServerSpec, Toolbox

SHIPPED = Path(mcprl_market.__file__).parent / "data"
PARAMETERS = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


@pytest.fixture(scope="module")
def smol_chat(smollm2):
    return load_chat(str(smollm2), "chatml")


@pytest.fixture(scope="module")
def smol_grammars(smollm2):
    return load_grammars(str(smollm2))


@pytest.fixture(scope="module")
def market_tasks() -> tuple[Task, ...]:
    """The first task of each of a dozen families, those of most calls included."""
    by_family: dict[str, Task] = {}
    for task in load_tasks(SHIPPED / "train.jsonl"):
        by_family.setdefault(task.id.split("-", 1)[1].rsplit("-", 1)[0], task)
    longest_first = sorted(by_family.values(), key=lambda task: -len(task.solution.calls))
    return tuple(longest_first[:6] + longest_first[-6:])


@asynccontextmanager
async def shipped_servers(log_dir: Path):
    names = ("fmp", "polygon", "tavily", "slack")
    specs = [ServerSpec(name=name, make=partial(make_server, name, world=7)) for name in names]
    specs.append(ServerSpec(name="python", make=partial(make_server, "python", world=7)))
    async with Toolbox(specs, log_dir=log_dir) as toolbox:
        yield toolbox


@pytest.mark.process
@pytest.mark.parametrize("constrain", ["off", "act"])
async def test_solutions_of_shipped_tasks_become_trajectories_as_training_makes_them(
    constrain, market_tasks, smol_chat, smol_grammars, smollm2, tmp_path, record_property
):
    sampling = SamplingConfig(constrain=constrain, max_tokens=512, stop=("</tool_call>",))
    config = make_config(model=smollm2, context_tokens=8192).model_copy(update={"sampling": sampling})
    held = TurnGrammars(smol_chat, smol_grammars, sampling) if constrain != "off" else None
    preamble = load_preamble(SHIPPED / "preamble.json")
    async with shipped_servers(tmp_path) as toolbox:
        demonstrator = Demonstrator(config, chat=smol_chat, leases=toolbox, preamble=preamble, grammars=held)
        played = await demonstrator.play(market_tasks, 3)
    assert [t.task_id for t in played] == [task.id for task in market_tasks]
    assert len(played) == 12
    for task, trajectory in zip(market_tasks, played, strict=True):
        assert (trajectory.reward, trajectory.stop, trajectory.step) == (1.0, StopReason.ANSWERED, 3)
        assert [made for turn in trajectory.turns for made in turn.calls] == list(task.solution.calls)
        assert trajectory.turns[-1].text == task.solution.answer + "<|im_end|>"
        assert all(turn.text.endswith("</tool_call>") for turn in trajectory.turns[:-1])
        sampled = [i for i, mine in zip(trajectory.token_ids, trajectory.sampled, strict=True) if mine]
        assert sampled == [i for turn in trajectory.turns for i in turn.sampled_ids]
        assert any(trajectory.forced) == (constrain == "act")
        assert (trajectory.grammar is not None) == (constrain == "act")
        before = smol_chat.decode(trajectory.token_ids[: trajectory.sampled.index(True)])
        assert preamble[0]["content"] in before
    record_property("demonstrated_tokens", sum(sum(t.sampled) for t in played))


def solved(*calls, answer: str = "It is blue.") -> Solution:
    return Solution(calls=calls, answer=answer)


ECHO = call("echo", text="blue")


def stage(chat, task_config=None, *, tools=None, grammars=None, **settings) -> Demonstrator:
    config = (task_config or make_config()).model_copy(update=settings)
    if tools is None:
        tools = FunctionTools(echo=lambda text: text)
        tools.tools = [Face("echo", parameters=PARAMETERS)]
    return Demonstrator(config, chat=chat, leases=tools, preamble=(), grammars=grammars)


async def test_tasks_without_a_solution_are_left_out(chat):
    tasks = [make_task("a"), make_task("b", answer="blue", solution=solved(ECHO)), make_task("c")]
    assert [t.task_id for t in await stage(chat).play(tasks, 0)] == ["b"]
    assert await stage(chat).play([tasks[0]], 0) == ()


async def test_no_failure_is_injected_into_a_demonstration(chat):
    config = make_config(injected_errors=0.99)
    tasks = [make_task(f"t{n}", answer="blue", solution=solved(ECHO)) for n in range(8)]
    played = await stage(chat, config).play(tasks, 0)
    assert [t.turns[0].observations[0].text for t in played] == ["blue"] * 8


async def test_a_demonstration_lost_to_the_infrastructure_is_played_again_from_its_start(chat):
    losses = [ServerLostError("gone", fix="none")] * 2

    def echo(text: str) -> str:
        if losses:
            raise losses.pop()
        return text

    task = make_task(answer="blue", solution=solved(call("echo", text="red"), ECHO))
    (played,) = await stage(chat, tools=FunctionTools(echo=echo)).play([task], 0)
    assert played.attempt == 2
    assert [made.arguments["text"] for turn in played.turns for made in turn.calls] == ["red", "blue"]


async def test_one_that_is_lost_each_time_stops_the_run_and_is_named(chat):
    attempts = []

    def echo(text: str) -> str:
        attempts.append(text)
        raise ServerLostError("gone for good", fix="none")

    task = make_task("lost", answer="blue", solution=solved(ECHO))
    demonstrator = stage(chat, make_config(), tools=FunctionTools(echo=echo))
    with pytest.raises(
        GroupIncompleteError, match=r"task lost was lost 5 times, most recently to E-TOOL-011 gone for good"
    ):
        await demonstrator.play([task], 0)
    assert len(attempts) == MAX_ATTEMPTS


async def test_no_more_demonstrations_are_played_at_once_than_episodes_may(chat):
    tools = FunctionTools(echo=lambda text: text)
    tasks = [make_task(f"t{n}", answer="blue", solution=solved(ECHO)) for n in range(4)]
    most = 0

    def echo(text: str) -> str:
        nonlocal most
        most = max(most, tools.open_leases)
        return text

    tools._functions["echo"] = echo
    assert len(await stage(chat, make_config(max_concurrent=1), tools=tools).play(tasks, 0)) == 4
    assert most == 1


async def test_a_solution_that_does_not_solve_its_task_is_an_error_that_names_it(chat):
    task = make_task("wrong", answer="blue", solution=solved(ECHO, answer="It is red."))
    with pytest.raises(TaskFileError, match=r"solution of task wrong does not solve the task \(answer 0"):
        await stage(chat).play([task], 0)


async def test_what_a_tool_refused_is_told(chat):
    goal = [ExpectedCall(tool="echo")]
    task = make_task("typo", answer=None, calls=goal, solution=solved(call("ecco", text="blue")))
    with pytest.raises(TaskFileError, match=r"typo does not solve the task .*; ecco returned: There is no tool 'ecco'"):
        await stage(chat).play([task], 0)


@pytest.mark.parametrize(
    ("limits", "setting"),
    [
        ({"max_tokens": 10}, "sampling.max_tokens"),
        ({"context_tokens": 200}, "model.context_tokens"),
        ({"max_turns": {"medium": 1}}, "episodes.max_turns"),
    ],
)
async def test_a_solution_that_a_limit_cuts_is_an_error_that_says_which_even_if_it_succeeds(chat, limits, setting):
    task = make_task("long", answer="blue", solution=solved(*[ECHO] * 4))
    with pytest.raises(BadValueError, match="solution of task long") as caught:
        await stage(chat, make_config(**limits)).play([task], 0)
    assert setting in caught.value.fix


async def test_arguments_that_the_grammar_does_not_admit_are_an_error_that_names_the_task(smol_chat, smol_grammars):
    sampling = SamplingConfig(constrain="act")
    held = TurnGrammars(smol_chat, smol_grammars, sampling)
    task = make_task("extra", answer="blue", solution=solved(call("echo", text="blue", loud=True)))
    with pytest.raises(InadmissibleTokenError, match="solution of task extra violates the grammar"):
        await stage(smol_chat, grammars=held, sampling=sampling).play([task], 0)


async def test_a_solution_that_cannot_be_written_is_an_error_that_names_the_task(chat):
    task = make_task("tagged", answer="blue", solution=solved(ECHO, answer="blue <tool_call>"))
    with pytest.raises(BadValueError, match="solution of task tagged: the answer 'blue <tool_call>' cannot be written"):
        await stage(chat).play([task], 0)


async def test_a_judge_grades_a_demonstration_too(chat):
    class Stern:
        async def grade(self, task: Task, answer: str) -> float:
            return 0.25

    rewards = RewardsConfig(judge=JudgeConfig(url="http://127.0.0.1:1/v1", model="none"))
    config = make_config(rewards=rewards)
    tools = FunctionTools(echo=lambda text: text)
    judged = Demonstrator(config, chat=chat, leases=tools, preamble=(), grammars=None, judge=Stern())
    task = make_task("poor", answer="blue", rubric="Says why.", solution=solved(ECHO))
    with pytest.raises(TaskFileError, match=r"poor does not solve the task .*rubric 0.25"):
        await judged.play([task], 0)


def warm(weight: float = 0.5, **episodes: Any) -> RunConfig:
    return make_config(**episodes).model_copy(
        update={"algorithm": AlgorithmConfig(warm_start=WarmStartConfig(weight=weight))}
    )


def test_a_warm_start_without_any_solution_is_refused():
    with pytest.raises(BadValueError, match=r"warm_start.weight is 0.5, but none of the 2 tasks has a solution"):
        require_solutions([make_task("a"), make_task("b")], warm())
    assert require_solutions([make_task("a"), make_task("b", solution=solved())], warm()) == 1
    assert require_solutions([make_task("a")], warm(weight=0.0)) == 0


def test_a_solution_with_a_wrong_answer_is_refused_without_being_played():
    task = make_task("sky", answer="green", solution=solved(ECHO, answer="It is blue"))
    with pytest.raises(TaskFileError, match=r"solution of task sky does not meet the goal: 'It is blue'"):
        require_solutions([task], warm())


def test_a_solution_with_more_turns_than_an_episode_has_is_refused_without_being_played():
    task = make_task("long", answer="blue", max_turns=2, solution=solved(ECHO, ECHO, answer="blue"))
    with pytest.raises(BadValueError, match="solution of task long takes more turns than its limit of 2"):
        require_solutions([task], warm())

"""Tasks played from a script on real servers: solutions earn exactly 1, idleness 0, variants less than 1."""
# R19

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from staged_episodes import FunctionTools, Refusal, call, make_task

from mcprl.config import EpisodesConfig, RewardsConfig
from mcprl.episodes import play, play_gold
from mcprl.errors import ServerLostError
from mcprl.goals import Contains, ExpectedCall, ExpectedState
from mcprl.records import Difficulty, Solution
from mcprl.tools import Toolbox

REWARDS = RewardsConfig()
CONVERT = {"source_timezone": "Africa/Nairobi", "time": "10:10", "target_timezone": "Asia/Tokyo"}
GRACE = make_task(
    "call-grace",
    answer="16:10",
    calls=[
        ExpectedCall(tool="find_person", arguments={"name": "Grace"}),
        ExpectedCall(tool="convert_time", arguments=CONVERT),
    ],
    state=[ExpectedState(tool="find_person", arguments={"name": "Grace"}, texts=(Contains(text="Nairobi"),))],
    tools=("find_person", "convert_time"),
    solution=Solution(
        calls=(call("find_person", name="Grace"), call("convert_time", **CONVERT)), answer="It is 16:10 in Tokyo."
    ),
)


@pytest.mark.process
async def test_on_real_servers_the_solution_is_worth_one_and_every_variant_less(time_spec, directory_spec, tmp_path):
    task, solution = replace(GRACE, goal=replace(GRACE.goal, state=())), GRACE.solution
    variants = {
        "wrong answer": (solution.calls, "It is 17:10 in Tokyo."),
        "no answer": (solution.calls, ""),
        "no calls": ((), solution.answer),
        "wrong order": (solution.calls[::-1], solution.answer),
        "wrong person": ((call("find_person", name="Ana"), solution.calls[1]), solution.answer),
        "one call twice": ((solution.calls[0], *solution.calls), solution.answer),
        "unknown tool": ((call("find_persons", name="Grace"), *solution.calls), solution.answer),
    }
    async with Toolbox([time_spec, directory_spec], log_dir=tmp_path / "logs") as toolbox:
        gold, again = await play_gold([GRACE, task], toolbox, REWARDS)
        idle = await play(task, toolbox, (), "", REWARDS)
        trials = {name: await play(task, toolbox, *script, REWARDS) for name, script in variants.items()}
    assert (gold.task_id, gold.reward, gold.success, gold.faults) == ("call-grace", 1.0, True, ())
    assert gold.parts["state"] == again.reward == 1.0
    assert [turn.observations[0].server for turn in gold.turns[:2]] == ["directory", "time"]
    assert (idle.reward, idle.success) == (0.0, False)
    assert {name for name, trial in trials.items() if not 0.0 < trial.reward < 1.0} == set()
    assert [name for name, trial in trials.items() if not trial.success] == ["wrong answer", "no answer"]
    assert trials["unknown tool"].faults[0].startswith("There is no tool 'find_persons'")


def simple(task_id: str, **task):
    return make_task(
        task_id,
        answer="blue",
        calls=[ExpectedCall(tool="look")],
        solution=Solution(calls=(call("look"),), answer="It is blue."),
        **task,
    )


async def test_trials_come_in_the_order_of_the_tasks_and_run_together_up_to_the_limit():
    pair = asyncio.Barrier(2)
    alive, most = 0, 0

    async def look() -> str:
        nonlocal alive, most
        alive += 1
        most = max(most, alive)
        await pair.wait()  # passes only when two are in here
        alive -= 1
        return "blue"

    tasks = [simple(name) for name in "cabd"]
    async with asyncio.timeout(60):
        trials = await play_gold(tasks, FunctionTools(look=look), REWARDS, episodes=EpisodesConfig(max_concurrent=2))
    assert [trial.task_id for trial in trials] == ["c", "a", "b", "d"]
    assert {trial.reward for trial in trials} == {1.0}
    assert most == 2


async def test_a_solution_longer_than_its_task_allows_is_found_out():
    tools = FunctionTools(look=lambda: "blue")
    for task in (simple("a", max_turns=1), replace(simple("a"), difficulty=Difficulty.EASY)):
        [trial] = await play_gold([task], tools, REWARDS, episodes=EpisodesConfig(max_turns={"easy": 1}))
        assert len(trial.turns) == 1
        assert (trial.reward < 1.0, trial.success, trial.parts["unanswered"]) == (True, False, 1.0)


async def test_what_a_tool_refused_is_told():
    def look() -> str:
        raise Refusal("It is dark.")

    [trial] = await play_gold([simple("a")], FunctionTools(look=look), REWARDS)
    assert trial.faults == ("It is dark.",)
    assert trial.reward < 1.0


async def test_a_fault_of_the_world_is_raised():
    async def look() -> str:
        raise ServerLostError("gone", fix="none")

    with pytest.raises(ServerLostError):
        await play_gold([simple("a")], FunctionTools(look=look), REWARDS)


async def test_a_task_without_a_solution_cannot_be_played():
    with pytest.raises(ValueError, match="task a has no solution"):
        await play_gold([make_task("a")], FunctionTools(), REWARDS)


async def test_a_rubric_is_graded_if_there_is_a_judge_and_left_out_otherwise():
    class Fair:
        async def grade(self, task, answer: str) -> float:
            return 0.5

    task, tools = simple("a", rubric="Polite."), FunctionTools(look=lambda: "blue")
    script = (task.solution.calls, task.solution.answer)
    graded, ungraded = [await play(task, tools, *script, REWARDS, judge=judge) for judge in (Fair(), None)]
    assert (graded.parts["rubric"], "rubric" in ungraded.parts, ungraded.reward) == (0.5, False, 1.0)
    assert tools.lives_s == [EpisodesConfig().deadline_s] * 2

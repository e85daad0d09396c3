"""Tasks played from a script on real servers: solutions earn exactly 1, idleness 0, variants less than 1."""
# R19

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

import pytest
from staged_episodes import FunctionTools, Refusal, call, make_task

from mcprl.config import EpisodesConfig, RewardFunctionConfig, RewardsConfig
from mcprl.episodes import play, play_gold
from mcprl.episodes.reward_functions import RewardFunctions, code_of
from mcprl.errors import BadValueError, ServerLostError, UserCodeError
from mcprl.goals import Contains, ExpectedCall, ExpectedCheck, ExpectedState, Goal
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


CHECK = """
async def closed(episode):
    tickets = await episode.probe("_tickets", status="open")
    return episode.task.metadata["ticket"] not in tickets.text
"""


def checked(tmp_path, text: str = CHECK):
    (tmp_path / "checks.py").write_text(text)
    check = ExpectedCheck(function=f"{tmp_path}/checks.py:closed", probes=("_tickets",))
    solution = Solution(calls=(call("close", ticket="T-7"),), answer="Done.")
    return replace(make_task(check=check, solution=solution), metadata={"ticket": "T-7"})


def ticket_tools() -> FunctionTools:
    tickets = {"T-7": "open", "T-8": "open"}

    def close(ticket: str) -> str:
        tickets[ticket] = "closed"
        return "closed"

    def _tickets(status: str) -> str:
        return ", ".join(ticket for ticket, is_now in tickets.items() if is_now == status)

    return FunctionTools(close=close, _tickets=_tickets)


@pytest.mark.process
async def test_a_check_in_python_decides_whether_a_solution_is_right(tmp_path):
    task = checked(tmp_path)
    code = code_of(REWARDS, [task])
    async with RewardFunctions({}, environment=os.environ, log=tmp_path / "log", code=code) as functions:
        (gold,) = await play_gold([task], ticket_tools(), REWARDS, functions=functions)
        idle = await play(task, ticket_tools(), (), "Done.", REWARDS, functions=functions)
    assert (gold.reward, gold.success, gold.parts["check"]) == (1.0, True, 1.0)
    assert (idle.reward, idle.success, idle.parts["check"]) == (0.0, False, 0.0)


@pytest.mark.process
@pytest.mark.parametrize(
    ("body", "said"),
    [("return -1", r"returned -1, of type int; it must return a number from 0 to 1"), ("return 1 / 0", r"py:2: Zero")],
)
async def test_a_check_that_fails_stops_the_run_with_its_line(tmp_path, body, said):
    task = checked(tmp_path, f"def closed(episode):\n    {body}\n")
    code = code_of(REWARDS, [task])
    async with RewardFunctions({}, environment=os.environ, log=tmp_path / "log", code=code) as functions:
        with pytest.raises(UserCodeError, match=said):
            await play_gold([task], ticket_tools(), REWARDS, functions=functions)


@pytest.mark.process
async def test_a_check_may_be_a_reward_function_too_but_must_be_one_per_episode_and_read_at_the_start(tmp_path):
    task = checked(
        tmp_path, CHECK + "\n\nimport mcprl\n\n@mcprl.reward(per='turn')\ndef each(episode):\n    return []\n"
    )
    assert task.goal.check is not None
    reference = task.goal.check.function
    rewards = RewardsConfig(
        functions={"own": RewardFunctionConfig(function=reference, weight=1.0, probes=("_tickets",))}
    )
    per_turn = replace(task, goal=Goal(check=ExpectedCheck(function=reference.replace("closed", "each"))))
    unread = replace(task, goal=Goal(check=ExpectedCheck(function=reference.replace("checks", "others"))))
    code = code_of(rewards, [task, per_turn])
    async with RewardFunctions(rewards.functions, environment=os.environ, log=tmp_path / "log", code=code) as functions:
        (gold,) = await play_gold([task], ticket_tools(), rewards, functions=functions)
        assert gold.parts["check"] == gold.parts["own"] == 1.0
        for wrong, said in ((per_turn, "is a per-turn function"), (unread, "was not loaded when the run started")):
            with pytest.raises(UserCodeError, match=said):
                await play_gold([wrong], ticket_tools(), rewards, functions=functions)


async def test_a_task_with_a_check_is_not_scored_without_it(tmp_path):
    with pytest.raises(BadValueError, match=r"needs .*checks\.py:closed, which cannot be run here"):
        await play_gold([checked(tmp_path)], ticket_tools(), REWARDS)

"""Reward functions in Python: their values, and what happens if they do not return one."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

import pytest
from staged_episodes import FunctionTools, call, made_trajectory

from mcprl.config import EpisodesConfig, RewardFunctionConfig, RewardsConfig
from mcprl.episodes import Action, Collector, Environment, reward_functions
from mcprl.episodes.collector import RunsEpisodes
from mcprl.episodes.reward_functions import RewardFunctions
from mcprl.episodes.rewards import weigh
from mcprl.errors import RewardFunctionError, ServerLostError, UserCodeError
from mcprl.functions import Code, EpisodeView
from mcprl.goals import AnyText, Goal
from mcprl.records import FinishReason, Observation, StopReason, Task, ToolCall, Trajectory, Turn
from mcprl.runs.journal import EpisodeJournal

pytestmark = pytest.mark.process

TURN = Turn(
    text="…",
    sampled_ids=(1, 2),
    finish=FinishReason.STOP,
    weights_version=0,
    calls=(ToolCall(name="price", arguments={"symbol": "VLKN"}),),
    observations=(Observation(tool="price", server="market", text="213.88"),),
)
TASK = Task(id="vlkn", prompt=({"role": "user", "content": "What is the price?"},), goal=Goal(min_calls=1))


async def no_probe(call: ToolCall) -> Observation:
    raise AssertionError("nothing is probed here")


def view(answer: str | None = "213.88", probing=no_probe) -> EpisodeView:
    return EpisodeView(
        task=TASK, turns=(TURN,), answer=answer, stop=StopReason.ANSWERED, parts={"calls": 1.0}, probing=probing
    )


def opened(tmp_path, text: str, name: str = "f", **settings) -> RewardFunctions:
    (tmp_path / "rewards.py").write_text(text)
    function = RewardFunctionConfig(function=f"{tmp_path}/rewards.py:{name}", weight=1.0, **settings)
    return RewardFunctions({"own": function}, environment=os.environ, log=tmp_path / "rewards.log")


async def test_a_function_sees_the_episode_and_its_value_becomes_a_part(tmp_path):
    text = """
def f(episode):
    assert episode.task.id == "vlkn" and episode.stop == "answered" and episode.parts["calls"] == 1.0
    assert [call.name for call in episode.calls] == ["price"]
    return float(episode.answer in episode.observations[0].text)
"""
    async with opened(tmp_path, text) as functions:
        assert await functions.grade(view()) == {"own": 1.0}
        assert await functions.grade(view("214")) == {"own": 0.0}


async def test_an_async_function_may_probe_the_tools_that_the_recipe_lists(tmp_path):
    asked = []

    async def probe(call: ToolCall) -> Observation:
        asked.append(call)
        return Observation(tool=call.name, server="desk", text="open: 2")

    text = (
        "async def f(episode):\n    seen = await episode.probe('tickets', status='open')\n    return '2' in seen.text\n"
    )
    async with opened(tmp_path, text, probes=("tickets",)) as functions:
        assert await functions.grade(view(probing=probe)) == {"own": 1.0}
    assert asked == [ToolCall(name="tickets", arguments={"status": "open"})]
    async with opened(tmp_path, text) as functions:
        with pytest.raises(UserCodeError, match=r"rewards\.py:2: PermissionError: 'tickets' is not in `probes`"):
            await functions.grade(view(probing=probe))


async def test_a_server_that_fails_a_probe_loses_the_episode_and_blames_no_function(tmp_path):
    async def probe(call: ToolCall) -> Observation:
        raise ServerLostError("server 'desk' went away", fix="see its log")

    text = "async def f(episode):\n    return len((await episode.probe('tickets')).text)\n"
    async with opened(tmp_path, text, probes=("tickets",)) as functions:
        with pytest.raises(ServerLostError):
            await functions.grade(view(probing=probe))


MISTAKES = {
    "raise KeyError('x')": r"rewards\.py:5: KeyError",
    "raise ExceptionGroup('both', [ValueError(), KeyError()])": r"rewards\.py:5: ExceptionGroup",
    "assert episode.answer is None, 'answered'": r"rewards\.py:5: AssertionError: answered",
    "return episode.anwser": r"rewards\.py:5: AttributeError",
    "return 1 / len(())": r"rewards\.py:5: ZeroDivisionError",
    "return json.loads('{')": r"rewards\.py:5: JSONDecodeError",
    "return f(episode)": r"rewards\.py:5: RecursionError",
    "return open('/nowhere/weights.json')": r"rewards\.py:5: FileNotFoundError",
    "import no_such_module": r"rewards\.py:5: ModuleNotFoundError",
    "episode.answer = 'x'": r"rewards\.py:5: FrozenInstanceError",
    "episode.turns.append(None)": r"rewards\.py:5: AttributeError",
    "sys.exit(3)": r"rewards\.py:5: SystemExit",
    "raise KeyboardInterrupt": r"rewards\.py:4: the process of the reward functions ended with",
    "os._exit(3)": r"rewards\.py:4: the process of the reward functions ended with exit code 3",
    "os.kill(os.getpid(), 9)": r"rewards\.py:4: the process of the reward functions ended with exit code -9",
    "return None": r"rewards\.py:4: .* returned None, of type NoneType; it must return a number from -1 to 1",
    "return 'good'": r"rewards\.py:4: .* returned 'good', of type str",
    "return [1.0]": r"rewards\.py:4: .* returned \[1\.0\], of type list",
    "return {'grounded': 1.0}": r"rewards\.py:4: .* returned {'grounded': 1\.0}, of type dict",
    "return 1j": r"rewards\.py:4: .* returned 1j, of type complex",
    "return float('nan')": r"rewards\.py:4: .* returned nan",
    "return float('inf')": r"rewards\.py:4: .* returned inf",
    "return -1.001": r"rewards\.py:4: .* returned -1\.001",
    "return 10**400": r"rewards\.py:4: .* returned 1000",
    "yield 1.0": r"rewards\.py:4: .* of type generator",
    "return episode.answer + 1": r"rewards\.py:5: TypeError",
    "return max(float(part) for part in ())": r"rewards\.py:5: ValueError",
    "return 1.0 if price > 0 else 0.0": r"rewards\.py:5: NameError",
    "episode.parts['calls'] = 0.0; return 1.0": r"rewards\.py:4: .* modified its episode",
    "episode.task.metadata['seen'] = True; return 1.0": r"rewards\.py:4: .* modified its episode",
    "episode.calls[0].arguments.clear(); return 1.0": r"rewards\.py:4: .* modified its episode",
    "object.__setattr__(episode, 'answer', ''); return 1.0": r"rewards\.py:4: .* modified its episode",
}


@pytest.mark.parametrize("body", MISTAKES)
async def test_a_function_that_returns_no_number_is_named_with_its_line(tmp_path, body):
    text = f"import json, os, sys\n\n\ndef f(episode):\n    {body}\n"
    async with opened(tmp_path, text) as functions:
        with pytest.raises(UserCodeError, match=MISTAKES[body]) as raised:
            await functions.grade(view())
    assert "(task vlkn, 1 turns)" in raised.value.what


BLOCKED = {
    "waits": "time.sleep(60)",
    "computes": "sum(1 for _ in iter(int, 1))",
    "holds the GIL": "re.match('(a+)+$', 'a' * 40 + 'b')",
}


@pytest.mark.parametrize("how", BLOCKED)
async def test_a_function_that_misses_its_deadline_is_stopped_where_it_is(tmp_path, how):
    text = (
        f"import re, time\n\n\ndef f(episode):\n    if episode.answer == 'x':\n        {BLOCKED[how]}\n    return 1.0\n"
    )
    async with opened(tmp_path, text, deadline_s=0.5, on_error="lose_episode") as functions:
        with pytest.raises(RewardFunctionError, match=r"rewards\.py:6: .* took longer than 0\.5 s"):
            await functions.grade(view("x"))
        assert await functions.grade(view("y")) == {"own": 1.0}  # by another process


async def test_a_slow_function_counts_once_its_deadline_is_raised(tmp_path):
    text = "import time\n\n\ndef f(episode):\n    time.sleep(0.3)\n    return 1.0\n"
    async with opened(tmp_path, text, deadline_s=0.1, on_error="lose_episode") as functions:
        with pytest.raises(RewardFunctionError, match="deadline_s"):
            await functions.grade(view())
    async with opened(tmp_path, text, deadline_s=60, on_error="lose_episode") as functions:
        assert await functions.grade(view()) == {"own": 1.0}


async def test_what_a_function_prints_goes_to_the_log_without_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("DESK_API_KEY", "desk-key-0123456789")
    text = "import os\n\n\ndef f(episode):\n    print('key', os.environ['DESK_API_KEY'])\n    return 1.0\n"
    async with opened(tmp_path, text) as functions:
        await functions.grade(view())
    log = (tmp_path / "rewards.log").read_text()
    assert "key" in log
    assert "desk-key-0123456789" not in log


async def test_a_secret_in_what_a_function_raises_is_not_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("DESK_API_KEY", "desk-key-0123456789")
    text = "import os\n\n\ndef f(episode):\n    raise ValueError(os.environ['DESK_API_KEY'])\n"
    async with opened(tmp_path, text) as functions:
        with pytest.raises(UserCodeError, match=r"rewards\.py:5: ValueError") as raised:
            await functions.grade(view())
    assert "desk-key-0123456789" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def f(:\n", r"rewards\.py:1: SyntaxError"),
        ("import nothing_here\n", r"rewards\.py:1: ModuleNotFoundError"),
        ("import sys\nsys.exit('no')\n", r"rewards\.py:2: SystemExit: no"),
        (
            "import os\nos._exit(3)\n",
            r"rewards\.py: the process of your functions ended while importing this file; see",
        ),
        ("def g(episode):\n    return 1.0\n", r"defines no such function or class"),
    ],
)
async def test_code_that_cannot_be_imported_is_refused_at_the_start(tmp_path, text, said):
    with pytest.raises(UserCodeError, match=said):
        async with opened(tmp_path, text):
            pass


def act(*calls: ToolCall, prose: str = "") -> Action:
    return Action(text="…", prose=prose, calls=calls, sampled_ids=(1,), finish=FinishReason.STOP, weights_version=0)


PER_TURN = """
import mcprl

@mcprl.reward(per="turn")
async def f(episode):
    return [1.0 if turn.calls else -0.5 for turn in episode.turns]
"""


async def test_values_per_turn_are_the_rewards_of_the_turns_and_their_mean_is_the_part(tmp_path):
    tools = FunctionTools(price=lambda symbol: "213.88")
    task = replace(TASK, goal=Goal(answer=AnyText()))
    async with opened(tmp_path, PER_TURN) as functions:
        rewards = RewardsConfig(functions=functions_of(functions), answer=1.0)
        environment = Environment(task, tools, preamble=(), max_turns=5, rewards=rewards, functions=functions)
        given = [
            (await environment.step(act(call("price", symbol="VLKN")))).reward,
            (await environment.step(act(call("price", symbol="ORBT")))).reward,
            (await environment.step(act(prose="213.88"))).reward,
        ]
    assert environment.parts["own"] == 0.5  # (1 + 1 - 0.5) / 3
    assert environment.reward == weigh(environment.parts, rewards) == sum(given)
    earned = [turn.reward for turn in environment.turns]
    assert sum(earned) == environment.reward
    assert earned == pytest.approx([1 / 6, 1 / 6, 1 / 2 - 0.5 / 6])  # of weights 1 and 1


RANKS = """
import random
import mcprl

@mcprl.reward(per="group")
def f(episodes):
    assert all(episode.task.id == "a" for episode in episodes)
    order = sorted(range(len(episodes)), key=lambda number: episodes[number].answer)
    noise = random.Random().random() / 100  # a second call would give other values
    return [order.index(number) / (len(order) - 1) - noise for number in range(len(order))]
"""


def functions_of(functions: RewardFunctions) -> dict[str, RewardFunctionConfig]:
    return {name: RewardFunctionConfig(function="rewards.py:f", weight=1.0) for name in functions.names}


class Answers(RunsEpisodes):
    """Episodes that answer with a letter, and wait in their record for the part `own`."""

    def __init__(self, rewards: RewardsConfig) -> None:
        self._rewards = rewards
        self.played: list[int] = []

    async def run(self, task: Task, *, step: int, member: int, attempt: int) -> Trajectory:
        self.played.append(member)
        parts = {"answer": 1.0, "invalid_call": 0.0, "unanswered": 0.0}
        reward = weigh({**parts, "own": 0.0}, self._rewards)
        played = made_trajectory(task.id, member, attempt=attempt, step=step, reward=reward)
        turns = (replace(TURN, reward=reward),)
        return replace(played, turns=turns, answer="cab"[member], reward_parts=parts)


async def test_relative_grades_are_final_in_the_journal_and_a_resumed_run_reads_them(tmp_path):
    task = replace(TASK, id="a")
    records, played = [], []
    for _ in range(2):
        async with opened(tmp_path, RANKS) as functions, EpisodeJournal(tmp_path) as journal:
            rewards = RewardsConfig(functions=functions_of(functions))
            runner = Answers(rewards)
            collector = Collector(runner, EpisodesConfig(group_size=3), journal, rewards=rewards, functions=functions)
            (group,) = await collector.collect([task], 0, lambda _: None)
            records.append(group.trajectories)
            played.append(runner.played)
    assert played == [[0, 1, 2], []]
    assert records[0] == records[1] == tuple(EpisodeJournal(tmp_path).finished(0).values())
    grades = [trajectory.reward_parts["own"] for trajectory in records[0]]
    assert [round(grade, 1) for grade in grades] == [1.0, 0.0, 0.5]
    for trajectory in records[0]:
        assert trajectory.reward == weigh(trajectory.reward_parts, rewards)
        assert trajectory.reward == sum(turn.reward for turn in trajectory.turns)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "@mcprl.reward(per='turn')\ndef f(episode):\n    return 1.0\n",
            r"rewards\.py:3: .* returned 1\.0, of type float; it must return a list of 1 numbers",
        ),
        (
            "@mcprl.reward(per='turn')\ndef f(episode):\n    return [1, 0]\n",
            r"returned \[1, 0\], of type list; it must return a list of 1 numbers",
        ),
        ("@mcprl.reward(per='turn')\ndef f(episode):\n    return ['x']\n", r"returned \['x'\], of type list"),
    ],
)
async def test_a_list_that_does_not_fit_the_turns_is_named(tmp_path, text, said):
    async with opened(tmp_path, f"import mcprl\n\n{text}") as functions:
        with pytest.raises(UserCodeError, match=said):
            await functions.grade(view())


async def test_a_function_that_sorts_its_group_is_named_because_its_values_would_go_to_other_episodes(tmp_path):
    text = (
        "import mcprl\n\n@mcprl.reward(per='group')\ndef f(episodes):\n"
        "    episodes.sort(key=lambda episode: episode.answer)\n    return [0.0, 1.0]\n"
    )
    async with opened(tmp_path, text) as functions:
        group = [replace(made_trajectory("a", n), answer="ba"[n], reward_parts={"answer": 1.0}) for n in range(2)]
        with pytest.raises(UserCodeError, match=r"rewards\.py:3: .* modified its episode"):
            await functions.grade_group(TASK, group, RewardsConfig(functions=functions_of(functions)))


DEPENDS = {
    "os.getpid() % 97 / 97": True,
    "time.monotonic() % 1": True,
    "random.random()": True,
    "hash(episode.answer) % 97 / 97": False,
    "float(next(iter({'ab', 'cd', 'ef', 'gh'})) == 'ab')": False,
    "random.Random(episode.answer).random()": False,
}


@pytest.mark.parametrize("value", DEPENDS)
async def test_a_value_that_depends_on_the_process_is_found_and_hashes_do_not(tmp_path, value):
    text = f"import os, random, time\n\n\ndef f(episode):\n    return {value}\n"
    async with opened(tmp_path, text) as functions:
        found = await functions.that_differ(TASK, replace(made_trajectory("vlkn", 0), answer="213.88"))
    assert found == [f"{tmp_path}/rewards.py:4 (own)"] * DEPENDS[value]


async def test_a_group_that_gets_too_few_grades_is_named(tmp_path):
    text = "import mcprl\n\n@mcprl.reward(per='group')\ndef f(episodes):\n    return [0.0]\n"
    async with opened(tmp_path, text) as functions:
        group = [replace(made_trajectory("a", member), reward_parts={"answer": 1.0}) for member in range(2)]
        said = r"rewards\.py.*returned \[0\.0\], of type list.*\(task vlkn, a group of 2\)"
        with pytest.raises(UserCodeError, match=said):
            await functions.grade_group(TASK, group, RewardsConfig(functions=functions_of(functions)))


async def test_a_function_per_group_cannot_probe_tools_that_were_returned(tmp_path):
    text = "import mcprl\n\n@mcprl.reward(per='group')\ndef f(episodes):\n    return [0.0] * len(episodes)\n"
    with pytest.raises(UserCodeError, match=r"rewards\.functions\.own is called once per group"):
        async with opened(tmp_path, text, probes=("tickets",)):
            pass


async def test_one_functions_deadline_harms_no_other_call_of_their_process(tmp_path):
    text = (
        "import time\n\nasync def f(episode):\n    if episode.answer == 'x':\n        time.sleep(60)\n    return 1.0\n"
    )
    async with opened(tmp_path, text, deadline_s=1, on_error="lose_episode") as functions:
        blocked, *others = await asyncio.gather(
            *(functions.grade(view(answer)) for answer in "xyz"), return_exceptions=True
        )
    assert isinstance(blocked, RewardFunctionError)
    assert others == [{"own": 1.0}] * 2


async def test_code_that_is_edited_during_a_run_keeps_scoring_as_it_was_read(tmp_path):
    (tmp_path / "scale.py").write_text("FACTOR = 0.5\n")
    text = "import scale, time\n\n\ndef f(episode):\n    return scale.FACTOR / (episode.answer != 'x')\n"
    async with opened(tmp_path, text, on_error="lose_episode") as functions:
        assert await functions.grade(view()) == {"own": 0.5}
        (tmp_path / "scale.py").write_text("FACTOR = 1.0\n")
        await restart(functions)
        assert await functions.grade(view()) == {"own": 0.5}
        with pytest.raises(RewardFunctionError, match=rf"{tmp_path}/rewards\.py:5: ZeroDivisionError"):
            await functions.grade(view("x"))
    async with opened(tmp_path, text) as functions:
        assert await functions.grade(view()) == {"own": 1.0}


async def restart(functions: RewardFunctions) -> None:
    await functions._stop()


async def test_a_worker_without_the_files_runs_the_code_that_travels_with_the_run(tmp_path):
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "__init__.py").write_text("")
    (tmp_path / "checks" / "numbers.py").write_text("HALF = 0.5\n")
    function = opened(tmp_path, "from checks.numbers import HALF\n\n\ndef f(episode):\n    return HALF\n")
    async with function as functions:
        here, code = await functions.grade(view()), functions.code
    for file in code.files:
        os.unlink(file)
    with pytest.raises(UserCodeError, match="is not a file"):
        async with RewardFunctions(settings_of(code), environment=os.environ, log=tmp_path / "log"):
            pass
    async with RewardFunctions(settings_of(code), environment=os.environ, log=tmp_path / "log", code=code) as functions:
        assert await functions.grade(view()) == here == {"own": 0.5}
        assert functions.digest == code.digest


def settings_of(code: Code) -> dict[str, RewardFunctionConfig]:
    return {"own": RewardFunctionConfig(function=code.references[0], weight=1.0)}


async def test_code_that_hangs_while_it_is_imported_is_named_with_its_line(tmp_path, monkeypatch):
    monkeypatch.setattr(reward_functions, "_START_S", 5.0)
    with pytest.raises(UserCodeError, match=r"rewards\.py:2: importing your functions took longer than 5 s"):
        async with opened(tmp_path, "import time\ntime.sleep(600)\n"):
            pass


async def test_a_file_that_does_not_exist_is_named(tmp_path):
    functions = opened(tmp_path, "def f(episode):\n    return 1.0\n")
    settings = settings_of(functions.code)
    (tmp_path / "rewards.py").unlink()
    with pytest.raises(UserCodeError, match=r"rewards\.functions\.own\.function refers to .*rewards\.py, which is not"):
        async with RewardFunctions(settings, environment=os.environ, log=tmp_path / "log"):
            pass

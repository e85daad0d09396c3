"""Random losses raise no alarm; losses caused by the policy are named by task, tool and text."""

from __future__ import annotations

import random
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st
from staged_episodes import call, made_group, made_trajectory, made_turn, make_config

from mcprl.checks.health import Health
from mcprl.checks.health.view import Correlation, LossLedger, fisher_p
from mcprl.records import LostEpisode, StopReason, ToolCall
from mcprl.verdicts import Severity

WORDS = [f"word{number}" for number in range(60)]
TOOLS = ("search", "quote", "run_python")
TASKS = {f"task{number}": 1 + number % 5 for number in range(12)}  # and the turns with calls that each takes
MAX_ATTEMPTS = 5


def a_turn(task: str, place: int, rng: random.Random) -> ToolCall:
    """Tasks call tools in an order of their own: what comes first is played most often, and lost most often."""
    tool = TOOLS[(place + len(task)) % len(TOOLS)]
    words = rng.choices(WORDS, k=30 if tool == "run_python" else 3)
    return call(tool, text=" ".join(words), topic=task)


def played_step(rng: random.Random, rate: float, marker_rate: float = 0.0):
    """Groups of a step in which each turn is lost with probability `rate`, and one with the marker with its own."""
    groups = []
    for task in rng.sample(sorted(TASKS), 4):
        trajectories, lost = [], []
        for member in range(8):
            for attempt in range(MAX_ATTEMPTS):
                turns, ended = [], None
                for place in range(TASKS[task]):
                    made = a_turn(task, place, rng)
                    if rng.random() < marker_rate:
                        made = call("run_python", text="import os; os.abort()", topic=task)
                        ended = made if rng.random() < 0.5 else ended
                    if rng.random() < rate:
                        ended = made
                    if ended is not None:
                        before = tuple((each,) for each in turns)
                        lost.append(
                            LostEpisode(
                                task_id=task,
                                member=member,
                                attempt=attempt,
                                code="E-TOOL-011",
                                reason="gone",
                                turns=(*before, (ended,)),
                            )
                        )
                        break
                    turns.append(made)
                if ended is None:
                    break
            made_turns = [made_turn((made, True)) for made in turns] + [made_turn()]
            trajectories.append(made_trajectory(task, member, turns=made_turns))
        groups.append(made_group(task, *trajectories, lost=lost))
    return groups


def alarms_of(seed: int, rate: float, steps: int = 12) -> int:
    """The steps after which something was found."""
    rng, ledger, alarms = random.Random(seed), LossLedger(), 0
    for _ in range(steps):
        ledger.add(played_step(rng, rate))
        alarms += bool(ledger.correlations())
    return alarms


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.2, 0.3])
def test_faults_by_chance_raise_no_alarm(rate):
    assert [seed for seed in range(3) if alarms_of(seed, rate)] == []


def test_a_text_that_ends_the_server_half_of_the_time_is_named_among_faults_by_chance():
    rng, ledger = random.Random(1), LossLedger()
    for _ in range(4):
        ledger.add(played_step(rng, 0.05, marker_rate=0.05))
    named = {found.kind: found for found in ledger.correlations()}
    assert named["argument"].value in ("abort", "import")
    assert named["argument"].lost > 0.3 * named["argument"].turns


def test_the_task_and_the_tool_are_named_and_the_sentence_has_the_counts():
    ledger = LossLedger()
    lost = [
        LostEpisode(
            task_id="b", member=n, attempt=0, code="E-TOOL-011", reason="gone", turns=((call("run", code="die now"),),)
        )
        for n in range(8)
    ]
    fine = [made_trajectory("a", n, turns=[made_turn((call("look", at="Lima"), True))]) for n in range(40)]
    ledger.add([made_group("a", *fine), made_group("b", *(made_trajectory("b", n) for n in range(8)), lost=lost)])
    found = ledger.correlations()
    assert {(each.kind, each.value) for each in found} >= {("task", "b"), ("tool", "run")}
    assert "tool run (8 of 8 turns lost; without it, 0 of 40)" in map(str, found)


def test_losses_that_go_together_with_a_tool_are_named():
    lost = [
        LostEpisode(task_id="a", member=n, attempt=0, code="E-TOOL-011", reason="gone", turns=((call("run"),),))
        for n in range(8)
    ]
    kept = [made_trajectory("a", n, turns=[made_turn((call("look"), True))]) for n in range(40)]
    health = Health(make_config())
    health.note_losses([made_group("a", *kept, lost=lost)])
    [verdict] = health.judge({})
    assert (verdict.name, verdict.severity) == ("server crashes", Severity.WARN)
    assert verdict.what == "lost turns correlate with tool run (8 of 8 turns lost; without it, 0 of 40)"


def test_a_turn_that_caused_a_fault_counts_as_lost():
    crashed = [
        made_trajectory("a", n, turns=[made_turn((call("run", code="die"), False))], stop=StopReason.CAUSED_FAULT)
        for n in range(8)
    ]
    fine = [made_trajectory("b", n, turns=[made_turn((call("run", code="live"), True))]) for n in range(8)]
    ledger = LossLedger()
    ledger.add([made_group("a", *crashed), made_group("b", *fine)])
    assert ("argument", "die") in {(each.kind, each.value) for each in ledger.correlations()}


def test_what_is_older_than_the_window_is_forgotten():
    ledger = LossLedger()
    rng = random.Random(1)
    for _ in range(4):
        ledger.add(played_step(rng, 0.0, marker_rate=0.1))
    assert ledger.correlations()
    for _ in range(20):
        ledger.add(played_step(rng, 0.0))
    assert ledger.correlations() == ()


@given(st.integers(1, 40), st.data())
def test_the_probability_is_that_of_the_exact_sum(all_turns, data):
    all_lost = data.draw(st.integers(0, all_turns))
    turns = data.draw(st.integers(0, all_turns))
    lost = data.draw(st.integers(0, min(turns, all_lost)))
    kept = all_turns - all_lost
    ways = sum(comb(all_lost, x) * comb(kept, turns - x) for x in range(lost, min(turns, all_lost) + 1))
    assert fisher_p(lost, turns, all_lost, all_turns) == pytest.approx(ways / comb(all_turns, turns), rel=1e-9)


def test_a_correlation_reads_as_a_sentence():
    found = Correlation(kind="argument", value="fork", lost=3, turns=4, other_lost=0, other_turns=90, p=1e-6)
    assert str(found) == "an argument that contains 'fork' (3 of 4 turns lost; without it, 0 of 90)"

"""The live panel: what it shows as a run goes on, and that it fits every terminal."""

from __future__ import annotations

import math
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from episodes_seen import make_trajectory
from mcprl.cli.panel import TrainingPanel
from mcprl.config import RunConfig
from mcprl.errors import Fault
from mcprl.records import FinishReason, LostEpisode, Observation, Source, Trajectory, Turn
from mcprl.verdicts import Severity, Verdict

BUDGETS = {"fmp": {"budget": {"calls": 10}}, "tavily": {"budget": {"usd": 1.0, "usd_per_call": 0.1}}}
CONFIG = RunConfig.model_validate(
    {
        "name": "trial",
        "model": {"path": "x"},
        "tasks": {"train": Path("t")},
        "servers": {"file": Path("s"), "settings": BUDGETS},
        "episodes": {"group_size": 2},
        "training": {"steps": 20, "tasks_per_step": 2},
    }
)
METRICS = {
    "reward": -0.1,
    "success_rate": 0.1,
    "calls": 8.0,
    "valid_call_rate": 0.5,
    "kl": 0.00123,
    "entropy": 1.25,
    "ratio_mean": 1.0002,
    "episodes_lost_to_infrastructure": 0.0,
    "sampled_tokens_per_second": 123.4,
    "step_s": 30.0,
    "memory_trainer_gib": 2.13,
    "memory_children_gib": 3.4,
    "memory_free_gib": 12.8,
}
OK = (Verdict(severity=Severity.OK, name="healthy", what="nothing is wrong", fix=""),)
KL = Verdict(severity=Severity.BAD, name="KL", what="KL is 4 [red]\x1b[2J", fix="go back to step 3")
LOST = LostEpisode(task_id="t", member=1, attempt=0, code="E-TOOL-011", reason="gone")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def episode(*observations: Observation) -> Trajectory:
    turn = Turn(text="", sampled_ids=(), finish=FinishReason.STOP, weights_version=0, observations=tuple(observations))
    return make_trajectory(turns=(turn,))


def end_step(panel: TrainingPanel, step: int, verdicts: tuple[Verdict, ...] = OK, **metrics: float) -> None:
    panel.add_step(step, METRICS | metrics, verdicts)


def drawn(panel: TrainingPanel, width: int = 100, height: int = 40) -> list[str]:
    console = Console(file=StringIO(), width=width, height=height, highlight=False)
    console.print(panel)
    return console.file.getvalue().splitlines()


def row(lines: list[str], label: str) -> str:
    """What stands beside a label."""
    (found,) = [line.strip("│ ") for line in lines if line.strip("│ ").startswith(f"{label} ")]
    return found.removeprefix(label).strip()


def test_before_the_first_step_the_panel_says_what_is_being_started():
    panel = TrainingPanel(CONFIG)
    panel.show_stage("starting [red]\x1b[2J")
    lines = drawn(panel)
    assert row(lines, "now") == "starting [red]\\x1b[2J"
    assert "ETA" not in "".join(lines)


def test_the_title_has_the_run_its_step_the_time_and_what_is_left():
    clock = Clock()
    panel = TrainingPanel(CONFIG, clock=clock)
    clock.now = 75.0
    end_step(panel, 0)
    clock.now = 85.0
    assert " trial · step 1/20 · 1m25s elapsed · ETA 9m20s " in drawn(panel)[0]
    clock.now = 500.0  # a step that takes longer than those before it
    assert "ETA 9m00s" in drawn(panel)[0]


def test_courses_go_from_their_first_value_to_their_last():
    panel = TrainingPanel(CONFIG)
    end_step(panel, 0)
    assert row(drawn(panel), "reward").split() == ["▄", "-0.100"]
    end_step(panel, 1, reward=0.25, success_rate=0.5, valid_call_rate=0.75, kl=0.004, entropy=0.9)
    lines = drawn(panel)
    assert row(lines, "reward").split() == ["▁█", "-0.100", "→", "+0.250"]
    assert row(lines, "success").split() == ["▁█", "10%", "→", "50%"]
    assert row(lines, "valid calls").split() == ["▁█", "50%", "→", "75%"]
    assert row(lines, "KL").split() == ["▁█", "1.2e-03", "→", "4.0e-03"]
    assert row(lines, "entropy").split() == ["█▁", "1.25", "→", "0.90"]


def test_the_bar_counts_the_episodes_of_the_step_then_names_the_update_and_starts_again():
    panel = TrainingPanel(CONFIG)
    for _ in range(3):
        panel.add_episode(0, episode())
    assert row(drawn(panel), "step 1").endswith("3/4 episodes")
    panel.add_episode(0, episode())
    assert row(drawn(panel), "step 1").endswith("update, publish")
    end_step(panel, 0)
    assert row(drawn(panel), "step 2").endswith("0/4 episodes")
    assert row(drawn(panel), "run").endswith("1/20 steps")


def test_a_run_that_was_resumed_goes_on_counting():
    panel = TrainingPanel(CONFIG, steps_done=12)
    assert row(drawn(panel), "run").endswith("12/20 steps")
    assert row(drawn(panel), "step 13").endswith("0/4 episodes")


def test_episodes_of_coming_steps_are_counted_apart():
    panel = TrainingPanel(CONFIG)
    for step in (0, 1, 1, 2):
        panel.add_episode(step, episode())
    assert row(drawn(panel), "step 1").endswith("1/4 episodes")
    assert row(drawn(panel), "ahead") == "3 episodes"


def test_health_has_the_counts_and_the_worst_verdict_in_words_with_its_fix():
    panel = TrainingPanel(CONFIG)
    end_step(panel, 0)
    end_step(panel, 1, (KL,))
    lines = drawn(panel)
    assert row(lines, "health") == "1 ok · 1 bad"
    assert any("bad  KL: KL is 4 [red]\\x1b[2J. Try: go back to step 3." in line for line in lines)
    end_step(panel, 2)
    lines = drawn(panel)
    assert row(lines, "health") == "2 ok · 1 bad"
    assert not any("Try:" in line for line in lines)


def test_tools_have_their_calls_failures_losses_and_the_budget_used():
    panel = TrainingPanel(CONFIG)
    seen = Observation(tool="q", server="fmp", text="", latency_s=0.1)
    panel.add_episode(
        0,
        episode(
            seen,
            Observation(tool="q", server="fmp", text="", latency_s=0.1, attempts=3),
            Observation(tool="q", server="fmp", text="", latency_s=0.1, source=Source.CACHE),
            Observation(tool="q", server="fmp", text="no such argument", fault=Fault.POLICY),  # never sent
            Observation(tool="s", server="tavily", text="", latency_s=0.1),
        ),
    )
    panel.add_episode(0, LOST)
    facts = [
        "5 calls",
        "20.0% failed",
        "20% from cache or cassette",
        "1 attempt lost, most to E-TOOL-011",
        "fmp 4/10 calls",
        "tavily $0.10/$1.00",
    ]
    assert row(drawn(panel, width=160), "tools") == " · ".join(facts)


def test_memory_is_that_of_the_last_step_with_gpus_where_there_are_any():
    panel = TrainingPanel(CONFIG)
    end_step(panel, 0)
    assert row(drawn(panel), "memory") == "trainer 2.1 GiB · children 3.4 GiB · free 12.8 GiB"
    end_step(panel, 1, gpu_memory_gib=61.2, gpu_memory_total_gib=80.0, gpu_busy_share=0.87)
    assert row(drawn(panel), "memory").endswith("GPU 61.2/80.0 GiB, 87% busy")


def test_a_low_terminal_shows_fewer_steps_and_a_closed_panel_the_last_twelve():
    panel = TrainingPanel(CONFIG)
    for step in range(20):
        end_step(panel, step)
    assert sum("+" in line or "-0.100" in line for line in drawn(panel, height=20)) < 12
    panel.close()
    lines = drawn(panel, height=20)
    assert sum(line.startswith(("9/20", "1", "20/20")) for line in lines) == 12
    assert not any("ETA 0s" in line for line in lines[:3])


@pytest.mark.parametrize("height", [1, 5, 24, 60])
@pytest.mark.parametrize("width", [8, 20, 30, 40, 59, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(width, height):
    panel = TrainingPanel(CONFIG)
    panel.show_stage("starting something with a name that is rather long " * 3)
    assert all(len(line) <= width for line in drawn(panel, width, height))
    for step in range(15):
        panel.add_episode(step, episode(Observation(tool="q", server="fmp", text="", latency_s=0.1)))
        end_step(panel, step, (KL,), kl=math.nan)
    panel.add_episode(15, LOST)
    lines = drawn(panel, width, height)
    assert all(len(line) <= width for line in lines)
    if width >= 40:
        assert row(lines, "reward").endswith("-0.100 → -0.100")


@given(st.lists(st.dictionaries(st.sampled_from(["reward", "kl", "entropy", "success_rate"]), st.floats()), max_size=5))
def test_no_figure_breaks_the_panel(steps):
    panel = TrainingPanel(CONFIG)
    for step, metrics in enumerate(steps):
        end_step(panel, step, **metrics)
    assert drawn(panel, width=60)

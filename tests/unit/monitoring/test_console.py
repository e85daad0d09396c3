"""What a person sees of a training run: lines in a log, a panel on a terminal, a summary at the end."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import pytest
from episodes_seen import make_trajectory
from rich.console import Console

from mcprl.config import ModelConfig, RunConfig, ServersConfig, TasksConfig
from mcprl.monitoring.console import StageConsole, TrainingConsole, print_summary
from mcprl.records import LostEpisode
from mcprl.training import Summary

CONFIG = RunConfig.model_validate(
    {
        "name": "trial",
        "model": ModelConfig(path="x"),
        "tasks": TasksConfig(train=Path("t")),
        "servers": ServersConfig(file=Path("s")),
        "episodes": {"group_size": 2},
        "training": {"steps": 20, "tasks_per_step": 2},
    }
)
METRICS = {
    "reward": 0.25,
    "success_rate": 0.5,
    "calls": 8.0,
    "valid_call_rate": 0.75,
    "kl": 0.00123,
    "ratio_mean": 1.0002,
    "episodes_lost_to_infrastructure": 1.0,
    "sampled_tokens_per_second": 123.4,
    "step_s": 30.0,
    "optimiser_steps": 2.0,
    "episodes": 4.0,
    "groups": 2.0,
    "server_restarts": 1.0,
    "alignment": 1.0,
    "parity_ratio_mean_abs_error": 3.1e-06,
    "parity_logprob_max_abs_error": 4.2e-05,
    "collect_s": 20.0,
    "update_s": 10.0,
    "sampled_tokens": 640.0,
}


def plain() -> tuple[Console, StringIO]:
    out = StringIO()
    return Console(file=out, width=60, highlight=False), out


def terminal() -> tuple[Console, StringIO]:
    out = StringIO()
    return Console(file=out, width=160, height=50, force_terminal=True, highlight=False), out


def test_a_log_gets_one_line_a_step_with_its_figures():
    console, out = plain()
    with TrainingConsole(CONFIG, console) as shown:
        for step in range(3):
            for _ in range(4):
                shown.episode_finished(step, make_trajectory())
            shown.step_finished(step, METRICS)
    lines = out.getvalue().splitlines()
    assert lines == [
        f"step {step + 1}/20  reward +0.250  success 50%  valid calls 75% of 8  KL 1.2e-03  ratio 1.0002  lost 1  "
        f"tokens/s 123  step time 30s  ETA {eta}"
        for step, eta in enumerate(["9m30s", "9m00s", "8m30s"])
    ]


def test_the_time_left_is_reckoned_from_the_mean_of_the_steps_so_far():
    console, out = plain()
    with TrainingConsole(CONFIG, console) as shown:
        shown.step_finished(0, {**METRICS, "step_s": 10.0})
        shown.step_finished(1, {**METRICS, "step_s": 30.0})
        shown.step_finished(19, METRICS)
    assert re.findall(r"ETA (\S+)", out.getvalue()) == ["3m10s", "6m00s", "0s"]


def test_a_log_says_what_is_being_started_and_which_episodes_were_lost_in_the_words_they_came():
    console, out = plain()
    lost = LostEpisode(
        task_id="t[red]", member=1, attempt=0, code="E-TOOL-011", reason="said [/nothing] \x1b[2J" + "!" * 90
    )
    with TrainingConsole(CONFIG, console) as shown:
        shown.stage("starting 2 tool servers")
        shown.episode_finished(0, lost)
    first, second = out.getvalue().splitlines()
    assert first.endswith(" s  starting 2 tool servers")
    assert second.endswith("lost to infrastructure, run again: t[red]/1 (said [/nothing] \\x1b[2J" + "!" * 90 + ")")


def test_a_terminal_shows_a_panel_with_the_steps_and_the_progress_of_the_current_one():
    console, out = terminal()
    with TrainingConsole(CONFIG, console) as shown:
        shown.stage("starting [red]")
        console.print(shown._progress)
        shown.step_finished(0, METRICS)
        shown.episode_finished(1, make_trajectory())
        console.print(shown._panel())
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", out.getvalue())
    assert re.search(r"starting \[red\] ━+", text)
    assert "valid calls" in text
    assert "1/20  +0.250" in text
    assert "step 2/20: episodes" in text
    assert "1/4" in text


def test_a_terminal_keeps_the_last_steps_in_view_and_gets_its_cursor_back():
    console, out = terminal()
    with TrainingConsole(CONFIG, console) as shown:
        for step in range(20):
            shown.step_finished(step, METRICS)
        before = len(out.getvalue())
    last = out.getvalue()[before:]
    assert "20/20" in last
    assert "9/20" in last
    assert " 8/20" not in last
    assert last.endswith("\x1b[?25h") or "\x1b[?25h" in last


def test_the_bar_names_the_update_once_all_episodes_are_in_and_starts_again():
    console, out = terminal()
    with TrainingConsole(CONFIG, console) as shown:
        for _ in range(4):
            shown.episode_finished(0, make_trajectory())
        console.print(shown._progress)
        shown.step_finished(0, METRICS)
        shown.episode_finished(1, make_trajectory())
        console.print(shown._progress)
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", out.getvalue())
    assert re.search(r"step 1/20: update.*4/4", text)
    assert re.search(r"step 2/20: episodes.*1/4", text)


def test_stages_before_an_episode_are_said_on_stderr_in_the_words_they_came(capsys):
    with StageConsole() as shown:
        shown.stage("playing 1 episode of [/nothing]\x1b[2J")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[0].endswith(" s  playing 1 episode of [/nothing]\\x1b[2J")


@pytest.fixture
def summary() -> Summary:
    made = Summary()
    made.add({**METRICS, "reward": -0.1, "valid_call_rate": 0.5})
    made.add({**METRICS, "alignment": 0.5, "parity_ratio_mean_abs_error": 9.9e-05, "server_restarts": 3.0})
    return made


def test_the_summary_shows_whether_it_learned_and_whether_its_numbers_can_be_trusted(summary, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    print_summary(summary, recipe=Path("recipes/a.yaml"), config=CONFIG, folder=Path("[red]outputs/trial"))
    rows = dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in capsys.readouterr().out.splitlines()[:-2])
    assert rows["updates"] == "2 in 1m00s: 40 s to collect, 20 s to learn"
    assert rows["groups complete"] == "4 of 40"
    assert rows["lost to infrastructure"] == "2 attempts, all run again; 3 server restarts"
    assert rows["reward"] == "-0.100 → +0.250"
    assert rows["valid calls"] == "50% → 75%"
    # The worst of all steps, where it is about correctness.
    assert rows["token alignment"] == "50%"
    assert rows["sampler vs learner"].startswith("mean |ratio − 1| 9.9e-05, max |Δlogprob| 4.2e-05")
    assert rows["adapter"] == "[red]outputs/trial/adapter"


def test_the_summary_ends_with_a_command_that_can_be_pasted(summary, capsys):
    folder = Path("out [red] puts") / ("x" * 80)
    print_summary(summary, recipe=Path("my recipes/a.yaml"), config=CONFIG, folder=folder)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"Next: mcprl try 'my recipes/a.yaml' --adapter 'out [red] puts/{'x' * 80}/adapter'"

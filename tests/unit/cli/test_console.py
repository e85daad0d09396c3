"""What a person sees of a training run: lines, a progress bar on a terminal, a summary at the end."""

from __future__ import annotations

import re
import threading
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from episodes_seen import make_trajectory
from mcprl.cli import console as console_module
from mcprl.cli.console import TrainingConsole, print_summary
from mcprl.cli.runs import next_command
from mcprl.cli.stages import StageConsole
from mcprl.config import ModelConfig, RunConfig, ServersConfig, TasksConfig
from mcprl.records import LostEpisode
from mcprl.runs.past_runs import PastRun, RunStatus
from mcprl.runs.summary import Summary
from mcprl.verdicts import Severity, Verdict

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
    "groups_without_variance": 0.0,
    "server_restarts": 1.0,
    "sampler_restarts": 0.0,
    "alignment": 1.0,
    "parity_ratio_mean_abs_error": 3.1e-06,
    "parity_logprob_max_abs_error": 4.2e-05,
    "wait_s": 20.0,
    "update_s": 10.0,
    "sampled_tokens": 640.0,
}

OK = (Verdict(severity=Severity.OK, name="healthy", what="nothing is wrong", fix=""),)
KL = Verdict(severity=Severity.BAD, name="KL", what="KL is 4 [red]\x1b[2J", fix="go back to step 3")
CLIPPING = Verdict(severity=Severity.WARN, name="clipping", what="the clip cuts off 41%", fix="lower a setting")


def plain() -> tuple[Console, StringIO]:
    out = StringIO()
    return Console(file=out, width=60, highlight=False), out


def terminal() -> tuple[Console, StringIO]:
    out = StringIO()
    return Console(file=out, width=160, height=50, force_terminal=True, highlight=False), out


def without_escapes(text: str) -> str:
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text)


def test_a_log_gets_one_line_a_step_with_its_figures():
    console, out = plain()
    with TrainingConsole(CONFIG, console) as shown:
        for step in range(3):
            for _ in range(4):
                shown.episode_finished(step, make_trajectory())
            shown.step_finished(step, METRICS, OK)
    lines = out.getvalue().splitlines()
    assert lines == [
        f"step {step + 1}/20  reward +0.250  success 50%  valid calls 75% of 8  KL 1.2e-03  ratio 1.0002  lost 1  "
        f"tokens/s 123  step time 30s  ETA {eta}  health ok"
        for step, eta in enumerate(["9m30s", "9m00s", "8m30s"])
    ]


@pytest.mark.parametrize("out", [plain, terminal])
def test_the_log_of_the_run_has_the_stages_steps_and_verdicts_whatever_the_console_shows(out, tmp_path):
    log, console = tmp_path / "train.log", out()[0]
    bad = Verdict(severity=Severity.BAD, name="KL", what="KL is 4", fix="go back")

    def fail() -> None:
        with TrainingConsole(CONFIG, console, log=log) as shown:
            shown.stage("starting the sampler")
            shown.step_finished(0, METRICS, [bad])
            assert "step 1/20  reward +0.250" in log.read_text()  # at once, for `tail -f`
            raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"):
        fail()
    with TrainingConsole(CONFIG, console, log=log, steps_done=1) as shown:
        shown.step_finished(1, METRICS, OK)
    lines = log.read_text().splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["step", "bad"]
    assert "starting the sampler" in lines[0]
    assert "KL is 4" in lines[2]
    assert lines[3].endswith("ended by ValueError: no room")
    assert lines[4].startswith("step 2/20")


def test_without_a_bar_it_is_said_now_and_then_what_the_run_is_doing(monkeypatch):
    class Watched(StringIO):
        def write(self, text: str) -> int:
            if "update, publish" in text:
                said.set()
            return super().write(text)

    monkeypatch.setattr(console_module, "REMINDER_S", 0.01)
    said = threading.Event()
    with TrainingConsole(CONFIG, Console(file=Watched(), width=60, highlight=False)) as shown:
        for _ in range(4):
            shown.episode_finished(0, make_trajectory())
        assert said.wait(60)


def test_the_time_left_is_reckoned_from_the_mean_of_the_steps_so_far():
    console, out = plain()
    with TrainingConsole(CONFIG, console) as shown:
        shown.step_finished(0, {**METRICS, "step_s": 10.0}, OK)
        shown.step_finished(1, {**METRICS, "step_s": 30.0}, OK)
        shown.step_finished(19, METRICS, OK)
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
    assert second.endswith(
        "episode lost to infrastructure, will be rerun: t[red]/1 (E-TOOL-011 said [/nothing] \\x1b[2J" + "!" * 90 + ")"
    )


def test_a_terminal_shows_lines_and_a_bar_that_counts_the_episodes_of_the_step():
    console, out = terminal()
    with TrainingConsole(CONFIG, console, steps_done=2) as shown:
        shown.stage("starting [red]\x1b[2J")
        for step in (2, 2, 2, 3):
            shown.episode_finished(step, make_trajectory())
        shown._progress.refresh()
        assert re.search(r"step 3: 3/4 episodes .* 2/20 steps", without_escapes(out.getvalue()))
        shown.episode_finished(2, make_trajectory())
        shown._progress.refresh()
        assert "step 3: update, publish" in without_escapes(out.getvalue())
        shown.pack_finished(5, 17)
        shown.episode_finished(3, make_trajectory())  # of a later step: it does not hide how far the update is
        shown._progress.refresh()
        assert re.search(r"step 3: update, 5/17 packs .* 2/20 steps", without_escapes(out.getvalue()).splitlines()[-1])
        shown.step_finished(2, METRICS, (KL,))
        shown.episode_finished(3, make_trajectory())
        shown._progress.refresh()
        assert re.search(r"step 4: 3/4 episodes .* 3/20 steps", without_escapes(out.getvalue()))
    text = without_escapes(out.getvalue())
    assert " s  starting [red]\\x1b[2J" in text
    assert "step 3/20  reward +0.250" in text
    assert "KL is 4 [red]\\x1b[2J. Try: go back to step 3." in text
    assert "\x1b[2J" not in out.getvalue()


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    console, out = terminal()
    with TrainingConsole(CONFIG, console) as shown:
        shown.step_finished(0, METRICS, OK)
    assert out.getvalue().startswith("step 1/20  reward +0.250")


def test_no_colour_is_written_where_none_is_wanted(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    console, out = terminal()
    with TrainingConsole(CONFIG, console) as shown:
        shown.step_finished(0, METRICS, (CLIPPING,))
    assert "clipping" in out.getvalue()
    assert re.search(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9\d|10\d)(?:;\d+)*m", out.getvalue()) is None


def test_a_log_says_a_verdict_in_full_when_it_begins_and_by_its_name_while_it_lasts():
    console, out = plain()
    with TrainingConsole(CONFIG, console) as shown:
        for step, verdicts in enumerate([OK, (CLIPPING,), (KL, CLIPPING), (KL, CLIPPING), OK, (CLIPPING,)]):
            shown.step_finished(step, METRICS, verdicts)
    lines = [re.sub(r".*  health ", "", line) for line in out.getvalue().splitlines()]
    in_full = "  warn clipping: the clip cuts off 41%. Try: lower a setting."
    assert lines == [
        "ok",
        "warn: clipping",
        in_full,
        "bad: KL +1",
        "  bad  KL: KL is 4 [red]\\x1b[2J. Try: go back to step 3.",
        "bad: KL +1",
        "ok",
        "warn: clipping",
        in_full,
    ]


def test_a_skipped_update_has_no_figures_of_its_own():
    console, out = plain()
    with TrainingConsole(CONFIG, console) as shown:
        skipped = {name: value for name, value in METRICS.items() if name not in ("kl", "ratio_mean")}
        shown.step_finished(0, skipped, OK)
    assert "  KL –  ratio –  " in out.getvalue()


def test_stages_before_an_episode_are_said_on_stderr_in_the_words_they_came(capsys):
    with StageConsole() as shown:
        shown.stage("playing 1 episode of [/nothing]\x1b[2J")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[0].endswith(" s  playing 1 episode of [/nothing]\\x1b[2J")


@pytest.fixture
def summary() -> Summary:
    made = Summary(Path("outputs/hello"))
    made.add({**METRICS, "reward": -0.1, "valid_call_rate": 0.5}, (CLIPPING,))
    last = {
        "alignment": 0.5,
        "parity_ratio_mean_abs_error": 9.9e-05,
        "server_restarts": 3.0,
        "sampler_restarts": 1.0,
        "active_fraction": 0.7,
    }
    made.add({**METRICS, **last}, (KL, CLIPPING))
    return made


def test_the_summary_shows_whether_it_learned_and_whether_its_numbers_can_be_trusted(summary, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    print_summary(summary, config=CONFIG, folder=Path("[red]outputs/trial"))
    first = capsys.readouterr().out.split("\n\n")[0]
    rows = dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in first.splitlines())
    assert rows["updates"] == "2 in 1m00s: 40 s collecting, 20 s learning"
    assert rows["groups complete"] == "4 of 40"
    restarts = "3 restarts of tool servers, 1 of the sampler"
    assert rows["lost to infrastructure"] == f"2 attempts, all rerun; {restarts}"
    assert rows["reward"] == "-0.100 → +0.250"
    assert rows["valid calls"] == "50% → 75%"
    # The worst of all steps, where it is about correctness.
    assert rows["sampler vs learner"].startswith("mean |ratio − 1| 9.9e-05, max |Δlogprob| 4.2e-05")
    assert rows["adapter"] == "[red]outputs/trial/adapter"


def test_the_summary_holds_the_figures_of_success_against_their_bars(summary, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    print_summary(summary, config=CONFIG, folder=Path("outputs/trial"))
    lines = [re.split(r"\s{2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
    assert ["✓", "mean ratio, worst step", "1", "0.8 – 1.2"] in lines
    assert ["✗", "token alignment, worst step", "50.00%", "100%"] in lines
    assert ["✓", "KL per token, worst step", "0.00123", "≤ 3 nats"] in lines
    assert ["✓", "active tokens, mean", "70.00%", "> 60%", "0% of groups without variance"] in lines
    due_later = "not due yet: after 2 steps"
    assert ["–", "valid tool calls, last step", "75.00%", "≥ 90% by step 50", due_later] in lines


def test_the_summary_tells_how_many_steps_were_healthy_and_the_gravest_verdict_in_words(summary, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    print_summary(summary, config=CONFIG, folder=Path("outputs/trial"))
    last = capsys.readouterr().out.split("\n\n")[2]
    assert last.splitlines() == [
        "health  0 ok, 1 warnings, 1 bad of 2 steps",
        "bad  KL: KL is 4 [red]\\x1b[2J. Try: go back to step 3. (1 step, last: step 2)",
        "warn clipping (2 steps, last: step 2)",
    ]


def test_updates_that_were_skipped_and_groups_left_out_are_in_the_summary(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    made = Summary(Path("outputs/hello"))
    unknown = ("kl", "ratio_mean", "alignment", "parity_ratio_mean_abs_error", "parity_logprob_max_abs_error")
    skipped = {name: value for name, value in METRICS.items() if name not in unknown}
    made.add({**skipped, "update_skipped": 1.0, "groups": 5.0, "groups_dropped": 3.0}, OK)
    print_summary(made, config=CONFIG, folder=Path("outputs/trial"))
    text = capsys.readouterr().out
    assert "0 in 30s: 20 s collecting, 10 s learning; 1 skipped" in text
    assert "2 of 40; 3 more were dropped (no variance)" in text
    assert "sampler vs learner" not in text


def test_the_summary_ends_with_a_command_that_can_be_pasted(summary, capsys):
    folder = Path("out [red] puts") / ("x" * 80)
    print_summary(summary, config=CONFIG, folder=folder)
    last = capsys.readouterr().out.splitlines()[-1]
    assert (
        last == f"Next: mcprl try 'out [red] puts/{'x' * 80}/config.yaml' --adapter 'out [red] puts/{'x' * 80}/adapter'"
    )


def test_an_adapter_of_skyrl_is_tried_with_the_engine_that_can_load_it(summary, capsys):
    config = CONFIG.model_copy(update={"engine": "skyrl"})
    print_summary(summary, config=config, folder=Path("outputs/a"))
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "Next: mcprl try outputs/a/config.yaml --adapter outputs/a/adapter --set engine=transformers"
    # `mcprl runs show` says the same of the run later.
    past = PastRun(
        path=Path("outputs/a"),
        state=RunStatus.FINISHED,
        started=0.0,
        changed=0.0,
        files={"adapter": 1},
        config={"engine": "skyrl"},
    )
    assert next_command(past) == "mcprl try outputs/a/config.yaml --adapter outputs/a/adapter --set engine=transformers"


def test_a_run_that_trains_all_weights_names_the_model_it_left(summary, capsys):
    config = CONFIG.model_copy(update={"learner": CONFIG.learner.model_copy(update={"tuning": "full"})})
    print_summary(summary, config=config, folder=Path("/runs/trial"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "Next: mcprl try /runs/trial/config.yaml --set model.path=/runs/trial/model"
    assert any(line.split() == ["model", "/runs/trial/model"] for line in lines)


def test_the_closing_words_do_without_metrics_that_were_lost(capsys):
    summary = Summary(Path("outputs/hello"))
    summary.add({})
    print_summary(summary, config=CONFIG, folder=Path("outputs/trial"))
    printed = capsys.readouterr().out
    assert "updates" in printed
    assert "reward" not in printed

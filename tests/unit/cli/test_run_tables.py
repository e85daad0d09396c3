"""Runs as a terminal shows them: a line each, or one in full."""
# R28

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console, Group

from mcprl.cli.runs import next_command, run_details, run_list
from mcprl.runs.checkpoints import Checkpoint, Damaged
from mcprl.runs.past_runs import PastRun, RunStatus
from mcprl.verdicts import Severity, Verdict

NOW = 1.7e9
RUN = PastRun(
    path=Path("outputs/hello"),
    state=RunStatus.STOPPED,
    started=NOW - 7000,
    changed=NOW - 200,
    files={"checkpoints": 3_000_000, "config.yaml": 2000},
    config={"name": "hello", "seed": 7, "model": {"path": "some/model"}, "training": {"steps": 20}},
    metrics=tuple(
        {"step": n, "reward": reward, "success_rate": n / 4, "weights_version": n + 1.0, "kl": 0.01, "step_s": 30.0}
        for n, reward in enumerate((0.1, 0.5, 0.4))
    ),
    verdicts=(Verdict(severity=Severity.WARN, name="clipping", what="the clip cuts off much", fix="slow down"),),
    journaled=4,
)
HOSTILE = "\x1b[2J[red]x[/nothing]"


def printed(parts, *, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(Group(*parts), crop=False)
    return console.file.getvalue()


def shown(parts, *, width: int = 80) -> str:
    text = printed(parts, width=width)
    assert all(len(line) <= width for line in text.splitlines())
    return "\n".join(line.rstrip() for line in text.splitlines())


def test_a_run_is_a_line_with_state_steps_rewards_age_and_size():
    lines = shown(run_list([RUN], NOW)).splitlines()
    assert lines[0].split() == ["run", "state", "steps", "reward", "changed", "size"]
    assert " ".join(lines[1].split()) == "hello stopped 3/20 +0.10 → +0.40 3m20s ago 3.0 MB"
    assert lines[2:] == ["", "Resume with:", "  mcprl resume outputs/hello"]


def test_a_command_stays_one_line_so_that_it_can_be_copied():
    run = replace(RUN, path=Path("far/" * 30) / "hello")
    for renderable in (run_list([run], NOW), run_details(run, [], now=NOW)):
        assert f"mcprl resume {run.path}\n" in printed(renderable)


def test_only_what_stopped_is_offered_to_be_resumed():
    ended_early = (RunStatus.STOPPED, RunStatus.FAILED, RunStatus.INTERRUPTED)
    others = [replace(RUN, state=state) for state in RunStatus if state not in ended_early]
    assert "resume" not in shown(run_list(others, NOW))


def test_a_run_that_cannot_be_read_says_why_below():
    run = replace(RUN, state=RunStatus.UNREADABLE, metrics=(), config={}, why="config.yaml is missing")
    text = shown(run_list([run], NOW))
    assert "0/?" in text
    assert "hello cannot be read: config.yaml is missing" in text


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_numbers_never_wrap(width):
    runs = [replace(RUN, path=Path(f"outputs/{'long-' * n}name")) for n in range(6)]
    text = shown(run_list(runs, NOW), width=width)
    assert text.count("+0.10 → +0.40") == text.count("3.0 MB") == 6


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(1, "1s ago"), (119, "1m59s ago"), (7199, "1h59m ago"), (90_000, "1d01h ago")],
)
def test_ages_are_in_their_two_largest_units(seconds, words):
    assert words in shown(run_list([replace(RUN, changed=NOW - seconds)], NOW))


def test_details_have_where_the_run_stands_and_what_to_do_next():
    found = [
        Checkpoint(step=2, path=Path("step-00002"), bytes=1_000_000),
        Damaged(path=Path("step-00003"), why="policy.safetensors does not match its checksum"),
    ]
    text = shown(run_details(RUN, found, now=NOW))
    for part in (
        "hello  stopped",
        "steps         3 of 20",
        "weights       version 3",
        "reward        +0.100 → +0.400, best +0.500 at step 2",
        "success rate  0% → 50%",
        "time          1m30s, 30.0 s per step",
        "journal       4 episodes finished after the last checkpoint",
        "✓  KL per token, mean",
        "verdicts on step 3\nwarn clipping: the clip cuts off much. Try: slow down.",
        "✓  step-00002  1.0 MB  checksums verified",
        "✗  step-00003          damaged: policy.safetensors does not match its checksum",
        "model.path      some/model",
        "checkpoints     3.0 MB",
        "Next: mcprl resume outputs/hello",
    ):
        assert part in text


def test_details_of_a_run_without_anything_are_short():
    run = replace(RUN, state=RunStatus.UNREADABLE, config={}, metrics=(), verdicts=(), journaled=0, why="no YAML")
    text = shown(run_details(run, [], now=NOW))
    assert "cannot be read: no YAML" in text
    assert not any(word in text for word in ("verdicts", "reward", "checkpoint ", "setting", "Next"))


def test_what_comes_next_depends_on_where_a_run_stands():
    def after(state: RunStatus, **files: int) -> str:
        return next_command(replace(RUN, path=Path("my runs/a"), state=state, files=files))

    assert after(RunStatus.STOPPED) == after(RunStatus.FAILED) == "mcprl resume 'my runs/a'"
    assert after(RunStatus.INTERRUPTED) == "mcprl resume 'my runs/a'"
    assert after(RunStatus.FINISHED, adapter=1) == "mcprl try 'my runs/a/config.yaml' --adapter 'my runs/a/adapter'"
    assert after(RunStatus.FINISHED, model=1).startswith("mcprl try 'my runs/a/config.yaml' --set 'model.path=/")
    assert after(RunStatus.RUNNING) == after(RunStatus.UNREADABLE) == ""


COLLAPSE = Verdict(severity=Severity.BAD, name="collapse", what="the reward fell from 0.9 to 0.1", fix="go back")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"state": RunStatus.FAILED, "why": "E-TOOL-010 it did not start"}, "failed: E-TOOL-010 it did not start"),
        ({"why": "stopped by SIGTERM after step 3"}, "stopped: stopped by SIGTERM after step 3"),
        ({"state": RunStatus.INTERRUPTED, "why": "its end is not recorded"}, "interrupted: its end is not recorded"),
        (
            {"state": RunStatus.FINISHED, "verdicts": (COLLAPSE,)},
            "finished, but its last step was bad: the reward fell from 0.9 to 0.1",
        ),
    ],
    ids=["failed", "stopped", "killed", "collapsed"],
)
def test_list_and_details_say_why_a_run_ended(change, said):
    run = replace(RUN, **change)
    assert f"\nhello {said}\n" in shown(run_list([run], NOW)) + "\n"
    assert f"\n{said}\n" in shown(run_details(run, [], now=NOW))


def test_words_from_files_neither_command_the_terminal_nor_are_markup():
    run = replace(
        RUN,
        path=Path(f"outputs/{HOSTILE.replace('/', '')}"),
        config={"name": HOSTILE, "model": {"path": HOSTILE}, HOSTILE: HOSTILE},
        files={HOSTILE: 1},
        state=RunStatus.UNREADABLE,
        why=HOSTILE,
    )
    damaged = Damaged(path=Path("step-\x1b"), why=HOSTILE)
    for renderable in (run_list([run], NOW), run_details(run, [damaged], now=NOW)):
        text = shown(renderable, width=200)
        assert "\x1b" not in text
        assert "\\x1b[2J[red]x[" in text

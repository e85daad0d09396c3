"""What trackers are told: without secrets, whatever a policy wrote, and with times that add up."""
# R28

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from told_runs import episode, make_config, make_folder

from mcprl.errors import Fault
from mcprl.records import FinishReason, Observation, Source, ToolCall, Turn
from mcprl.secrets import SECRETS
from mcprl.tracking.reports import (
    CallReport,
    EpisodeReport,
    EpisodesOfSteps,
    TurnReport,
    episode_report,
    run_started,
    step_report,
    times_of,
)
from mcprl.tracking.wandb import choose_episodes
from mcprl.verdicts import Severity, Verdict

SECRET = "sk-tracked-8c1f2e7d9a4b"


@pytest.fixture(autouse=True, scope="module")
def known_secret():
    SECRETS.add("TRACKED_KEY", SECRET)


def turn(*calls: ToolCall, observations: tuple[Observation, ...] = (), text: str = "") -> Turn:
    return Turn(
        text=text,
        sampled_ids=(1,),
        finish=FinishReason.STOP,
        weights_version=0,
        calls=calls,
        observations=observations,
    )


def test_no_text_of_an_episode_shows_a_secret():
    call = ToolCall(name="find", arguments={"key": SECRET, SECRET: ["a", SECRET]})
    seen = Observation(tool="find", server="s", text=f"you sent {SECRET}")
    report = episode_report(episode(turns=(turn(call, observations=(seen,), text=f"I know {SECRET}"),)), 10.0)
    assert SECRET not in repr(report)
    assert repr(report).count("[redacted TRACKED_KEY]") == 5


def test_no_verdict_and_no_setting_shows_a_secret(tmp_path):
    verdict = Verdict(severity=Severity.BAD, name="n", what=f"the server said {SECRET}", fix=f"use {SECRET}")
    assert SECRET not in repr(step_report(0, {}, [verdict]))
    folder = make_folder(tmp_path)
    config = make_config(folder, tracker=f"{folder / SECRET}.py:Mine")
    assert SECRET not in repr(run_started(config, folder).config)


def test_half_a_character_becomes_one_that_can_be_sent():
    call = ToolCall(name="find", arguments={"who\ud800": ["\udfff"]})
    report = episode_report(episode(turns=(turn(call, text="a\ud83d"),)), 10.0)
    assert report.turns[0].text == "a\ufffd"
    assert report.turns[0].calls[0].arguments == {"who\ufffd": ["\ufffd"]}


def test_a_call_tells_what_went_wrong_and_what_the_tool_really_got():
    calls = [ToolCall(name=name, arguments={"n": 1}) for name in ("fine", "wrong", "injected", "open")]
    seen = (
        Observation(tool="fine", server="s", text="1", latency_s=0.5, arguments={"number": 1}),
        Observation(tool="wrong", server="s", text="no", fault=Fault.POLICY),
        Observation(tool="injected", server="s", text="no", source=Source.INJECTED),
    )
    (told,) = episode_report(episode(turns=(turn(*calls, observations=seen),)), 10.0).turns
    assert [call.problem for call in told.calls] == [
        None,
        "policy",
        "injected",
        ("the episode ended before the call returned"),
    ]
    assert (told.calls[0].arguments, told.calls[0].latency_s) == ({"number": 1}, 0.5)
    assert told.calls[3].result is None


def test_that_all_is_well_is_not_told_as_a_verdict():
    fine = Verdict(severity=Severity.OK, name="kl", what="small", fix="")
    assert step_report(1, {"reward": 1.0}, [fine]).verdicts == ()


def test_a_conversation_reads_from_top_to_bottom():
    report = episode_report(episode(), 10.0)
    assert report.conversation.splitlines()[1:] == ["→ find_person: Ana: Lima", "Lima."]
    assert pickle.loads(pickle.dumps(report)) == report


def test_trackers_count_steps_from_1_as_the_console_does():
    assert (step_report(0, {}, []).step, episode_report(episode(step=0), 1.0).step) == (1, 1)


def test_episodes_of_a_step_that_was_collected_ahead_wait_for_it():
    waiting = EpisodesOfSteps()
    for step, member in ((1, 0), (0, 1), (0, 0), (1, 1)):
        waiting.add(episode_report(episode(step, member), 1.0))
    assert [(e.step, e.member) for e in waiting.take(1)] == [(1, 0), (1, 1)]
    assert [(e.step, e.member) for e in waiting.take(2)] == [(2, 0), (2, 1)]
    assert waiting.take(1) == []


def test_the_best_and_the_worst_episodes_are_shown():
    reports = [
        episode_report(episode(member=member, reward=reward), 1.0) for member, reward in enumerate((3, 1, 5, 2, 4))
    ]
    assert [e.reward for e in choose_episodes(reports, 3)] == [5, 1, 4]
    assert len(choose_episodes(reports[:2], 4)) == 2


seconds = st.floats(0, 1e4, allow_nan=False)
made_turns = st.lists(st.tuples(st.integers(0, 500), st.lists(seconds, max_size=4)), max_size=6)


@given(turns=made_turns, duration_s=seconds, ended_at=st.floats(1e9, 2e9))
def test_turns_and_calls_follow_each_other_inside_of_their_episode(turns, duration_s, ended_at):
    report = EpisodeReport(
        task_id="t", step=0, member=0, attempt=0, reward=0.0, reward_parts={}, stop="answered",
        tokens=1, duration_s=duration_s, ended_at=ended_at,
        turns=tuple(
            TurnReport(
                text="", tokens=tokens, finish="stop", weights_version=0,
                calls=tuple(CallReport(tool="t", arguments={}, latency_s=latency) for latency in latencies),
            )
            for tokens, latencies in turns
        ),
    )  # fmt: skip
    whole, told = times_of(report)
    tolerance = 1e-3
    assert whole.end == ended_at
    assert abs(whole.end - whole.start - duration_s) < tolerance
    now = whole.start
    for one in told:
        assert one.whole.start == now
        assert all(now <= call.start <= call.end <= one.whole.end for call in one.calls)
        assert len({call.start for call in one.calls}) <= 1
        now = one.whole.end
    assert now <= whole.end + tolerance


def test_where_calls_fit_into_the_episode_they_keep_their_true_length():
    whole, (first, second) = times_of(episode_report(episode(duration_s=2.25), 100.0))
    assert whole.start == 97.75
    # Two seconds of sampling, three quarters of the tokens in the first turn.
    assert (first.whole.start, first.whole.end) == (97.75, 99.5)
    assert (first.calls[0].start, first.calls[0].end) == (99.25, 99.5)
    assert (second.whole.start, second.whole.end) == (99.5, 100.0)


def test_a_run_is_named_after_its_folder(tmp_path):
    folder = make_folder(tmp_path)
    started = run_started(make_config(folder), folder)
    assert (started.name, started.folder, started.tasks) == ("told", folder, Path(tmp_path / "tasks.jsonl"))
    assert started.config["training"]["steps"] == 100

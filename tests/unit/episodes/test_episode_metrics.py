"""The metrics of a step, for groups small enough to count by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from staged_episodes import call, made_group, made_trajectory, made_turn

from mcprl.episodes import episode_metrics
from mcprl.records import LostEpisode, Source, StopReason

ANSWER_ONLY = {"answer": 1.0, "calls": 0.5}
NOTHING = {"answer": 0.0, "calls": 0.0}
STATE_ONLY = {"state": 0.5}


def lost(member: int) -> LostEpisode:
    return LostEpisode(task_id="a", member=member, attempt=0, code="E-TOOL-011", reason="gone")


@pytest.fixture
def groups():
    two_calls = made_turn((call("x"), True), (call("y"), False), latency_s=0.5)
    one_call = made_turn((call("x"), True), latency_s=2.0)
    injected = made_turn((call("x"), None))
    answer = made_turn()
    return [
        made_group(
            "a",
            made_trajectory("a", 0, turns=[two_calls, answer], reward=1.5, parts=ANSWER_ONLY),
            made_trajectory("a", 1, turns=[answer], reward=0.5, parts=NOTHING, context=5),
            lost=[lost(0), lost(0), lost(1)],
        ),
        made_group(
            "b",
            made_trajectory(
                "b", 0, turns=[injected, one_call], reward=0.1, parts=STATE_ONLY, stop=StopReason.TURN_LIMIT
            ),
            made_trajectory("b", 1, turns=[answer], reward=0.1, parts=STATE_ONLY, stop=StopReason.CUT_BY_LENGTH),
        ),
    ]


def test_every_figure_is_the_one_counted_by_hand(groups):
    first, *others = groups[0].trajectories
    groups[0] = replace(groups[0], trajectories=(replace(first, duration_s=4.0), *others))
    assert episode_metrics(groups, 2.0) == pytest.approx(
        {
            "reward": (1.5 + 0.5 + 0.1 + 0.1) / 4,
            "success_rate": 1 / 4,
            "calls": 4,
            "calls_injected": 1,
            "valid_call_rate": 2 / 3,
            "turns_with_call_rate": 3 / 6,
            "turns_per_episode": 6 / 4,
            "groups": 2,
            "groups_without_variance": 1,
            "episodes": 4,
            "episodes_lost_to_infrastructure": 3,
            "lost_E-TOOL-011": 3,
            "sampled_tokens": 6,
            "sampled_tokens_per_second": 3.0,
            "context_tokens": 3 + 5 + 3 + 3,
            "tool_latency_mean_s": (0.5 + 0.5 + 2.0) / 3,
            "turn_without_tools_mean_s": (4.0 - 0.5 - 2.0) / 6,
            "collect_s": 2.0,
            "reward_part_answer": 0.5,
            "reward_part_calls": 0.25,
            "reward_part_state": 0.5,
            "stop_answered": 0.5,
            "stop_cut_by_length": 0.25,
            "stop_turn_limit": 0.25,
            "stop_context_limit": 0.0,
            "stop_deadline": 0.0,
            "stop_caused_fault": 0.0,
            "stop_agent_ended": 0.0,
        }
    )


def test_lost_attempts_are_counted_and_change_no_mean(groups):
    without = [made_group("a", *groups[0].trajectories), groups[1]]
    calm, troubled = episode_metrics(without, 2.0), episode_metrics(groups, 2.0)
    assert calm.pop("episodes_lost_to_infrastructure") == 0.0
    assert troubled.pop("episodes_lost_to_infrastructure") == troubled.pop("lost_E-TOOL-011") == 3.0
    assert calm == troubled


def test_equal_rewards_that_binary_fractions_cannot_hold_have_no_variance():
    trajectories = [made_trajectory("a", n, turns=[made_turn()], reward=0.1) for n in range(7)]
    assert episode_metrics([made_group("a", *trajectories)], 1.0)["groups_without_variance"] == 1.0


def test_a_step_without_any_call_has_a_rate_of_zero_and_not_an_error():
    trajectories = [made_trajectory("a", n, turns=[made_turn()]) for n in range(2)]
    found = episode_metrics([made_group("a", *trajectories)], 1.0)
    assert (found["calls"], found["valid_call_rate"], found["tool_latency_mean_s"]) == (0.0, 0.0, 0.0)


def test_a_step_of_nothing_but_injected_failures_says_nothing_about_the_policys_calls():
    trajectories = [made_trajectory("a", n, turns=[made_turn((call("x"), None))]) for n in range(2)]
    found = episode_metrics([made_group("a", *trajectories)], 1.0)
    assert (found["calls"], found["calls_injected"]) == (2.0, 2.0)
    assert (found["valid_call_rate"], found["tool_latency_mean_s"]) == (0.0, 0.0)


def test_the_share_of_recorded_calls_is_counted_per_tool():
    turn = made_turn((call("quote"), True), (call("quote"), True), (call("news"), True), (call("post"), True))
    sources = (Source.CASSETTE, Source.MISSING, Source.MISSING, Source.LIVE)
    seen = tuple(replace(one, source=source) for one, source in zip(turn.observations, sources, strict=True))
    trajectories = [made_trajectory("a", member, turns=[replace(turn, observations=seen)]) for member in (0, 1)]
    found = episode_metrics([made_group("a", *trajectories)], 1.0)
    assert found["covered_calls"] == pytest.approx(1 / 3)
    by_tool = {name: share for name, share in found.items() if name.startswith("covered_calls_")}
    assert by_tool == {"covered_calls_quote": 0.5, "covered_calls_news": 0.0}

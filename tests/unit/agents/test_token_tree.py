"""Histories rewritten in any way: every sampled token is recorded once, after exactly the tokens it was sampled on."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcprl.records import FinishReason, StopReason, Trajectory, Turn
from mcprl.samplers import Completion
from mcprl_agents.session import TokenTree

TOKENS = st.lists(st.integers(1, 3), min_size=1, max_size=6)  # few, so that conversations coincide by chance


@st.composite
def rewritten(draw: st.DrawFn) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Turns, each with its prompt: an earlier conversation continued, cut anywhere, edited in the middle, asked again
    as it was (a retry, or a second sub-agent), or a new one."""
    turns: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for _ in range(draw(st.integers(1, 12))):
        base: list[int] = []
        if turns:
            prompt, sampled = draw(st.sampled_from(turns))
            base = list(draw(st.sampled_from([prompt + sampled, prompt, ()])))
        match draw(st.sampled_from(["continue", "continue", "cut", "edit", "again"])):
            case "continue":
                base += draw(TOKENS)
            case "cut":
                base = base[: draw(st.integers(0, len(base)))] + draw(TOKENS)
            case "edit":
                place = draw(st.integers(0, len(base)))
                base = base[:place] + draw(TOKENS) + base[place + draw(st.integers(0, 3)) :]
            case _:
                base = base or draw(TOKENS)
        turns.append((tuple(base), tuple(draw(TOKENS))))
    return turns


def recorded(turns: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> Trajectory:
    tree = TokenTree()
    for number, (prompt, sampled) in enumerate(turns):
        logprobs, versions, no = (-0.5 - number,) * len(sampled), (0,) * len(sampled), (False,) * len(sampled)
        completion = Completion(
            token_ids=sampled, logprobs=logprobs, finish=FinishReason.STOP, weights_versions=versions
        )
        tree.add(prompt, completion, number, forced=no, fixed=no)
    return Trajectory(
        **tree.columns.named(),
        forks=tuple(tree.forks),
        task_id="task",
        step=0,
        member=0,
        attempt=0,
        temperature=1.0,
        turns=tuple(
            Turn(text="", sampled_ids=sampled, finish=FinishReason.STOP, weights_version=0) for _, sampled in turns
        ),
        stop=StopReason.ANSWERED,
        reward=0.0,
        reward_parts={},
    )


@given(rewritten())
def test_every_sampled_token_is_there_once_after_the_tokens_it_was_sampled_on(turns):
    check(turns, recorded(turns))


@pytest.mark.full
@settings(max_examples=10_000, suppress_health_check=list(HealthCheck), deadline=None)
@given(rewritten())
def test_that_holds_for_ten_thousand_histories(turns):
    check(turns, recorded(turns))


def check(turns: list[tuple[tuple[int, ...], tuple[int, ...]]], trajectory: Trajectory) -> None:
    sampled = [place for place, own in enumerate(trajectory.sampled) if own]
    assert [trajectory.token_ids[place] for place in sampled] == [token for _, own in turns for token in own]
    assert [trajectory.turn_index[place] for place in sampled] == [n for n, (_, own) in enumerate(turns) for _ in own]
    branches = trajectory.branches
    assert {place for branch in branches for place in branch} == set(range(len(trajectory.token_ids)))
    for number, (prompt, own) in enumerate(turns):
        places = [place for place in sampled if trajectory.turn_index[place] == number]
        branch = next(branch for branch in branches if places[-1] in branch)
        begin = branch.index(places[0])
        assert tuple(trajectory.token_ids[place] for place in branch[:begin]) == prompt
        assert list(branch[begin : begin + len(own)]) == places


def test_a_history_that_only_grows_is_one_branch():
    trajectory = recorded([((1, 2), (3, 4)), ((1, 2, 3, 4, 5), (6,)), ((1, 2, 3, 4, 5, 6, 7, 8), (9,))])
    assert trajectory.forks == ()
    assert trajectory.token_ids == (1, 2, 3, 4, 5, 6, 7, 8, 9)


def test_equal_requests_of_two_sub_agents_are_two_samples():
    trajectory = recorded([((1, 2), (3,)), ((1, 2), (3,))])
    assert (trajectory.token_ids, trajectory.forks) == ((1, 2, 3, 3), ((3, 1),))
    assert len(trajectory.branches) == 2

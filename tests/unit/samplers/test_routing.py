"""Which replica gets a turn: the one that knows its prefix, unless that one is too busy."""

from __future__ import annotations

import random
from contextlib import ExitStack

from hypothesis import given
from hypothesis import strategies as st

from mcprl.samplers.routing import Router

PREAMBLE = tuple(range(64))


def prompt(task: int, *more: int) -> tuple[int, ...]:
    return (*PREAMBLE, *range(1000 * task, 1000 * task + 96), *more)


def test_the_members_of_a_group_share_a_replica_and_groups_are_spread():
    router = Router(replicas=4, slack=8)
    with ExitStack() as in_flight:
        chosen = [
            [in_flight.enter_context(router.turn(prompt(task), among=range(4))) for _ in range(8)]
            for task in range(1, 9)
        ]
        assert router.in_flight == (16, 16, 16, 16)
    assert [len(set(group)) for group in chosen] == [1] * 8
    assert router.in_flight == (0, 0, 0, 0)


def test_the_next_turn_of_an_episode_goes_where_its_first_turns_are_cached():
    router = Router(replicas=3, slack=8)
    first: list[int] = []
    for episode in range(1, 7):
        with router.turn(prompt(episode), among=range(3)) as chosen:
            first.append(chosen)
        with router.turn(prompt(episode, *range(7000, 7100)), among=range(3)) as chosen:
            assert chosen == first[-1]


def test_a_replica_that_is_a_group_ahead_gets_nothing_even_if_it_knows_the_prompt():
    router = Router(replicas=2, slack=2)
    with router.turn(prompt(1), among=(0, 1)) as a, router.turn(prompt(1), among=(0, 1)) as b:
        assert (a, b) == (0, 0)
        with router.turn(prompt(1), among=(0, 1)) as c:
            assert c == 1


def test_a_replica_that_lost_its_cache_is_no_longer_preferred():
    router = Router(replicas=2, slack=8)
    with router.turn(prompt(1), among=(1,)):
        pass
    with router.turn(prompt(1), among=(0, 1)) as chosen:
        assert chosen == 1
    router.forget(1)
    with router.turn(prompt(2), among=(0, 1)) as chosen:
        assert chosen == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 300), st.booleans()), max_size=60), st.integers(1, 6))
def test_no_replica_falls_behind_by_more_than_the_slack(turns, slack):
    """Turns begin and end in any order: whoever gets one had fewer than `slack` turns more than the least busy one."""
    router, draw = Router(replicas=3, slack=slack), random.Random(0)
    open_turns: list[ExitStack] = []
    for task, length, ends in turns:
        before = router.in_flight
        stack = ExitStack()
        chosen = stack.enter_context(router.turn(prompt(task, *range(length)), among=range(3)))
        assert before[chosen] < min(before) + slack
        open_turns.append(stack)
        if ends:
            open_turns.pop(draw.randrange(len(open_turns))).close()
    for stack in open_turns:
        stack.close()
    assert router.in_flight == (0, 0, 0)

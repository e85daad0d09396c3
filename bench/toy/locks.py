"""A toy task in several turns: locks, and the tokens that open them.

The policy sees the name of a lock and samples as many tokens as the lock takes, of the whole vocabulary. If they open
it, the turn pays and the next lock shows; if not, it costs a little and the same lock shows again. An episode ends by
itself behind the last lock, and is cut off after three turns wherever it stands.

Locks differ in how many tokens open them, in what they pay and in what lies behind them, so it is worth more to stand
before some than before others. The way that pays most at once is not always the best: see the fork.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

__all__ = [
    "BEGIN",
    "LOCKS",
    "MAX_TURNS",
    "OPENED",
    "SHUT",
    "TASKS",
    "VOCABULARY",
    "WRONG_COSTS",
    "Lock",
    "Way",
    "best_return",
    "cue",
]

VOCABULARY = 32
BEGIN, OPENED, SHUT = range(3)
MAX_TURNS = 3
# Without it a critic that counts what comes behind the limit would find a lock worth as much after a failure as before.
WRONG_COSTS = 0.2


@dataclass(frozen=True, slots=True)
class Way:
    """What opens a lock: for each token of the turn those that fit. What it pays, and the lock behind (None: the end).

    Way(keys=(frozenset({4, 9}),), pays=0.5, leads_to="hall")
    """

    keys: tuple[frozenset[int], ...]
    pays: float
    leads_to: str | None


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock with the ways to open it, of which no two have a key in common.

    Lock("safe", (Way(keys=(frozenset({5, 11, 30}),), pays=1.5, leads_to=None),))
    """

    name: str
    ways: tuple[Way, ...]

    @property
    def tokens(self) -> int:
        """How many a turn takes."""
        return len(self.ways[0].keys)

    def answer(self, ids: Sequence[int]) -> tuple[float, str | None]:
        """What these tokens earn, and the lock that the policy stands before afterwards."""
        for way in self.ways:
            if all(token in fitting for token, fitting in zip(ids, way.keys, strict=True)):
                return way.pays, way.leads_to
        return -WRONG_COSTS, self.name


def _lock(name: str, *ways: tuple[Sequence[int], float, str | None]) -> Lock:
    """Ways are given as (how many tokens fit at each place of the turn, pay, next lock)."""
    deck = list(range(VOCABULARY))
    random.Random(name).shuffle(deck)  # the same keys in every run
    made: list[Way] = []
    for counts, pays, leads_to in ways:
        made.append(Way(tuple(frozenset(deck[:count]) for count in counts), pays, leads_to))
        del deck[: max(counts)]
    return Lock(name, tuple(made))


LOCKS = {
    lock.name: lock
    for lock in (
        _lock("gate", ([16], 0.5, "hall")),  # with all behind it four turns long: always cut off, at the chest
        _lock("hall", ([8], 0.5, "door")),
        _lock("door", ([4], 0.5, "chest")),
        _lock("chest", ([12, 12], 1.0, None)),
        _lock("fork", ([12], 0.5, "cellar"), ([6], 0.1, "treasury")),
        _lock("cellar", ([16], 0.2, None)),
        _lock("treasury", ([8], 1.2, None)),
        _lock("safe", ([4], 1.5, None)),
    )
}
TASKS = ("gate", "hall", "door", "fork", "cellar", "safe")


def cue(name: str) -> int:
    """The token that shows a lock."""
    return SHUT + 1 + list(LOCKS).index(name)


@cache
def best_return(name: str | None, turns: int = MAX_TURNS) -> float:
    """The most that can be earned from a lock on in so many turns: every choice of tokens, every turn after it."""
    if name is None or turns == 0:
        return 0.0
    lock = LOCKS[name]
    choices: Iterable[tuple[int, ...]] = product(range(VOCABULARY), repeat=lock.tokens)
    outcomes = {lock.answer(ids) for ids in choices}
    return max(pays + best_return(leads_to, turns - 1) for pays, leads_to in outcomes)

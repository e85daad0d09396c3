"""Chooses the replica for a turn: one that has cached the beginning of the prompt, unless that replica is too busy.

The turns of an episode share a prefix, and so do the episodes of a group. A replica keeps each prefix that it computes
in its cache, so a turn that is sent there costs only its new tokens. Sending all turns to one replica would leave the
others idle. Hence:

1. Replicas with at least `slack` more turns in flight than the least busy one are left out.
2. Among the others, the one that has seen the longest prefix of the prompt gets the turn.
3. If several have seen prefixes of the same length, the least busy one gets it.

If the slack is the group size, a whole group fits on one replica, and none gets more than a group ahead of another.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager

__all__ = ["Router"]

# Tokens per block. A prefix is known in whole blocks, so shorter ones than this are not worth a detour.
_BLOCK = 32
# Blocks that are remembered per replica: 2 million tokens, more than the cache of a GPU holds.
_REMEMBERED = 1 << 16


class Router:
    """Tracks which prompts each replica has seen and how many turns it has in flight.

    router = Router(replicas=2, slack=8)
    with router.turn(prompt_ids, among=(0, 1)) as chosen:     # 0
        ...                                                   # sample at that replica
    """

    def __init__(self, *, replicas: int, slack: int) -> None:
        self._slack = slack
        self._in_flight = [0] * replicas
        self._seen = [OrderedDict[int, None]() for _ in range(replicas)]

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Return the number of turns in flight per replica."""
        return tuple(self._in_flight)

    @contextmanager
    def turn(self, prompt_ids: tuple[int, ...], *, among: Collection[int]) -> Generator[int]:
        """Choose one of the replicas in `among` for a turn. The turn counts as in flight until the context exits."""
        blocks = list(_blocks(prompt_ids))
        chosen = self._choose(blocks, among)
        self._remember(chosen, blocks)
        self._in_flight[chosen] += 1
        try:
            yield chosen
        finally:
            self._in_flight[chosen] -= 1

    def forget(self, replica: int) -> None:
        """Forget what a replica has seen: it was restarted, or its cache was cleared."""
        self._seen[replica].clear()

    def _choose(self, blocks: list[int], among: Collection[int]) -> int:
        if len(among) == 1:
            return next(iter(among))
        least = min(self._in_flight[i] for i in among)
        free = [i for i in among if self._in_flight[i] < least + self._slack]
        return min(free, key=lambda i: (-self._known(i, blocks), self._in_flight[i], i))

    def _known(self, replica: int, blocks: list[int]) -> int:
        seen = self._seen[replica]
        return next((i for i, block in enumerate(blocks) if block not in seen), len(blocks))

    def _remember(self, replica: int, blocks: list[int]) -> None:
        seen = self._seen[replica]
        for block in reversed(blocks):  # so that the end of a prefix is forgotten before its beginning
            seen[block] = None
            seen.move_to_end(block)
        while len(seen) > _REMEMBERED:
            seen.popitem(last=False)


def _blocks(prompt_ids: tuple[int, ...]) -> Iterable[int]:
    """Yield a hash for each whole block of the prompt. It identifies the block and all blocks before it.

    >>> first, second = _blocks(tuple(range(70)))
    >>> [first] == list(_blocks(tuple(range(32))))
    True
    """
    before = 0
    for end in range(_BLOCK, len(prompt_ids) + 1, _BLOCK):
        before = hash((before, prompt_ids[end - _BLOCK : end]))
        yield before

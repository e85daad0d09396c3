"""Pairing the calls that a goal needs with those that were made, so that the gains of the pairs add up to the most.

`gains[i][j]` is what pairing needed call i with made call j brings, a whole number above 0, or None where they are
calls of different tools. Whole numbers, because sums of them are exact and ties are ties.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Gains", "pair_in_any_order", "pair_in_order"]

Gains = Sequence[Sequence[int | None]]


def pair_in_order(gains: Gains) -> list[tuple[int, int]]:
    """The best pairs (i, j) of which both members rise together.

    most[i][j] is the best sum for the first i needed and the first j made calls; the pairs are read off backwards.
    """
    made = len(gains[0]) if gains else 0
    most = [[0] * (made + 1) for _ in range(len(gains) + 1)]
    for i, row in enumerate(gains):
        for j, gain in enumerate(row):
            skipped = max(most[i][j + 1], most[i + 1][j])
            most[i + 1][j + 1] = skipped if gain is None else max(skipped, most[i][j] + gain)
    pairs: list[tuple[int, int]] = []
    i, j = len(gains), made
    while i and j:
        if most[i][j] == most[i - 1][j]:
            i -= 1
        elif most[i][j] == most[i][j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    return pairs[::-1]


def pair_in_any_order(gains: Gains) -> list[tuple[int, int]]:
    """The best pairs (i, j) in which no call stands twice: the assignment problem, by shortest augmenting paths.

    Each needed call also has a column of its own that brings nothing, so that it may stay unpaired. Potentials u and v
    keep every reduced cost at 0 or above, as in the Hungarian method.
    """
    needed, made = len(gains), len(gains[0]) if gains else 0
    # Costs are negated gains; None means that the pair does not exist, and its own empty column is always the better.
    forbidden = 1 + sum(max((gain or 0 for gain in row), default=0) for row in gains)
    costs = [
        [forbidden if gain is None else -gain for gain in row]
        + [0 if column == i else forbidden for column in range(needed)]
        for i, row in enumerate(gains)
    ]
    columns = made + needed
    u, v = [0] * needed, [0] * columns
    row_of: list[int | None] = [None] * columns
    for row in range(needed):
        _assign(row, costs, u, v, row_of)
    return sorted((i, j) for j, i in enumerate(row_of[:made]) if i is not None)


def _assign(row: int, costs: Sequence[Sequence[int]], u: list[int], v: list[int], row_of: list[int | None]) -> None:
    """Give `row` a column, moving rows that have one along the cheapest path to a free column."""
    columns = len(v)
    # What the cheapest path to each column costs, and the column before it on that path (−1: it starts at `row`).
    distance: list[int | None] = [None] * columns
    before = [-1] * columns
    visited: list[int] = []
    open_columns = set(range(columns))
    current, current_row, base = -1, row, 0
    while True:
        for j in open_columns:
            reached = base + costs[current_row][j] - u[current_row] - v[j]
            known = distance[j]
            if known is None or reached < known:
                distance[j], before[j] = reached, current
        current = min(open_columns, key=lambda j: (distance[j], j))
        open_columns.discard(current)
        base = distance[current] or 0
        next_row = row_of[current]
        if next_row is None:
            break
        visited.append(current)
        current_row = next_row
    u[row] += base
    for j in visited:
        slack = base - (distance[j] or 0)
        owner = row_of[j]
        assert owner is not None
        u[owner] += slack
        v[j] -= slack
    while current != -1:
        previous = before[current]
        row_of[current] = row if previous == -1 else row_of[previous]
        current = previous

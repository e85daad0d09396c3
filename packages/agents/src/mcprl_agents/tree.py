"""The token columns of an episode whose agent may rewrite history: each token once, with forks where turns diverge."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from mcprl.episodes.loop import TrajectoryColumns
from mcprl.samplers import Completion


@dataclass(slots=True)
class _Branch:
    ids: list[int]
    places: list[int]


@dataclass(slots=True)
class TokenTree:
    """Collects the turns of an episode in columns. The fork (6, 1) means that the token at 6 follows the one at 1.

    tree.add((1, 2), Completion(token_ids=(7, 9), …), 0, …)      # columns 1 2 7 9
    tree.add((1, 2, 7, 9, 3), Completion((8,), …), 1, …)         # columns 1 2 7 9 3 8
    tree.add((1, 2, 5), Completion((8,), …), 2, …)               # columns 1 2 7 9 3 8 5 8, forks ((6, 1),)
    """

    columns: TrajectoryColumns = field(default_factory=TrajectoryColumns)
    forks: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    _branches: list[_Branch] = field(default_factory=list[_Branch])

    def add(
        self,
        prompt_ids: Sequence[int],
        completion: Completion,
        turn: int,
        *,
        forced: Sequence[bool],
        fixed: Sequence[bool],
    ) -> None:
        """Append the part of the prompt that no branch shares, then the sampled tokens, which are never shared."""
        prompt, whole = list(prompt_ids), self.columns.token_ids
        shared, branch = 0, None
        for other in self._branches:
            length = _common(other.ids, prompt)
            if branch is None or (length, length == len(other.ids)) > (shared, shared == len(branch.ids)):
                shared, branch = length, other
        if branch is None or shared < len(branch.ids):
            branch = _Branch(*((branch.ids[:shared], branch.places[:shared]) if branch else ([], [])))
            self._branches.append(branch)
        first, after = len(whole), branch.places[-1] if branch.places else -1
        if after != first - 1:
            self.forks.append((first, after))
        self.columns.add_context(prompt[shared:])
        self.columns.add_turn(completion, turn, forced=forced, fixed=fixed)
        branch.ids += whole[first:]
        branch.places += range(first, len(whole))


def _common(one: list[int], other: list[int]) -> int:
    """Return the length of the common prefix."""
    most = min(len(one), len(other))
    if one[:most] == other[:most]:
        return most
    # Bisection, because comparing slices is much faster than comparing single tokens.
    return bisect_left(range(1, most + 1), True, key=lambda length: one[:length] != other[:length])

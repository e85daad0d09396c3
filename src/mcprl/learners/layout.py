"""How trajectories are laid out for one forward pass: as padded rows, or as a tree that holds each shared prefix once.

The prompt with its tool schemas is the same for all members of a group, and most of it for all tasks. In a tree it is
computed once, and the gradients of all that follow it add up in it: exactly what computing it again for each gives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

__all__ = ["Layout", "Node", "Tree", "lay_out_rows", "lay_out_tree"]

# A prefix this short is computed anew for each that has it: a node more costs attention more than so few tokens do.
_MIN_SHARED_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Node:
    """The packed tokens from `start` to `stop`, which follow those of the node `parent` (−1: nothing)."""

    start: int
    stop: int
    parent: int


@dataclass(frozen=True)
class Tree:
    """Nodes, each behind its parent. A token sees those of the nodes above its own, and those before it in its own.

    Two trajectories that share a prompt of 100 tokens, and have 20 and 30 of their own:

        Tree(nodes=(Node(0, 100, -1), Node(100, 120, 0), Node(120, 150, 0)))
    """

    nodes: tuple[Node, ...]

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """For each node those on the way to it from its root, itself last."""
        found: list[tuple[int, ...]] = []
        for place, node in enumerate(self.nodes):
            found.append((*(found[node.parent] if node.parent >= 0 else ()), place))
        return tuple(found)

    @cached_property
    def node_T(self) -> Tensor:
        """The node of each packed token."""
        lengths = torch.tensor([node.stop - node.start for node in self.nodes])
        return torch.repeat_interleave(torch.arange(len(self.nodes)), lengths)

    @cached_property
    def sees_XX(self) -> Tensor:
        """Whether the tokens of a node (first axis) see those of another (second): itself and the nodes above it."""
        sees_XX = torch.zeros(len(self.nodes), len(self.nodes), dtype=torch.bool)
        for place, path in enumerate(self.paths):
            sees_XX[place, list(path)] = True
        return sees_XX


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Token ids as the model is fed them, and where each token of each trajectory stands in the flattened [B · T].

    `position_BT` and `tree` are None for padded rows, whose positions and attention are the ordinary ones.
    """

    token_id_BT: Tensor
    position_BT: Tensor | None
    tree: Tree | None
    places: tuple[Tensor, ...]


def lay_out_rows(sequences: Sequence[Sequence[int]], device: torch.device) -> Layout:
    """One row each, padded on the right, which needs no mask: under causal attention nothing looks at what comes after.

    The pad id is 0: no real token ever attends to it or learns from it.
    """
    longest = max(len(ids) for ids in sequences)
    token_id_BT = torch.zeros(len(sequences), longest, dtype=torch.long)
    for row, ids in enumerate(sequences):
        token_id_BT[row, : len(ids)] = torch.tensor(ids)
    places = tuple(torch.arange(len(ids)) + row * longest for row, ids in enumerate(sequences))
    return Layout(token_id_BT=token_id_BT.to(device), position_BT=None, tree=None, places=places)


def lay_out_tree(sequences: Sequence[Sequence[int]], device: torch.device) -> Layout:
    """One row for all: each shared prefix once, followed by what comes after it."""
    growth = _Growth([tuple(ids) for ids in sequences])
    growth.grow(list(range(len(sequences))), start=0, parent=-1)
    places: list[Tensor] = []
    for ids, path in zip(sequences, growth.path_of, strict=True):
        parts = [torch.arange(growth.nodes[node].start, growth.nodes[node].stop) for node in path]
        place_T = torch.cat(parts)
        if len(place_T) != len(ids):
            raise AssertionError("a trajectory's way through the tree is not as long as the trajectory")
        places.append(place_T)
    return Layout(
        token_id_BT=torch.tensor([growth.token_ids], device=device),
        position_BT=torch.tensor([growth.positions], device=device),
        tree=Tree(nodes=tuple(growth.nodes)),
        places=tuple(places),
    )


@dataclass
class _Growth:
    """A tree while it grows. `path_of` are the nodes that make up each sequence."""

    sequences: list[tuple[int, ...]]
    nodes: list[Node] = field(default_factory=list[Node])
    token_ids: list[int] = field(default_factory=list[int])
    positions: list[int] = field(default_factory=list[int])
    path_of: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])

    def __post_init__(self) -> None:
        self.path_of = [()] * len(self.sequences)

    def grow(self, members: list[int], start: int, parent: int) -> None:
        """Lay down what follows token `start` of these sequences, which are the same up to there."""
        common = _common_length([self.sequences[i] for i in members])
        ended = [i for i in members if len(self.sequences[i]) == common]
        if len(members) == 1 or len(ended) == len(members) or common - start >= _MIN_SHARED_TOKENS:
            parent = self._add_node(members, start, common, parent)
            start = common
        elif ended:  # inside a prefix that is too short to be shared with those that go on
            self._add_node(ended, start, common, parent)
        branches: dict[int, list[int]] = defaultdict(list)
        for i in members:
            if i not in ended:
                branches[self.sequences[i][common]].append(i)
        for branch in branches.values():
            self.grow(branch, start, parent)

    def _add_node(self, members: list[int], start: int, stop: int, parent: int) -> int:
        if start == stop:
            return parent
        first = len(self.token_ids)
        self.token_ids.extend(self.sequences[members[0]][start:stop])
        self.positions.extend(range(start, stop))
        self.nodes.append(Node(first, len(self.token_ids), parent))
        for i in members:
            self.path_of[i] = (*self.path_of[i], len(self.nodes) - 1)
        return len(self.nodes) - 1


def _common_length(sequences: Sequence[tuple[int, ...]]) -> int:
    """How many first tokens all have in common: as many as the first and the last of them in dictionary order."""
    first, last = min(sequences), max(sequences)
    low, high = 0, min(len(first), len(last))
    while low < high:  # by halves, since slices are compared much faster than tokens one by one
        middle = (low + high + 1) // 2
        if first[low:middle] == last[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low

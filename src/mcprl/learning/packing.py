"""From trajectories to packs: rows or prefix trees, token logprobs from them, and the grammar's masks replayed.

`make_examples` gives one example per trajectory, `Packer` puts examples into packs, and `TokenScorer` computes the
logprob and entropy of each token without holding the logits of a whole pack.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from mcprl.errors import AlignmentError
from mcprl.learning.algorithms import inadmissible_tokens
from mcprl.records import Batch, Trajectory

if TYPE_CHECKING:
    # Only a type here: grammars bring a compiler, and a run that holds nothing to a grammar needs none.
    from mcprl.grammar.masks import Grammars

__all__ = [
    "Example",
    "Layout",
    "Node",
    "Pack",
    "Packer",
    "Replayer",
    "Targets",
    "TokenColumns",
    "TokenScorer",
    "Tree",
    "check_alignment",
    "first_non_finite",
    "lay_out_rows",
    "lay_out_tree",
    "make_examples",
    "make_pack",
    "plain_examples",
    "scored_tokens",
]


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


# Logits of a block take this many numbers: enough to keep the cores busy, little beside the model.
_BLOCK_NUMBERS = 1 << 23
# Instead of −inf: exp gives 0 just the same, and 0 times it is 0 and not NaN.
_NEVER = -1e30


class Targets(NamedTuple):
    """The tokens to score: ids, the temperatures they were sampled at, what could have been sampled instead.

    Targets(token_id_N=tensor([30, 31]), temperature_N=tensor([1.0, 1.0]), admissible_NW=None)     # None: anything
    """

    token_id_N: Tensor
    temperature_N: Tensor
    admissible_NW: Tensor | None


class TokenScorer(nn.Module):
    """The model's head, asked for single tokens. It shares its weight with the model.

    `entropy_gradient` says whether entropies are to be learned from; else they are only reported.
    """

    def __init__(self, weight_VD: nn.Parameter, *, entropy_gradient: bool) -> None:
        super().__init__()
        self.weight = weight_VD
        self.entropy_gradient = entropy_gradient

    def forward(self, hidden_ND: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
        """Logprob and entropy of each."""
        return cast(
            "tuple[Tensor, Tensor]",
            _ScoreTokens.apply(hidden_ND, self.weight, targets, self.entropy_gradient),  # pyright: ignore[reportUnknownMemberType]
        )


class _ScoreTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, targets: Targets, entropy_gradient: bool) -> Any:
        size, weight_dtype = len(hidden_ND), weight_VD.dtype
        weight_VD = weight_VD.to(hidden_ND.dtype)  # a trained head is kept in 32 bits and used as the model computes
        logprob_N = hidden_ND.new_empty(size, dtype=torch.float32)
        entropy_N = torch.empty_like(logprob_N)
        wants_hidden = ctx.needs_input_grad[0]
        slope_ND = torch.empty_like(hidden_ND) if wants_hidden else None
        entropy_slope_ND = torch.empty_like(hidden_ND) if wants_hidden and entropy_gradient else None
        for part in _blocks(size, len(weight_VD)):
            logit_NV, normaliser_N = _logits(hidden_ND, weight_VD, targets, part)
            token_id_N = targets.token_id_N[part]
            logprob_N[part] = logit_NV.gather(1, token_id_N[:, None]).squeeze(1) - normaliser_N
            share_NV = torch.exp(logit_NV - normaliser_N[:, None])
            entropy_N[part] = normaliser_N - (share_NV * logit_NV).sum(dim=1)
            scale_N1 = 1.0 / targets.temperature_N[part, None]
            if entropy_slope_ND is not None:
                # log p + H = logit − normaliser + entropy, a number for each token of the vocabulary
                surprise_NV = logit_NV.add_((entropy_N[part] - normaliser_N)[:, None]).mul_(share_NV)
                entropy_slope_ND[part] = (surprise_NV.to(weight_VD.dtype) @ weight_VD) * -scale_N1
            if slope_ND is not None:
                # 1 − p of the token itself, in 32 bits: for a token the policy is sure of, 16 bits would leave noise.
                share_NV.neg_().scatter_add_(1, token_id_N[:, None], torch.ones_like(share_NV[:, :1]))
                slope_ND[part] = (share_NV.to(weight_VD.dtype) @ weight_VD) * scale_N1
        ctx.save_for_backward(slope_ND, entropy_slope_ND, *((hidden_ND, weight_VD) if ctx.needs_input_grad[1] else ()))
        ctx.targets, ctx.weight_dtype = targets, weight_dtype
        return logprob_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad_logprob_N, grad_entropy_N = cast("tuple[Tensor, Tensor]", grads)
        slope_ND, entropy_slope_ND, *head = ctx.saved_tensors
        grad_hidden_ND = None
        if slope_ND is not None:
            grad_hidden_ND = slope_ND * grad_logprob_N[:, None]
            if entropy_slope_ND is not None:
                grad_hidden_ND += entropy_slope_ND * grad_entropy_N[:, None]
            grad_hidden_ND = grad_hidden_ND.to(slope_ND.dtype)
        grad_weight_VD = None
        if head:
            grad_entropy_N = grad_entropy_N if entropy_slope_ND is not None else torch.zeros_like(grad_entropy_N)
            grad_weight_VD = _weight_gradient(head[0], head[1], ctx.targets, grad_logprob_N, grad_entropy_N)
            grad_weight_VD = grad_weight_VD.to(ctx.weight_dtype)
        return grad_hidden_ND, grad_weight_VD, None, None


def _weight_gradient(
    hidden_ND: Tensor, weight_VD: Tensor, targets: Targets, grad_logprob_N: Tensor, grad_entropy_N: Tensor
) -> Tensor:
    grad_weight_VD = torch.zeros_like(weight_VD, dtype=torch.float32)
    for part in _blocks(len(hidden_ND), len(weight_VD)):
        logit_NV, normaliser_N = _logits(hidden_ND, weight_VD, targets, part)
        share_NV = torch.exp(logit_NV - normaliser_N[:, None])
        entropy_N = normaliser_N - (share_NV * logit_NV).sum(dim=1)
        surprise_NV = logit_NV.add_((entropy_N - normaliser_N)[:, None])
        upstream_N, entropy_upstream_N = grad_logprob_N[part], grad_entropy_N[part]
        grad_logit_NV = share_NV * -(upstream_N[:, None] + surprise_NV * entropy_upstream_N[:, None])
        grad_logit_NV.scatter_add_(1, targets.token_id_N[part, None], upstream_N[:, None])
        grad_logit_NV /= targets.temperature_N[part, None]
        grad_weight_VD += grad_logit_NV.to(hidden_ND.dtype).T @ hidden_ND[part]
    return grad_weight_VD


def _logits(hidden_ND: Tensor, weight_VD: Tensor, targets: Targets, part: slice) -> tuple[Tensor, Tensor]:
    """The logits of a block over what was admissible, and the logarithms of their sums of exponentials."""
    logit_NV = (hidden_ND[part] @ weight_VD.T).float()
    logit_NV /= targets.temperature_N[part, None]
    if targets.admissible_NW is not None:
        logit_NV.masked_fill_(inadmissible_tokens(targets.admissible_NW[part], logit_NV.shape[1]), _NEVER)
    return logit_NV, torch.logsumexp(logit_NV, dim=1)


def _blocks(size: int, vocabulary: int) -> list[slice]:
    rows = max(1, _BLOCK_NUMBERS // vocabulary)
    return [slice(first, first + rows) for first in range(0, size, rows)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenColumns:
    """What the objective knows of each scored token; float32, but for mask and version. None: it does not ask.

    Two sampled tokens of a good episode, the second with one text to choose from (masks text):

        sampled_logprob_N    [-0.3, -1.2]
        old_logprob_N        [-0.3, -1.2]      what ratios are against
        advantage_N          [0.71, 0.0]
        carries_loss_N       [True, False]
        weights_version_N    [3, 4]            of the weights that sampled it
        reference_logprob_N, old_value_N, return_N     None
    """

    sampled_logprob_N: Tensor
    old_logprob_N: Tensor
    advantage_N: Tensor
    carries_loss_N: Tensor
    weights_version_N: Tensor
    reference_logprob_N: Tensor | None = None
    old_value_N: Tensor | None = None
    return_N: Tensor | None = None

    @classmethod
    def joined(cls, parts: Sequence[TokenColumns], device: torch.device) -> TokenColumns:
        """The columns of several, one behind the other."""
        found: dict[str, Tensor | None] = {}
        for column in fields(cls):
            columns = [getattr(part, column.name) for part in parts]
            found[column.name] = None if columns[0] is None else torch.cat(columns).to(device)
        return cls(**found)  # pyright: ignore[reportArgumentType]

    def chosen(self, chosen_N: Tensor) -> TokenColumns:
        """The columns of those tokens only."""
        columns: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: c[chosen_N] for name, c in columns.items() if c is not None})


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One trajectory, where its scored tokens stand, and their columns."""

    trajectory: Trajectory
    scored: tuple[bool, ...]
    position_N: Tensor
    columns: TokenColumns

    @property
    def learnable_tokens(self) -> int:
        return int(self.columns.carries_loss_N.sum())

    @property
    def name(self) -> str:
        t = self.trajectory
        return f"task {t.task_id}, member {t.member} of step {t.step}"

    def on_tokens(self, value_N: Tensor) -> Tensor:
        """A number for each token of the trajectory, 0 where nothing was scored."""
        column_T = torch.zeros(len(self.scored))
        column_T[self.position_N] = value_N.detach().float().cpu()
        return column_T


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """Some trajectories, ready for one forward pass; N runs over their scored tokens.

    `before_N` is the place of the token that each is predicted from; places count over the flattened [B · T] of the
    layout.
    """

    layout: Layout
    before_N: Tensor
    sequence_N: Tensor
    targets: Targets
    columns: TokenColumns


def scored_tokens(trajectory: Trajectory, learnable: Sequence[bool]) -> tuple[bool, ...]:
    """Where the policy had a choice, or is to learn."""
    columns = zip(learnable, trajectory.sampled, trajectory.forced, strict=True)
    return tuple(learn or (sampled and not forced) for learn, sampled, forced in columns)


def make_examples(batch: Batch) -> list[Example]:
    """The examples of a batch, in the order of its trajectories."""
    readings = batch.readings
    examples: list[Example] = []
    for i, trajectory in enumerate(batch.trajectories):
        scored = scored_tokens(trajectory, batch.learnable[i])

        def column(values: Sequence[float], scored: tuple[bool, ...] = scored) -> Tensor:
            return torch.tensor([value for value, wanted in zip(values, scored, strict=True) if wanted])

        sampled_N = column(trajectory.logprobs)
        columns = TokenColumns(
            sampled_logprob_N=sampled_N,
            old_logprob_N=sampled_N if readings.logprobs is None else column(readings.logprobs[i]),
            advantage_N=column(batch.advantages[i]),
            carries_loss_N=column(batch.learnable[i]).bool(),
            weights_version_N=column(trajectory.weights_version).long(),
            reference_logprob_N=None if (c := readings.reference_logprobs) is None else column(c[i]),
            old_value_N=None if readings.values is None else column(readings.values[i]),
            return_N=None if batch.returns is None else column(batch.returns[i]),
        )
        examples.append(_example(trajectory, scored, columns))
    return examples


def plain_examples(trajectories: Sequence[Trajectory], scored: Sequence[tuple[bool, ...]]) -> list[Example]:
    """Trajectories to score or to imitate: the columns of an objective are 0, and all scored tokens carry loss."""
    examples: list[Example] = []
    for trajectory, mask in zip(trajectories, scored, strict=True):
        zero_N = torch.zeros(sum(mask))
        columns = TokenColumns(
            sampled_logprob_N=zero_N,
            old_logprob_N=zero_N,
            advantage_N=zero_N,
            carries_loss_N=torch.ones(len(zero_N), dtype=torch.bool),
            weights_version_N=zero_N.long(),
        )
        examples.append(_example(trajectory, mask, columns))
    return examples


def _example(trajectory: Trajectory, scored: tuple[bool, ...], columns: TokenColumns) -> Example:
    position_N = torch.tensor([position for position, wanted in enumerate(scored) if wanted], dtype=torch.long)
    if scored[0]:
        raise AlignmentError(
            f"task {trajectory.task_id}, member {trajectory.member}: the first token is marked as sampled, but "
            "nothing stands before it that could predict it",
            fix="report this with the trajectory: it is a fault in mcprl",
        )
    return Example(trajectory=trajectory, scored=scored, position_N=position_N, columns=columns)


def make_pack(examples: Sequence[Example], layout: Layout, admissible_NW: Tensor | None, device: torch.device) -> Pack:
    """Join examples that were laid out together."""
    placed = list(zip(examples, layout.places, strict=True))
    place_N = torch.cat([place_T[example.position_N] for example, place_T in placed]).to(device)
    temperatures = [torch.full((len(example.position_N),), example.trajectory.temperature) for example in examples]
    counts = torch.tensor([len(example.position_N) for example in examples])
    targets = Targets(
        # Read from the very tensor that the model is fed.
        token_id_N=layout.token_id_BT.flatten()[place_N],
        temperature_N=torch.cat(temperatures).to(device),
        admissible_NW=None if admissible_NW is None else admissible_NW.to(device),
    )
    return Pack(
        layout=layout,
        before_N=torch.cat([place_T[example.position_N - 1] for example, place_T in placed]).to(device),
        sequence_N=torch.repeat_interleave(torch.arange(len(examples)), counts).to(device),
        targets=targets,
        columns=TokenColumns.joined([example.columns for example in examples], device),
    )


def check_alignment(pack: Pack, examples: Sequence[Example]) -> float:
    """The share of tokens to score that are the tokens the sampler returned, turn by turn. Anything below 1 is raised.

    The two sides come by different ways: the learner's through the packed tensor, the sampler's from the untouched
    answers kept in each turn.
    """
    returned: list[int] = []
    for example in examples:
        trajectory = example.trajectory
        sampled_ids = [token for turn in trajectory.turns for token in turn.sampled_ids]
        own = [wanted for wanted, sampled in zip(example.scored, trajectory.sampled, strict=True) if sampled]
        if len(sampled_ids) != len(own):
            raise AlignmentError(
                f"{example.name}: {len(own)} tokens are marked as sampled, the sampler returned {len(sampled_ids)}",
                fix="report this with the trajectory: it is a fault in mcprl",
            )
        returned.extend(token for token, wanted in zip(sampled_ids, own, strict=True) if wanted)
    scored_N = pack.targets.token_id_N.cpu()
    returned_N = torch.tensor(returned, dtype=torch.long)
    same_length = scored_N.shape == returned_N.shape
    share = float((scored_N == returned_N).double().mean()) if same_length and returned else float(same_length)
    if share < 1.0:
        raise AlignmentError(
            f"only {share:.2%} of the tokens to learn from are the tokens that were sampled",
            fix="report this with the trajectories of the step: it is a fault in mcprl",
        )
    return share


def first_non_finite(examples: Sequence[Example]) -> str | None:
    """What is no number in the columns of examples, and in which episodes; None where all is well."""
    for column in fields(TokenColumns):
        spoilt = [
            example.name
            for example in examples
            if (column_N := getattr(example.columns, column.name)) is not None and not bool(column_N.isfinite().all())
        ]
        if spoilt:
            what = column.name.removesuffix("_N").replace("_", " ")
            return f"the {what} is not a finite number in {'; '.join(spoilt)}"
    return None


_EVERY_TOKEN = -1  # all 32 bits of an int32


class Replayer:
    """Replays turns, proves the masks that were recorded with them, and counts the seconds that it takes."""

    def __init__(self, grammars: Grammars | None) -> None:
        self._grammars = grammars
        self.spent_s = 0.0

    def admissible(self, trajectories: Sequence[Trajectory], scored: Sequence[Sequence[bool]]) -> Tensor | None:
        """The admissible tokens at each scored token, in order, as int32 words [N, W]; None: every token is.

        The rows of a trajectory without a grammar, beside one with a grammar, are all ones.
        """
        if all(t.grammar is None for t in trajectories):
            return None
        started = time.monotonic()
        grammars = self._required(trajectories)
        parts: list[Tensor] = []
        for trajectory, mask in zip(trajectories, scored, strict=True):
            if trajectory.grammar is None:
                words = -(-grammars.vocab_size // 32)
                parts.append(torch.full((sum(mask), words), _EVERY_TOKEN, dtype=torch.int32))
            else:
                parts.extend(_turn_parts(grammars, trajectory, trajectory.grammar, mask))
        admissible_NW = torch.cat(parts)
        self.spent_s += time.monotonic() - started
        return admissible_NW

    def _required(self, trajectories: Sequence[Trajectory]) -> Grammars:
        if self._grammars is None:
            held = next(t for t in trajectories if t.grammar is not None)
            raise AlignmentError(
                f"task {held.task_id}, member {held.member} was sampled under a grammar, and the learner has no "
                "grammars to replay it with: it would score another distribution than the one sampled from",
                fix="make the learner with the grammars of the model: mcprl.grammar.masks.load_grammars",
            )
        return self._grammars


def _turn_parts(grammars: Grammars, trajectory: Trajectory, grammar: str, mask: Sequence[bool]) -> list[Tensor]:
    """One part a turn: every turn began the grammar anew."""
    places = [place for place, sampled in enumerate(trajectory.sampled) if sampled]
    parts: list[Tensor] = []
    for number, turn in enumerate(trajectory.turns):
        own, places = places[: len(turn.sampled_ids)], places[len(turn.sampled_ids) :]
        replay = grammars.replay(grammar, trajectory.stop_token_ids, turn.sampled_ids)
        for name, replayed, column in (
            ("forced", replay.forced, trajectory.forced),
            ("fixed", replay.fixed, trajectory.fixed),
        ):
            recorded = tuple(column[place] for place in own)
            if recorded != replayed:
                raise AlignmentError(
                    f"task {trajectory.task_id}, member {trajectory.member}, turn {number}: {sum(recorded)} tokens "
                    f"were recorded as {name}, the replay of the grammar finds {sum(replayed)}, or others",
                    fix="report this with the trajectory: it is a fault in mcprl",
                )
        parts.append(replay.admissible[[index for index, place in enumerate(own) if mask[place]]])
    return parts


class Packer:
    """Makes packs of at most `microbatch` trajectories, in which a common prefix is laid out once or in each row."""

    def __init__(self, replayer: Replayer, device: torch.device, *, microbatch: int, share_prefix: bool) -> None:
        self._microbatch = microbatch
        self._share_prefix = share_prefix
        self._replayer = replayer
        self._device = device

    def divide(self, examples: Sequence[Example]) -> list[list[int]]:
        """Indices of examples that belong together: with the most in common, or, in rows, of similar length."""
        ids = [example.trajectory.token_ids for example in examples]
        likeness = ids if self._share_prefix else [(len(own),) for own in ids]
        order = sorted(range(len(examples)), key=likeness.__getitem__)
        size = self._microbatch
        return [order[first : first + size] for first in range(0, len(order), size)]

    def pack(self, examples: Sequence[Example]) -> Pack:
        trajectories = [example.trajectory for example in examples]
        lay_out = lay_out_tree if self._share_prefix else lay_out_rows
        return make_pack(
            examples,
            lay_out([t.token_ids for t in trajectories], self._device),
            self._replayer.admissible(trajectories, [example.scored for example in examples]),
            self._device,
        )

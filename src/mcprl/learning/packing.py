"""Examples (one per trajectory), packs of examples, and the policy that computes the logprobs of a pack.

`make_examples` converts the columns of a batch to tensors. `Packer` puts several examples into one forward pass.
`Policy` computes the logprob of every scored token and never holds the logits of a whole pack in memory.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from mcprl.errors import AlignmentError
from mcprl.learning.algorithms import inadmissible_tokens
from mcprl.learning.algorithms.objective import Scores, TokenColumns
from mcprl.learning.attention import MIN_SHARED_TOKENS, Layout, common_length, lay_out_rows, lay_out_tree
from mcprl.records import Batch, Trajectory

if TYPE_CHECKING:
    # For types only: this module imports the grammar compiler, which a run without grammars does not need.
    from mcprl.grammar.masks import Grammars

_REPORT = "report this bug in mcprl, with the trajectory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One trajectory, the positions of its scored tokens, and the columns of those tokens.

    `sequences` holds the token ids of each branch of the trajectory. A scored token is token `place_N` of branch
    `branch_N`, the first branch that contains it.
    """

    trajectory: Trajectory
    scored: tuple[bool, ...]
    position_N: Tensor
    sequences: tuple[tuple[int, ...], ...]
    branch_N: Tensor
    place_N: Tensor
    columns: TokenColumns

    @classmethod
    def of(cls, trajectory: Trajectory, scored: tuple[bool, ...], columns: TokenColumns) -> Example:
        position_N = torch.tensor([position for position, wanted in enumerate(scored) if wanted], dtype=torch.long)
        ids, sequences, branch_N, place_N = trajectory.token_ids, None, torch.zeros_like(position_N), position_N
        if trajectory.forks:
            branches = trajectory.branches
            sequences = tuple(tuple(ids[position] for position in branch) for branch in branches)
            first_T2 = torch.zeros(len(ids), 2, dtype=torch.long)
            for number, branch in reversed(list(enumerate(branches))):
                first_T2[list(branch)] = torch.stack([torch.full((len(branch),), number), torch.arange(len(branch))], 1)
            branch_N, place_N = first_T2[position_N].unbind(1)
        example = cls(
            trajectory=trajectory,
            scored=scored,
            position_N=position_N,
            sequences=sequences or (ids,),
            branch_N=branch_N,
            place_N=place_N,
            columns=columns,
        )
        if not bool((place_N > 0).all()):
            raise AlignmentError(
                f"{example.name}: the first token is marked as sampled, but there are no earlier tokens to predict "
                "it from",
                fix=_REPORT,
            )
        return example

    @property
    def learnable_tokens(self) -> int:
        return int(self.columns.carries_loss_N.sum())

    @property
    def name(self) -> str:
        t = self.trajectory
        return f"episode {t.member} of task {t.task_id} in step {t.step}"

    def on_tokens(self, value_N: Tensor) -> Tensor:
        """Expand a column of the scored tokens to all tokens of the trajectory, with 0 for the others."""
        column_T = torch.zeros(len(self.scored))
        column_T[self.position_N] = value_N.detach().float().cpu()
        return column_T


def scored_tokens(trajectory: Trajectory, learnable: Sequence[bool]) -> tuple[bool, ...]:
    """Mark the tokens to score: all learnable tokens, and all sampled tokens that were not forced."""
    columns = zip(learnable, trajectory.sampled, trajectory.forced, strict=True)
    return tuple(learn or (sampled and not forced) for learn, sampled, forced in columns)


def make_examples(batch: Batch) -> list[Example]:
    """Return the examples of a batch, in the order of its trajectories."""
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
        examples.append(Example.of(trajectory, scored, columns))
    return examples


def plain_examples(trajectories: Sequence[Trajectory], scored: Sequence[tuple[bool, ...]]) -> list[Example]:
    """Make examples to score or to imitate. All scored tokens carry loss; the other columns are 0."""
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
        examples.append(Example.of(trajectory, mask, columns))
    return examples


def first_non_finite(examples: Sequence[Example]) -> str | None:
    """Describe the first column that has a non-finite number, and its episodes. Returns None if all are finite."""
    named = [(example.name, example.columns.named()) for example in examples]
    for column in named[0][1] if named else ():
        broken = [name for name, own in named if own[column] is not None and not bool(own[column].isfinite().all())]
        if broken:
            what = column.removesuffix("_N").replace("_", " ")
            return f"the {what} is not a finite number in {'; '.join(broken)}"
    return None


class Targets(NamedTuple):
    """The tokens to score: their ids, their sampling temperatures, and the admissible tokens at each position.

    Targets(token_id_N=tensor([30, 31]), temperature_N=tensor([1.0, 1.0]), admissible_NW=None)     # None: every token
    """

    token_id_N: Tensor
    temperature_N: Tensor
    admissible_NW: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """The trajectories of one forward pass. N runs over their scored tokens.

    `before_N` is the index of the token before each scored token, from which the model predicts it. Indices refer to
    the layout flattened to [B · T]. `sequence_N` is the index of each scored token's trajectory, and `branch_N` that of
    its branch in the layout's `places`.
    """

    layout: Layout
    before_N: Tensor
    sequence_N: Tensor
    branch_N: Tensor
    targets: Targets
    columns: TokenColumns


def make_pack(examples: Sequence[Example], layout: Layout, admissible_NW: Tensor | None, device: torch.device) -> Pack:
    """Combine examples and their common layout into a pack."""
    firsts = list(accumulate((len(example.sequences) for example in examples), initial=0))
    branch_N = torch.cat([example.branch_N + first for example, first in zip(examples, firsts, strict=False)])
    start_B = torch.tensor(list(accumulate((len(place_T) for place_T in layout.places), initial=0)))
    every_place_X = torch.cat(layout.places)
    index_N = start_B[branch_N] + torch.cat([example.place_N for example in examples])
    place_N = every_place_X[index_N].to(device, non_blocking=True)
    temperatures = [torch.full((len(example.position_N),), example.trajectory.temperature) for example in examples]
    counts = torch.tensor([len(example.position_N) for example in examples])
    targets = Targets(
        # taken from the tensor that the model gets
        token_id_N=layout.token_id_BT.flatten()[place_N],
        temperature_N=torch.cat(temperatures).to(device, non_blocking=True),
        admissible_NW=None if admissible_NW is None else admissible_NW.to(device, non_blocking=True),
    )
    return Pack(
        layout=layout,
        before_N=every_place_X[index_N - 1].to(device, non_blocking=True),
        sequence_N=torch.repeat_interleave(torch.arange(len(examples)), counts).to(device, non_blocking=True),
        branch_N=branch_N,
        targets=targets,
        columns=TokenColumns.joined([example.columns for example in examples], device),
    )


def check_alignment(pack: Pack, examples: Sequence[Example]) -> float:
    """Return the share of scored tokens that equal the tokens the sampler returned. Raises AlignmentError if below 1.

    The ids come from independent sources: the learner's from the packed tensor, the sampler's from the `sampled_ids` of
    each turn.
    """
    returned: list[int] = []
    for example in examples:
        trajectory = example.trajectory
        sampled_ids = [token for turn in trajectory.turns for token in turn.sampled_ids]
        own = [wanted for wanted, sampled in zip(example.scored, trajectory.sampled, strict=True) if sampled]
        if len(sampled_ids) != len(own):
            raise AlignmentError(
                f"{example.name}: {len(own)} tokens are marked as sampled, but the sampler returned {len(sampled_ids)}",
                fix=_REPORT,
            )
        returned.extend(token for token, wanted in zip(sampled_ids, own, strict=True) if wanted)
    scored_N = pack.targets.token_id_N.cpu()
    returned_N = torch.tensor(returned, dtype=torch.long)
    same_length = scored_N.shape == returned_N.shape
    share = float((scored_N == returned_N).double().mean()) if same_length and returned else float(same_length)
    if share < 1.0:
        raise AlignmentError(f"only {share:.2%} of the scored tokens match the sampled tokens", fix=_REPORT)
    return share


_EVERY_TOKEN = -1  # sets all 32 bits of an int32


class Replayer:
    """Replays the grammar over sampled turns and checks the recorded masks. `spent_s` is the total time spent on it."""

    def __init__(self, grammars: Grammars | None) -> None:
        self._grammars = grammars
        self.spent_s = 0.0

    def admissible(self, trajectories: Sequence[Trajectory], scored: Sequence[Sequence[bool]]) -> Tensor | None:
        """Return the admissible tokens at each scored position as an int32 bitmask [N, W]; None if no grammar was used.

        If only some trajectories have a grammar, all bits are set in the rows of the others.
        """
        held = next((t for t in trajectories if t.grammar is not None), None)
        if held is None:
            return None
        if self._grammars is None:
            raise AlignmentError(
                f"episode {held.member} of task {held.task_id} was sampled under a grammar, but the learner has no "
                "grammars to replay, so its logprobs would come from a different distribution",
                fix="create the learner with the model's grammars: mcprl.grammar.masks.load_grammars",
            )
        started = time.monotonic()
        parts: list[Tensor] = []
        for trajectory, mask in zip(trajectories, scored, strict=True):
            if trajectory.grammar is None:
                words = -(-self._grammars.vocab_size // 32)
                parts.append(torch.full((sum(mask), words), _EVERY_TOKEN, dtype=torch.int32))
            else:
                parts.extend(_turn_parts(self._grammars, trajectory, mask))
        admissible_NW = torch.cat(parts)
        self.spent_s += time.monotonic() - started
        return admissible_NW


def _turn_parts(grammars: Grammars, trajectory: Trajectory, mask: Sequence[bool]) -> list[Tensor]:
    """Return the admissible tokens of each turn. The grammar starts again in every turn."""
    places = [place for place, sampled in enumerate(trajectory.sampled) if sampled]
    parts: list[Tensor] = []
    for number, turn in enumerate(trajectory.turns):
        own, places = places[: len(turn.sampled_ids)], places[len(turn.sampled_ids) :]
        grammar = trajectory.grammar_of(number)
        assert grammar is not None
        replay = grammars.replay(grammar, trajectory.stop_token_ids, turn.sampled_ids)
        for name, replayed, column in (
            ("forced", replay.forced, trajectory.forced),
            ("fixed", replay.fixed, trajectory.fixed),
        ):
            recorded = tuple(column[place] for place in own)
            if recorded != replayed:
                raise AlignmentError(
                    f"episode {trajectory.member} of task {trajectory.task_id}, turn {number}: {sum(recorded)} tokens "
                    f"were recorded as {name}, but replaying the grammar gives others ({sum(replayed)} tokens)",
                    fix=_REPORT,
                )
        parts.append(replay.admissible[[index for index, place in enumerate(own) if mask[place]]])
    return parts


@dataclass(slots=True)
class Packer:
    """Makes packs of at most `tokens` tokens; a longer trajectory gets a pack of its own.

    With `share_prefix`, a pack holds a common prefix only once. Otherwise its rows are padded to the longest.
    `on_scored` is called after each pack of a pass with the number of packs done, and of all packs.
    """

    replayer: Replayer
    device: torch.device
    tokens: int = field(kw_only=True)
    share_prefix: bool = field(kw_only=True)
    on_scored: Callable[[int, int], object] = field(kw_only=True, default=lambda _done, _total: None)

    def divide(self, examples: Sequence[Example], processes: int = 1) -> list[list[int]]:
        """Return the indices of the examples of each pack.

        With `share_prefix`, a pack gets examples with long common prefixes, otherwise examples of similar length. All
        processes must compute the same number of packs. So, with several processes, packs are made smaller until no
        process is idle in the last round, and packs of similar size follow one another.
        """
        ids = [example.sequences[0] for example in examples]
        likeness = ids if self.share_prefix else [(max(map(len, example.sequences)),) for example in examples]
        order = sorted(range(len(examples)), key=likeness.__getitem__)
        if self.share_prefix:
            lengths, rows = [len(examples[i].trajectory.token_ids) for i in order], [1] * len(order)
        else:
            lengths, rows = [likeness[i][0] for i in order], [len(examples[i].sequences) for i in order]
        shared = [0] + [common_length((ids[i], ids[j])) if self.share_prefix else 0 for i, j in pairwise(order)]
        shared = [length if length >= MIN_SHARED_TOKENS else 0 for length in shared]
        packs = self._fill(lengths, rows, shared, self.tokens)
        wanted = min(-(-len(packs) // processes) * processes, len(examples))
        if len(packs) < wanted:
            # The number of packs grows as the budget shrinks, so bisection finds the largest budget that gives enough.
            budgets = range(self.tokens)
            budget = bisect_right(budgets, -wanted, key=lambda b: -len(self._fill(lengths, rows, shared, b))) - 1
            packs = self._fill(lengths, rows, shared, budget)
        if processes > 1:
            packs.sort(reverse=True)
        return [[order[place] for place in places] for _size, places in packs]

    def _fill(
        self, lengths: Sequence[int], rows: Sequence[int], shared: Sequence[int], budget: int
    ) -> list[tuple[int, list[int]]]:
        """Fill packs in order with as many trajectories as fit into the budget. Return the size and places of each."""
        packs: list[tuple[int, list[int]]] = []
        for place, length in enumerate(lengths):
            size, places = packs[-1] if packs else (0, [])
            padded = length * sum(rows[one] for one in (*places, place))
            size = size + length - shared[place] if self.share_prefix else padded
            if places and size <= budget:
                packs[-1] = size, [*places, place]
            else:
                packs.append((length * rows[place], [place]))
        return packs

    def pack(self, examples: Sequence[Example]) -> Pack:
        trajectories = [example.trajectory for example in examples]
        lay_out = lay_out_tree if self.share_prefix else lay_out_rows
        return make_pack(
            examples,
            lay_out([ids for example in examples for ids in example.sequences], self.device),
            self.replayer.admissible(trajectories, [example.scored for example in examples]),
            self.device,
        )


class Policy(nn.Module):
    """Computes the logprobs of a pack's tokens under the distributions they were sampled from.

    Such a distribution is the model's output at the sampling temperature, renormalized over the tokens that the grammar
    allowed. The head is applied only to the hidden states from which scored tokens are predicted. `model` is a causal
    language model of transformers, or a PeftModel that wraps one.
    """

    def __init__(
        self, model: Any, *, critic: bool, entropy_gradient: bool, autocast: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.model = model
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._trunk = [base.base_model]  # in a list, so that torch does not register the head a second time
        self.scorer = TokenScorer(base.get_output_embeddings().weight, entropy_gradient=entropy_gradient)
        self.value_head = nn.Linear(base.config.hidden_size, 1, dtype=torch.float32) if critic else None
        if self.value_head is not None:
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)
        self.autocast = autocast

    @property
    def trunk(self) -> Any:
        """The model without its head."""
        return self._trunk[0]

    def forward(self, pack: Pack) -> Scores:
        layout = pack.layout
        # Only tree attention accepts the argument `tree`.
        more = {} if layout.tree is None else {"tree": layout.tree, "position_ids": layout.position_BT}
        device, dtype = layout.token_id_BT.device.type, self.autocast
        with nullcontext() if dtype is None else torch.autocast(device, dtype=dtype):
            output = self.trunk(input_ids=layout.token_id_BT, use_cache=False, **more)
        hidden_XD: Tensor = output.last_hidden_state.flatten(0, 1)
        hidden_ND = hidden_XD[pack.before_N]
        if dtype is not None:
            hidden_ND = hidden_ND.to(dtype)
        logprob_N, entropy_N = self.scorer(hidden_ND, pack.targets)
        value_N = None
        if self.value_head is not None:  # FSDP2 gathers its weights in 16 bits, too
            value_N = self.value_head(hidden_ND.to(self.value_head.weight.dtype)).squeeze(1).float()
        return Scores(logprob_N, entropy_N, value_N)


# Logits per block on a CPU: enough to keep the cores busy, but small compared to the model.
_BLOCK_NUMBERS = 1 << 23
# A block of logits takes about 14 bytes per number. On a GPU this is 3% of the memory: 24 GB hold 330 rows of 152,000
# tokens, 80 GB 1,100. With fewer rows, reading the head again for each block would take longer than computing.
_DEVICE_BYTES_PER_NUMBER = 512
# Used instead of −inf. Its exp is 0 too, and multiplied by 0 it gives 0, not NaN.
_NEVER = -1e30


def block_numbers(device: torch.device) -> int:
    """Return how many logits the head computes at once on a device."""
    if device.type != "cuda":
        return _BLOCK_NUMBERS
    _, total_bytes = torch.cuda.mem_get_info(device)
    return total_bytes // _DEVICE_BYTES_PER_NUMBER


class TokenScorer(nn.Module):
    """The model's head, applied to selected tokens. It shares its weight with the model.

    With `entropy_gradient`, gradients flow through the entropies; otherwise entropies are only metrics.
    """

    def __init__(self, weight_VD: nn.Parameter, *, entropy_gradient: bool) -> None:
        super().__init__()
        self.weight = weight_VD
        self.entropy_gradient = entropy_gradient

    def forward(self, hidden_ND: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
        """Return the logprob and the entropy of each token."""
        return cast(
            "tuple[Tensor, Tensor]",
            _ScoreTokens.apply(hidden_ND, self.weight, targets, self.entropy_gradient),  # pyright: ignore[reportUnknownMemberType]
        )


class _ScoreTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, targets: Targets, entropy_gradient: bool) -> Any:
        size, weight_dtype = len(hidden_ND), weight_VD.dtype
        weight_VD = weight_VD.to(hidden_ND.dtype)  # a trained head is stored in float32
        logprob_N = hidden_ND.new_empty(size, dtype=torch.float32)
        entropy_N = torch.empty_like(logprob_N)
        wants_hidden = ctx.needs_input_grad[0]
        slope_ND = torch.empty_like(hidden_ND) if wants_hidden else None
        entropy_slope_ND = torch.empty_like(hidden_ND) if wants_hidden and entropy_gradient else None
        for part in _blocks(size, weight_VD):
            logit_NV, normaliser_N = _logits(hidden_ND, weight_VD, targets, part)
            token_id_N = targets.token_id_N[part]
            logprob_N[part] = logit_NV.gather(1, token_id_N[:, None]).squeeze(1) - normaliser_N
            share_NV = torch.exp(logit_NV - normaliser_N[:, None])
            entropy_N[part] = normaliser_N - (share_NV * logit_NV).sum(dim=1)
            scale_N1 = 1.0 / targets.temperature_N[part, None]
            if entropy_slope_ND is not None:
                # log p + H = logit − normaliser + entropy, one number per token of the vocabulary
                surprise_NV = logit_NV.add_((entropy_N[part] - normaliser_N)[:, None]).mul_(share_NV)
                entropy_slope_ND[part] = (surprise_NV.to(weight_VD.dtype) @ weight_VD) * -scale_N1
            if slope_ND is not None:
                # 1 − p of the token itself, in float32: if p is near 1, 16 bits would give only noise.
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
    for part in _blocks(len(hidden_ND), weight_VD):
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
    """Return the logits of a block, masked to the admissible tokens, and their logsumexp."""
    logit_NV = (hidden_ND[part] @ weight_VD.T).float()
    logit_NV /= targets.temperature_N[part, None]
    if targets.admissible_NW is not None:
        logit_NV.masked_fill_(inadmissible_tokens(targets.admissible_NW[part], logit_NV.shape[1]), _NEVER)
    return logit_NV, torch.logsumexp(logit_NV, dim=1)


def _blocks(size: int, weight_VD: Tensor) -> list[slice]:
    rows = max(1, block_numbers(weight_VD.device) // len(weight_VD))
    return [slice(first, first + rows) for first in range(0, size, rows)]

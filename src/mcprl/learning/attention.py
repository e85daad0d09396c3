"""Arranges trajectories as padded rows or as a tree of shared prefixes, and computes attention over such a tree.

The attention works for any model whose layers use transformers' attention interface. On a GPU, one `flex_attention`
kernel gets the tree as a block mask. On a CPU, PyTorch's attention is called once per node, with the queries of the
node and the keys of the node and its ancestors, so nothing is padded, and no token pairs across branches are computed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface, PretrainedConfig
from transformers.masking_utils import AttentionMaskInterface
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from mcprl.errors import UnsharableError

# A shorter prefix is repeated for each sequence, because an additional node would cost more than its tokens.
MIN_SHARED_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Node:
    """The packed tokens from `start` to `stop` (exclusive). `parent` is the index of the node before it, or −1."""

    start: int
    stop: int
    parent: int


@dataclass(frozen=True)
class Tree:
    """A tree of shared prefixes: its nodes, each after its parent.

    A token attends to all tokens of its node's ancestors, to the tokens before it in its node, and to itself.

    Example: two trajectories share a prompt of 100 tokens, followed by 20 and 30 tokens:

        Tree(nodes=(Node(0, 100, -1), Node(100, 120, 0), Node(120, 150, 0)))
    """

    nodes: tuple[Node, ...]

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """Return, for each node, the nodes on the path from the root to that node, inclusive."""
        found: list[tuple[int, ...]] = []
        for place, node in enumerate(self.nodes):
            found.append((*(found[node.parent] if node.parent >= 0 else ()), place))
        return tuple(found)

    @cached_property
    def node_T(self) -> Tensor:
        """Return the index of each packed token's node."""
        lengths = torch.tensor([node.stop - node.start for node in self.nodes])
        return torch.repeat_interleave(torch.arange(len(self.nodes)), lengths)

    @cached_property
    def sees_XX(self) -> Tensor:
        """Return whether a node (first axis) attends to another (second axis): to itself and to its ancestors."""
        sees_XX = torch.zeros(len(self.nodes), len(self.nodes), dtype=torch.bool)
        for place, path in enumerate(self.paths):
            sees_XX[place, list(path)] = True
        return sees_XX


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The token ids that the model gets. `places` are the indices of each trajectory's tokens in the flattened [B · T].

    `position_BT` and `tree` are None for padded rows, which use the default positions and attention.
    """

    token_id_BT: Tensor
    position_BT: Tensor | None
    tree: Tree | None
    places: tuple[Tensor, ...]


def lay_out_rows(sequences: Sequence[Sequence[int]], device: torch.device) -> Layout:
    """Put each sequence into one row, padded on the right with id 0. Causal attention needs no mask for padding."""
    longest = max(len(ids) for ids in sequences)
    token_id_BT = torch.zeros(len(sequences), longest, dtype=torch.long)
    for row, ids in enumerate(sequences):
        token_id_BT[row, : len(ids)] = torch.tensor(ids)
    places = tuple(torch.arange(len(ids)) + row * longest for row, ids in enumerate(sequences))
    return Layout(token_id_BT=token_id_BT.to(device), position_BT=None, tree=None, places=places)


def lay_out_tree(sequences: Sequence[Sequence[int]], device: torch.device) -> Layout:
    """Put all sequences into one row. Each shared prefix appears once, followed by its continuations."""
    all_ids = [tuple(ids) for ids in sequences]
    nodes: list[Node] = []
    token_ids: list[int] = []
    positions: list[int] = []
    places: list[list[Tensor]] = [[] for _ in all_ids]

    def add_node(members: list[int], start: int, stop: int, parent: int) -> int:
        if start == stop:
            return parent
        first = len(token_ids)
        token_ids.extend(all_ids[members[0]][start:stop])
        positions.extend(range(start, stop))
        nodes.append(Node(first, len(token_ids), parent))
        for i in members:
            places[i].append(torch.arange(first, len(token_ids)))
        return len(nodes) - 1

    def grow(members: list[int], start: int, parent: int) -> None:
        """Lay out the sequences `members` from token `start` on. Their tokens before `start` are equal."""
        common = common_length([all_ids[i] for i in members])
        ended = [i for i in members if len(all_ids[i]) == common]
        if len(members) == 1 or len(ended) == len(members) or common - start >= MIN_SHARED_TOKENS:
            parent = add_node(members, start, common, parent)
            start = common
        elif ended:  # they end within a prefix that is too short to share
            add_node(ended, start, common, parent)
        branches: dict[int, list[int]] = defaultdict(list)
        for i in members:
            if i not in ended:
                branches[all_ids[i][common]].append(i)
        for branch in branches.values():
            grow(branch, start, parent)

    grow(list(range(len(all_ids))), start=0, parent=-1)
    joined = tuple(torch.cat(parts) for parts in places)
    if [len(place_T) for place_T in joined] != [len(ids) for ids in all_ids]:
        raise AssertionError("a trajectory and its path through the tree have different lengths")
    return Layout(
        token_id_BT=torch.tensor([token_ids], device=device),
        position_BT=torch.tensor([positions], device=device),
        tree=Tree(nodes=tuple(nodes)),
        places=joined,
    )


def common_length(sequences: Sequence[tuple[int, ...]]) -> int:
    """Return the length of the longest common prefix.

    The first and the last sequence in lexicographic order have the same common prefix as all sequences.
    """
    first, last = min(sequences), max(sequences)
    # Bisection, because comparing slices is much faster than comparing single tokens.
    lengths = range(1, min(len(first), len(last)) + 1)
    return bisect_left(lengths, True, key=lambda length: first[:length] != last[:length])


TREE_ATTENTION = "mcprl_tree"
_BLOCK = 128  # tokens; the block size of flex_attention
_UNSUPPORTED = ("sliding_window", "softcap", "s_aux")  # arguments that some models pass to their attention
_FIX = "set learner.share_prefix to false"


def tree_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    *,
    tree: Tree | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Compute causal attention over a tree of shared prefixes.

    Queries are [1, H, T, D], keys and values [1, K, T, D], where K divides H. The result is [1, T, H, D].

    transformers calls this function once per layer. `attention_mask` is None, because the tree defines the mask.
    Without a tree, every row is one trajectory.
    """
    if unsupported := [name for name in _UNSUPPORTED if more.get(name) is not None]:
        raise UnsharableError(
            f"{type(module).__name__} uses {', '.join(unsupported)}, which attention over shared prefixes does not "
            "support",
            fix=_FIX,
        )
    if tree is None:  # autocast casts for this function
        attended = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
        return attended.transpose(1, 2), None
    # Under autocast, norms with float32 weights give float32 queries and keys, and flex_attention casts nothing.
    query, key = query.to(value.dtype), key.to(value.dtype)
    attend = _attend_by_flex if query.is_cuda else _attend_by_nodes
    return attend(query, key, value, scaling, tree).transpose(1, 2), None


def _attend_by_nodes(query: Tensor, key: Tensor, value: Tensor, scaling: float | None, tree: Tree) -> Tensor:
    parts: list[Tensor] = []
    for node, path in zip(tree.nodes, tree.paths, strict=True):
        own = slice(node.start, node.stop)
        seen = [slice(tree.nodes[place].start, tree.nodes[place].stop) for place in path]
        above = sum(part.stop - part.start for part in seen[:-1])
        parts.append(
            scaled_dot_product_attention(
                query[:, :, own],
                torch.cat([key[:, :, part] for part in seen], dim=2) if above else key[:, :, own],
                torch.cat([value[:, :, part] for part in seen], dim=2) if above else value[:, :, own],
                attn_mask=_mask_below(above, node.stop - node.start, query.device) if above else None,
                is_causal=not above,
                scale=scaling,
                enable_gqa=True,
            )
        )
    return torch.cat(parts, dim=2)


@lru_cache(maxsize=512)
def _mask_below(above: int, own: int, device: torch.device) -> Tensor:
    """Return a mask under which a node attends to all tokens of its ancestors, and causally to its own.

    It is cached, because it is the same for every layer.
    """
    return torch.ones(own, above + own, dtype=torch.bool, device=device).tril(diagonal=above)


def _attend_by_flex(query: Tensor, key: Tensor, value: Tensor, scaling: float | None, tree: Tree) -> Tensor:
    # torch compiles separate graphs for a size of 1 and for a query shorter than a block. An additional root makes all
    # sizes at least 2, so that one graph fits every tree. The root is empty if there are enough tokens.
    tokens = tree.nodes[-1].stop
    tree = Tree(nodes=(*tree.nodes, Node(tokens, max(tokens, 2 * _BLOCK), -1)))
    missing = tree.nodes[-1].stop - tokens
    if missing:
        query, key, value = (pad(part, (0, 0, 0, missing)) for part in (query, key, value))
    mask = _block_mask(tree, query.device)
    return _compiled_flex()(query, key, value, block_mask=mask, scale=scaling, enable_gqa=True)[:, :, :tokens]


def _vary(tensor: Tensor, *axes: int) -> Tensor:
    """Mark these axes as dynamic.

    Otherwise, if a size happens to equal a constant such as the number of heads, torch treats it as constant and
    compiles again for the next size.
    """
    cast("Any", torch)._dynamo.maybe_mark_dynamic(tensor, axes)
    return tensor


@lru_cache(maxsize=1)
def _compiled_flex() -> Any:
    return cast("Any", torch).compile(flex_attention, dynamic=True)


@lru_cache(maxsize=4)
def _block_mask(tree: Tree, device: torch.device) -> BlockMask:
    """Compute `create_block_mask(tree_mask(tree, device), …)` without a grid of all pairs of tokens.

    Let o[b, x] be the number of tokens of node x in block b. The number of pairs of tokens for which query block b
    attends to key block c is

        Σ o[b, x] · o[c, y] over ancestors y of x, plus for each node x:
        o[b, x] · o[c, x] if c < b, or o[b, x] · (o[b, x] + 1) / 2 if c = b

    The blocks attend fully, partially or not at all. The counts are at most 16,384, so they are exact in float32.
    """
    tokens = tree.nodes[-1].stop
    edge_B = torch.arange(0, tokens, _BLOCK)[:, None]
    start_X, stop_X = torch.tensor([(node.start, node.stop) for node in tree.nodes]).T
    own_BX = (stop_X.clamp(edge_B, edge_B + _BLOCK) - start_X.clamp(edge_B, edge_B + _BLOCK)).float()
    above_XX = tree.sees_XX.float().fill_diagonal_(0)
    seen_BB = own_BX @ above_XX @ own_BX.T
    seen_BB += (own_BX @ own_BX.T).tril(-1)
    seen_BB += (own_BX * (own_BX + 1) / 2).sum(1).diag()
    full_BB = seen_BB == _BLOCK * _BLOCK
    mask = BlockMask.from_kv_blocks(
        *_counted((seen_BB > 0) & ~full_BB, device),
        *_counted(full_BB, device),
        BLOCK_SIZE=_BLOCK,
        mask_mod=tree_mask(tree, device),
        seq_lengths=(tokens, tokens),
    )
    for part in mask.as_tuple():
        if isinstance(part, Tensor):
            _vary(part, *range(2, part.dim()))
    return mask


def _counted(is_in_BB: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return, for flex_attention, each row's number of True key blocks and list of all key blocks, True ones first."""
    order_BB = is_in_BB.int().argsort(dim=1, descending=True, stable=True)
    return is_in_BB.sum(1, dtype=torch.int32).to(device)[None, None], order_BB.int().to(device)[None, None]


def tree_mask(tree: Tree, device: torch.device) -> Any:
    """Return a mask_mod for flex_attention, which says whether the query at index q attends to the key at index k."""
    node_T, sees_XX = _vary(tree.node_T.to(device), 0), _vary(tree.sees_XX.to(device), 0, 1)

    def sees(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return sees_XX[node_T[q], node_T[k]] & (q >= k)  # a node comes after its parent, so indices are in order

    return sees


def require_sharable(config: PretrainedConfig, model: str) -> None:
    """Raise UnsharableError if a layer is not full attention, but a window, a recurrent state or a convolution."""
    text: PretrainedConfig = cast("Any", config).get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    window = getattr(text, "sliding_window", None)
    if getattr(text, "use_sliding_window", True) and window is not None and "layer_types" not in text.to_dict():
        kinds.add(f"a window of {window} tokens")
    architecture: Any = cast("Any", MODEL_FOR_CAUSAL_LM_MAPPING).get(type(config), None)
    if not getattr(architecture, "_supports_attention_backend", False):
        kinds.add("custom attention")
    if kinds != {"full_attention"}:
        raise UnsharableError(
            f"{model} has layers with {', '.join(sorted(kinds - {'full_attention'}))}; trajectories can share a prefix "
            "only if every layer uses full attention",
            fix=_FIX,
        )


def _no_mask(*_: Any, **__: Any) -> None:
    return None


cast("Any", AttentionInterface).register(TREE_ATTENTION, tree_attention)
cast("Any", AttentionMaskInterface).register(TREE_ATTENTION, _no_mask)

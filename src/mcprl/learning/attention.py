"""Attention over a tree of trajectories, for any model whose layers go through transformers' attention interface.

On a GPU one `flex_attention` kernel knows the tree as a block mask. Elsewhere attention is split by nodes: each node's
queries meet the keys of the nodes above it and its own in one call of PyTorch's attention, so no token is padded and
nothing that a token may not see is ever multiplied.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface, PretrainedConfig
from transformers.masking_utils import AttentionMaskInterface
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from mcprl.errors import UnsharableError
from mcprl.learning.packing import Node, Tree

__all__ = ["TREE_ATTENTION", "require_sharable", "tree_attention"]


TREE_ATTENTION = "mcprl_tree"
_BLOCK = 128  # tokens; the block size of flex_attention
_UNSUPPORTED = ("sliding_window", "softcap", "s_aux")  # what some models pass to their attention
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
    """Queries [1, H, T, D], keys and values [1, K, T, D] with K a divisor of H; the result is [1, T, H, D].

    transformers calls this once a layer. It makes no mask (`attention_mask` is None): the tree says who sees whom.
    Without a tree every row is a trajectory of its own.
    """
    if unsupported := [name for name in _UNSUPPORTED if more.get(name) is not None]:
        raise UnsharableError(
            f"{type(module).__name__} attends with {', '.join(unsupported)}, which attention over shared prefixes does "
            "not compute",
            fix=_FIX,
        )
    if tree is None:
        attended = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
        return attended.transpose(1, 2), None
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
    """All that is above is seen, and of one's own what is not behind. The same for every layer."""
    return torch.ones(own, above + own, dtype=torch.bool, device=device).tril(diagonal=above)


def _attend_by_flex(query: Tensor, key: Tensor, value: Tensor, scaling: float | None, tree: Tree) -> Tensor:
    # torch compiles a size of 1 by itself, and a query shorter than a block too. With one more root, which is empty if
    # there are enough tokens, there are two or more of everything, and one graph serves every tree.
    tokens = tree.nodes[-1].stop
    tree = Tree(nodes=(*tree.nodes, Node(tokens, max(tokens, 2 * _BLOCK), -1)))
    missing = tree.nodes[-1].stop - tokens
    if missing:
        query, key, value = (pad(part, (0, 0, 0, missing)) for part in (query, key, value))
    mask = _block_mask(tree, query.device)
    return _compiled_flex()(query, key, value, block_mask=mask, scale=scaling, enable_gqa=True)[:, :, :tokens]


def _vary(tensor: Tensor, *axes: int) -> Tensor:
    """Tell torch that these sizes change. It would take one for constant that equals a constant, such as the number of
    heads, when it first sees it, and compile again for the next."""
    cast("Any", torch)._dynamo.maybe_mark_dynamic(tensor, axes)
    return tensor


@lru_cache(maxsize=1)
def _compiled_flex() -> Any:
    return cast("Any", torch).compile(flex_attention, dynamic=True)


@lru_cache(maxsize=4)
def _block_mask(tree: Tree, device: torch.device) -> BlockMask:
    """What `create_block_mask(tree_mask(tree, device), …)` makes, without a grid of all pairs of tokens.

    Let o[b, x] be the number of tokens of node x in block b. A query block b sees of a key block c

        Σ o[b, x] · o[c, y] over nodes y above x, and in each node x:  o[b, x] · o[c, x] if c < b,
        o[b, x] · (o[b, x] + 1) / 2 if c = b

    pairs of tokens: all of them, some, or none. In float32 these counts, of 16,384 at most, are exact.
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
    """How many key blocks are in each row, and the key blocks, those first, as flex_attention asks for them."""
    order_BB = is_in_BB.int().argsort(dim=1, descending=True, stable=True)
    return is_in_BB.sum(1, dtype=torch.int32).to(device)[None, None], order_BB.int().to(device)[None, None]


def tree_mask(tree: Tree, device: torch.device) -> Any:
    """The tree as flex_attention asks for it: may the query at place q see the key at place k?"""
    node_T, sees_XX = _vary(tree.node_T.to(device), 0), _vary(tree.sees_XX.to(device), 0, 1)

    def sees(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return sees_XX[node_T[q], node_T[k]] & (q >= k)  # a node stands behind its parent, so order is by place

    return sees


def _no_mask(*_: Any, **__: Any) -> None:
    return None


def require_sharable(config: PretrainedConfig, model: str) -> None:
    """Refuse models in which a token's surroundings are more than what it attends to: windows, states, convolutions."""
    # The part that writes, if the model also sees or hears.
    text: PretrainedConfig = cast("Any", config).get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    window = getattr(text, "sliding_window", None)
    if getattr(text, "use_sliding_window", True) and window is not None and "layer_types" not in text.to_dict():
        kinds.add(f"a window of {window} tokens")
    architecture: Any = cast("Any", MODEL_FOR_CAUSAL_LM_MAPPING).get(type(config), None)
    if not getattr(architecture, "_supports_attention_backend", False):
        kinds.add("an attention of its own making")
    if kinds != {"full_attention"}:
        raise UnsharableError(
            f"{model} has layers of {', '.join(sorted(kinds - {'full_attention'}))}; trajectories can share a prefix "
            "only where every layer attends to all that came before",
            fix=_FIX,
        )


cast("Any", AttentionInterface).register(TREE_ATTENTION, tree_attention)
cast("Any", AttentionMaskInterface).register(TREE_ATTENTION, _no_mask)

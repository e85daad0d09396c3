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
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PretrainedConfig
from transformers.masking_utils import AttentionMaskInterface
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from mcprl.errors import UnsharableError
from mcprl.learners.layout import Tree

__all__ = ["TREE_ATTENTION", "require_sharable", "tree_attention"]

TREE_ATTENTION = "mcprl_tree"


def tree_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    *,
    tree: Tree | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Queries [1, H, T, D], keys and values [1, K, T, D] with K a divisor of H; the result is [1, T, H, D].

    transformers calls this once a layer. It makes no mask (`attention_mask` is None): the tree says who sees whom.
    Without a tree every row is a trajectory of its own.
    """
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
    return _compiled_flex()(
        query, key, value, block_mask=_block_mask(tree, query.device), scale=scaling, enable_gqa=True
    )


@lru_cache(maxsize=1)
def _compiled_flex() -> Any:
    return cast("Any", torch).compile(flex_attention, dynamic=True)


@lru_cache(maxsize=4)
def _block_mask(tree: Tree, device: torch.device) -> BlockMask:
    tokens = tree.nodes[-1].stop
    return create_block_mask(tree_mask(tree, device), None, None, tokens, tokens, device=device.type)  # pyright: ignore[reportArgumentType]


def tree_mask(tree: Tree, device: torch.device) -> Any:
    """The tree as flex_attention asks for it: may the query at place q see the key at place k?"""
    node_T, sees_XX = tree.node_T.to(device), tree.sees_XX.to(device)

    def sees(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return sees_XX[node_T[q], node_T[k]] & (q >= k)  # a node stands behind its parent, so order is by place

    return sees


def _no_mask(*_: Any, **__: Any) -> None:
    return None


def require_sharable(config: PretrainedConfig, model: str) -> None:
    """Refuse models in which a token's surroundings are more than what it attends to: windows, states, convolutions."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) and window is not None and "layer_types" not in config.to_dict():
        kinds.add(f"a window of {window} tokens")
    architecture: Any = cast("Any", MODEL_FOR_CAUSAL_LM_MAPPING).get(type(config), None)
    if not getattr(architecture, "_supports_attention_backend", False):
        kinds.add("an attention of its own making")
    if kinds != {"full_attention"}:
        raise UnsharableError(
            f"{model} has layers of {', '.join(sorted(kinds - {'full_attention'}))}; trajectories can share a prefix "
            "only where every layer attends to all that came before",
            fix="set learner.share_prefix to false",
        )


cast("Any", AttentionInterface).register(TREE_ATTENTION, tree_attention)
cast("Any", AttentionMaskInterface).register(TREE_ATTENTION, _no_mask)

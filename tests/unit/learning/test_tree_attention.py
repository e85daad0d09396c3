"""Attention over a tree: its block mask, its gradients, what is compiled for it, and the models that it refuses."""
# R11

from __future__ import annotations

import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from small_models import small_config
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import (
    Gemma2Config,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3nConfig,
    Gemma3TextConfig,
    Gemma4Config,
    Llama4Config,
)
from transformers.models.gemma2.modeling_gemma2 import Gemma2ForCausalLM
from transformers.models.gemma3.modeling_gemma3 import Gemma3ForCausalLM

from mcprl.errors import BadValueError, UnsharableError
from mcprl.learning import attention as attention_module
from mcprl.learning.attention import TREE_ATTENTION, Node, Tree, require_sharable, tree_attention, tree_mask
from mcprl.learning.models import load_policy

CPU = torch.device("cpu")
TINY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


def tree_of(*lengths_and_parents: tuple[int, int]) -> Tree:
    nodes: list[Node] = []
    for length, parent in lengths_and_parents:
        start = nodes[-1].stop if nodes else 0
        nodes.append(Node(start, start + length, parent))
    return Tree(nodes=tuple(nodes))


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    lengths = st.one_of(st.integers(1, 20), st.integers(1, 400), st.sampled_from([128, 256]))
    count = draw(st.integers(1, 7))
    return tree_of(*((draw(lengths), draw(st.integers(-1, number - 1))) for number in range(count)))


@given(trees())
@example(tree_of((1, -1)))
@example(tree_of((512, -1), (128, 0), (128, 0), (1, 2)))
def test_the_block_mask_is_the_one_torch_makes_from_every_pair_of_tokens(tree):
    tokens = tree.nodes[-1].stop
    found = attention_module._block_mask(tree, CPU)
    true = create_block_mask(tree_mask(tree, CPU), None, None, tokens, tokens, device="cpu")
    for name in true._TENSOR_ATTRS:
        one, other = getattr(found, name), getattr(true, name)
        assert (one is None and other is None) or torch.equal(one, other), name
    assert (found.shape, found.BLOCK_SIZE) == (true.shape, true.BLOCK_SIZE)


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all tensors that are alive of those made inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            storage = tensor.untyped_storage() if isinstance(tensor, Tensor) else None
            if storage is not None and storage not in self._known:
                self._known.add(storage)
                self._count(storage.nbytes())
                weakref.finalize(storage, self._count, -storage.nbytes())
        return made

    def _count(self, size: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)


def test_the_block_mask_of_a_long_pack_takes_little_memory_to_make(record_property):
    """One byte for each pair of tokens would be 268 MB and 4.3 GB."""
    for tokens, limit_mb in ((16_384, 20), (65_536, 200)):
        own = tokens // 16
        tree = tree_of((tokens // 2, -1), *((own - 5 if number else own + 35, 0) for number in range(8)))
        assert tree.nodes[-1].stop == tokens
        with LiveBytes() as live:
            mask = attention_module._block_mask(tree, CPU)
        held = sum(part.nbytes for part in mask.as_tuple() if isinstance(part, Tensor))
        record_property(f"block_mask_peak_mb_at_{tokens}", live.peak / 1e6)
        assert held <= live.peak <= limit_mb * 1e6


def heads(tokens: int, *, dtype: torch.dtype = torch.float64, gradient: bool = True) -> list[Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    return [
        torch.randn(1, count, tokens, 16, generator=generator, dtype=dtype).requires_grad_(gradient)
        for count in (4, 2, 2)
    ]


def relative(found: Tensor, true: Tensor) -> float:
    return float((found - true).norm() / true.norm())


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trees())
@example(tree_of((1, -1)))
@example(tree_of((700, -1), (128, 0), (3, 0), (40, 1)))
def test_gradients_over_a_tree_are_the_sum_of_those_of_each_trajectory_by_itself(flex_graphs, tree):
    """Each node ends a trajectory. What trajectories share is computed once in a tree, and once in each without."""
    query, key, value = heads(tree.nodes[-1].stop)
    places = [
        torch.cat([torch.arange(tree.nodes[node].start, tree.nodes[node].stop) for node in path]) for path in tree.paths
    ]
    generator = torch.Generator().manual_seed(2)
    weights = [torch.randn(1, 4, len(own), 16, generator=generator, dtype=torch.float64) for own in places]
    alone = [
        scaled_dot_product_attention(
            query[:, :, own], key[:, :, own], value[:, :, own], is_causal=True, scale=0.3, enable_gqa=True
        )
        for own in places
    ]
    loss = sum((output * weight).sum() for output, weight in zip(alone, weights, strict=True))
    true = torch.autograd.grad(loss, (query, key, value))
    for attend in (attention_module._attend_by_flex, attention_module._attend_by_nodes):
        output = attend(query, key, value, 0.3, tree)
        assert output.shape == query.shape
        shared = sum((output[:, :, own] * weight).sum() for own, weight in zip(places, weights, strict=True))
        for found, wanted in zip(torch.autograd.grad(shared, (query, key, value)), true, strict=True):
            assert float((found - wanted).norm()) <= 1e-6 * float(wanted.norm()) + 1e-12


def attend_to(trees: Sequence[Tree], *, gradient: bool) -> None:
    for tree in trees:
        query, key, value = heads(tree.nodes[-1].stop, dtype=torch.float32, gradient=gradient)
        with torch.set_grad_enabled(gradient):
            found = attention_module._attend_by_flex(query, key, value, 0.25, tree)
            true = attention_module._attend_by_nodes(query, key, value, 0.25, tree)
        assert relative(found.detach(), true.detach()) < 1e-5


@pytest.mark.slow
def test_one_graph_with_gradients_and_one_without_serve_every_tree(flex_graphs):
    """At 8 torch would stop compiling, and attend without a kernel. The first sizes are those of the heads, 2 and 4."""
    every = [
        tree_of((1, -1)),
        tree_of((5, -1)),
        tree_of((128, -1)),
        tree_of((64, -1), (64, 0)),
        tree_of((3, -1), (4, 0), (5, 0)),
        tree_of((500, -1), (7, 0), (5, 0)),
        tree_of((129, -1)),
        tree_of((700, -1)),
        tree_of((1000, -1), (24, 0), (900, 0), (7, 1)),
    ]
    attend_to(every, gradient=False)
    attend_to(every, gradient=True)
    assert len(flex_graphs) == 2


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (Gemma3TextConfig(), "sliding_attention"),
        (Gemma3Config(), "sliding_attention"),
        (Gemma3nConfig(), "sliding_attention"),
        (Gemma4Config(), "sliding_attention"),
        (Llama4Config(), "chunked_attention"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_model_whose_text_part_has_windows_is_refused(config, why):
    with pytest.raises(UnsharableError, match=f"E-LEARN-004 some/model has layers with {why};.*share_prefix to false"):
        require_sharable(config, "some/model")


def test_a_model_with_an_image_part_and_full_attention_only_is_not_refused():
    require_sharable(Gemma3Config(text_config={"layer_types": ["full_attention"] * 26}), "some/model")


@pytest.mark.parametrize(
    ("model", "config", "what"),
    [
        (Gemma3ForCausalLM, Gemma3TextConfig(**TINY, layer_types=["full_attention", "sliding_attention"]), "window"),
        (Gemma2ForCausalLM, Gemma2Config(**TINY, layer_types=["full_attention"] * 2), "softcap"),
    ],
)
def test_attention_that_is_not_plain_is_refused_in_the_layer_itself(model, config, what):
    config._attn_implementation = TREE_ATTENTION
    policy = model(config).eval()
    with pytest.raises(UnsharableError, match=f"uses .*{what}.*Fix: set learner.share_prefix to false"):
        policy(input_ids=torch.arange(10)[None], tree=tree_of((6, -1), (4, 0)))


def test_attention_sinks_are_refused_in_the_layer_itself():
    query, key, value = heads(8)
    with pytest.raises(UnsharableError, match="Identity uses s_aux"):
        tree_attention(torch.nn.Identity(), query, key, value, None, s_aux=torch.zeros(4), sliding_window=None)


def test_a_model_whose_text_part_caps_its_logits_is_refused(tmp_path: Path):
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    text = TINY | {"final_logit_softcapping": 30.0}
    config = Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_id=60)
    Gemma3ForConditionalGeneration(config).save_pretrained(tmp_path)
    with pytest.raises(BadValueError, match=r"changes its logits after the head.*final_logit_softcapping"):
        load_policy(small_config(tmp_path, share_prefix=False), CPU)

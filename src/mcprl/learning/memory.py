"""Predicts how much memory an update needs: runs a forward and a backward pass on fake tensors and counts bytes.

Fake tensors have shapes but no numbers, so this takes seconds for any model on any machine. A few layers are enough,
because each further layer adds the same. Kernel workspaces, fragmentation and the CUDA context are not counted.
Attention is counted as PyTorch's own, which keeps as much for the backward pass as a GPU kernel.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves  # pyright: ignore[reportUnknownVariableType]
from transformers import AutoConfig, AutoModelForCausalLM

from mcprl.config import RunConfig
from mcprl.errors import UnsharableError
from mcprl.learning.attention import TREE_ATTENTION, Layout, require_sharable
from mcprl.learning.models import load_policy
from mcprl.learning.packing import Pack, Policy, Targets

_FEW, _MORE = 2, 4  # layers
_BASE_BYTES = {"lora_4bit": 0.6}  # per frozen parameter of the base; otherwise those of its dtype
_MOMENT_BYTES = 8
_META = torch.device("meta")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMemory:
    """The bytes that an update needs in one process: UpdateMemory(weights=1.2e9, moments=8e7, activations=2.0e9)

    `weights` and `moments` are held all the time. `activations` is the most that a pass needs on top of them, including
    gradients.
    """

    weights: float
    moments: float
    activations: float

    @property
    def peak(self) -> float:
        return self.weights + self.moments + self.activations

    def of_each(self, processes: int) -> UpdateMemory:
        """Return the bytes of each process if several processes shard the weights and moments, but not activations."""
        return UpdateMemory(
            weights=self.weights / processes, moments=self.moments / processes, activations=self.activations
        )


def predict_update(config: RunConfig, path: str, *, tokens: int) -> UpdateMemory:
    """Predict the memory of an update of the model in `path`, with packs of `tokens` tokens."""
    layers = int(AutoConfig.from_pretrained(path).get_text_config().num_hidden_layers)  # pyright: ignore
    few, more = (count_update(config, path, tokens=tokens, layers=number) for number in (_FEW, _MORE))

    def at_depth(of: Callable[[UpdateMemory], float]) -> float:
        return of(few) + (of(more) - of(few)) * (layers - _FEW) / (_MORE - _FEW)

    return UpdateMemory(
        weights=at_depth(lambda count: count.weights),
        moments=at_depth(lambda count: count.moments),
        activations=at_depth(lambda count: count.activations),
    )


def count_update(config: RunConfig, path: str, *, tokens: int, layers: int | None = None) -> UpdateMemory:
    """Count the memory of an update of the model in `path`. `layers` overrides its number of layers."""
    settings = cast("Any", AutoConfig.from_pretrained(path))  # pyright: ignore[reportUnknownMemberType]
    text = settings.get_text_config()
    text.num_hidden_layers = layers or text.num_hidden_layers
    if hasattr(text, "layer_types"):
        text.layer_types = text.layer_types and text.layer_types[: text.num_hidden_layers]
    tuning = config.learner.tuning
    # A quantized base computes like one in 16 bits.
    plain = config.learner.model_copy(update={"tuning": "full" if tuning == "full" else "lora", "share_prefix": False})
    dtype = torch.float32 if tuning == "full" else cast("torch.dtype", getattr(torch, config.model.dtype))
    try:
        require_sharable(settings, path)
        attention = TREE_ATTENTION
    except UnsharableError:
        attention = "sdpa"  # with fake tensors, it makes a mask of tokens × tokens even if a layer needs none
    with _META:
        base = cast("Any", AutoModelForCausalLM.from_config(settings, dtype=dtype, attn_implementation=attention))  # pyright: ignore
    policy = load_policy(config.model_copy(update={"learner": plain}), _META, base=base)
    trained = sum(p.numel() for p in policy.parameters() if p.requires_grad)
    with FakeTensorMode(), _LiveBytes() as live:
        _make_fake(policy)
        weights = live.now
        live.peak = weights
        scores = policy(_fake_pack(tokens, base.get_output_embeddings().weight.shape[0], config))
        loss = scores.logprob_N.sum() + (scores.entropy_N.sum() if config.algorithm.entropy > 0 else 0.0)
        if scores.value_N is not None:
            loss = loss + scores.value_N.sum()
        loss.backward()
        activations = live.peak - weights
    if tuning in _BASE_BYTES:
        frozen = sum(p.numel() for p in policy.parameters() if not p.requires_grad)
        weights = frozen * _BASE_BYTES[tuning] + trained * 4
    return UpdateMemory(weights=weights, moments=trained * _MOMENT_BYTES, activations=activations)


class _LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages that are alive, now and at the peak."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.now = self.peak = 0
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                self._add(tensor.untyped_storage())
        return made

    def _add(self, storage: Any) -> None:
        if storage not in self._seen:
            size = storage.nbytes()
            self._seen.add(storage)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self.now -= size


def _make_fake(policy: Policy) -> None:
    """Replace the tensors of a policy on the meta device with fake tensors on the CPU. Tied tensors stay tied."""
    made: dict[int, tuple[Tensor, Tensor]] = {}
    for module in policy.modules():
        for table in (module._parameters, module._buffers):  # pyright: ignore[reportPrivateUsage]
            for name, tensor in cast("dict[str, Tensor | None]", table).items():
                if tensor is None:
                    continue
                if id(tensor) not in made:
                    fake = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
                    is_parameter = isinstance(tensor, nn.Parameter)
                    made[id(tensor)] = tensor, nn.Parameter(fake, tensor.requires_grad) if is_parameter else fake
                cast("Any", table)[name] = made[id(tensor)][1]


def _fake_pack(tokens: int, vocabulary: int, config: RunConfig) -> Pack:
    """Return a pack of one trajectory with every token scored. No pack of this size needs more memory."""
    id_T = torch.zeros(tokens, dtype=torch.long)
    place_N = torch.arange(tokens - 1)
    is_constrained = config.sampling.constrain != "off"
    admissible_NW = torch.zeros(tokens - 1, -(-vocabulary // 32), dtype=torch.int32) if is_constrained else None
    return Pack(
        layout=Layout(token_id_BT=id_T[None], position_BT=None, tree=None, places=()),
        before_N=place_N,
        sequence_N=torch.zeros_like(place_N),
        branch_N=torch.zeros_like(place_N),
        targets=Targets(token_id_N=id_T[1:], temperature_N=torch.ones(tokens - 1), admissible_NW=admissible_NW),
        columns=cast("Any", None),
    )

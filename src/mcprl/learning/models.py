"""The model that is trained: an adapter on a frozen base, an adapter on a base of 4 bits, or all weights."""

from __future__ import annotations

import copy
import importlib.util
import shutil
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, cast

import peft
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from transformers.utils import logging as transformers_logging

from mcprl.config import KlConfig, ModelConfig, RunConfig
from mcprl.errors import BadValueError, MissingExtraError
from mcprl.learning.attention import TREE_ATTENTION, require_sharable
from mcprl.learning.packing import Pack, TokenScorer
from mcprl.learning.state import State, own_part
from mcprl.records import Weights
from mcprl.seeds import derive_seed

__all__ = ["Policy", "Reference", "Scores", "load_policy", "save_weights"]


class Scores(NamedTuple):
    """What the policy says of each scored token: its logprob, the entropy where it stands, the value before it.

    `value_N` is None without a value head.
    """

    logprob_N: Tensor
    entropy_N: Tensor
    value_N: Tensor | None


class Policy(nn.Module):
    """Scores the tokens of a pack under the distribution that each was sampled from.

    That is the model's at the temperature of sampling, renormalised over the tokens that the grammar admitted. Only
    hidden states before a token to score reach the head. `model` is a causal language model of transformers, or a
    PeftModel around one.
    """

    def __init__(
        self, model: Any, *, critic: bool, entropy_gradient: bool, autocast: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.model = model
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._trunk = [base.base_model]  # in a list: registered once only, as a part of the model
        self.scorer = TokenScorer(base.get_output_embeddings().weight, entropy_gradient=entropy_gradient)
        self.value_head = nn.Linear(base.config.hidden_size, 1, dtype=torch.float32) if critic else None
        if self.value_head is not None:
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)
        self._autocast = autocast

    @property
    def trunk(self) -> Any:
        """The model without its head."""
        return self._trunk[0]

    def forward(self, pack: Pack) -> Scores:
        layout = pack.layout
        # Only a tree's attention takes a tree; a model's own would not know the word.
        more = {} if layout.tree is None else {"tree": layout.tree, "position_ids": layout.position_BT}
        with self._computing_in(layout.token_id_BT.device):
            output = self.trunk(input_ids=layout.token_id_BT, use_cache=False, **more)
        hidden_XD: Tensor = output.last_hidden_state.flatten(0, 1)
        hidden_ND = hidden_XD[pack.before_N]
        if self._autocast is not None:
            hidden_ND = hidden_ND.to(self._autocast)
        logprob_N, entropy_N = self.scorer(hidden_ND, pack.targets)
        value_N = None
        if self.value_head is not None:
            value_N = self.value_head(hidden_ND.float()).squeeze(1)
        return Scores(logprob_N, entropy_N, value_N)

    def _computing_in(self, device: torch.device) -> AbstractContextManager[Any]:
        return nullcontext() if self._autocast is None else torch.autocast(device.type, dtype=self._autocast)


_LIVE, _KEPT = "default", "reference"


class Reference:
    """Follows the policy as `kl.reference` says: never, by a moving average, or by a copy every so many updates."""

    def __init__(self, policy: Policy, kl: KlConfig) -> None:
        self.policy = policy
        self._kl = kl
        self._updates = 0
        self.copy: Policy | None = None
        if not isinstance(policy.model, PeftModel):
            self.copy = copy.deepcopy(policy).requires_grad_(False).eval()
        elif kl.reference != "base":
            model: Any = policy.model
            model.add_adapter(_KEPT, model.peft_config[_LIVE])
            model.set_adapter(_LIVE)
            self.become_policy()

    @contextmanager
    def in_place(self) -> Generator[Policy]:
        """The reference, as a policy to score with."""
        if self.copy is not None:
            yield self.copy
            return
        model: Any = self.policy.model
        if self._kl.reference == "base":
            with model.disable_adapter():
                yield self.policy
            return
        model.set_adapter(_KEPT, inference_mode=True)
        try:
            yield self.policy
        finally:
            model.set_adapter(_LIVE)

    def follow(self) -> dict[str, float]:
        """After an update: move as configured, and say what was done and whether it took."""
        self._updates += 1
        if self._kl.reference == "ema":
            self._average()
        elif self._kl.reference == "sync" and self._updates % self._kl.sync_every == 0:
            return {"reference_synced": 1.0, "reference_tensors_differing": float(self.become_policy())}
        return {"reference_synced": 0.0}

    @torch.no_grad()
    def become_policy(self) -> int:
        """Take over every tensor of the policy; the number that still differ afterwards, which must be 0."""
        pairs = self._pairs()
        for live, kept in pairs.values():
            kept.copy_(live)
        return sum(not bool((live.to(kept.device) == kept).all()) for live, kept in pairs.values())

    def state(self) -> State:
        """What it has become: the tensors in use themselves. Of the untouched model there is nothing to keep."""
        if self._kl.reference == "base":
            return State(tensors={}, facts={})
        tensors = {f"reference/{name}": own_part(kept) for name, (_, kept) in self._pairs().items()}
        return State(tensors=tensors, facts={"reference_updates": self._updates})

    @torch.no_grad()
    def become(self, state: State) -> None:
        """Take a state over."""
        if self._kl.reference == "base":
            return
        self._updates = state.facts["reference_updates"]
        for name, own in self.state().tensors.items():
            own.copy_(state.tensors[name])

    @torch.no_grad()
    def _average(self) -> None:
        for live, kept in self._pairs().values():
            kept.lerp_(live.to(kept.device), 1.0 - self._kl.ema_decay)

    def _pairs(self) -> Mapping[str, tuple[Tensor, Tensor]]:
        """Each trained tensor of the policy with the reference's own. Quantised weights and their buffers are frozen
        and shared: they are not among them."""
        live = dict(self.policy.model.named_parameters())
        if self.copy is not None:
            kept = dict(self.copy.model.named_parameters())
            return {name: (tensor, kept[name]) for name, tensor in live.items()}
        mark = f".{_LIVE}."
        return {name: (tensor, live[name.replace(mark, f".{_KEPT}.")]) for name, tensor in live.items() if mark in name}


def load_policy(config: RunConfig, device: torch.device) -> Policy:
    """The policy in its first version: an adapter starts as the identity, so it is the base model's exactly."""
    transformers_logging.disable_progress_bar()  # it would tear the run's own display
    base = _load_base(config, device)
    _require_plain_head(base, config.model.path)
    _silence_dropout(base)
    learner, algorithm = config.learner, config.algorithm
    if learner.checkpointing:
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    autocast = None
    if learner.tuning == "full":
        model: Any = base
        # Small steps are lost in 16 bits, so the weights are kept in 32 and rounded as they are used.
        autocast = torch.bfloat16 if config.model.dtype == "bfloat16" else None
    else:
        torch.manual_seed(derive_seed(config.seed, "adapter"))  # pyright: ignore[reportUnknownMemberType]
        adapter = LoraConfig(
            r=learner.lora_rank,
            lora_alpha=learner.lora_alpha,
            lora_dropout=0.0,  # dropout would make the learner's logprobs differ from the sampler's
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        )
        model = get_peft_model(base, adapter)
        # A set, written in the order of its hashes: two equal runs would leave two files.
        resolved = model.peft_config["default"]
        resolved.target_modules = sorted(resolved.target_modules)
    policy = Policy(model, critic=algorithm.has_critic, entropy_gradient=algorithm.entropy > 0, autocast=autocast).to(
        device
    )
    # transformers checkpoints in training mode only; nothing else differs between the two, without dropout.
    return policy.train(learner.checkpointing)


def _load_base(config: RunConfig, device: torch.device) -> Any:
    model, learner = config.model, config.learner
    more: dict[str, Any] = {"dtype": torch.float32 if learner.tuning == "full" else getattr(torch, model.dtype)}
    if learner.share_prefix:
        require_sharable(cast("Any", AutoConfig).from_pretrained(model.path), model.path)
        more["attn_implementation"] = TREE_ATTENTION
    if learner.tuning == "lora_4bit":
        more |= _four_bits()
    base: Any = AutoModelForCausalLM.from_pretrained(model.path, **more)  # pyright: ignore[reportUnknownMemberType]
    if learner.tuning == "lora_4bit":
        return cast("Any", peft).prepare_model_for_kbit_training(base, use_gradient_checkpointing=False)
    return base.to(device)


def _four_bits() -> dict[str, Any]:
    if not torch.cuda.is_available():
        raise BadValueError(
            "learner.tuning is lora_4bit, and there is no CUDA device: 4-bit weights are computed with on a GPU only",
            fix="set learner.tuning to lora",
        )
    if importlib.util.find_spec("bitsandbytes") is None:
        raise MissingExtraError(
            "learner.tuning is lora_4bit, which needs bitsandbytes", fix="install mcprl[four-bit], or use tuning lora"
        )
    quantised = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    return {"quantization_config": quantised, "device_map": {"": 0}}


def _require_plain_head(base: Any, path: str) -> None:
    """Refuse models that do more to their logits than one product: scores would be those of another distribution."""
    config, head = base.config.get_text_config(), base.get_output_embeddings()
    names = ("final_logit_softcapping", "logit_scale", "logits_scaling", "logits_scale")
    bent = [name for name in names if getattr(config, name, None) not in (None, 1.0)]
    if getattr(head, "bias", None) is not None:
        bent.append("a bias of the head")
    if bent:
        raise BadValueError(
            f"{path} changes its logits behind the head ({', '.join(bent)}), which the learner does not reproduce",
            fix="train a model without it",
        )


def _silence_dropout(base: Any) -> None:
    for module in cast("nn.Module", base).modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            cast("Any", module).attention_dropout = 0.0


def save_weights(
    policy: Policy, version: int, folder: Path, *, model: ModelConfig, state: Mapping[str, Tensor] | None = None
) -> Weights:
    """Write a version of the weights so that its folder is either absent or whole; one that is there is replaced.

    An adapter is written in float32, whole weights in the dtype that samplers compute in. `state` are its tensors by
    name, if the policy holds only a share of each.
    """
    partial = folder.with_name(f"{folder.name}.partial")
    if partial.exists():
        shutil.rmtree(partial)
    trained: Any = policy.model
    if isinstance(trained, PeftModel):
        trained.save_pretrained(str(partial), selected_adapters=["default"], state_dict=state)  # pyright: ignore
        _put_in_place(partial, folder)
        return Weights(version=version, adapter=folder)
    tensors = _in_dtype(trained.state_dict(keep_vars=True) if state is None else state, getattr(torch, model.dtype))
    trained.save_pretrained(partial, state_dict=tensors)
    settings = copy.deepcopy(trained.config)
    settings.dtype = model.dtype  # of the files, not of the weights that are trained
    settings.save_pretrained(partial)
    # A folder that samplers and users can load by itself.
    AutoTokenizer.from_pretrained(model.path).save_pretrained(partial)  # pyright: ignore[reportUnknownMemberType]
    _put_in_place(partial, folder)
    return Weights(version=version, model=folder)


def _in_dtype(state: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The tensors rounded, in the CPU's memory. Tied weights, one tensor under two names, stay one tensor."""
    different = {id(tensor): tensor.detach() for tensor in state.values()}
    made = {key: tensor.to("cpu", dtype if tensor.is_floating_point() else None) for key, tensor in different.items()}
    return {name: made[id(tensor)] for name, tensor in state.items()}


def _put_in_place(partial: Path, folder: Path) -> None:
    replaced = folder.with_name(f"{folder.name}.replaced")
    if replaced.exists():
        shutil.rmtree(replaced)
    if folder.exists():  # of a process that went further than the state it is resumed from
        folder.rename(replaced)
    partial.rename(folder)
    if replaced.exists():
        shutil.rmtree(replaced)

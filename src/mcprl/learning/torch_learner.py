"""The torch learner, which loads the model with transformers and PEFT, and updates it with AdamW."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from torch import Tensor

from mcprl.config import RunConfig
from mcprl.files import storage_faults
from mcprl.learning.learner import in_torch_thread
from mcprl.learning.models import Reference, load_policy, require_plain_names
from mcprl.learning.optimizer import Optimisation
from mcprl.learning.packing import Packer, Policy, Replayer
from mcprl.learning.process_group import ProcessGroup
from mcprl.learning.state import (
    Origin,
    State,
    file_bytes,
    random_state,
    read_state,
    require_fit,
    restore_random_state,
    write_state,
)
from mcprl.learning.update import BatchLearner
from mcprl.records import Batch, Update, Weights

if TYPE_CHECKING:
    from mcprl.grammar.masks import Grammars
    from mcprl.learning.learner import Receiver


class TorchLearner(BatchLearner[Policy, Optimisation, Reference]):
    """Trains a policy, on the GPU if there is one. The methods are described in `Learner`.

    `grammars` replays the grammars under which trajectories were sampled; None if sampling is not constrained. Versions
    of the weights are written to `folder`. `save_state` writes the tensors in use, without a second copy in memory.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        folder: Path,
        grammars: Grammars | None,
        processes: ProcessGroup | None = None,
        gpu: int | None = None,
    ) -> None:
        if gpu is not None and torch.cuda.is_available():
            torch.cuda.set_device(gpu)  # "cuda" then means this one, in this thread
        processes, learner = processes or ProcessGroup(), config.learner
        packer = Packer(
            Replayer(grammars), processes.device, tokens=learner.tokens_per_pack, share_prefix=learner.share_prefix
        )
        super().__init__(config, processes=processes, packer=packer)
        self._folder = folder
        policy, kl = load_policy(config, self._processes.loading_device), config.algorithm.kl
        if config.sends_weights:
            require_plain_names(policy.model, config.model.path)
        self._origin = Origin.of(config, self._processes.size)
        starts_apart = config.model.adapter is not None
        self.reference = Reference(policy, kl, starts_apart=starts_apart) if kl.needs_reference else None
        self.policy, self.optimisation = self._processes.share(policy, self.reference, config)

    async def update(self, batch: Batch) -> Update:
        update = await super().update(batch)
        # Memory that torch keeps for later would be missing if a vLLM on the same GPU has to be restarted.
        await in_torch_thread(torch.cuda.empty_cache)
        return update

    async def leave_gpu(self) -> None:
        await in_torch_thread(self._move, torch.device("cpu"))

    async def return_to_gpu(self) -> None:
        await in_torch_thread(self._move, self._processes.device)

    def _move(self, device: torch.device) -> None:
        """Move all that is kept between updates, except what DeepSpeed or bitsandbytes holds."""
        learner = self._config.learner
        if learner.tuning != "lora_4bit" and (self._processes.size == 1 or learner.sharding == "fsdp2"):
            self.optimisation.forget_gradients()
            self.policy.to(device)
            for moments in self.optimisation.optimiser.state.values():
                moments |= {name: tensor.to(device) for name, tensor in moments.items() if name != "step"}
            if self.reference is not None and self.reference.copy is not None:
                self.reference.copy.to(device)
        torch.cuda.empty_cache()

    async def save_state(self, folder: Path) -> None:
        await in_torch_thread(self._save_state, folder)

    async def load_state(self, folder: Path) -> Weights:
        return await in_torch_thread(self._load_state, folder)

    async def fetch(self, weights: Weights) -> Weights:
        if weights.version and self._config.sends_weights:
            return await in_torch_thread(self._save_weights, weights.version)
        return weights  # every version is already on disk

    async def send(self, receiver: Receiver) -> int:
        """Send the current weights to a vLLM server. Returns their version."""
        return await in_torch_thread(self._send, receiver)

    async def state_bytes(self) -> int:
        return await in_torch_thread(self._state_bytes)

    def _save_state(self, folder: Path) -> None:
        with storage_faults(f"writing the learner's state to {folder}", SafetensorError):
            write_state(self._state(), self._origin, folder, self._processes.rank)

    def _load_state(self, folder: Path) -> Weights:
        with storage_faults(f"reading the learner's state in {folder}", SafetensorError):
            state, saved = read_state(self._origin, folder, self._processes.rank)
        require_fit(state, self._expected(), saved, self._origin)
        self.optimisation.become(state)
        if self.reference is not None:
            self.reference.become(state)
        self._non_finite_in_a_row = state.facts["non_finite_in_a_row"]
        version = state.facts["version"]
        start = Weights(version=0, adapter=self._config.model.adapter)
        self._weights = self._write_weights(version) if version else start
        restore_random_state(state, self._processes.device)
        return self._weights

    def _state_bytes(self) -> int:
        facts = len(json.dumps(self._state().facts)) + len(json.dumps(self._origin.settings))
        return sum(self._processes.gather(file_bytes(self._expected()) + facts))

    def _state(self) -> State:
        own = {"version": self._weights.version, "non_finite_in_a_row": self._non_finite_in_a_row}
        state = State(tensors={}, facts=own) | self.optimisation.state() | random_state(self._processes.device)
        return state if self.reference is None else state | self.reference.state()

    def _expected(self) -> dict[str, Tensor]:
        """Return the tensors that the state has after the first update. Only their shapes matter."""
        return self._state().tensors | self.optimisation.expected()

    def _send(self, receiver: Receiver) -> int:
        processes, dtype = self._processes, getattr(torch, self._config.model.dtype)
        receiver.receive(
            self.policy.model,
            lambda: processes.whole_tensors(self.policy),
            device=processes.device,
            dtype=dtype,
            rank=processes.rank,
        )
        return self._weights.version

    def _write_weights(self, version: int) -> Weights:
        return Weights(version=version) if self._config.sends_weights else self._save_weights(version)

    def _save_weights(self, version: int) -> Weights:
        folder = self._folder / f"v{version}"
        with storage_faults(f"writing {folder}", SafetensorError):
            return self._processes.save(self.policy, version, folder, model=self._config.model)

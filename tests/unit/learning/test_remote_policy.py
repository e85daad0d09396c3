"""An update behind an API has the gradient of an update here, for every objective and every backend's own mean."""
# R24

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from made_trajectories import flat, gradient_of, make_trajectory, randomise_adapter
from small_models import save_small_model, small_batch, small_config, small_groups, small_learner
from torch import Tensor

from mcprl.config import RunConfig, SkyrlConfig
from mcprl.learning.algorithms import make_batch
from mcprl.learning.skyrl_learner import SkyrlLearner
from mcprl.records import Batch, Readings
from mcprl.skyrl.client import AdamStep, ScoredRow
from mcprl.skyrl.engine import SkyrlEngine

OWN = Path(__file__).parents[3] / "examples" / "own_code" / "learning.py"
OBJECTIVES = {
    "ppo": {},
    "gspo": {"loss": "gspo"},
    "cispo": {"loss": "cispo"},
    "dr_grpo": {"advantages": "dr_grpo", "aggregation": "constant"},
    "sequence mean": {"aggregation": "sequence_mean"},
    "gate": {"ratio_gate": [0.2, 5.0]},
    "recomputed": {"old_logprobs": "recomputed"},
    "kl in the loss": {"kl": {"coefficient": 0.3, "reference": "base"}},
    "own": {"loss": f"{OWN}:sapo", "advantages": f"{OWN}:above_the_median"},
}


class TorchBehindTheApi(SkyrlEngine):
    """An engine whose server is a torch model, with the arithmetic that the backends document; steps are only noted."""

    def __init__(self, config: RunConfig, model: Any) -> None:
        super().__init__(config, folder=Path("unused"), log=Path("unused"))
        self.model = model
        self.gradients: list[Tensor] = []
        self.steps: list[AdamStep] = []
        self.reloads = 0
        self._snapshot = "tinker://m/weights/v0"

    def from_thread(self, asked: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(asked)

    def logprobs(self, token_ids: Sequence[int]) -> Tensor:
        logit_TV = self.model(input_ids=torch.tensor([list(token_ids)]), use_cache=False).logits[0].float()
        return torch.log_softmax(logit_TV[:-1], dim=-1).gather(1, torch.tensor(token_ids[1:])[:, None])[:, 0]

    async def score(self, token_ids: Sequence[Sequence[int]], *, reference: bool = False) -> list[tuple[float, ...]]:
        with torch.no_grad():
            if not reference:
                return [tuple(self.logprobs(ids).tolist()) for ids in token_ids]
            with self.model.disable_adapter():
                return [tuple(self.logprobs(ids).tolist()) for ids in token_ids]

    async def learn(self, rows: Sequence[ScoredRow], step: AdamStep) -> dict[str, float]:
        self.model.zero_grad()
        scale = self._scale(len(rows))
        total: Any = 0.0
        for row in rows:
            weight_T = torch.tensor([float(own) for own in row.scored])
            advantage_T = torch.tensor([-gradient * scale(sum(row.scored)) for gradient in row.gradients])
            ratio_T = torch.exp(self.logprobs(row.token_ids) - torch.tensor(row.logprobs))
            own = -(ratio_T * advantage_T * weight_T).sum()
            if self._skyrl.backend == "jax":  # the mean over a row's tokens, then over rows
                own = own / weight_T.sum() / len(rows)
            total = total + own
        total.backward()
        found = flat([p.grad for p in self.model.parameters() if p.requires_grad])
        self.gradients.append(found)
        self.steps.append(step)
        return {"skyrl.ai/grad_norm": float(found.norm())}

    async def finish(self, version: int) -> None:
        self._version = version

    async def reload(self) -> None:
        self.reloads += 1


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("qwen3"), "qwen3")


def configured(model: Path, backend: str = "jax", **algorithm: Any) -> RunConfig:
    config = small_config(model, algorithm=algorithm, lora_alpha=32, max_grad_norm=None, share_prefix=False)
    url = None if backend == "jax" else "http://127.0.0.1:1"
    return config.model_copy(update={"skyrl": SkyrlConfig(backend=backend, url=url)})  # pyright: ignore


async def both(config: RunConfig, folder: Path, batch: Batch | None = None) -> tuple[Any, Any, TorchBehindTheApi]:
    """Loss and gradient of the same update through both learners, on the same adapter."""
    here = small_learner(config, folder)
    randomise_adapter(here.policy)
    engine = TorchBehindTheApi(config, here.policy.model)
    there = SkyrlLearner(config, engine, folder=folder)
    if batch is None:
        groups = small_groups()
        trajectories = [t for group in groups for t in group.trajectories]
        readings = await here.read(trajectories)
        remote = await asyncio.to_thread(there._read, trajectories)
        assert_close(readings, remote)
        batch = small_batch(config, groups, readings=readings)
    expected = await asyncio.to_thread(gradient_of, here, batch)
    update = await asyncio.to_thread(there._update, batch)
    return expected, (update.metrics["loss"], engine.gradients[0]), engine


def assert_close(ours: Readings, theirs: Readings) -> None:
    for name in ("logprobs", "reference_logprobs"):
        own, other = getattr(ours, name), getattr(theirs, name)
        assert (own is None) == (other is None)
        for a, b in zip(own or (), other or (), strict=True):
            assert a == pytest.approx(b, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "fsdp"])
@pytest.mark.parametrize("objective", OBJECTIVES)
async def test_every_objective_has_the_same_loss_and_gradient_on_both_engines(model, tmp_path, objective, backend):
    config = configured(model, backend, **OBJECTIVES[objective])
    (loss, gradient), (remote_loss, remote_gradient), _ = await both(config, tmp_path)
    assert remote_loss == pytest.approx(loss, rel=1e-4, abs=1e-6)
    assert gradient.norm() > 0
    assert torch.allclose(remote_gradient, gradient, rtol=1e-3, atol=float(gradient.abs().max()) * 1e-4)


async def test_demonstrations_are_imitated_as_much_on_both_engines(model, tmp_path):
    config = configured(model)
    shown = (make_trajectory([5, 9, 11, 17, 4], "ccsss"), make_trajectory([5, 9, 3, 8], "ccss", member=1))
    batch = replace(
        make_batch(0, small_groups(), config.algorithm, Readings()), demonstrations=shown, demonstration_weight=0.4
    )
    (loss, gradient), (remote_loss, remote_gradient), _ = await both(config, tmp_path, batch)
    assert remote_loss == pytest.approx(loss, rel=1e-4)
    assert torch.allclose(remote_gradient, gradient, rtol=1e-3, atol=float(gradient.abs().max()) * 1e-4)


async def test_the_learning_rate_follows_the_schedule_and_every_minibatch_is_a_step(model, tmp_path):
    config = configured(model, minibatches=2)
    learner = config.learner.model_copy(update={"schedule": "linear", "warmup_steps": 1, "learning_rate": 1.0})
    config = config.model_copy(update={"learner": learner})
    *_, engine = await both(config, tmp_path)
    # Of 2 × training.steps steps, the first warms up at a half, and the second has all of it.
    assert [step.learning_rate for step in engine.steps] == pytest.approx([0.5, 1.0], rel=0.01)
    assert engine.version == 1


async def test_an_update_whose_gradient_is_no_number_is_undone_on_the_server(model, tmp_path):
    config = configured(model, minibatches=2)
    here = small_learner(config, tmp_path)

    class Spoils(TorchBehindTheApi):
        async def learn(self, rows: Sequence[ScoredRow], step: AdamStep) -> dict[str, float]:
            await super().learn(rows, step)
            return {"skyrl.ai/grad_norm": float("nan") if len(self.steps) == 2 else 1.0}

    engine = Spoils(config, here.policy.model)
    there = SkyrlLearner(config, engine, folder=tmp_path)
    update = await asyncio.to_thread(there._update, small_batch(config))
    assert update.skipped is not None
    assert "not a finite number" in update.skipped
    assert update.metrics["nonfinite"] == 1.0
    assert (engine.reloads, there.optimisation.steps, engine.version) == (1, 0, 0)


async def test_a_server_that_tells_no_gradient_norm_leaves_it_out_of_the_metrics(model, tmp_path):
    config = configured(model, "hosted")
    here = small_learner(config, tmp_path)

    class Silent(TorchBehindTheApi):
        async def learn(self, rows: Sequence[ScoredRow], step: AdamStep) -> dict[str, float]:
            await super().learn(rows, step)
            return {}

    there = SkyrlLearner(config, Silent(config, here.policy.model), folder=tmp_path)
    update = await asyncio.to_thread(there._update, small_batch(config))
    assert update.skipped is None
    assert "grad_norm" not in update.metrics


class Jumping(TorchBehindTheApi):
    """Its steps throw the adapter about; its snapshot is the adapter as it was at first."""

    def __init__(self, config: RunConfig, model: Any) -> None:
        super().__init__(config, model)
        self._kept = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}

    async def learn(self, rows: Sequence[ScoredRow], step: AdamStep) -> dict[str, float]:
        told = await super().learn(rows, step)
        with torch.no_grad():
            for name, p in self.model.named_parameters():
                if name in self._kept:
                    p.add_(3.0 * step.learning_rate)
        return told

    async def reload(self) -> None:
        await super().reload()
        with torch.no_grad():
            for name, p in self.model.named_parameters():
                if name in self._kept:
                    p.copy_(self._kept[name])


async def test_an_update_beyond_the_cap_is_undone_on_the_server_and_the_rate_is_halved(model, tmp_path):
    config = configured(model, old_logprobs="recomputed", kl={"cap": 0.5})
    config = config.model_copy(update={"learner": config.learner.model_copy(update={"learning_rate": 1.0})})
    here = small_learner(config, tmp_path)
    randomise_adapter(here.policy)
    engine = Jumping(config, here.policy.model)
    there = SkyrlLearner(config, engine, folder=tmp_path)
    groups = small_groups()
    trajectories = [t for group in groups for t in group.trajectories]
    before = await asyncio.to_thread(there._read, trajectories)
    update = await asyncio.to_thread(there._update, small_batch(config, groups, readings=before))
    assert (update.metrics["update_undone"], update.weights.version, engine.reloads) == (1.0, 0, 1)
    assert update.metrics["kl_update"] > 0.5
    assert (await asyncio.to_thread(there._read, trajectories)).logprobs == before.logprobs
    assert there.optimisation.learning_rate == 0.5
    resume_point = there._progress()
    assert (resume_point.steps, resume_point.rate_factor) == (0, 0.5)

"""Both engines on one tiny Qwen3: SkyRL's real server with JAX against torch, and what the API would do unguarded.

One run of events, for a server takes half a minute to start; the tests then look at what was seen.
"""
# R24

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from peft import set_peft_model_state_dict
from safetensors.torch import load_file
from torch import Tensor

from mcprl.config import (
    AlgorithmConfig,
    LearnerConfig,
    ModelConfig,
    RunConfig,
    SamplingConfig,
    ServersConfig,
    SkyrlConfig,
    TasksConfig,
)
from mcprl.errors import UnfitEngineError
from mcprl.goals import Goal
from mcprl.learning import TorchLearner
from mcprl.learning.algorithms import make_batch
from mcprl.learning.skyrl_learner import SkyrlLearner
from mcprl.records import Batch, Columns, FinishReason, Group, StopReason, Task, Trajectory, Turn, Weights
from mcprl.samplers import Completion, SampleRequest
from mcprl.samplers.skyrl import SkyrlSampler
from mcprl.skyrl.client import AdamStep, ScoredRow
from mcprl.skyrl.engine import SkyrlEngine
from mcprl.skyrl.serve import KEY_HEADER

pytestmark = [pytest.mark.process, pytest.mark.timeout(1500)]

PROMPT = (5, 6, 7, 8)
MAX_TOKENS = 8
# Adam with an epsilon far above every gradient makes plain steps: the weights move by RATE times the mean gradient.
EPSILON, RATE = 1e4, 10.0
PLAIN = AdamStep(learning_rate=EPSILON * RATE, eps=EPSILON)


@dataclass
class Seen:
    """What was seen, in the order of events."""

    twice: list[Completion] = field(default_factory=list)
    sampled: tuple[Trajectory, ...] = ()
    scores: dict[str, Columns] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    versions: list[int] = field(default_factory=list)
    generations: dict[str, int] = field(default_factory=dict)
    states_kept: dict[str, int] = field(default_factory=dict)
    saves: dict[str, Counter[str]] = field(default_factory=dict)


def configured(model: Path, python: Path) -> RunConfig:
    return RunConfig(
        name="engines",
        engine="skyrl",
        model=ModelConfig(path=str(model), renderer="qwen3", dtype="float32"),
        tasks=TasksConfig(train=Path("unused.jsonl")),
        servers=ServersConfig(file=Path("unused.json")),
        sampling=SamplingConfig(constrain="off"),
        skyrl=SkyrlConfig(python=python, backend_config={"max_lora_adapters": 8}),
        algorithm=AlgorithmConfig(
            minibatches=1,
            min_learnable_tokens=1,
            kl={"coefficient": 0.05, "reference": "sync", "lag": 1},  # pyright: ignore
        ),
        learner=LearnerConfig(lora_rank=4, learning_rate=1e-2),
    )


def trajectory(completion: Completion, member: int) -> Trajectory:
    own = len(completion.token_ids)
    turn = Turn(text="", sampled_ids=completion.token_ids, finish=FinishReason.LENGTH, weights_version=0)
    none = (False,) * (len(PROMPT) + own)
    return Trajectory(
        task_id="task",
        step=0,
        member=member,
        attempt=0,
        temperature=1.0,
        token_ids=PROMPT + completion.token_ids,
        sampled=(False,) * len(PROMPT) + (True,) * own,
        forced=none,
        fixed=none,
        logprobs=(0.0,) * len(PROMPT) + completion.logprobs,
        turn_index=(-1,) * len(PROMPT) + (0,) * own,
        weights_version=(-1,) * len(PROMPT) + completion.weights_versions,
        turns=(replace(turn, reward=float(member % 3)),),
        stop=StopReason.ANSWERED,
        reward=float(member % 3),
        reward_parts={},
    )


class Script:
    """The events, one after another."""

    def __init__(self, config: RunConfig, folder: Path, *, lose: bool) -> None:
        self.config = config
        self.folder = folder
        self.lose = lose
        self.seen = Seen()

    async def run(self) -> Seen:
        async with SkyrlEngine(self.config, folder=self.folder / "skyrl", log=self.folder / "skyrl.log") as engine:
            sampler = SkyrlSampler(engine, model=self.config.model.path)
            await self.sample(sampler)
            learner = await SkyrlLearner.open(self.config, engine, folder=self.folder / "weights")
            self.seen.scores["fresh"] = await learner.score(self.seen.sampled)
            await self.compare(engine, learner)
            await self.ask_for_old_weights(engine, sampler)
            if self.lose:
                await self.lose_the_server(engine, learner)
                assert engine.server is not None
                with pytest.MonkeyPatch.context() as patch:
                    patch.setenv("TINKER_API_KEY", engine.server.key)
                    await self.forget_the_session(engine.server.url, engine.server.key)
        return self.seen

    async def sample(self, sampler: SkyrlSampler) -> None:
        def request(seed: int) -> SampleRequest:
            return SampleRequest(
                prompt_ids=PROMPT, max_tokens=MAX_TOKENS, temperature=1.0, stop=(), stop_token_ids=(3,), seed=seed
            )

        self.seen.twice = [await sampler.sample(request(4)) for _ in range(2)]
        # Of different lengths, so that a mean over rows is no mean over tokens.
        drawn = await asyncio.gather(*(sampler.sample(request(seed)) for seed in range(6)))
        cut = [_cut(completion, MAX_TOKENS - member) for member, completion in enumerate(drawn)]
        self.seen.sampled = tuple(trajectory(completion, member) for member, completion in enumerate(cut))

    async def batch(self, learner: Any) -> Batch:
        task = Task(id="task", prompt=({"role": "user", "content": "?"},), goal=Goal())
        group = Group(task=task, trajectories=self.seen.sampled)
        readings = await learner.read(self.seen.sampled)
        return make_batch(0, (group,), self.config.algorithm, readings, kl_coefficient=0.05)

    async def compare(self, engine: SkyrlEngine, learner: SkyrlLearner) -> None:
        """Two plain steps on the server; torch takes up the adapter between them, and computes what the second is."""
        learn = engine.learn

        async def plainly(rows: Sequence[ScoredRow], step: AdamStep) -> dict[str, float]:
            told = await learn(rows, PLAIN)
            with pytest.raises(UnfitEngineError) as refusal:
                await engine.sample(PROMPT, max_tokens=1, stop=(), temperature=1.0, seed=0)
            self.seen.refusals["while trained past the snapshot"] = str(refusal.value)
            return told

        engine.learn = plainly
        adapters = [await self.adapter(learner)]
        for _ in range(2):
            batch = await self.batch(learner)
            update = await learner.update(batch)
            self.seen.losses["skyrl"] = update.metrics["loss"]
            adapters.append(await self.adapter(learner))
            if len(adapters) == 2:
                self.seen.scores["skyrl"] = await learner.score(self.seen.sampled)
                await self.compute_with_torch(adapters[1], batch_of=self.batch)
        engine.learn = learn
        first, second = ((b - a) / -RATE for a, b in pairwise(adapters))
        # The second step's mean gradient is that of both, as Adam weighs them: (0.09 g1 + 0.1 g2) / 0.19.
        self.seen.gradients["skyrl"] = (0.19 * second - 0.09 * first) / 0.1

    async def adapter(self, learner: SkyrlLearner) -> Tensor:
        fetched = await learner.fetch(learner._weights)
        assert fetched.adapter is not None
        return _flat(load_file(fetched.adapter / "adapter_model.safetensors"))

    async def compute_with_torch(self, adapter: Tensor, batch_of: Any) -> None:
        here = self.config.model_copy(update={"engine": "transformers"})
        learner = TorchLearner(here, folder=self.folder / "torch", grammars=None)
        names = load_file(self.folder / "weights" / "v1" / "adapter_model.safetensors")
        assert torch.equal(_flat(names), adapter)
        left = set_peft_model_state_dict(learner.policy.model, names)
        assert not left.unexpected_keys
        assert learner.reference is not None
        learner.reference.become_policy()  # as the server's does after each update
        self.seen.scores["torch"] = await learner.score(self.seen.sampled)
        parameters = dict(learner.policy.model.named_parameters())

        def step() -> float:
            own = {name: parameters[name.replace(".weight", ".default.weight")].grad for name in names}
            self.seen.gradients["torch"] = _flat(_tied(own, names))
            return 0.0

        learner.optimisation.step = step  # pyright: ignore[reportAttributeAccessIssue]
        self.seen.losses["torch"] = (await learner.update(await batch_of(learner))).metrics["loss"]

    async def ask_for_old_weights(self, engine: SkyrlEngine, sampler: SkyrlSampler) -> None:
        await sampler.publish(Weights(version=2))
        with pytest.raises(UnfitEngineError) as refusal:
            await sampler.publish(Weights(version=1))
        self.seen.refusals["an older version"] = str(refusal.value)
        drawn, version = await engine.sample(PROMPT, max_tokens=MAX_TOKENS, stop=(), temperature=1.0, seed=9)
        self.seen.versions += [version, len(drawn.token_ids)]

    async def lose_the_server(self, engine: SkyrlEngine, learner: SkyrlLearner) -> None:
        """Two updates twice from the same checkpoint, the second time with the server killed in the second one."""
        checkpoint = self.folder / "checkpoints" / "step-00002"
        checkpoint.mkdir(parents=True)
        await learner.save_state(checkpoint)
        self.seen.states_kept["after saving"] = _states(self.folder)
        batch = await self.batch(learner)
        before = _saves(self.folder)
        for _ in range(2):
            await learner.update(batch)
        self.seen.saves["of two updates"] = _saves(self.folder) - before
        self.seen.scores["undisturbed"] = await learner.score(self.seen.sampled)
        await learner.load_state(checkpoint)
        await learner.update(batch)
        learn = engine.learn

        async def killed(rows: Sequence[ScoredRow], step: AdamStep) -> dict[str, float]:
            engine.learn = learn
            assert engine.server is not None
            engine.server.kill()
            return await learn(rows, step)

        engine.learn = killed
        update = await learner.update(batch)
        self.seen.versions.append(update.weights.version)
        self.seen.generations["after the kill"] = engine.generation
        self.seen.scores["killed"] = await learner.score(self.seen.sampled)
        before = _saves(self.folder)
        await learner.save_state(checkpoint)
        self.seen.saves["of a checkpoint"] = _saves(self.folder) - before

    async def forget_the_session(self, url: str, key: str) -> None:
        """Another engine on the same server, which drops its models, as it does after 300 s of silence."""
        skyrl = self.config.skyrl.model_copy(update={"url": url})
        config = self.config.model_copy(update={"skyrl": skyrl})
        async with SkyrlEngine(config, folder=self.folder / "unused", log=self.folder / "unused.log") as engine:
            learner = await SkyrlLearner.open(config, engine, folder=self.folder / "weights-2")
            await learner.update(await self.batch(learner))
            self.seen.scores["before it was forgotten"] = await learner.score(self.seen.sampled)
            row = ScoredRow(token_ids=PROMPT, scored=(True,) * 3, logprobs=(-11.0,) * 3, gradients=(5.0, -3.0, 9.0))
            assert engine._policy is not None
            await engine._asked.forward_backward(engine._policy, [row], lambda _: 1.0)  # and never a step
            headers = {KEY_HEADER: key}
            async with httpx2.AsyncClient(
                base_url=f"{url}/api/v1", headers=headers, trust_env=False, timeout=120
            ) as http:
                for model in (engine._policy, engine._reference):
                    assert model is not None
                    asked = await http.post("/unload_model", json={"model_id": model.model_id})
                    await http.post("/retrieve_future", json={"request_id": asked.json()["request_id"]})
            self.seen.scores["after it was forgotten"] = await learner.score(self.seen.sampled)
            self.seen.generations["after it was forgotten"] = engine.generation
            # A step by what is left in the adapter's place, and one by Adam's momentum alone, from the same weights.
            for name in ("after a step by what was left", "after a step by momentum"):
                await engine.learn([], PLAIN)
                self.seen.scores[name] = tuple(await engine.score([t.token_ids for t in self.seen.sampled]))
                await engine.reload()


def _cut(completion: Completion, length: int) -> Completion:
    return replace(
        completion,
        token_ids=completion.token_ids[:length],
        logprobs=completion.logprobs[:length],
        weights_versions=completion.weights_versions[:length],
    )


def _flat(tensors: Any) -> Tensor:
    return torch.cat([tensors[name].flatten().float() for name in sorted(tensors)])


def _tied(gradients: dict[str, Any], weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The gradients as the server has them: there q, k and v have one lora_A, and so have gate and up; what is exported
    has copies of it. The gradient of the one is the sum of those of its copies."""
    return {
        name: sum(gradients[other] for other, copy in weights.items() if torch.equal(copy, weight))
        if "lora_A" in name
        else gradients[name]
        for name, weight in weights.items()
    }


def _states(folder: Path) -> int:
    return len([*(folder / "skyrl" / "checkpoints").glob("*/*.tar.gz")])


def _saves(folder: Path) -> Counter[str]:
    """How often the server was asked for each kind of saving."""
    kinds = {"SAVE_WEIGHTS": "state", "SAVE_WEIGHTS_FOR_SAMPLER": "sampler"}
    with closing(sqlite3.connect(folder / "skyrl" / "skyrl.db", timeout=60)) as database:
        asked = list(database.execute("SELECT request_type, request_data FROM futures"))
    found = Counter[str]()
    for kind, data in asked:
        if kind in kinds:
            told = json.loads(data)
            is_transient = told.get("sampling_session_seq_id") is not None
            name = told["path"].partition("-")[0] if kind == "SAVE_WEIGHTS" else "transient" if is_transient else "file"
            found[f"{kinds[kind]} {name}"] += 1
    return found


def largest_difference(ours: Columns, theirs: Columns) -> float:
    return max(abs(a - b) for x, y in zip(ours, theirs, strict=True) for a, b in zip(x, y, strict=True))


@pytest.fixture(scope="module")
def seen(tiny_qwen3, skyrl_python, tmp_path_factory) -> Seen:
    config = configured(tiny_qwen3, skyrl_python)
    return asyncio.run(Script(config, tmp_path_factory.mktemp("engines"), lose=False).run())


@pytest.fixture(scope="module")
def seen_to_be_lost(tiny_qwen3, skyrl_python, tmp_path_factory) -> Seen:
    """With a server that is killed and a session that is forgotten: three minutes more."""
    config = configured(tiny_qwen3, skyrl_python)
    return asyncio.run(Script(config, tmp_path_factory.mktemp("engines"), lose=True).run())


def test_a_seed_draws_the_same_turn_again(seen):
    first, second = seen.twice
    assert first.token_ids == second.token_ids
    assert len(first.token_ids) == MAX_TOKENS


def test_sampler_and_learner_agree_about_the_same_tokens(seen):
    sampled = tuple(t.logprobs for t in seen.sampled)
    assert largest_difference(seen.scores["fresh"], sampled) < 1e-4


def test_both_engines_give_the_same_tokens_the_same_logprobs(seen, record_property):
    difference = largest_difference(seen.scores["skyrl"], seen.scores["torch"])
    record_property("logprob_difference", difference)
    assert difference <= 1e-4
    assert largest_difference(seen.scores["skyrl"], seen.scores["fresh"]) > 1e-2, "the adapter does nothing yet"


def test_both_engines_see_the_same_loss_of_the_same_batch(seen, record_property):
    record_property("loss_difference", abs(seen.losses["skyrl"] - seen.losses["torch"]))
    assert seen.losses["skyrl"] == pytest.approx(seen.losses["torch"], rel=1e-3, abs=1e-5)


def test_both_engines_move_the_weights_the_same_way(seen, record_property):
    ours, theirs = seen.gradients["skyrl"], seen.gradients["torch"]
    cosine = float(torch.nn.functional.cosine_similarity(ours, theirs, dim=0))
    record_property("gradient_cosine", cosine)
    assert cosine >= 0.999
    assert float(ours.norm() / theirs.norm()) == pytest.approx(1.0, rel=0.01)


def test_weights_that_were_trained_past_the_snapshot_are_not_sampled_over(seen):
    assert "sampling from it now would overwrite them" in seen.refusals["while trained past the snapshot"]


def test_an_older_version_is_not_sampled_from(seen):
    assert "sampling from an older version would undo training" in seen.refusals["an older version"]
    assert seen.versions[:2] == [2, MAX_TOKENS]


@pytest.mark.full
def test_an_update_that_the_server_does_not_live_through_is_made_again_and_is_the_same(seen_to_be_lost):
    assert seen_to_be_lost.generations["after the kill"] == 1
    assert seen_to_be_lost.versions[2] == 4
    assert largest_difference(seen_to_be_lost.scores["killed"], seen_to_be_lost.scores["undisturbed"]) < 1e-5
    assert largest_difference(seen_to_be_lost.scores["killed"], seen_to_be_lost.scores["skyrl"]) > 1e-4


@pytest.mark.full
def test_an_update_saves_nothing_but_what_the_sampler_needs_and_a_checkpoint_saves_one_state(seen_to_be_lost):
    # The reference follows the policy after each update here, and takes its weights from a state.
    assert seen_to_be_lost.saves["of two updates"] == {"state reference": 2, "sampler transient": 2}
    assert seen_to_be_lost.saves["of a checkpoint"] == {"state v4": 1}


@pytest.mark.full
def test_a_session_that_the_server_forgot_goes_on_from_the_newest_version(seen_to_be_lost):
    assert seen_to_be_lost.generations["after it was forgotten"] == 1
    assert (
        largest_difference(
            seen_to_be_lost.scores["after it was forgotten"], seen_to_be_lost.scores["before it was forgotten"]
        )
        < 1e-6
    )


@pytest.mark.full
def test_gradients_that_a_forgotten_adapter_left_behind_move_nothing(seen_to_be_lost):
    scores = seen_to_be_lost.scores
    assert largest_difference(scores["after a step by what was left"], scores["after a step by momentum"]) < 1e-6


@pytest.mark.full
def test_the_server_keeps_the_states_that_checkpoints_name_and_no_others(seen_to_be_lost):
    assert seen_to_be_lost.states_kept["after saving"] == 2  # the newest, and the reference's

"""Something that is no number, wherever it comes from, changes nothing: no weight, no optimiser state, no version."""
# R30

from __future__ import annotations

import hashlib
import math
import os
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from made_trajectories import make_trajectory
from peft import PeftModel
from small_models import save_small_model, small_config, small_groups, small_learner
from torch import Tensor, nn

from mcprl.config import AlgorithmConfig, RunConfig
from mcprl.errors import NonFiniteError
from mcprl.learning import TorchLearner
from mcprl.learning.algorithms import make_batch
from mcprl.learning.packing import make_examples
from mcprl.learning.update import minibatches_of
from mcprl.records import Batch, Columns, Group, Readings, Trajectory

NAN, INF = math.nan, math.inf
NO_NUMBERS = (NAN, INF, -INF)
# Everything that can meet a bad number at once; a pack for each episode, so that 2 · 2 · 2 go through the model.
OBJECTIVE: dict[str, Any] = {
    "advantages": "gae",
    "old_logprobs": "recomputed",
    "kl": {"coefficient": 0.05},
    "entropy": 0.01,
    "minibatches": 2,
    "epochs": 2,
}
FIRST, SECOND_PACK, LATER_MINIBATCH, LATER_EPOCH, LAST = 0, 1, 2, 4, 7

Spoilt = tuple[Batch, set[str]]
Fault = Callable[[TorchLearner], AbstractContextManager[Spoilt]]


def column(trajectories: list[Trajectory], value: float) -> Columns:
    return tuple(tuple(value if own else 0.0 for own in t.sampled) for t in trajectories)


def made_readings(groups: tuple[Group, ...]) -> Readings:
    trajectories = [t for group in groups for t in group.trajectories]
    return Readings(
        logprobs=tuple(t.logprobs for t in trajectories),
        reference_logprobs=column(trajectories, -4.4),
        values=column(trajectories, 0.1),
    )


def made_batch(
    algorithm: AlgorithmConfig, groups: tuple[Group, ...] | None = None, readings: Readings | None = None, **more: Any
) -> Batch:
    groups = groups or small_groups()
    return make_batch(0, groups, algorithm, readings or made_readings(groups), kl_coefficient=0.05, **more)


def clean_batch(learner: TorchLearner, **more: Any) -> Batch:
    return made_batch(learner._config.algorithm, **more)


def name_of(trajectory: Trajectory) -> str:
    return f"episode {trajectory.member} of task {trajectory.task_id} in step {trajectory.step}"


def episode_of_pack(learner: TorchLearner, batch: Batch, number: int) -> str:
    """The episode in the pack that goes through the model as this one of an update."""
    examples = make_examples(batch)
    order: list[str] = []
    for minibatch in minibatches_of(batch, learner._config):
        own = [examples[i] for i in minibatch]
        order.extend(own[i].name for pack in learner._packer.divide(own) for i in pack)
    return order[number]


def bad_reward(value: float, advantages: str) -> Fault:
    @contextmanager
    def fault(learner: TorchLearner) -> Iterator[Spoilt]:
        groups = small_groups(rewards=(1.0, value, 0.3, 0.9))
        algorithm = learner._config.algorithm.model_copy(update={"advantages": advantages})
        batch = made_batch(algorithm, groups)
        # One reward spoils all advantages of its group. With a critic, they are not relative to those of others.
        members = groups[0].trajectories
        yield batch, {name_of(t) for t in (members if advantages == "grpo" else members[1:2])}

    return fault


def bad_logprob(value: float) -> Fault:
    @contextmanager
    def fault(learner: TorchLearner) -> Iterator[Spoilt]:
        groups = small_groups()
        readings = made_readings(groups)
        spoilt = groups[1].trajectories[0]
        place = spoilt.sampled.index(True)
        # The record itself refuses such a number: this is one that came by another way.
        object.__setattr__(spoilt, "logprobs", (*spoilt.logprobs[:place], value, *spoilt.logprobs[place + 1 :]))
        yield made_batch(learner._config.algorithm, groups, readings), {name_of(spoilt)}

    return fault


def with_bad_number(columns: Columns, row: int, sampled: tuple[bool, ...], value: float) -> Columns:
    place = len(sampled) - 1 - sampled[::-1].index(True)
    spoilt = (*columns[row][:place], value, *columns[row][place + 1 :])
    return (*columns[:row], spoilt, *columns[row + 1 :])


def bad_reading(name: str, value: float, row: int) -> Fault:
    @contextmanager
    def fault(learner: TorchLearner) -> Iterator[Spoilt]:
        groups = small_groups()
        spoilt = [t for group in groups for t in group.trajectories][row]
        readings = made_readings(groups)
        columns = with_bad_number(getattr(readings, name), row, spoilt.sampled, value)
        yield made_batch(learner._config.algorithm, groups, replace(readings, **{name: columns})), {name_of(spoilt)}

    return fault


def bad_column(name: str, value: float, row: int) -> Fault:
    @contextmanager
    def fault(learner: TorchLearner) -> Iterator[Spoilt]:
        batch = clean_batch(learner)
        spoilt = batch.trajectories[row]
        columns = with_bad_number(getattr(batch, name), row, spoilt.sampled, value)
        yield replace(batch, **{name: columns}), {name_of(spoilt)}

    return fault


def spoilt_hidden(output: Any, value: float) -> Any:
    hidden = output if isinstance(output, Tensor) else output.last_hidden_state
    spoilt = hidden.clone()
    spoilt[0, 0, 0] = value  # of the first token: every later one attends to it
    spoilt[0, -3:, 1] = value
    if isinstance(output, Tensor):
        return spoilt
    output.last_hidden_state = spoilt
    return output


def spoilt_scores(output: tuple[Tensor, Tensor], value: float, which: int) -> tuple[Tensor, Tensor]:
    column_N = output[which].clone()
    column_N[-1] = value
    return (column_N, output[1]) if which == 0 else (output[0], column_N)


@contextmanager
def hooked(module: nn.Module, call: int, change: Callable[[Any], Any]) -> Generator[None]:
    calls = count()
    handle = module.register_forward_hook(lambda *given: change(given[-1]) if next(calls) == call else None)
    try:
        yield
    finally:
        handle.remove()
    assert next(calls) > call, "the fault was never injected"


Place = Callable[[TorchLearner], nn.Module]


def bad_forward(place: Place, change: Callable[[Any], Any], pack: int) -> Fault:
    @contextmanager
    def fault(learner: TorchLearner) -> Iterator[Spoilt]:
        batch = clean_batch(learner)
        with hooked(place(learner), pack, change):
            yield batch, {episode_of_pack(learner, batch, pack)}

    return fault


def bad_demonstration(value: float, call: int) -> Fault:
    """Each minibatch has two packs of its own and then one to imitate: calls 2, 5, 8 and 11."""

    @contextmanager
    def fault(learner: TorchLearner) -> Iterator[Spoilt]:
        shown = [replace(make_trajectory([5, 6, 7, 8 + i], "ccss"), task_id="shown", member=i) for i in range(2)]
        batch = clean_batch(learner, demonstrations=shown, demonstration_weight=0.3)
        with hooked(learner.policy.scorer, call, lambda output: spoilt_scores(output, value, 0)):
            yield batch, {name_of(shown[call // 3 % 2])}

    return fault


def bad_gradient(parameter: int, value: float, pack: int) -> Fault:
    @contextmanager
    def fault(learner: TorchLearner) -> Iterator[Spoilt]:
        batch, calls = clean_batch(learner), count()

        def spoil(gradient: Tensor) -> Tensor | None:
            if next(calls) != pack:
                return None
            gradient = gradient.clone()
            gradient.view(-1)[-1] = value
            return gradient

        handle = learner.optimisation.parameters[parameter].register_hook(spoil)
        try:
            yield batch, {episode_of_pack(learner, batch, pack)}
        finally:
            handle.remove()
        assert next(calls) > pack

    return fault


def bad_backward(layer: int, value: float, pack: int) -> Fault:
    @contextmanager
    def fault(learner: TorchLearner) -> Iterator[Spoilt]:
        batch, calls = clean_batch(learner), count()

        def spoil(_: nn.Module, gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            return tuple(g * value for g in gradients) if next(calls) == pack else None

        handle = learner.policy.trunk.layers[layer].register_full_backward_pre_hook(spoil)
        try:
            yield batch, {episode_of_pack(learner, batch, pack)}
        finally:
            handle.remove()
        assert next(calls) > pack

    return fault


def layer(number: int) -> Place:
    return lambda learner: learner.policy.trunk.layers[number]


def embedding(learner: TorchLearner) -> nn.Module:
    return learner.policy.trunk.embed_tokens


def trunk(learner: TorchLearner) -> nn.Module:
    return learner.policy.trunk


def scorer(learner: TorchLearner) -> nn.Module:
    return learner.policy.scorer


def value_head(learner: TorchLearner) -> nn.Module:
    assert learner.policy.value_head is not None
    return learner.policy.value_head


def hidden(value: float) -> Callable[[Any], Any]:
    return lambda output: spoilt_hidden(output, value)


def scores(value: float, which: int = 0) -> Callable[[Any], Any]:
    return lambda output: spoilt_scores(output, value, which)


FAULTS: dict[str, Fault] = {
    **{f"reward {x} in a group": bad_reward(x, "grpo") for x in NO_NUMBERS},
    **{f"reward {x} with a critic": bad_reward(x, "gae") for x in NO_NUMBERS},
    **{f"sampled logprob {x}": bad_logprob(x) for x in NO_NUMBERS},
    **{f"read logprob {x}": bad_reading("logprobs", x, 0) for x in NO_NUMBERS},
    **{f"reference logprob {x}": bad_reading("reference_logprobs", x, 3) for x in NO_NUMBERS},
    **{f"value {x}": bad_reading("values", x, 2) for x in NO_NUMBERS},
    **{f"return {x}": bad_column("returns", x, 1) for x in NO_NUMBERS},
    **{f"advantage {x}": bad_column("advantages", x, 3) for x in NO_NUMBERS},
    "embedding nan, first pack": bad_forward(embedding, hidden(NAN), FIRST),
    "first layer nan, first pack": bad_forward(layer(0), hidden(NAN), FIRST),
    "first layer inf, second pack": bad_forward(layer(0), hidden(INF), SECOND_PACK),
    "last layer nan, later minibatch": bad_forward(layer(1), hidden(NAN), LATER_MINIBATCH),
    "last layer -inf, later epoch": bad_forward(layer(1), hidden(-INF), LATER_EPOCH),
    "trunk nan, second pack": bad_forward(trunk, hidden(NAN), SECOND_PACK),
    "trunk inf, last pack": bad_forward(trunk, hidden(INF), LAST),
    "logprob nan, first pack": bad_forward(scorer, scores(NAN), FIRST),
    "logprob -inf, second pack": bad_forward(scorer, scores(-INF), SECOND_PACK),
    "logprob inf, later minibatch": bad_forward(scorer, scores(INF), LATER_MINIBATCH),
    "logprob -inf, last pack": bad_forward(scorer, scores(-INF), LAST),
    "entropy nan, later epoch": bad_forward(scorer, scores(NAN, 1), LATER_EPOCH),
    "new value nan, first pack": bad_forward(value_head, lambda out: out * NAN, FIRST),
    "new value inf, later epoch": bad_forward(value_head, lambda out: out + INF, LATER_EPOCH),
    "demonstration nan, first": bad_demonstration(NAN, 2),
    "demonstration -inf, later minibatch": bad_demonstration(-INF, 5),
    "demonstration inf, later epoch": bad_demonstration(INF, 8),
    **{f"gradient {x}, first pack": bad_gradient(0, x, FIRST) for x in NO_NUMBERS},
    **{f"gradient {x}, later minibatch": bad_gradient(5, x, LATER_MINIBATCH) for x in NO_NUMBERS},
    "gradient nan of the value head, second pack": bad_gradient(-1, NAN, SECOND_PACK),
    "gradient inf, later epoch": bad_gradient(-3, INF, LATER_EPOCH),
    "gradient nan, last pack": bad_gradient(2, NAN, LAST),
    "gradient beyond what a norm can hold": bad_gradient(3, 1e30, SECOND_PACK),
    "backward nan in the last layer": bad_backward(1, NAN, FIRST),
    "backward inf in the first layer, later minibatch": bad_backward(0, INF, LATER_MINIBATCH),
}


def fingerprint(learner: TorchLearner) -> str:
    """SHA-256 of all parameters, of the optimiser's state, and of the schedule."""
    digest = hashlib.sha256()
    for name, parameter in learner.policy.named_parameters():
        digest.update(name.encode())
        digest.update(parameter.detach().contiguous().numpy().tobytes())
    optimisation = learner.optimisation
    saved = optimisation.optimiser.state_dict()
    assert saved["state"], "the optimiser has no momentum yet"
    for number, state in saved["state"].items():
        for name, tensor in state.items():
            digest.update(f"{number} {name}".encode())
            digest.update(tensor.detach().contiguous().numpy().tobytes())
    digest.update(repr(saved["param_groups"]).encode())
    digest.update(repr(optimisation.schedule.last_epoch).encode())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    model = save_small_model(tmp_path_factory.mktemp("non-finite-model"))
    return small_config(
        model,
        algorithm=OBJECTIVE,
        tokens_per_pack=1,
        learning_rate=2e-4,
        lora_rank=2,
        schedule="linear",
        warmup_steps=3,
    )


@pytest.fixture(scope="module")
def twins(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[TorchLearner, TorchLearner]]:
    """One learner that meets every fault, and one that never does. Both have made an update."""
    folder = tmp_path_factory.mktemp("weights")
    with pytest.MonkeyPatch.context() as patch:
        # Adapters are written without the page about them, which takes as long as the rest of the update.
        patch.setattr(PeftModel, "create_or_update_model_card", lambda *_: None)
        made = small_learner(config, folder / "faulty"), small_learner(config, folder / "clean")
        for learner in made:
            learner._update(clean_batch(learner))
        assert fingerprint(made[0]) == fingerprint(made[1])
        yield made


def test_there_are_at_least_fifty_faults():
    assert len(FAULTS) >= 50


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_an_update_that_meets_no_number_never_was(fault, twins):
    learner, _ = twins
    before, folders = fingerprint(learner), sorted(learner._folder.iterdir())
    version = learner._weights.version
    with fault(learner) as (batch, episodes):
        update = learner._update(batch)
    learner._non_finite_in_a_row = 0  # a third in a row would end the run
    assert fingerprint(learner) == before
    assert update.skipped is not None
    assert {
        name_of(t) for t in (*batch.trajectories, *batch.demonstrations) if name_of(t) in update.skipped
    } == episodes
    assert update.weights.version == version
    assert sorted(learner._folder.iterdir()) == folders
    assert (update.metrics["update_skipped"], update.metrics["nonfinite"]) == (1.0, 1.0)


def test_the_update_after_all_of_them_is_the_one_that_would_have_been_made_without(twins):
    learner, clean = twins
    before, version = fingerprint(learner), learner._weights.version
    for either in twins:
        update = either._update(clean_batch(either))
        assert update.skipped is None
        assert update.metrics["nonfinite_in_a_row"] == 0.0
        assert update.weights.version == version + 1
    assert fingerprint(learner) == fingerprint(clean) != before


async def test_three_in_a_row_end_the_run_and_a_good_update_starts_the_count_anew(config, tmp_path):
    learner = small_learner(config, tmp_path)
    await learner.update(clean_batch(learner))
    spoilt = made_batch(config.algorithm, small_groups(rewards=(1.0, NAN, 0.3, 0.9)))
    in_a_row: list[float] = []
    for batch in (spoilt, spoilt, clean_batch(learner), spoilt, spoilt):
        in_a_row.append((await learner.update(batch)).metrics["nonfinite_in_a_row"])
    assert in_a_row == [1.0, 2.0, 0.0, 1.0, 2.0]
    before = fingerprint(learner)
    with pytest.raises(NonFiniteError, match=r"3 updates in a row .* episode 1 of task task-0 in step 0"):
        await learner.update(spoilt)
    assert fingerprint(learner) == before
    assert sorted(os.listdir(tmp_path)) == ["v1", "v2"]


def test_a_lower_learning_rate_ends_the_overflows(taught_qwen3, tmp_path):
    model = save_small_model(tmp_path / "model")
    for tokenizer in taught_qwen3.glob("tokenizer*"):
        shutil.copy(tokenizer, model)

    def learn(learning_rate: float) -> str | None:
        config = small_config(model, algorithm={"minibatches": 2}, learning_rate=learning_rate, tuning="full")
        learner = small_learner(config, tmp_path / str(learning_rate))
        return [learner._update(clean_batch(learner)).skipped for _ in range(3)][-1]

    with pytest.raises(NonFiniteError, match="3 updates in a row") as caught:
        learn(1e9)
    assert (
        caught.value.fix == "inspect the episodes named in the message; lower learner.learning_rate"
    )  # it is in float32
    assert learn(2e-4) is None

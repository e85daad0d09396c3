"""A real vLLM is killed again and again while turns are in flight and adapters change: no turn is lost, none is wrong.

MCPRL_VLLM_KILLS says how often; a server takes half a minute to start. The first kill is amid a publication, the second
after one, and so on in turns. Of three kills, two hit the engine's process and one the process that takes requests.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from shared_vllm import ANSWER_S
from transformers import AutoModelForCausalLM

from mcprl.config import LearnerConfig, ModelConfig, SamplingConfig
from mcprl.records import Weights
from mcprl.samplers import Completion, SampleRequest
from mcprl.samplers.vllm import VllmSampler

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

KILLS = int(os.environ.get("MCPRL_VLLM_KILLS", "1"))
TURNS_AT_ONCE = 6
REQUEST = SampleRequest(
    prompt_ids=tuple(range(100, 160)), max_tokens=40, temperature=0.8, stop=(), stop_token_ids=(), seed=0
)


@dataclass
class Turn:
    """One turn, and the versions in force from when it was asked for to when it was there."""

    request: SampleRequest
    done: Completion
    in_force: set[int]


@dataclass
class Observed:
    turns: list[Turn] = field(default_factory=list)
    detected_s: list[float] = field(default_factory=list)
    again: list[tuple[Turn, Completion]] = field(default_factory=list)
    restarts: int = 0
    in_flight: list[int] = field(default_factory=list)  # turns, at each kill
    asked: int = 0


@pytest.fixture(scope="module")
def adapters(small_qwen3, tmp_path_factory) -> list[Weights]:
    """The base and, for each kill, an adapter with weights that matter."""
    folder = tmp_path_factory.mktemp("adapters")
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(small_qwen3, dtype="float32"),
        LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"]),
    )
    weights = [Weights(version=0)]
    for version in range(1, KILLS + 2):
        generator = torch.Generator().manual_seed(version)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_" in name:
                    parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
        model.save_pretrained(folder / f"v{version}")
        weights.append(Weights(version=version, adapter=folder / f"v{version}"))
    return weights


def engine_of(sampler: VllmSampler) -> int:
    """The process that computes, behind the one that takes requests."""
    [engine] = [
        p for p in psutil.Process(sampler.replicas[0].pid).children(recursive=True) if "EngineCore" in p.cmdline()[0]
    ]
    return engine.pid


class Noticed(logging.Handler):
    """When the sampler said that the server has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.at = asyncio.Queue[float]()

    def emit(self, record: logging.LogRecord) -> None:
        if "ended with exit code" in record.getMessage():
            self.at.put_nowait(record.created)


@pytest.fixture(scope="module")
def observed(small_qwen3, adapters, tmp_path_factory) -> Observed:
    return asyncio.run(observe(small_qwen3, adapters, tmp_path_factory.mktemp("logs") / "vllm.log"))


async def observe(model: Path, adapters: list[Weights], log: Path) -> Observed:
    seen = Observed()
    noticed, logger = Noticed(), logging.getLogger("mcprl.samplers.vllm_server")
    logger.addHandler(noticed)
    sampler = VllmSampler(
        ModelConfig(path=str(model), dtype="float32", context_tokens=256),
        SamplingConfig(),
        LearnerConfig(lora_rank=4),
        max_sequences=TURNS_AT_ONCE,
        turn_deadline_s=ANSWER_S,
        log=log,
    )
    try:
        async with sampler:
            await kill_while_sampling(sampler, adapters, noticed, seen)
            # The version in force last once more, with the same seeds and no kill: the same turns.
            last = [turn for turn in seen.turns if turn.done.weights_versions[0] == adapters[-1].version]
            seen.again = [(turn, await sampler.sample(turn.request)) for turn in last[:3]]
            seen.restarts = sampler.restarts
    finally:
        logger.removeHandler(noticed)
    return seen


async def kill_while_sampling(sampler: VllmSampler, adapters: list[Weights], noticed: Noticed, seen: Observed) -> None:
    """Turns one after the other in several places, until the last version has been sampled from."""
    published, in_force = [adapters[0].version], 0  # versions, and the place of the last whose publication has ended
    seeds = iter(range(10_000))
    at_work: set[int] = set()
    sampled = asyncio.Event()
    over = False

    async def play(place: int) -> None:
        while not over:
            request, first = replace(REQUEST, seed=next(seeds)), in_force
            at_work.add(place)
            seen.asked += 1
            done = await sampler.sample(request)
            at_work.discard(place)
            seen.turns.append(Turn(request, done, set(published[first:])))
            sampled.set()

    async def wait_for_a_turn() -> None:
        sampled.clear()
        await sampled.wait()

    async with asyncio.TaskGroup() as group:
        for place in range(TURNS_AT_ONCE):
            group.create_task(play(place))
        for kill, weights in enumerate(adapters[1:-1]):
            await wait_for_a_turn()
            # Every other kill meets a publication half-way.
            published.append(weights.version)
            publication = asyncio.create_task(sampler.publish(weights))
            if kill % 2:
                await publication
                in_force = len(published) - 1
                await wait_for_a_turn()
            else:
                await asyncio.sleep(0)
            seen.in_flight.append(len(at_work))
            killed = time.time()
            os.kill(sampler.replicas[0].pid if kill % 3 == 2 else engine_of(sampler), signal.SIGKILL)
            seen.detected_s.append(await noticed.at.get() - killed)
            await publication
            in_force = len(published) - 1
        published.append(adapters[-1].version)
        await sampler.publish(adapters[-1])
        in_force = len(published) - 1
        for _ in range(2 * TURNS_AT_ONCE):
            await wait_for_a_turn()
        over = True


def test_each_end_is_noticed_and_another_server_takes_its_place(observed, record_property):
    record_property("detected_s_max", round(max(observed.detected_s), 3))
    record_property("kills", KILLS)
    assert len(observed.detected_s) == observed.restarts == KILLS


def test_no_turn_is_lost_and_each_is_of_a_version_that_was_in_force_meanwhile(observed, adapters, record_property):
    lost = observed.asked - len(observed.turns)
    record_property("turns_lost", lost)
    record_property("turns", len(observed.turns))
    assert lost == 0
    assert min(observed.in_flight) >= 1
    for turn in observed.turns:
        [version] = set(turn.done.weights_versions)
        assert version in turn.in_force
    assert {turn.done.weights_versions[0] for turn in observed.turns} >= {0, adapters[-1].version}


@torch.no_grad()
def test_turns_have_the_logprobs_of_the_version_they_are_stamped_with(observed, adapters, small_qwen3, record_property):
    errors: list[float] = []
    for weights in adapters:
        of_it = [turn for turn in observed.turns if turn.done.weights_versions[0] == weights.version]
        model = AutoModelForCausalLM.from_pretrained(small_qwen3, dtype="float32").eval()
        if weights.adapter is not None:
            model = PeftModel.from_pretrained(model, weights.adapter).eval()
        errors += [max_error(model, turn) for turn in (*of_it[:1], *of_it[-2:])]
        others = [turn for turn in observed.turns if turn.done.weights_versions[0] != weights.version]
        assert max_error(model, others[0]) > 0.01  # another version's weights would have been noticed
    record_property("max_abs_error", max(errors))
    assert max(errors) <= 1e-4


def max_error(model: torch.nn.Module, turn: Turn) -> float:
    prompt, done = turn.request.prompt_ids, turn.done
    logit_TV = model(input_ids=torch.tensor([[*prompt, *done.token_ids]])).logits[0, len(prompt) - 1 : -1]
    logprob_TV = torch.log_softmax(logit_TV.double() / turn.request.temperature, dim=-1)
    logprob_T = logprob_TV.gather(1, torch.tensor(done.token_ids)[:, None])[:, 0]
    return float((logprob_T - torch.tensor(done.logprobs)).abs().max())


def test_a_turn_that_is_asked_for_again_is_the_same_turn(observed):
    assert observed.again
    for turn, again in observed.again:
        assert again.token_ids == turn.done.token_ids
        assert max(abs(a - b) for a, b in zip(again.logprobs, turn.done.logprobs, strict=True)) <= 1e-4

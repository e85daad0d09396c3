"""Which GPUs sample and which learn, for all sizes of machines, and the environments of their processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcprl import placement
from mcprl.config import RunConfig
from mcprl.errors import BadValueError
from mcprl.placement import Placement, free_share, gpu_memories, place, visible
from mcprl.recipe import load_recipe

QWEN = Path(__file__).parents[2] / "recipes" / "qwen3-0.6b-lora-vllm.yaml"
FOUR = ("learner.processes=4",)
STALE = ("training.max_staleness=1",)


def recipe(*overrides: str) -> RunConfig:
    return load_recipe(QWEN, ["sampling.vllm.memory_fraction=null", *overrides])


PLACED = {
    "no GPU": ((), 0, [()], (), False, 0.9),
    "no GPU, two replicas": (("placement.sampler.replicas=2",), 0, [(), ()], (), False, 0.9),
    "one card": ((), 1, [(0,)], (0,), True, 0.85),
    "one card, asynchronous": (STALE, 1, [(0,)], (0,), False, 0.5),
    "two cards": ((), 2, [(0,)], (1,), False, 0.9),
    "a node": (FOUR, 8, [(0,), (1,), (2,), (3,)], (4, 5, 6, 7), False, 0.9),
    "a node, tensor parallel": (
        (*FOUR, "placement.sampler.tensor_parallel=2"),
        8,
        [(0, 1), (2, 3)],
        (4, 5, 6, 7),
        False,
        0.9,
    ),
    "as many processes as cards": (FOUR, 4, [(0,), (1,), (2,), (3,)], (0, 1, 2, 3), True, 0.85),
    "colocated on a node": (
        (*FOUR, "placement.learner.colocated=true"),
        8,
        [(n,) for n in range(8)],
        (0, 1, 2, 3),
        True,
        0.85,
    ),
    "named devices": (
        (*FOUR, "placement.sampler.devices=[6,7]", "placement.learner.devices=[0,1,2,3]"),
        8,
        [(6,), (7,)],
        (0, 1, 2, 3),
        False,
        0.9,
    ),
    "the sampler's devices alone": (("placement.sampler.devices=[0]",), 2, [(0,)], (1,), False, 0.9),
    "the learner's device alone": (("placement.learner.devices=[0]",), 2, [(1,)], (0,), False, 0.9),
    "not colocated on one card": (("placement.learner.colocated=false",), 1, [(1,)], (0,), False, 0.9),
}


@pytest.mark.parametrize(("overrides", "gpus", "replicas", "learner", "in_turns", "share"), PLACED.values(), ids=PLACED)
def test_the_rest_of_the_placement_follows_from_the_machine(overrides, gpus, replicas, learner, in_turns, share):
    placed = place(recipe(*overrides), gpus)
    assert (list(placed.replicas), placed.learner) == (replicas, learner)
    assert (placed.in_turns, placed.vllm_share) == (in_turns, share)
    assert placed.gpus <= gpus or "placement.learner.colocated=false" in overrides


def test_with_servers_that_already_run_all_gpus_are_for_the_learner():
    placed = place(recipe("placement.sampler.urls=['http://a:8000','http://b:8000']"), 1)
    assert (placed.urls, placed.replicas, placed.learner) == (("http://a:8000", "http://b:8000"), (), (0,))
    assert placed.drawn() == "2 vLLM servers elsewhere | GPU 0: learner"


@pytest.mark.parametrize(
    ("placed", "drawn"),
    [
        (Placement(), "everything on the CPU"),
        (Placement(replicas=((0,), (1,)), learner=(2, 4)), "GPUs 0-1: vLLM ×2 | GPUs 2,4: learner ×2"),
        (Placement(replicas=((0,),), learner=(0,), in_turns=True), "GPU 0: vLLM and learner, in turns"),
        (Placement(replicas=((0,),), learner=(0,)), "GPU 0: vLLM and learner, at the same time"),
    ],
)
def test_it_is_drawn_in_a_line(placed, drawn):
    assert placed.drawn() == drawn


REFUSED = {
    "too few devices": (("placement.sampler.replicas=2", "placement.sampler.devices=[0]"), "replicas with"),
    "urls and replicas": (("placement.sampler.urls=['http://a:1']", "placement.sampler.replicas=2"), "already run"),
    "a device for both": (
        ("placement.sampler.devices=[0]", "placement.learner.devices=[0]", "placement.learner.colocated=false"),
        "both name GPU 0",
    ),
    "colocated apart": (
        ("placement.sampler.devices=[0]", "placement.learner.devices=[1]", "placement.learner.colocated=true"),
        "no GPU in common",
    ),
    "colocated, asynchronous": (("placement.learner.colocated=true", *STALE), "training.max_staleness=0"),
    "colocated without vLLM": (("placement.learner.colocated=true", "engine=transformers"), "requires engine=vllm"),
    "a device per process": (("placement.learner.devices=[0,1]",), "one GPU per process"),
}


@pytest.mark.parametrize(("overrides", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused_when_the_recipe_is_read(overrides, words):
    with pytest.raises(BadValueError, match=words):
        recipe(*overrides)


ROWS = "0, GPU-aaaa-1, 24564, 24000\n1, GPU-bbbb-2, 24564, 1024\n2, GPU-cccc-3, 81920, 40960\n"


@pytest.fixture
def driver(monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '{ROWS}'\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpu_memories.cache_clear()
    yield
    gpu_memories.cache_clear()


@pytest.mark.process
@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    ("given", "gib", "names"),
    [(None, [24, 24, 80], "1,2"), ("2,0", [80, 24], "0"), ("GPU-bbbb,GPU-cccc", [24, 80], "GPU-cccc"), ("", [], None)],
)
def test_only_visible_gpus_count_and_are_passed_on_under_their_names(monkeypatch, given, gib, names):
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert [round(memory / 2**30) for memory in gpu_memories()] == gib
    if names is not None:
        assert visible([1, 2] if given is None else [1]) == names


@pytest.mark.process
@pytest.mark.usefixtures("driver")
def test_the_free_share_is_that_of_the_fullest_gpu():
    assert free_share((0, 2)) == 0.5
    assert free_share((1,)) == pytest.approx(1024 / 24564)


def test_a_gpu_that_is_not_visible_is_named(monkeypatch):
    monkeypatch.setattr(placement, "_visible_names", lambda: ["4", "5"])
    with pytest.raises(BadValueError, match="uses GPU 2, but CUDA_VISIBLE_DEVICES lists only 2: 4,5"):
        visible((2,))
